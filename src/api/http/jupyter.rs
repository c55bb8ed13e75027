//! Jupyter's API under `/jupyter`, for existing clients: kernels are sessions, contents are the files of a
//! conversation. Paths, names and forms are those of Jupyter Server's documentation.
//!
//! Below `/jupyter/c/{conversationId}` everything is in that conversation, and what is in others is not there.
//! Elsewhere each new kernel has a conversation of its own, and contents are those of [`CONTENTS`]. The token may come
//! in Jupyter's ways: see [`super::arrival`].

mod channels;
mod contents;
mod kernels;
mod wire;

use axum::{
    Router,
    extract::FromRequestParts,
    http::{Uri, request::Parts},
    routing::{get, post},
};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::{ApiCall, ApiError, ApiParts, RequestBody, json};
use crate::domain::{
    Code, ConversationId, ConversationKey, Failure, SafePath, SessionId,
    path::decode_component,
    text::shown,
    tools::{Approval, ProposedCall},
};

/// Where the surface is.
pub const ROOT: &str = "/jupyter";
/// The conversation of contents, unless the path names one.
const CONTENTS: &str = "jupyter";
/// Where everything is in the conversation that follows.
const PINNED: &str = "/jupyter/c/";
/// Values in a body that is no file.
const VALUES_MAX: usize = 1000;
const BODY_BYTES_MAX: usize = 64 << 10;

/// What a person reads beside a cell that waits for an answer.
pub fn question_line(question: &Approval) -> String {
    let ProposedCall { server, tool, .. } = &question.call;
    let (call, id) = (shown(&format!("{server}/{tool}")), question.id);
    format!("[The cell waits until a person allows it to call {call}: answer by POST /v1/approvals/{id}.]\n")
}

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let session = get(kernels::get_session).patch(kernels::change_session).delete(kernels::remove_session);
    let folder = get(contents::read).post(contents::create);
    let file = folder.clone().put(contents::write).patch(contents::rename).delete(contents::remove);
    let api = Router::new()
        .route("/api", get(kernels::version))
        .route("/api/status", get(kernels::status))
        .route("/api/kernelspecs", get(kernels::specs))
        .route("/api/kernelspecs/{name}", get(kernels::spec))
        .route("/api/kernels", get(kernels::list).post(kernels::start))
        .route("/api/kernels/{id}", get(kernels::get).delete(kernels::close))
        .route("/api/kernels/{id}/interrupt", post(kernels::interrupt))
        .route("/api/kernels/{id}/restart", post(kernels::restart))
        .route("/api/kernels/{id}/channels", get(channels::connect))
        .route("/api/sessions", get(kernels::list_sessions).post(kernels::create_session))
        .route("/api/sessions/{id}", session)
        .route("/api/contents", folder)
        .route("/api/contents/{*path}", file)
        .with_state(parts);
    Router::new().nest(ROOT, api.clone()).nest("/jupyter/c/{conversation}", api)
}

/// A request without its body.
struct Call {
    api: ApiCall,
    /// Where the API is, with the conversation and without the token.
    base: String,
    /// What is below that.
    uri: Uri,
}

impl FromRequestParts<ApiParts> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, parts: &ApiParts) -> Result<Self, ApiError> {
        let (api, uri) = (ApiCall::from_request_parts(head, parts).await?, head.uri.clone());
        let base = api.uri.path().strip_suffix(uri.path()).unwrap_or_default().to_owned();
        Ok(Self { api, base, uri })
    }
}

impl Call {
    /// The conversation that the path names.
    fn pinned(&self) -> Result<Option<ConversationId>, Failure> {
        let Some(name) = self.base.strip_prefix(PINNED) else { return Ok(None) };
        let name = decode_component(name).ok().and_then(|name| String::from_utf8(name).ok()).unwrap_or_default();
        name.parse().map(Some).map_err(|why| Failure::argument("conversationId", why))
    }

    /// The conversation of a new kernel.
    fn conversation(&self) -> Result<ConversationKey, Failure> {
        Ok(self.api.key(self.pinned()?.unwrap_or_else(ConversationId::fresh)))
    }

    /// The conversation whose files are shown.
    fn contents(&self) -> Result<ConversationKey, Failure> {
        let id = self.pinned()?.map_or_else(|| CONTENTS.parse(), Ok);
        let id = id.map_err(|_| Failure::new(Code::Internal, "The conversation of contents has a wrong name."))?;
        Ok(self.api.key(id))
    }

    /// The name in `/api/{what}/{name}`.
    fn name(&self) -> &str {
        self.uri.path().split('/').nth(3).unwrap_or_default()
    }

    fn uuid(&self) -> Result<Uuid, Failure> {
        let none = |_| Failure::new(Code::SessionNotFound, "There is no such session.");
        Uuid::try_parse(self.name()).map_err(none)
    }

    /// A kernel by its id, which is a session's as a UUID: Jupyter's routes take no other form. One of another
    /// conversation than the path names is not there.
    fn kernel(&self, id: &str) -> Result<SessionId, Failure> {
        let none = || Failure::new(Code::SessionNotFound, "There is no such kernel.");
        let kernel = Uuid::try_parse(id).ok().and_then(|id| format!("session-{}", id.simple()).parse().ok());
        let (kernel, pin): (SessionId, _) = (kernel.ok_or_else(none)?, self.pinned()?);
        let ApiCall { parts, who, .. } = &self.api;
        let is_there = |pin: ConversationId| parts.sessions.conversation(who, kernel).is_none_or(|there| there == pin);
        if pin.is_none_or(is_there) { Ok(kernel) } else { Err(none()) }
    }

    /// The path in `/api/contents/{path}`; nothing for the folder above all.
    fn path(&self) -> Result<Option<SafePath>, Failure> {
        let encoded = self.uri.path().splitn(4, '/').nth(3).unwrap_or_default();
        if encoded.is_empty() {
            return Ok(None);
        }
        let plain = encoded.replace("%2F", "/").replace("%2f", "/");
        SafePath::from_encoded(&plain).map(Some).map_err(|why| Failure::argument("path", why))
    }

    /// A value in the query. An empty one is none.
    fn query(&self, name: &str) -> Option<String> {
        value_of(&self.uri, name)
    }
}

fn value_of(uri: &Uri, name: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).filter(|value| !value.is_empty())
}

/// The members of a body, whatever its media type; none where there is no body.
async fn members(body: RequestBody) -> Result<Map<String, Value>, Failure> {
    let bytes = body.at_most(BODY_BYTES_MAX).read().await?;
    if bytes.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    let wrong = |error| Failure::new(Code::InvalidRequest, json::complaint(&error));
    match json::read(&bytes, VALUES_MAX).map_err(wrong)? {
        Value::Object(members) => Ok(members),
        Value::Null => Ok(Map::new()),
        _ => Err(Failure::new(Code::InvalidRequest, "The body is not a JSON object: send one, or none.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_as_a_form() {
        let uri = Uri::from_static("/a?content=0&session_id=one+two%2Bthree&session_id=x&%66ormat=text&type=&x");
        for (name, value) in [("content", "0"), ("session_id", "one two+three"), ("format", "text")] {
            assert_eq!(value_of(&uri, name).as_deref(), Some(value), "{name}");
        }
        for name in ["type", "x", "hash"] {
            assert_eq!(value_of(&uri, name), None, "{name}");
        }
    }
}
