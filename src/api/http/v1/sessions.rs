//! Sessions: opened, listed, closed, and their cells. A cell is a run, so what [`super::runs`] says of runs holds; a
//! call of the browser is a cell of the conversation's browser session.

use axum::{
    Json,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::IntoParams;

use super::{Call, runs::begin};
use crate::{
    api::{
        http::{Answer, Reply, RequestBody, coderunner, no_content},
        schema::{
            browse::{Browse, PageResult},
            parse::{Source, parse},
            run::RunStatus,
            session::{CodePosition, CreateCell, CreateSession, InspectCode, SessionList, SessionStatus},
        },
    },
    domain::ConversationId,
    services::{
        browser,
        runs::{CellSession, RunRequest},
        sessions::{SessionView, Setup},
    },
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListSessions {
    /// Only those of this conversation.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 128)]
    conversation_id: Option<ConversationId>,
}

/// Open a session.
///
/// A session keeps an interpreter between cells. There is one for each conversation and language: the open one, or a
/// new one. Without a body, one for Python in a fresh conversation.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", operation_id = "createSession",
    request_body(content = CreateSession),
    responses((status = 201, description = "It is open; `Location` is its address.", body = SessionStatus,
        headers(("location" = String, description = "The session.")))),
)]
pub(super) async fn create(call: Call, body: RequestBody) -> Reply {
    call.parts.runs.check_capacity(&call.who)?;
    let members = if body.is_empty() { Map::new() } else { body.members().await?.0 };
    let create: CreateSession = parse(coderunner::without_its_members(members), Source::Json)?;
    let conversation = call.key(create.conversation.unwrap_or_else(ConversationId::fresh));
    let language = create.language.unwrap_or_default();
    let setup = Setup { env: create.env.unwrap_or_default(), network: create.network };
    let view = call.parts.sessions.open_with(&conversation, &language, &setup).await?;
    let location = [(header::LOCATION, format!("/v1/sessions/{}", view.session))];
    Ok((StatusCode::CREATED, location, Json(SessionStatus::from(&view))).into_response())
}

/// List the open sessions.
///
/// Newest first: those of one conversation, or all of this token.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions", operation_id = "listSessions",
    params(ListSessions),
    responses((status = 200, description = "The sessions.", body = SessionList)),
)]
pub(super) async fn list(call: Call<ListSessions>) -> Json<SessionList> {
    Json(SessionList::from(&*call.parts.sessions.list(&call.who, call.query.conversation_id.as_ref())))
}

/// Read a session.
///
/// For a session that has ended, the error `session_ended` says why.
#[utoipa::path(
    get, path = "/v1/sessions/{sessionId}", tag = "sessions", operation_id = "getSession",
    responses((status = 200, description = "The session as it is now.", body = SessionStatus)),
)]
pub(super) async fn get(call: Call) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&call.parts.sessions.get(&call.who, call.session()?)?)))
}

/// Close a session.
///
/// Its variables are gone; the conversation's files stay.
#[utoipa::path(
    delete, path = "/v1/sessions/{sessionId}", tag = "sessions", operation_id = "closeSession",
    responses((status = 200, description = "It is closed.", body = SessionStatus)),
)]
pub(super) async fn close(call: Call) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::ended(&call.parts.sessions.close(&call.who, call.session()?)?)))
}

/// Run a cell.
///
/// A cell is a run in the session: it is read, followed, sent input and cancelled as `/v1/runs/{runId}`, and the answer
/// is that of `createRun`. Cells of a session run one after another, each once.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/cells", tag = "sessions", operation_id = "runCell",
    params(("Idempotency-Key" = Option<String>, Header,
        description = "A text that the client chooses, another one for each cell.",
        pattern = "^[!-~]+$", min_length = 1, max_length = 255)),
    request_body(content = CreateCell),
    responses(
        (status = 200, description = "The cell is over.", body = RunStatus),
        (status = 202, description = "The cell goes on; `Location` is the run's address.", body = RunStatus,
            headers(("location" = String, description = "The run."))),
    ),
)]
pub(super) async fn run_cell(call: Call, body: RequestBody) -> Reply {
    let id = call.session()?;
    let (members, key) = call.repeatable(&id.to_string(), body).await?;
    let CreateCell { code, stdin, stdin_open, wait, detach, limits } = parse(members, Source::Json)?;
    let request = || {
        let SessionView { conversation, language, .. } = call.parts.sessions.get(&call.who, id)?;
        Ok(RunRequest {
            session: Some(CellSession::Open(id)),
            stdin: stdin.unwrap_or_default().into(),
            stdin_open: stdin_open.unwrap_or(false),
            limits: limits.map(|limits| limits.within(call.parts.runs.limits())).transpose()?,
            within: call.trace,
            ..RunRequest::new(call.key(conversation.id), language, code.0)
        })
    };
    begin(&call, (key, None), (wait, detach), request).await
}

