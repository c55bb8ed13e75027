//! The calls of E2B's SDK: its API and that of its sandboxes, both at `/e2b`. A sandbox there is a conversation here,
//! and `/home/user` is `/data`.
//!
//! The SDK names the sandbox of a request in a header. It sends the token that it was given as `X-API-Key`, and
//! to sandboxes what `create` answered as their tokens, which is the same token. Nothing is started before something
//! runs in a sandbox.

mod files;
mod programs;

use std::collections::BTreeMap;

use axum::{
    Json, Router,
    extract::{FromRequestParts, RawQuery},
    http::{HeaderMap, HeaderName, StatusCode, header, request::Parts},
    response::Response,
    routing::{delete, get, post},
};
use percent_encoding::percent_decode_str;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Answer, ApiCall, ApiError, ApiParts, Path, Reply, RequestBody, Room, coderunner::KEY, listed, no_content,
    parts::check_rules,
};
use crate::{
    api::schema::parse::{Source, parse},
    domain::{Code, ConversationId, ConversationKey, Environment, Failure, Limits, RunId, SafePath, text::rfc3339},
    services::{
        containers::{Container, ContainerApi},
        idempotency::Once,
        sessions::Setup,
    },
};

/// Where the surface is.
pub const ROOT: &str = "/e2b";

/// Headers that hold the token, the first that is there.
pub const KEYS: [HeaderName; 2] =
    [HeaderName::from_static("x-access-token"), HeaderName::from_static("e2b-traffic-access-token")];

/// Names the sandbox of a request.
pub const SANDBOX: HeaderName = HeaderName::from_static("e2b-sandbox-id");

/// The folders that stand for `/data`.
const FOLDERS: [&str; 3] = ["/home/user", "/mnt/data", "/data"];
/// In seconds; E2B's default and its greatest.
const TIMEOUT_DEFAULT_S: u64 = 300;
const TIMEOUT_MAX_S: u64 = 24 * 3600;
/// A template's name, and a name or a value of the metadata.
const TEXT_CHARS_MAX: usize = 256;
const METADATA_MAX: usize = 64;
/// What `network` says of requests to a sandbox, of which there are none here.
const INBOUND: [&str; 3] = ["allowPublicTraffic", "httpsPorts", "maskRequestHost"];
/// The longest body of one request.
const BODY_BYTES_MAX: usize = 64 << 10;

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
        .route("/sandboxes", post(create))
        .route("/v2/sandboxes", post(create).get(list))
        .route("/sandboxes/{id}", get(retrieve).delete(kill))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/timeout", post(set_timeout))
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
struct NamedSandbox {
    call: ApiCall,
    key: ConversationKey,
    setup: Setup,
}

impl FromRequestParts<ApiParts> for NamedSandbox {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, parts: &ApiParts) -> Result<Self, ApiError> {
        let call = ApiCall::from_request_parts(head, parts).await?;
        let id = call.headers.get(SANDBOX).and_then(|id| id.to_str().ok()).and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| Failure::argument("E2b-Sandbox-Id", "it is missing: name the sandbox"))?;
        // By this status the SDK recognizes a sandbox that is gone. While another server may have it, it is not gone.
        let status = (!call.others_may_know).then_some(StatusCode::BAD_GATEWAY);
        let gone = |failure| ApiError { status, ..ApiError::from(failure) };
        let Container { key, setup, .. } = parts.containers.get(&call.key(id), ContainerApi::E2b).map_err(gone)?;
        Ok(Self { call, key, setup })
    }
}

async fn health(_: NamedSandbox) -> StatusCode {
    StatusCode::NO_CONTENT
}

#[derive(Deserialize, JsonSchema)]
struct Create {
    #[serde(rename = "templateID")]
    template: Option<String>,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    #[serde(rename = "envVars")]
    env: Option<Environment>,
    allow_internet_access: Option<bool>,
    network: Option<Map<String, Value>>,
}

