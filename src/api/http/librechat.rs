//! LibreChat's code interpreter API, for LibreChat's server and the tools of `@librechat/agents`.
//!
//! Paths, names and forms are LibreChat's; a session there is a conversation of ours. Its ids have 21 characters. The
//! id of a file is derived from its path, so nothing is stored for this surface. A token comes in the path, as
//! `Authorization: Bearer` or as `X-API-Key`: see [`super::access`]. Users of one LibreChat share its token, so what
//! keeps them apart is that sessions have ids that cannot be guessed, as in LibreChat's own service.

mod exec;
mod files;

use axum::{
    Router,
    routing::{get, post},
};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{ApiParts, error::ApiError};
use crate::domain::{
    error::{Code, Failure},
    id::ConversationId,
    path::SafePath,
};

/// Where the surface is.
pub const ROOT: &str = "/librechat";

/// What LibreChat accepts as an id, in characters.
const ID_CHARS: usize = 21;

/// Whether a path is of this surface.
pub fn is_own(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let routes = Router::new()
        .route("/exec", post(exec::exec))
        .route("/exec/programmatic", post(no_tools))
        .route("/upload", post(files::upload))
        .route("/upload/batch", post(files::upload_batch))
        .route("/download/{session}/{file}", get(files::download))
        .route("/sessions/{session}/objects/{file}", get(files::object))
        .route("/files/{session}", get(files::list))
        .route("/files/{session}/{file}", get(files::download).delete(files::remove))
        .with_state(parts);
    Router::new().nest(&format!("{ROOT}/v1"), routes)
}

async fn no_tools() -> ApiError {
    let why = "Programs cannot call tools through this interface: turn programmatic tool calling off in LibreChat.";
    let status = Some(axum::http::StatusCode::NOT_IMPLEMENTED);
    ApiError { status, ..ApiError::new(Code::NotFound, why) }
}

/// A new session: 114 random bits, since six of a UUID's are fixed.
fn fresh() -> ConversationId {
    let [rest @ .., _] = Uuid::new_v4().into_bytes();
    as_conversation(&rest)
}

/// The session that a text of the client stands for.
fn of_hint(hint: &str) -> ConversationId {
    as_conversation(&Sha256::digest(hint)[..15])
}

fn as_conversation(bytes: &[u8]) -> ConversationId {
    // 15 bytes are 20 characters, each of which a conversation may have.
    format!("s{}", BASE64_URL_SAFE_NO_PAD.encode(bytes)).parse().unwrap_or_else(|_| ConversationId::fresh())
}

/// The id of a file in its session.
fn file_id(path: &SafePath) -> String {
    format!("f{}", BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(path.as_bytes())[..15]))
}

/// A session's id; any other text names no session.
fn session(id: &str) -> Result<ConversationId, Failure> {
    let known = (id.len() == ID_CHARS).then(|| id.parse().ok()).flatten();
    known.ok_or_else(|| Failure::new(Code::ConversationNotFound, "There is no such session, or it was deleted."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_form_that_clients_check() {
        let path = SafePath::from_text("a/b.txt").expect("a path");
        assert_eq!(file_id(&path), file_id(&path));
        assert_ne!(file_id(&path), file_id(&SafePath::from_text("a/c.txt").expect("a path")));
        for id in [fresh().to_string(), of_hint("a").to_string(), file_id(&path)] {
            assert_eq!(id.len(), ID_CHARS, "{id}");
            assert!(id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')), "{id}");
        }
        assert_ne!(fresh(), fresh());
        for id in ["", "x", "../../../../../../../", "c-0123456789abcdef0123456789abcdef", "-aaaaaaaaaaaaaaaaaaaa"] {
            assert!(session(id).is_err(), "{id}");
        }
    }

    #[test]
    fn only_its_own_paths_take_its_tokens() {
        for (path, own) in [("/librechat/v1/exec", true), ("/librechat", true), ("/librechatty", false), ("/v1", false)]
        {
            assert_eq!(is_own(path), own, "{path}");
        }
    }
}
