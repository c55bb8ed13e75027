//! The events of a run, as server-sent events: the id is the event's number, so that a reader can resume. The stream
//! pulls from the run's log; a reader that is slow or never reads costs the run nothing.

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
        http::{Reply, sse},
        schema::run::{RunEvent, RunEventStream},
    },
    domain::error::Failure,
    services::runs::{RunState, Runs},
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
