//! Sessions under the names that CodeRunner and its vendor's SDK have for them.

use axum::{Json, extract::State};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{ApiParts, members};
use crate::{
    api::{
        http::{
            Answer,
            body::RequestBody,
            parts::{Path, Query},
        },
        schema::session::SessionStatus,
    },
    domain::{
        error::{Code, Failure},
        id::{ConversationId, Language, SessionId},
        owner::{ConversationKey, Principal},
    },
    services::{
        runs::Runs,
        sessions::{SessionView, Sessions},
    },
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
pub(super) async fn open(
    State(runs): State<Runs>,
    State(sessions): State<Sessions>,
    who: Principal,
) -> Answer<SessionStatus> {
    runs.check_capacity(&who)?;
    let conversation = ConversationKey::new(who, ConversationId::fresh());
    let view = sessions.open(&conversation, &Language::default()).await?;
    Ok(Json(SessionStatus::from(&view)))
}

fn found(sessions: &Sessions, who: &Principal, id: Option<&str>) -> Result<SessionView, Failure> {
    let none = || Failure::new(Code::SessionNotFound, "There is no open session.");
    match id {
        Some(id) => sessions.get(who, named(id)?),
        None => sessions.list(who, None).into_iter().next().ok_or_else(none),
    }
}

/// The session that the query names; without a name the newest.
pub(super) async fn newest(
    State(sessions): State<Sessions>,
    who: Principal,
    Query(OfSession { session_id }): Query<OfSession>,
) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&found(&sessions, &who, session_id.as_deref())?)))
}

/// A session.
pub(super) async fn get(
    State(sessions): State<Sessions>,
    who: Principal,
    Path(id): Path<String>,
) -> Answer<SessionStatus> {
    Ok(Json(SessionStatus::from(&sessions.get(&who, named(&id)?)?)))
}

/// Whether a session is open. One that has ended is an answer here.
pub(super) async fn status(State(sessions): State<Sessions>, who: Principal, Path(id): Path<String>) -> Answer<Value> {
    let word = match sessions.get(&who, named(&id)?) {
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

fn closed(parts: &ApiParts, who: &Principal, id: Option<&str>) -> Answer<SessionStatus> {
    let view = found(&parts.sessions, who, id)?;
    parts.sessions.close(who, view.session)?;
    Ok(Json(SessionStatus::ended(&view)))
}

/// Closes the session that the body or the query names.
pub(super) async fn close_named(
    parts: ApiParts,
    who: Principal,
    Query(query): Query<OfSession>,
    body: RequestBody,
) -> Answer<SessionStatus> {
    let id = asked(query, body).await?;
    let id = id.ok_or_else(|| Failure::argument("session_id", "it is missing: name the session to close"))?;
    closed(&parts, &who, Some(&id))
}

/// The same; without a name the newest, which [`newest`] answers: CodeRunner had one kernel, and its clients name none.
pub(super) async fn close_newest(
    parts: ApiParts,
    who: Principal,
    Query(query): Query<OfSession>,
    body: RequestBody,
) -> Answer<SessionStatus> {
    let id = asked(query, body).await?;
    closed(&parts, &who, id.as_deref())
}
