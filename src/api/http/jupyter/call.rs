//! What a request to Jupyter's API carries: the caller, the conversation and the names in its path, its lenient body.

use axum::{
    extract::{FromRequestParts, OriginalUri},
    http::{Uri, request::Parts},
};
use serde_json::{Map, Value};
use uuid::Uuid;

use super::CONTENTS;
use crate::{
    api::http::{body::RequestBody, error::ApiError, json},
    domain::{
        error::{Code, Failure},
        id::{ConversationId, SessionId},
        owner::{ConversationKey, Principal},
        path::{SafePath, decode_component},
    },
};

/// Values in a body that is no file.
const VALUES_MAX: usize = 1000;
const BODY_BYTES_MAX: usize = 64 << 10;

/// A request without its body.
pub(super) struct Call {
    pub who: Principal,
    uri: Uri,
}

impl<S: Send + Sync> FromRequestParts<S> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let uri = parts.extensions.get::<OriginalUri>().map_or_else(|| parts.uri.clone(), |uri| uri.0.clone());
        Ok(Self { who: Principal::from_request_parts(parts, state).await?, uri })
    }
}

impl Call {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.uri.path().split('/').skip(2)
    }

    /// The conversation that the path names.
    pub fn pinned(&self) -> Result<Option<ConversationId>, Failure> {
        let mut names = self.names();
        let Some(name) = names.next().filter(|name| *name == "c").and_then(|_| names.next()) else { return Ok(None) };
        let name = decode_component(name).ok().and_then(|name| String::from_utf8(name).ok()).unwrap_or_default();
        name.parse().map(Some).map_err(|why| Failure::argument("conversationId", why))
    }

    /// What is below `api`.
    fn below_api(&self) -> impl Iterator<Item = &str> {
        let pinned = self.names().next() == Some("c");
        self.names().skip(if pinned { 3 } else { 1 })
    }

    /// Where the API is, with the conversation and without the token.
    pub fn base(&self) -> String {
        let pinned = self.names().next() == Some("c");
        self.uri.path().split('/').take(if pinned { 4 } else { 2 }).collect::<Vec<_>>().join("/")
    }

    /// The conversation of a new kernel.
    pub fn conversation(&self) -> Result<ConversationKey, Failure> {
        Ok(ConversationKey::new(self.who.clone(), self.pinned()?.unwrap_or_else(ConversationId::fresh)))
    }

    /// The conversation whose files are shown.
    pub fn contents(&self) -> Result<ConversationKey, Failure> {
        let id = self.pinned()?.map_or_else(|| CONTENTS.parse(), Ok);
        let id = id.map_err(|_| Failure::new(Code::Internal, "The conversation of contents has a wrong name."))?;
        Ok(ConversationKey::new(self.who.clone(), id))
    }

    /// The name in `/api/{what}/{name}`.
    pub fn name(&self) -> &str {
        self.below_api().nth(1).unwrap_or_default()
    }

    pub fn uuid(&self) -> Result<Uuid, Failure> {
        let none = || Failure::new(Code::SessionNotFound, "There is no such session.");
        Uuid::try_parse(self.name()).map_err(|_| none())
    }

    pub fn kernel(&self) -> Result<SessionId, Failure> {
        kernel(self.name())
    }

    /// The path in `/api/contents/{path}`; nothing for the folder above all.
    pub fn path(&self) -> Result<Option<SafePath>, Failure> {
        let encoded = self.below_api().skip(1).collect::<Vec<_>>().join("/").replace("%2F", "/").replace("%2f", "/");
        if encoded.is_empty() {
            return Ok(None);
        }
        SafePath::from_encoded(&encoded).map(Some).map_err(|why| Failure::argument("path", why))
    }

    /// A value in the query.
    pub fn query(&self, name: &str) -> Option<String> {
        let parts = self.uri.query().unwrap_or_default().split('&');
        let value = parts.filter_map(|part| part.split_once('=')).find(|(key, _)| *key == name)?.1;
        Some(percent_encoding::percent_decode_str(value).decode_utf8_lossy().into_owned())
    }
}

/// The members of a body, whatever its media type; none where there is no body.
pub(super) async fn members(body: RequestBody) -> Result<Map<String, Value>, Failure> {
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

/// A kernel by its id, which is a session's as a UUID: Jupyter's routes take no other form.
pub(super) fn kernel(id: &str) -> Result<SessionId, Failure> {
    let session = Uuid::try_parse(id).ok().and_then(|id| format!("session-{}", id.simple()).parse().ok());
    session.ok_or_else(|| Failure::new(Code::SessionNotFound, "There is no such kernel."))
}
