//! CodeRunner's interface, for programs that were written for it or for its vendor's SDK. Paths, names and forms are
//! CodeRunner's; a session is one of ours, and its id stands for the conversation too.
//!
//! `/v1/sessions` and `/v1/sessions/{id}` are in [`super::v1`], with CodeRunner's members beside ours. A token may also
//! come as `X-API-Key` or as the password of HTTP Basic, on these paths only ([`takes_keys`]).

mod browser;
mod sessions;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, header},
    middleware::{self, Next},
    response::Response,
    routing::{get, post},
};
use serde_json::{Map, Value};

pub(super) use self::sessions::{stderr, with_sentence};
use super::{ApiParts, Reply, RequestBody, body::Bodies, json};
use crate::domain::{Code, Failure};

/// A token, instead of `Authorization`.
pub const KEY: HeaderName = HeaderName::from_static("x-api-key");

/// What CodeRunner's clients say of a machine, which here the operator decides.
const ITS_MEMBERS: [&str; 5] = ["api_key", "vm_lifetime_seconds", "memory_mb", "vcpu_count", "metadata"];
/// The body of a request that holds its token, in bytes.
const KEY_BODY_BYTES_MAX: usize = 16 << 10;
const KEY_BODY_VALUES_MAX: usize = 200;
const OPEN: &str = "/v1/sessions/session";

/// Whether a path is only CodeRunner's.
pub fn is_own(path: &str) -> bool {
    const ALL: [&str; 7] = ["/execute", "/execute_async", "/upload", "/download", "/kill", "/v1/execute", OPEN];
    const BELOW: [&str; 4] = ["/v1/executions/", "/v1/browser/", "/v1/sessions/session/", "/v1/sessions/status/"];
    ALL.contains(&path) || BELOW.iter().any(|start| path.starts_with(start))
}

/// Whether the token may come in CodeRunner's ways.
pub fn takes_keys(path: &str) -> bool {
    let is_session = || path.strip_prefix("/v1/sessions/").is_some_and(|id| !id.contains('/'));
    is_own(path) || path == "/v1/sessions" || is_session()
}

/// A body without the members that are CodeRunner's alone.
pub(super) fn without_its_members(mut members: Map<String, Value>) -> Map<String, Value> {
    members.retain(|name, _| !ITS_MEMBERS.contains(&name.as_str()));
    members
}

/// The routes. They must be mounted behind a middleware that puts a `Principal` into the request's extensions.
pub fn router(parts: ApiParts) -> Router {
    let deprecated = Router::new()
        .route("/execute", post(sessions::execute))
        .route(OPEN, post(sessions::open).get(sessions::newest).delete(sessions::close_newest))
        .route("/v1/browser/interactions/navigate", post(browser::navigate))
        .route("/v1/browser/interactions/content", post(browser::content))
        .layer(middleware::map_response(|mut response: Response| async {
            response.headers_mut().insert("deprecation", HeaderValue::from_static("true"));
            response
        }));
    Router::new()
        .route("/v1/execute", post(sessions::execute))
        .route("/execute_async", post(sessions::begin))
        .route("/v1/executions/{id}", get(sessions::result))
        .route("/v1/sessions/session/{id}", get(sessions::get))
        .route("/v1/sessions/status/{id}", get(sessions::status))
        .route("/kill", post(sessions::close_named))
        .route("/upload", post(sessions::upload))
        .route("/download", post(sessions::download))
        .route("/v1/browser/navigate", post(browser::navigate))
        .route("/v1/browser/content", post(browser::content))
        .route("/v1/browser/sessions/", post(browser::open).get(browser::list))
        .route("/v1/browser/sessions/{id}", get(sessions::get).delete(browser::close))
        .route("/v1/browser/interactions/click", post(browser::click))
        .route("/v1/browser/interactions/type", post(browser::type_text))
        .route("/v1/browser/interactions/fill", post(browser::fill))
        .route("/v1/browser/interactions/scroll", post(browser::scroll))
        .route("/v1/browser/interactions/wait", post(browser::wait))
        .route("/v1/browser/interactions/screenshot", post(browser::screenshot))
        .route("/v1/browser/interactions/extract", post(browser::extract))
        .merge(deprecated)
        .with_state(parts)
}

/// The vendor's SDK sends its token in the body when it opens a session: moves it to where tokens are looked for.
pub(super) async fn key_from_body(State(bodies): State<Bodies>, request: Request, next: Next) -> Reply {
    let has_key = request.headers().contains_key(header::AUTHORIZATION) || request.headers().contains_key(KEY);
    if has_key || request.uri().path() != OPEN || request.method() != Method::POST {
        return Ok(next.run(request).await);
    }
    let (mut head, body) = request.into_parts();
    let bytes = bodies.at_most(KEY_BODY_BYTES_MAX).read(&head.headers, body).await?;
    let members = json::read(&bytes, KEY_BODY_VALUES_MAX).ok();
    let key = members.as_ref().and_then(|members| members["api_key"].as_str());
    if let Some(key) = key.and_then(|key| HeaderValue::from_str(key).ok()) {
        head.headers.insert(KEY, key);
    }
    Ok(next.run(Request::from_parts(head, Body::from(bytes))).await)
}

/// The members of a body in JSON or, as the SDK sends some, in the form of a page.
async fn members(body: RequestBody) -> Result<Map<String, Value>, Failure> {
    if body.media_type()? != "application/x-www-form-urlencoded" {
        return Ok(body.members().await?.0);
    }
    let bytes = body.at_most(KEY_BODY_BYTES_MAX).read().await?;
    let form = std::str::from_utf8(&bytes).map_err(|_| Failure::new(Code::InvalidRequest, "The body is not UTF-8."))?;
    let pairs = form_urlencoded::parse(form.as_bytes()).into_owned();
    Ok(pairs.map(|(name, value)| (name, Value::String(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_taken_on_coderunners_paths_only() {
        for path in ["/execute", "/v1/execute", "/v1/sessions", "/v1/sessions/x", "/v1/sessions/session", "/kill"] {
            assert!(takes_keys(path), "{path}");
        }
        for path in ["/", "/mcp", "/v1/runs", "/v1/sessions/x/cells", "/v1/executeall", "/execute/", "/metrics"] {
            assert!(!takes_keys(path), "{path}");
        }
    }
}
