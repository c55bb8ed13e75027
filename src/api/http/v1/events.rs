//! What goes on with a run: its events to the client, and the client's input to the program.
//!
//! Events are server-sent events: the id is the event's number, so that a reader can resume. The stream pulls from the
//! run's log; a reader that is slow or never reads costs the run nothing. Input is unchanged bytes, one piece for each
//! request.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, sse::Event},
};
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use super::{call::Call, names::InRun};
use crate::{
    api::{
        http::{Reply, body::RequestBody, sse},
        schema::{
            Binary,
            run::{RunEvent, RunEventStream},
        },
    },
    domain::error::Failure,
    services::runs::{INPUT_BYTES_MAX, RunState, Runs},
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WatchRun {
    /// The number of the last event that the client has.
    #[param(minimum = 0)]
    after: Option<u64>,
}

/// Watch a run.
///
/// Server-sent events: the kept ones, then each new one, to the last. `id` is the event's number, `event` its
/// kind, `data` a `RunEvent`. A client that reconnects sends `Last-Event-ID`; 204 means that nothing follows.
#[utoipa::path(
    get, path = "/v1/runs/{runId}/events", tag = "runs", operation_id = "watchRun",
    params(
        InRun,
        WatchRun,
        ("Last-Event-ID" = Option<u64>, Header, minimum = 0,
            description = "The same as `after`, as browsers send it; it takes precedence."),
    ),
    responses(
        (status = 200, description = "The events.", content_type = "text/event-stream", body = RunEventStream),
        (status = 204, description = "The run is over and nothing follows."),
    ),
)]
pub(super) async fn watch(State(runs): State<Runs>, call: Call<WatchRun>) -> Reply {
    let run = call.run()?;
    let after = last_event_id(&call)?.or(call.query.after).unwrap_or(0);
    let run = runs.get(&call.who, run)?;
    let view = run.view();
    if view.state == RunState::Finished && after >= view.newest {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let events = run.events(after.saturating_add(1)).map(|event| {
        let event = RunEvent::from(&event);
        Event::default().id(event.number.to_string()).event(event.kind).data(json!(event).to_string())
    });
    Ok(sse::answer(events))
}

fn last_event_id(call: &Call<WatchRun>) -> Result<Option<u64>, Failure> {
    let Some(value) = call.headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.map(Some).ok_or_else(|| Failure::argument("Last-Event-ID", "it is not the number of an event"))
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct SendInput {
    /// Whether this piece is the last.
    eof: Option<bool>,
}

/// Send a running program input.
///
/// For a run that was begun with `stdinOpen`. The body is the next piece of the program's standard input, of any kind
/// and at most 1 MiB; it is accepted completely or not at all, and pieces keep the order of their answers. `eof` ends
/// the input after it. A piece for a program that has not started is kept. While a program does not read, the answer
/// waits up to five seconds and is then 429.
#[utoipa::path(
    post, path = "/v1/runs/{runId}/stdin", tag = "runs", operation_id = "sendInput",
    params(InRun, SendInput),
    request_body(content = Binary, content_type = "application/octet-stream", description = "The bytes, or none."),
    responses((status = 202, description = "It was accepted and is sent to the program.")),
)]
pub(super) async fn input(State(runs): State<Runs>, call: Call<SendInput>, body: RequestBody) -> Reply<StatusCode> {
    let last = call.query.eof.unwrap_or(false);
    // No body is read for a run that does not exist.
    let run = runs.get(&call.who, call.run()?)?;
    let bytes = body.at_most(INPUT_BYTES_MAX).read().await?;
    run.send_input(bytes, last).await?;
    Ok(StatusCode::ACCEPTED)
}
