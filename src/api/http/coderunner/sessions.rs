//! Sessions under the names that CodeRunner and its vendor's SDK have for them.

use axum::Json;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::members;
use crate::{
    api::{
        http::{
            Answer,
            body::RequestBody,
            parts::{ApiCall, Path, Query},
        },
        schema::session::SessionStatus,
    },
    domain::{
        error::{Code, Failure},
        id::{ConversationId, Language, SessionId},
    },
    services::sessions::SessionView,
};

#[derive(Deserialize)]
pub(super) struct OfSession {
    session_id: Option<String>,
}

/// A session's id; any other text names no session.
pub(super) fn named(id: &str) -> Result<SessionId, Failure> {
    id.parse().map_err(|_| Failure::new(Code::SessionNotFound, "session_id: there is no such session."))
}

/// Opens a session for Python. What the body says of a machine is the operator's to decide here.
pub(super) async fn open(call: ApiCall) -> Answer<SessionStatus> {
    call.parts.runs.check_capacity(&call.who)?;
    let conversation = call.key(ConversationId::fresh());
    let view = call.parts.sessions.open(&conversation, &Language::default()).await?;
    Ok(Json(SessionStatus::from(&view)))
}

fn found(ApiCall { parts, who, .. }: &ApiCall, id: Option<&str>) -> Result<SessionView, Failure> {
    let none = || Failure::new(Code::SessionNotFound, "There is no open session.");
    match id {
        Some(id) => parts.sessions.get(who, named(id)?),
        None => parts.sessions.list(who, None).into_iter().next().ok_or_else(none),
    }
}

/// The session that the query names; without a name the newest.
pub(super) async fn newest(call: ApiCall, Query(query): Query<OfSession>) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&found(&call, query.session_id.as_deref())?)))
}

/// A session.
pub(super) async fn get(call: ApiCall, Path(id): Path<String>) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&found(&call, Some(&id))?)))
}

/// Whether a session is open. One that has ended is an answer here.
pub(super) async fn status(call: ApiCall, Path(id): Path<String>) -> Answer<Value> {
    let word = match found(&call, Some(&id)) {
        Ok(_) => "active",
        Err(failure) if failure.code == Code::SessionEnded => "stopped",
        Err(failure) => return Err(failure.into()),
    };
    Ok(Json(json!({"session_id": id, "status": word, "vm_status": word})))
}

/// The id in the body or the query.
async fn asked(query: OfSession, body: RequestBody) -> Result<Option<String>, Failure> {
    let body = if body.is_empty() { Map::new() } else { members(body).await? };
    Ok(body.get("session_id").and_then(Value::as_str).map(str::to_owned).or(query.session_id))
}

pub(super) fn closed(call: &ApiCall, id: Option<&str>) -> Answer<SessionStatus> {
    let view = found(call, id)?;
    call.parts.sessions.close(&call.who, view.session)?;
    Ok(Json(SessionStatus::ended(&view)))
}

/// Closes the session that the body or the query names.
pub(super) async fn close_named(
    call: ApiCall,
    Query(query): Query<OfSession>,
    body: RequestBody,
) -> Answer<SessionStatus> {
    let id = asked(query, body).await?;
    let id = id.ok_or_else(|| Failure::argument("session_id", "it is missing: name the session to close"))?;
    closed(&call, Some(&id))
}

/// The same; without a name the newest, which [`newest`] answers: CodeRunner had one kernel, and its clients name none.
pub(super) async fn close_newest(
    call: ApiCall,
    Query(query): Query<OfSession>,
    body: RequestBody,
) -> Answer<SessionStatus> {
    let id = asked(query, body).await?;
    closed(&call, id.as_deref())
}
