//! Runs: begun, waited for, watched, sent input, listed, cancelled.
//!
//! A request that is aborted cancels its run, except with `detach`, with `wait: 0`, or with an idempotency key, whose
//! client will repeat the request.
//!
//! Events are server-sent events: the id is the event's number, so that a reader can resume. The stream pulls from the
//! run's log; a reader that is slow or never reads costs the run nothing. Input is unchanged bytes, one piece for each
//! request.

use std::time::Duration;

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response, sse::Event},
};
use futures_util::StreamExt as _;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use super::{ApiParts, Call, arguments, page};
use crate::{
    api::{
        http::{Answer, Reply, RequestBody, error::ApiError, parts::KeyedRequest, sse},
        schema::{
            Binary,
            arguments::{WAIT_S_MAX, Wait},
            event::{RunEvent, RunEventStream},
            parse::{Source, parse},
            run::{CreateRun, RunList, RunStatus},
        },
    },
    domain::{Code, ConversationId, Failure, Limits, Principal, RunId},
    services::{
        history::{self, History},
        idempotency::Once,
        runs::{INPUT_BYTES_MAX, Run, RunRequest, RunState, RunView},
    },
};

/// How long a cancelled program is waited for.
const CANCEL_WAIT: Duration = Duration::from_secs(5);

/// Run a program.
///
/// The answer waits for the end of the program, at most for `wait` seconds: 200 with the result, or 202 with the
/// run that goes on. With the header `Idempotency-Key` the same request begins one run however often it is sent.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", operation_id = "createRun",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "A text that the client chooses, another one for each run.",
        pattern = "^[!-~]+$", min_length = 1, max_length = 255)),
    request_body(content = CreateRun),
    responses(
        (status = 200, description = "The run is over.", body = RunStatus),
        (status = 202, description = "The run goes on; `Location` is its address.", body = RunStatus,
            headers(("location" = String, description = "The run."))),
    ),
)]
pub(super) async fn create(call: Call, body: RequestBody) -> Reply {
    let (members, key) = call.repeatable("", body).await?;
    let create: CreateRun = parse(members, Source::Json)?;
    let limits = create.checked(call.parts.runs.limits())?;
    let (conversation, wait, detach) = (create.conversation.clone(), create.wait, create.detach);
    begin(&call, (key, conversation.as_ref()), (wait, detach), || Ok(request(&call, create, limits))).await
}