#[derive(Deserialize, JsonSchema)]
struct Timeout {
    timeout: Option<u64>,
}

fn seconds(timeout: Option<u64>) -> i64 {
    i64::try_from(timeout.unwrap_or(TIMEOUT_DEFAULT_S).min(TIMEOUT_MAX_S)).unwrap_or_default()
}

/// Whether a member of `network` is about what programs reach.
fn is_rule(name: &str, value: &Value) -> bool {
    let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    !is_empty && !INBOUND.contains(&name)
}

/// Makes a sandbox. With the header `Idempotency-Key` the same request makes one however often it is sent.
async fn create(call: ApiCall, body: RequestBody) -> Reply<(StatusCode, Json<Value>)> {
    let ApiCall { parts, who, headers, .. } = &call;
    let (members, key) = call.repeatable("e2b/sandboxes", body.at_most(BODY_BYTES_MAX)).await?;
    let Create { template, timeout, metadata, env, allow_internet_access, network } = parse(members, Source::Lenient)?;
    let labels = metadata.unwrap_or_default();
    let is_long = |text: &String| text.chars().count() > TEXT_CHARS_MAX;
    let has_long = labels.iter().any(|(name, value)| is_long(name) || is_long(value));
    // Without them a program would reach what its client has denied.
    let has_rules = network.unwrap_or_default().iter().any(|(name, value)| is_rule(name, value));
    check_rules([
        ("network", has_rules, "the operator decides it: leave it out, or say allow_internet_access=False"),
        ("templateID", template.as_ref().is_some_and(is_long), "it is longer than 256 characters"),
        ("metadata", labels.len() > METADATA_MAX, "it has more than 64 members"),
        ("metadata", has_long, "a name or a value in it is longer than 256 characters"),
    ])?;
    let sandbox = |run| call.key(ConversationId::of_run("i", run));
    let make = |run| {
        let made = parts.containers.create(&sandbox(run), ContainerApi::E2b, seconds(timeout), |container| {
            container.name = template.unwrap_or_else(|| "code-interpreter-v1".to_owned());
            container.labels = labels;
            container.setup.env = env.unwrap_or_default();
            container.setup.network = (allow_internet_access == Some(false)).then(Vec::new);
        });
        made.map_err(|failure| failure.renamed("env", "envVars"))
    };
    let begun = match key {
        None => Once::New(make(RunId::new())?),
        Some(key) => parts.keys.once(who, None, key, make).await?,
    };
    let container = match begun {
        Once::New(container) => container,
        Once::Again(run) => parts.containers.get(&sandbox(run), ContainerApi::E2b)?,
    };
    Ok((StatusCode::CREATED, Json(opened(&container, headers))))
}

/// A sandbox that goes on, for at least so long.
async fn connect(call: ApiCall, Path(id): Path<String>, body: RequestBody) -> Answer<Value> {
    let until = until(&call, body).await?;
    let extend = |container: &mut Container| container.ends_unix_s = container.ends_unix_s.max(until);
    let container = call.parts.containers.change(&named(&call, &id)?, ContainerApi::E2b, extend)?;
    Ok(Json(opened(&container, &call.headers)))
}

/// Sets when a sandbox expires.
async fn set_timeout(call: ApiCall, Path(id): Path<String>, body: RequestBody) -> Reply<StatusCode> {
    let until = until(&call, body).await?;
    no_content(
        call.parts.containers.change(&named(&call, &id)?, ContainerApi::E2b, |container| container.ends_unix_s = until),
    )
}

/// When a sandbox expires by the body, in seconds since 1970.
async fn until(call: &ApiCall, body: RequestBody) -> Result<i64, Failure> {
    let Timeout { timeout } = body.at_most(BODY_BYTES_MAX).lenient().await?;
    Ok(call.parts.containers.now_unix_s().saturating_add(seconds(timeout)))
}

/// A sandbox.
async fn retrieve(call: ApiCall, Path(id): Path<String>) -> Answer<Value> {
    let container = call.parts.containers.get(&named(&call, &id)?, ContainerApi::E2b)?;
    Ok(Json(shown(&container, call.parts.runs.limits())))
}

