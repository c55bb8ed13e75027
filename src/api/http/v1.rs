//! `/v1`: the same operations as the tools, as plain JSON over HTTP. A handler decides nothing: it reads its request,
//! makes one call of a service and maps the answer. Errors are problems (RFC 9457), see [`super::error`].
//!
//! Names in a path are decoded by hand, exactly once: names of files are bytes, which axum's `Path` cannot hold. So the
//! API's description has them from a table. The router must be mounted behind a middleware that puts a `Principal` into
//! the request's extensions.

mod admin;
mod conversations;
mod installed;
mod reach;
mod runs;
mod sessions;

use std::{fmt, ops::Deref, str::FromStr};

use axum::{Router, extract::FromRequestParts, http::request::Parts, routing::get};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use utoipa::{
    IntoParams,
    openapi::{
        ObjectBuilder, OpenApi, RefOr, Required,
        path::{Operation, ParameterBuilder, ParameterIn},
        schema::Type,
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) use self::runs::page_max;
use super::{ApiCall, ApiError, ApiParts};
use crate::{
    api::schema::{
        arguments::NoArguments,
        parse::{Source, item_limit, parse},
    },
    domain::{ConversationKey, Failure, RunId, SafePath, SessionId, path::decode_component},
};

/// How many items a page of a list holds by default.
const PAGE_DEFAULT: u64 = 50;
const PAGE_MAX: u64 = 200;

/// Conversations and owners.
const NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";

/// What a name in a path is, its pattern, and its length at least and at most.
type NameOfPath = (&'static str, &'static str, Option<usize>, Option<usize>);

/// The names in paths, for the API's description, by what they follow.
const NAMES: [(&str, NameOfPath); 16] = [
    ("conversations/{conversationId}", ("The conversation.", NAME, Some(1), Some(128))),
    ("conversations/{owner}", ("The owner.", NAME, Some(1), Some(64))),
    ("{owner}/{conversationId}", ("The owner's conversation.", NAME, Some(1), Some(128))),
    ("files/{path}", (PATH_ABOUT, PATH, Some(1), None)),
    ("runs/{runId}", ("The run.", "^run-[0-9a-f]{32}$", None, None)),
    ("sessions/{sessionId}", ("The session.", "^session-[0-9a-f]{32}$", None, None)),
    ("skills/{name}", ("The skill.", "^[a-z0-9]+(-[a-z0-9]+)*$", Some(1), Some(64))),
    ("tools/{server}", ("The server.", "^[a-z][a-z0-9_]*$", Some(1), Some(32))),
    ("{server}/{tool}", ("The tool, or its module's name.", "", Some(1), Some(128))),
    ("tool-servers/{name}", ("The server.", "^[a-z][a-z0-9_-]*$", Some(1), Some(32))),
    ("approvals/{id}", ("The question.", "^[0-9a-f]{32}$", None, None)),
    ("network/{name}", ("The policy's name.", "^[A-Za-z0-9_-]*$", Some(1), Some(32))),
    ("tokens/{tokenId}", ("The token's id.", "^token-[0-9a-f]{32}$", None, None)),
    ("connections/{connectionId}", ("The connection.", "^token-[0-9a-f]{32}$", None, None)),
    ("runners/{language}", ("The language.", "^[A-Za-z0-9][A-Za-z0-9._+#-]*$", None, None)),
    ("modules/{name}", ("The module, such as `json.decoder`.", "^[A-Za-z0-9_.]+$", None, None)),
];
const PATH_ABOUT: &str = "The path below /data; percent-encoded; slashes between names may be encoded too.";
const PATH: &str = "^([^/\\u0000]*[^/.\\u0000][^/\\u0000]*|[.]{3,})\
    (/([^/\\u0000]*[^/.\\u0000][^/\\u0000]*|[.]{3,}))*$";

fn described() -> OpenApiRouter<ApiParts> {
    OpenApiRouter::new()
        .routes(routes!(runs::create, runs::list))
        .routes(routes!(runs::get))
        .routes(routes!(runs::cancel))
        .routes(routes!(runs::input))
        .routes(routes!(runs::watch))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::get, sessions::close))
        .routes(routes!(sessions::run_cell))
        .routes(routes!(sessions::interrupt))
        .routes(routes!(sessions::restart))
        .routes(routes!(sessions::complete))
        .routes(routes!(sessions::inspect))
        .routes(routes!(sessions::browse))
        .routes(routes!(installed::check))
        .routes(routes!(installed::list))
        .routes(routes!(installed::module))
        .routes(routes!(conversations::list))
        .routes(routes!(conversations::remove))
        .routes(routes!(conversations::list_files))
        .routes(routes!(conversations::rename))
        .routes(routes!(admin::create_token, admin::list_tokens))
        .routes(routes!(admin::revoke_token))
        .routes(routes!(admin::history))
        .routes(routes!(admin::usage))
        .routes(routes!(admin::owners))
        .routes(routes!(admin::overview))
        .routes(routes!(admin::connections))
        .routes(routes!(admin::end_connection))
        .routes(routes!(admin::allow_subject))
        .routes(routes!(admin::activity))
        .routes(routes!(admin::doctor))
        .routes(routes!(admin::runs))
        .routes(routes!(admin::cancel))
        .routes(routes!(admin::end_session))
        .routes(routes!(reach::policies))
        .routes(routes!(reach::all_decisions))
        .routes(routes!(reach::put_policy, reach::remove_policy))
        .routes(routes!(admin::conversations))
        .routes(routes!(admin::remove_conversation))
        .routes(routes!(reach::decisions))
        .routes(routes!(conversations::install))
        .routes(routes!(installed::list_skills))
        .routes(routes!(installed::get_skill, installed::put_skill, installed::remove_skill))
        .routes(routes!(reach::servers))
        .routes(routes!(reach::search))
        .routes(routes!(reach::source))
        .routes(routes!(reach::approvals))
        .routes(routes!(reach::approval, reach::answer, reach::withdraw))
        .routes(routes!(reach::all_servers))
        .routes(routes!(reach::put_server, reach::remove_server))
        .routes(routes!(conversations::read_archive, conversations::write_archive))
        .routes(routes!(conversations::link_archive))
}

