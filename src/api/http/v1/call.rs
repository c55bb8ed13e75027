//! What a request carries beside its body: the caller, the names in its path, its query. Names in the path are decoded
//! by hand, exactly once: names of files are bytes, which axum's `Path` cannot hold. So the API's description has them
//! from a table.

use std::{fmt, ops::Deref, str::FromStr};

use axum::{extract::FromRequestParts, http::request::Parts};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use utoipa::{
    IntoParams,
    openapi::{
        ObjectBuilder, RefOr, Required,
        path::{Operation, ParameterBuilder, ParameterIn},
        schema::Type,
    },
};

use crate::{
    api::{
        http::{ApiCall, ApiError, ApiParts},
        schema::{
            arguments::NoArguments,
            parse::{Source, item_limit, parse},
        },
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

/// Adds the names in the path of an operation to its description, before its other parameters.
pub(in crate::api::http) fn describe_names(path: &str, operation: &mut Operation) {
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
pub(super) struct Conditions {
    /// Only if the file has one of these validators; `*` stands for any file.
    #[param(rename = "If-Match")]
    if_match: Option<String>,
    /// Only if the file has none of these validators; `*` means: only if there is no file.
    #[param(rename = "If-None-Match")]
    if_none_match: Option<String>,
}

/// A request without its body. An unknown or repeated argument of its query is refused.
pub(super) struct Call<Q = NoArguments> {
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

pub(super) fn arguments<Q: DeserializeOwned + JsonSchema>(query: &str) -> Result<Q, Failure> {
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
pub(super) fn page(limit: Option<u64>) -> Result<usize, Failure> {
    item_limit(limit, PAGE_DEFAULT, PAGE_MAX)
}