/// All sandboxes, or those with some metadata. There is one page, of as many as there is room for.
async fn list(ApiCall { parts, who, .. }: ApiCall, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    let text = |encoded: &str| percent_decode_str(&encoded.replace('+', " ")).decode_utf8_lossy().into_owned();
    let of = |name: &str| query.split('&').filter_map(|part| part.split_once('=')).find(|(key, _)| *key == name);
    let wanted = of("metadata").map(|(_, pairs)| text(pairs)).unwrap_or_default();
    let wanted: Vec<_> = wanted
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (text(&text(name)), text(&text(value))))
        .collect();
    // None is ever paused.
    let runs = of("state").is_none_or(|(_, state)| state.contains("running"));
    let mut all = parts.containers.list(&who, ContainerApi::E2b);
    all.retain(|one| runs && wanted.iter().all(|(name, value)| one.labels.get(name) == Some(value)));
    let (limits, mut room) = (parts.runs.limits(), Room::default());
    let fitting: Vec<_> = all.iter().map(|one| shown(one, limits)).filter(|one| room.takes(one)).collect();
    listed::answer(fitting, !room.is_full)
}

/// Ends what runs in a sandbox and deletes its files.
async fn kill(call: ApiCall, Path(id): Path<String>) -> Reply<StatusCode> {
    no_content(call.parts.containers.remove(&named(&call, &id)?, ContainerApi::E2b).await)
}

fn named(call: &ApiCall, id: &str) -> Result<ConversationKey, Failure> {
    let id = id.parse().map_err(|_| Failure::new(Code::ConversationNotFound, "The sandbox was not found."))?;
    Ok(call.key(id))
}

/// The answer that the SDK makes a sandbox of. Its requests to the sandbox hold the tokens of this answer: the one that
/// this request came with, so that there is no second secret to revoke.
fn opened(container: &Container, headers: &HeaderMap) -> Value {
    let bearer = || headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ').map(|(_, token)| token);
    let token = headers.get(KEY).and_then(|key| key.to_str().ok()).or_else(bearer);
    json!({
        "sandboxID": container.key.id.as_str(),
        "templateID": container.name,
        "clientID": "sandbox",
        "envdVersion": "0.6.4",
        "envdAccessToken": token,
        "trafficAccessToken": token,
        "domain": null,
    })
}

fn shown(container: &Container, limits: &Limits) -> Value {
    json!({
        "sandboxID": container.key.id.as_str(),
        "templateID": container.name,
        "clientID": "sandbox",
        "envdVersion": "0.6.4",
        "startedAt": rfc3339(container.created_unix_s),
        "endAt": rfc3339(container.ends_unix_s),
        "cpuCount": limits.cpu_millis.div_ceil(1000),
        "memoryMB": limits.memory_bytes >> 20,
        // The quota is of a conversation and not of its sandbox.
        "diskSizeMB": 0,
        "state": "running",
        "metadata": container.labels,
    })
}

/// The path below `/data` that an argument is; `None` for the folder itself.
fn below_data(name: &str, path: &str) -> Result<Option<SafePath>, Failure> {
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
        .map_err(|why| Failure::argument(name, format!("{why}; files are in /home/user")))
}

fn a_file(name: &str, path: &str) -> Result<SafePath, Failure> {
    let all_files = || Failure::argument(name, "it names the folder of all files: name what is in it");
    below_data(name, path)?.ok_or_else(all_files)
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
            let found = below_data("path", path).expect(path).map(|path| path.display());
            assert_eq!(found.as_deref(), inside, "{path}");
        }
        for path in ["/etc/passwd", "/home/username/a", "/home/user/../x", "/home/user//x", "../x"] {
            let why = below_data("cwd", path).expect_err(path).message;
            assert!(why.starts_with("cwd: "), "{path}: {why}");
        }
    }
}