/// The routes.
pub fn router(parts: ApiParts) -> Router {
    let (router, _) = described().split_for_parts();
    // Below `files` everything is a path, slashes too, which the language of the document cannot say.
    let file = get(conversations::read).put(conversations::write).delete(conversations::remove_file);
    let router = router.route("/v1/conversations/{conversationId}/files/{*path}", file);
    router.route("/v1/skills/{name}/files/{*path}", get(installed::skill_file)).with_state(parts)
}

/// What the routes are, for the document.
pub fn document() -> OpenApi {
    let files = described().routes(routes!(conversations::read, conversations::write, conversations::remove_file));
    files.routes(routes!(installed::skill_file)).into_openapi()
}

/// Adds the names in the path of an operation to its description, before its other parameters.
pub(super) fn describe_names(path: &str, operation: &mut Operation) {
    let segments: Vec<_> = path.split('/').collect();
    let names = segments.windows(2).filter_map(|pair| {
        let key = pair.join("/");
        let &(_, (about, pattern, min, max)) = NAMES.iter().find(|(known, _)| *known == key)?;
        let pattern = (!pattern.is_empty()).then_some(pattern);
        let schema = ObjectBuilder::new().schema_type(Type::String).pattern(pattern).min_length(min).max_length(max);
        let name = ParameterBuilder::new().name(pair[1].trim_matches(['{', '}'])).parameter_in(ParameterIn::Path);
        let name = name.required(Required::True).description(Some(about)).schema(Some(schema));
        Some(RefOr::T(name.build()))
    });
    let names: Vec<_> = names.collect();
    if !names.is_empty() {
        drop(operation.parameters.get_or_insert_default().splice(..0, names));
    }
}

/// For the API's description: [`crate::api::http::files::condition`] reads them.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "the headers are lists")]
struct Conditions {
    /// Only if the file has one of these validators; `*` stands for any file.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// Only if the file has none of these validators; `*` means: only if there is no file.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

/// A request without its body. An unknown or repeated argument of its query is refused.
struct Call<Q = NoArguments> {
    api: ApiCall,
    pub query: Q,
}

impl<Q: DeserializeOwned + JsonSchema> FromRequestParts<ApiParts> for Call<Q> {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, parts: &ApiParts) -> Result<Self, ApiError> {
        let api = ApiCall::from_request_parts(head, parts).await?;
        Ok(Self { query: arguments(head.uri.query().unwrap_or_default())?, api })
    }
}

impl<Q> Deref for Call<Q> {
    type Target = ApiCall;

    fn deref(&self) -> &ApiCall {
        &self.api
    }
}

impl<Q> Call<Q> {
    /// The conversation in `/v1/conversations/{id}…`.
    pub fn conversation(&self) -> Result<ConversationKey, Failure> {
        Ok(self.key(self.name(3, "conversationId")?))
    }

    /// The run in `/v1/runs/{id}…`.
    pub fn run(&self) -> Result<RunId, Failure> {
        self.name(3, "runId")
    }

    /// The session in `/v1/sessions/{id}…`.
    pub fn session(&self) -> Result<SessionId, Failure> {
        self.name(3, "sessionId")
    }

    /// The path in `/v1/conversations/{id}/files/{path}`.
    pub fn path(&self) -> Result<SafePath, Failure> {
        let encoded = self.uri.path().splitn(6, '/').nth(5).unwrap_or_default();
        // No name holds a slash: an encoded one is a generated client's, which takes the path for one name.
        let plain = encoded.replace("%2F", "/").replace("%2f", "/");
        SafePath::from_encoded(&plain).map_err(|why| Failure::argument("path", why))
    }

    /// A name in the path.
    pub fn name<T: FromStr<Err: fmt::Display>>(&self, segment: usize, name: &str) -> Result<T, Failure> {
        let encoded = self.uri.path().split('/').nth(segment).unwrap_or_default();
        let decoded = decode_component(encoded).map_err(|why| Failure::argument(name, why))?;
        let text = String::from_utf8(decoded).map_err(|_| Failure::argument(name, "it is not UTF-8"))?;
        text.parse().map_err(|why| Failure::argument(name, why))
    }
}

fn arguments<Q: DeserializeOwned + JsonSchema>(query: &str) -> Result<Q, Failure> {
    let mut arguments = Map::new();
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        // As forms are encoded, and so by most clients.
        let value = value.replace('+', " ");
        let text = percent_encoding::percent_decode_str(&value).decode_utf8();
        let text = text.map_err(|_| Failure::argument(name, "it is not UTF-8"))?.into_owned();
        if arguments.insert(name.to_owned(), Value::String(text)).is_some() {
            return Err(Failure::argument(name, "it is there twice: give it once"));
        }
    }
    parse(arguments, Source::Query)
}

/// How long a page may be.
fn page(limit: Option<u64>) -> Result<usize, Failure> {
    item_limit(limit, PAGE_DEFAULT, PAGE_MAX)
}