/// Begins a run, unless an earlier request with its key has, and waits for its end.
pub(super) async fn begin(
    call: &Call,
    (key, conversation): (KeyedRequest, Option<&ConversationId>),
    (wait, detach): (Option<Wait>, Option<bool>),
    request: impl FnOnce() -> Result<RunRequest, Failure>,
) -> Reply {
    let ApiParts { runs, keys, .. } = &call.parts;
    let wait = wait.map(|wait| wait.0);
    let leaves = key.is_some() || wait == Some(Duration::ZERO);
    let detach = if leaves { Some(true) } else { detach };
    let start = |id| runs.begin(RunRequest { id, detach, ..request()? });
    let begun = match key {
        None => Once::New(start(None)?),
        Some(key) => keys.once(&call.who, conversation, key, |run| start(Some(run))).await?,
    };
    let mut response = match begun {
        Once::New(handle) => {
            let view = waited(&handle, wait).await?;
            // It continues after a request that did not wait for its end: the answer holds its address.
            if view.state != RunState::Finished {
                handle.detach();
            }
            shown(&RunStatus::whole(&view))
        }
        Once::Again(run) => {
            let mut response = match runs.get(&call.who, run) {
                Ok(run) => shown(&RunStatus::whole(&waited(&run, wait).await?)),
                Err(failure) if call.others_may_know => return Err(failure.into()),
                Err(_) => recorded(&call.parts.history, &call.who, run).await?,
            };
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
            response
        }
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

fn request(call: &Call, create: CreateRun, limits: Option<Limits>) -> RunRequest {
    let conversation = create.conversation.unwrap_or_else(ConversationId::fresh);
    RunRequest {
        args: create.args.unwrap_or_default(),
        env: create.env.unwrap_or_default(),
        network: create.network,
        stdin: create.stdin.unwrap_or_default().into(),
        stdin_open: create.stdin_open.unwrap_or(false),
        limits,
        within: call.trace,
        ..RunRequest::new(call.key(conversation), create.language, create.code.0)
    }
}

async fn waited(run: &Run, wait: Option<Duration>) -> Reply<RunView> {
    let view = run.wait(wait.unwrap_or(Duration::from_secs(WAIT_S_MAX))).await;
    match &view.result {
        Some(Err(failure)) => Err(ApiError::of_run(view.run, failure.clone())),
        _ => Ok(view),
    }
}

/// The run of a key from the history. One that is not there may have begun nevertheless.
async fn recorded(recorder: &History, who: &Principal, run: RunId) -> Reply {
    let line = recorder.run(who, run).await.map_err(|failure| match failure.code {
        Code::RunNotFound => {
            let why = "The server ended before it recorded what came of the run of this key; it was not run again.";
            Failure::new(Code::ServerLost, why)
        }
        _ => failure,
    })?;
    let failure = line.end.as_ref().and_then(history::failure);
    failure.map_or_else(|| Ok(shown(&RunStatus::recorded(&line))), |failure| Err(ApiError::of_run(run, failure)))
}

fn shown(run: &RunStatus) -> Response {
    let status = if run.state == RunState::Finished.word() { StatusCode::OK } else { StatusCode::ACCEPTED };
    (status, [(header::LOCATION, format!("/v1/runs/{}", run.run_id))], Json(run)).into_response()
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListRuns {
    /// Only those of this conversation.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    conversation_id: Option<ConversationId>,
    /// The `after` of the previous page.
    #[param(value_type = Option<String>, pattern = "^run-[0-9a-f]{32}$")]
    after: Option<RunId>,
    /// Maximum number of items; default 50.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    limit: Option<u64>,
}

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct WaitForRun {
    /// How many seconds to wait for the end.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 3600)]
    wait: Option<Wait>,
}

/// List runs, newest first.
///
/// Finished runs are kept for a limited time.
#[utoipa::path(
    get, path = "/v1/runs", tag = "runs", operation_id = "listRuns",
    params(ListRuns),
    responses((status = 200, description = "A page of runs, without output and files.", body = RunList)),
)]
pub(super) async fn list(call: Call<ListRuns>) -> Answer<RunList> {
    let page =
        call.parts.runs.list(&call.who, call.query.conversation_id.as_ref(), call.query.after, page(call.query.limit)?);
    Ok(Json(RunList::from(&page)))
}

/// How many runs the list has at most that a query asks for.
pub(in crate::api::http) fn page_max(query: &str) -> Result<usize, Failure> {
    page(arguments::<ListRuns>(query)?.limit)
}

/// Read a run.
///
/// While the program runs, the answer waits for its end for at most `wait` seconds. A run that is no longer in memory,
/// also one from before a restart, is read from the history: its outcome and its figures, without output and files.
#[utoipa::path(
    get, path = "/v1/runs/{runId}", tag = "runs", operation_id = "getRun",
    params(WaitForRun),
    responses((status = 200, description = "The run as it is now.", body = RunStatus)),
)]
pub(super) async fn get(call: Call<WaitForRun>) -> Answer<RunStatus> {
    let (wait, id) = (call.query.wait.map_or(Duration::ZERO, |wait| wait.0), call.run()?);
    match call.parts.runs.get(&call.who, id) {
        Ok(run) => Ok(Json(RunStatus::with_source(&run.wait(wait).await))),
        Err(failure) if call.others_may_know => Err(failure.into()),
        Err(_) => Ok(Json(RunStatus::recorded(&call.parts.history.run_within(wait, &call.who, id).await?))),
    }
}

/// Stop a run.
///
/// The answer comes when the program has ended, or after five seconds. A finished run is not changed.
#[utoipa::path(
    post, path = "/v1/runs/{runId}/cancel", tag = "runs", operation_id = "cancelRun",
    responses((status = 200, description = "The run as it is now.", body = RunStatus)),
)]
pub(super) async fn cancel(call: Call) -> Answer<RunStatus> {
    let run = call.parts.runs.get(&call.who, call.run()?)?;
    run.cancel();
    Ok(Json(RunStatus::whole(&run.wait(CANCEL_WAIT).await)))
}

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
        WatchRun,
        ("Last-Event-ID" = Option<u64>, Header, minimum = 0,
            description = "The same as `after`, as browsers send it; it takes precedence."),
    ),
    responses(
        (status = 200, description = "The events.", content_type = "text/event-stream", body = RunEventStream),
        (status = 204, description = "The run is over and nothing follows."),
    ),
)]
pub(super) async fn watch(call: Call<WatchRun>) -> Reply {
    let run = call.run()?;
    let after = last_event_id(&call)?.or(call.query.after).unwrap_or(0);
    let run = call.parts.runs.get(&call.who, run)?;
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
    params(SendInput),
    request_body(content = Binary, content_type = "application/octet-stream", description = "The bytes, or none."),
    responses((status = 202, description = "It was accepted and is sent to the program.")),
)]
pub(super) async fn input(call: Call<SendInput>, body: RequestBody) -> Reply<StatusCode> {
    let last = call.query.eof.unwrap_or(false);
    // No body is read for a run that does not exist.
    let run = call.parts.runs.get(&call.who, call.run()?)?;
    let bytes = body.at_most(INPUT_BYTES_MAX).read().await?;
    run.send_input(bytes, last).await?;
    Ok(StatusCode::ACCEPTED)
}
