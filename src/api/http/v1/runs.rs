//! Runs: begun, waited for, listed, cancelled.
//!
//! A request that is broken off cancels the run that it began, unless it asked for another: with `detach`, with `wait: 0`,
//! or with an idempotency key, which says that it will ask again.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use sha2::{Digest as _, Sha256};

use super::call::Call;
use crate::{
    api::{
        http::{
            body::{Bodies, discard},
            failure::Refused,
        },
        schema::{
            arguments::{
                WAIT_S_MAX,
                create_run::{CreateRun, CreateRunBody},
            },
            run::{RunList, RunStatus},
        },
    },
    domain::{error::Failure, id::ConversationId, limits::Limits, owner::ConversationKey},
    services::{
        idempotency::{Idempotency, Once},
        runs::{Run, RunHandle, RunRequest, RunState, RunView, Runs},
    },
};

/// How long a cancelled program is waited for.
const CANCEL_WAIT: Duration = Duration::from_secs(5);
const KEY_CHARS_MAX: usize = 255;

/// Run a program.
///
/// The answer waits for the end of the program, at most for `wait` seconds: 200 with what came of it, or 202 with the run
/// that goes on. With the header `Idempotency-Key` the same request begins one run however often it is sent.
#[utoipa::path(
    post, path = "/v1/runs", tag = "runs", operation_id = "createRun",
    params(("Idempotency-Key" = Option<String>, Header, description = "A text of the client's choice, new for each run.",
        pattern = "^[!-~]+$", min_length = 1, max_length = 255)),
    request_body(content = CreateRunBody),
    responses(
        (status = 200, description = "The run is over.", body = RunStatus),
        (status = 202, description = "The run goes on; `Location` says where to ask for it.", body = RunStatus,
            headers(("location" = String, description = "The run."))),
    ),
)]
pub(super) async fn create(
    State(runs): State<Runs>,
    State(keys): State<Arc<Idempotency>>,
    State(bodies): State<Bodies>,
    State(server): State<Limits>,
    call: Call,
    body: Body,
) -> Result<Response, Refused> {
    call.query(&[])?;
    let key = idempotency_key(&call)?;
    // What would be refused is refused unread; a run that there is already needs no room.
    let again = key.as_ref().is_some_and(|key| keys.knows(&call.who, key));
    if let (false, Err(full)) = (again, runs.check_capacity(&call.who)) {
        discard(body).await;
        return Err(full.into());
    }
    let (members, bytes) = bodies.json(&call.headers, body).await?;
    let asked = CreateRun::parse(members, &server)?;
    let wait = asked.wait;
    let leaves = key.is_some() || wait == Some(Duration::ZERO);
    let detach = if leaves { Some(true) } else { asked.detach };
    let start = || runs.begin(RunRequest { detach, ..request(&call, asked) });
    let begun = match key {
        None => Once::New(start()?),
        Some(key) => keys.once(&call.who, key, Sha256::digest(&bytes).into(), start)?,
    };
    let mut response = match begun {
        Once::New(handle) => {
            let view = waited(&handle, wait).await?;
            outlive(handle, &view);
            answer(&view)
        }
        Once::Again(run) => {
            let mut response = answer(&waited(&*runs.get(&call.who, run)?, wait).await?);
            response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
            response
        }
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// Who did not wait for the end has been told where to find it.
fn outlive(handle: RunHandle, view: &RunView) {
    if view.state != RunState::Finished {
        handle.detach();
    }
}

fn request(call: &Call, asked: CreateRun) -> RunRequest {
    let conversation = asked.conversation.unwrap_or_else(ConversationId::fresh);
    RunRequest {
        args: asked.args,
        stdin: asked.stdin,
        stdin_open: asked.stdin_open,
        limits: asked.limits,
        within: call.trace,
        ..RunRequest::new(ConversationKey::new(call.who.clone(), conversation), asked.language, asked.code)
    }
}

async fn waited(run: &Run, wait: Option<Duration>) -> Result<RunView, Failure> {
    let view = run.wait(wait.unwrap_or(Duration::from_secs(WAIT_S_MAX))).await;
    match &view.result {
        Some(Err(failure)) => Err(failure.clone()),
        _ => Ok(view),
    }
}

fn answer(view: &RunView) -> Response {
    let status = if view.state == RunState::Finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = (status, Json(RunStatus::whole(view))).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/v1/runs/{}", view.run)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

fn idempotency_key(call: &Call) -> Result<Option<String>, Failure> {
    let mut keys = call.headers.get_all("idempotency-key").iter();
    let (key, None) = (keys.next(), keys.next()) else {
        return Err(Failure::argument("Idempotency-Key", "it is there twice: send it once"));
    };
    let Some(key) = key else { return Ok(None) };
    let text = key.to_str().ok().map(str::trim).filter(|text| (1..=KEY_CHARS_MAX).contains(&text.len()));
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    let why = format!("it must be 1 to {KEY_CHARS_MAX} visible characters");
    text.map(|text| Some(text.to_owned())).ok_or_else(|| Failure::argument("Idempotency-Key", why))
}

/// List runs, newest first.
///
/// Runs that are over are kept for a while.
#[utoipa::path(
    get, path = "/v1/runs", tag = "runs", operation_id = "listRuns",
    params(
        ("conversationId" = Option<String>, Query, description = "Only those of this conversation.",
            pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128),
        ("after" = Option<String>, Query, description = "The `after` of the page before.",
            pattern = "^run-[0-9a-f]{32}$"),
        ("limit" = Option<u32>, Query, description = "How many at most; 50 where it is not said.",
            minimum = 1, maximum = 200),
    ),
    responses((status = 200, description = "A page of runs, without output and files.", body = RunList)),
)]
pub(super) async fn list(State(runs): State<Runs>, call: Call) -> Result<Json<RunList>, Refused> {
    let query = call.query(&["conversationId", "after", "limit"])?;
    let conversation = query.get::<ConversationId>("conversationId")?;
    let page = runs.list(&call.who, conversation.as_ref(), query.get("after")?, query.limit()?);
    Ok(Json(RunList::from(&page)))
}

/// Read a run.
#[utoipa::path(
    get, path = "/v1/runs/{runId}", tag = "runs", operation_id = "getRun",
    params(
        ("runId" = String, Path, description = "Which.", pattern = "^run-[0-9a-f]{32}$"),
        ("wait" = Option<u64>, Query, description = "How many seconds to wait for the end.", minimum = 0, maximum = 3600),
    ),
    responses((status = 200, description = "The run as it is now.", body = RunStatus)),
)]
pub(super) async fn get(State(runs): State<Runs>, call: Call) -> Result<Json<RunStatus>, Refused> {
    let query = call.query(&["wait"])?;
    let wait = query.number("wait", WAIT_S_MAX)?.unwrap_or(0);
    let view = runs.get(&call.who, call.run()?)?.wait(Duration::from_secs(wait)).await;
    Ok(Json(RunStatus::whole(&view)))
}

/// Stop a run.
///
/// The answer comes when the program is dead, or after five seconds. A run that is over stays as it is.
#[utoipa::path(
    post, path = "/v1/runs/{runId}/cancel", tag = "runs", operation_id = "cancelRun",
    params(("runId" = String, Path, description = "Which.", pattern = "^run-[0-9a-f]{32}$")),
    responses((status = 200, description = "The run as it is now.", body = RunStatus)),
)]
pub(super) async fn cancel(State(runs): State<Runs>, call: Call) -> Result<Json<RunStatus>, Refused> {
    call.query(&[])?;
    let run = runs.get(&call.who, call.run()?)?;
    run.cancel();
    Ok(Json(RunStatus::whole(&run.wait(CANCEL_WAIT).await)))
}
