//! The calls of E2B's SDK: its API and that of its sandboxes, both at `/e2b`. A sandbox there is a conversation here,
//! and `/home/user` is `/data`.
//!
//! The SDK names the sandbox of a request in a header. It sends the token that it was given as `X-API-Key`, and
//! to sandboxes what `create` answered as their tokens, which is the same token.

mod files;
mod programs;
mod sandboxes;

use axum::{
    Router,
    extract::FromRequestParts,
    http::{HeaderName, StatusCode, request::Parts},
    routing::{delete, get, post},
};

use super::{ApiParts, error::ApiError, parts::ApiCall, peers::MayBeElsewhere};
use crate::{
    domain::{error::Failure, owner::ConversationKey, path::SafePath},
    services::{
        containers::{Container, Maker},
        sessions::Setup,
    },
};

/// Where the surface is.
pub const ROOT: &str = "/e2b";

/// Headers that hold the token, the first that is there.
pub const KEYS: [HeaderName; 2] =
    [HeaderName::from_static("x-access-token"), HeaderName::from_static("e2b-traffic-access-token")];

/// The folders that stand for `/data`.
const FOLDERS: [&str; 3] = ["/home/user", "/mnt/data", "/data"];

/// Whether a path is of this surface.
pub fn is_own(path: &str) -> bool {
    path.strip_prefix(ROOT).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a path is that of a call in Connect's protocol, whose errors have a word as their code.
pub fn is_call(path: &str) -> bool {
    let call = path.strip_prefix(ROOT);
    call.is_some_and(|rest| rest.starts_with("/filesystem.Filesystem/") || rest.starts_with("/process.Process/"))
}

/// Connect's word for a status. Without one, a client takes 404 for `unimplemented`.
pub fn connect_code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 | 415 | 422 => "invalid_argument",
        401 => "unauthenticated",
        403 => "permission_denied",
        404 => "not_found",
        405 | 501 => "unimplemented",
        408 | 504 => "deadline_exceeded",
        409 => "already_exists",
        412 | 423 => "failed_precondition",
        413 | 429 | 507 => "resource_exhausted",
        502 | 503 => "unavailable",
        _ => "internal",
    }
}

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let routes = Router::new()
        .route("/sandboxes", post(sandboxes::create))
        .route("/v2/sandboxes", post(sandboxes::create).get(sandboxes::list))
        .route("/sandboxes/{id}", get(sandboxes::get).delete(sandboxes::kill))
        .route("/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/v2/sandboxes/{id}/connect", post(sandboxes::connect))
        .route("/sandboxes/{id}/timeout", post(sandboxes::set_timeout))
        .route("/health", get(health))
        .route("/execute", post(programs::execute))
        .route("/contexts", post(programs::open).get(programs::list))
        .route("/contexts/{id}", delete(programs::close))
        .route("/contexts/{id}/restart", post(programs::restart))
        .route("/files", get(files::read).post(files::write))
        .route("/filesystem.Filesystem/ListDir", post(files::list))
        .route("/filesystem.Filesystem/Stat", post(files::stat))
        .route("/filesystem.Filesystem/Remove", post(files::remove))
        .route("/filesystem.Filesystem/MakeDir", post(files::make_dir))
        .route("/filesystem.Filesystem/Move", post(files::rename))
        .route("/process.Process/Start", post(programs::start))
        .with_state(parts);
    Router::new().nest(ROOT, routes)
}

/// The sandbox that a request names.
struct InSandbox {
    call: ApiCall,
    key: ConversationKey,
    setup: Setup,
}

impl FromRequestParts<ApiParts> for InSandbox {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, parts: &ApiParts) -> Result<Self, ApiError> {
        let call = ApiCall::from_request_parts(head, parts).await?;
        let id = call.headers.get("e2b-sandbox-id").and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| Failure::argument("E2b-Sandbox-Id", "it is missing: name the sandbox"))?;
        // By this status the SDK recognizes a sandbox that is gone. While another server may have it, it is not gone.
        let status = head.extensions.get::<MayBeElsewhere>().is_none().then_some(StatusCode::BAD_GATEWAY);
        let gone = |failure| ApiError { status, ..ApiError::from(failure) };
        let Container { key, setup, .. } = parts.containers.get(&call.key(id), Maker::E2b).map_err(gone)?;
        Ok(Self { call, key, setup })
    }
}

async fn health(_: InSandbox) -> StatusCode {
    StatusCode::NO_CONTENT
}

/// A path below `/data`; `None` for the folder itself.
fn below_data(path: &str) -> Result<Option<SafePath>, Failure> {
    let within = FOLDERS.iter().find_map(|folder| match path.strip_prefix(folder)? {
        "" => Some(""),
        rest => rest.strip_prefix('/'),
    });
    let within = within.unwrap_or(path).trim_end_matches('/');
    if within.is_empty() || within == "." {
        return Ok(None);
    }
    SafePath::from_text(within)
        .map(Some)
        .map_err(|why| Failure::argument("path", format!("{why}; files are in /home/user")))
}

fn a_file(path: &str) -> Result<SafePath, Failure> {
    below_data(path)?.ok_or_else(all_files)
}

fn all_files() -> Failure {
    Failure::argument("path", "it names the folder of all files: name what is in it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_below_the_home_folder() {
        for (path, inside) in [
            ("/home/user/a/b", Some("a/b")),
            ("/data/a", Some("a")),
            ("a.txt", Some("a.txt")),
            ("/mnt/data/a/", Some("a")),
            ("/home/user", None),
            ("/home/user/", None),
            (".", None),
        ] {
            let found = below_data(path).expect(path).map(|path| path.display());
            assert_eq!(found.as_deref(), inside, "{path}");
        }
        for path in ["/etc/passwd", "/home/username/a", "/home/user/../x", "/home/user//x", "../x"] {
            assert!(below_data(path).is_err(), "{path}");
        }
    }
}