/// Interrupt the cell that runs.
///
/// Its variables stay. Nothing happens when none runs.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/interrupt", tag = "sessions", operation_id = "interruptSession",
    responses((status = 204, description = "It was interrupted.")),
)]
pub(super) async fn interrupt(call: Call) -> Reply<StatusCode> {
    no_content(call.parts.sessions.interrupt(&call.who, call.session()?).await)
}

/// Restart a session.
///
/// A new interpreter without variables, under the same id.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/restart", tag = "sessions", operation_id = "restartSession",
    responses((status = 200, description = "The session as it is now.", body = SessionStatus)),
)]
pub(super) async fn restart(call: Call) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&call.parts.sessions.restart(&call.who, call.session()?).await?)))
}

/// Complete code.
///
/// The answer is the content of Jupyter's `complete_reply`, or 409 while a cell runs.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/complete", tag = "sessions", operation_id = "completeCode",
    request_body(content = CodePosition),
    responses((status = 200, description = "Completions.", body = Object)),
)]
pub(super) async fn complete(call: Call, body: RequestBody) -> Answer<Value> {
    let id = call.parts.sessions.get(&call.who, call.session()?)?.session;
    let CodePosition { code, cursor } = body.json().await?;
    let cursor = within(&code, cursor);
    Ok(Json(call.parts.sessions.complete(&call.who, id, &code, cursor).await?))
}

/// Look up a name.
///
/// The answer is the content of Jupyter's `inspect_reply`, or 409 while a cell runs.
#[utoipa::path(
    post, path = "/v1/sessions/{sessionId}/inspect", tag = "sessions", operation_id = "inspectCode",
    request_body(content = InspectCode),
    responses((status = 200, description = "What is known of it.", body = Object)),
)]
pub(super) async fn inspect(call: Call, body: RequestBody) -> Answer<Value> {
    let id = call.parts.sessions.get(&call.who, call.session()?)?.session;
    let InspectCode { code, cursor, detailed } = body.json().await?;
    let cursor = within(&code, cursor);
    Ok(Json(call.parts.sessions.inspect(&call.who, id, &code, cursor, detailed.unwrap_or(false)).await?))
}

/// A position in a text, in characters.
fn within(code: &str, cursor: Option<u64>) -> usize {
    let end = code.chars().count();
    cursor.map_or(end, |cursor| usize::try_from(cursor).unwrap_or(end).min(end))
}

/// Browse.
///
/// Goes to an address in the conversation's browser, acts on the page and reads it. Pages, cookies and fields stay for
/// later calls. A page that fails is an answer with `error`. A call is refused where there is no browser (422) or no
/// network policy allows it (403).
#[utoipa::path(
    post, path = "/v1/browse", tag = "sessions", operation_id = "browse",
    request_body(content = Browse),
    responses((status = 200, description = "The page.", body = PageResult)),
)]
pub(super) async fn browse(call: Call, body: RequestBody) -> Answer<PageResult> {
    call.parts.runs.check_capacity(&call.who)?;
    let asked: Browse = body.json().await?;
    let conversation = asked.conversation.clone().unwrap_or_else(ConversationId::fresh);
    let request = browser::request(&call.parts.runs, call.key(conversation), &asked.into_call())?;
    let report = call.finished(request).await?;
    Ok(Json(PageResult::from((&*report, browser::page(&report)))))
}
