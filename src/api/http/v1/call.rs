//! What a request says beside its body: who asks, the names in its path, its query. Read by hand: names of files are bytes,
//! decoded exactly once, and whatever breaks a rule is named.

use std::{collections::HashMap, str::FromStr};

use axum::{
    extract::{FromRequestParts, OriginalUri},
    http::{HeaderMap, Method, Uri, request::Parts},
};

use crate::{
    api::http::failure::Refused,
    domain::{
        error::{Code, Failure},
        id::RunId,
        owner::{ConversationKey, Principal},
        path::{SafePath, decode_component},
        trace::TraceContext,
    },
};

/// How many things a page of a list holds, where it is not said.
pub(super) const PAGE_DEFAULT: usize = 50;
/// How many at most.
pub(super) const PAGE_MAX: usize = 200;

/// A request without its body.
pub(super) struct Call {
    pub who: Principal,
    pub method: Method,
    pub headers: HeaderMap,
    pub trace: Option<TraceContext>,
    uri: Uri,
}

/// The query's arguments.
pub(super) struct Query(HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for Call {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refused> {
        // The middleware in front of every route puts it there.
        let who = parts.extensions.get::<Principal>().cloned();
        let who = who.ok_or_else(|| Failure::new(Code::Internal, "The server does not know who asks."))?;
        let uri = parts.extensions.get::<OriginalUri>().map_or_else(|| parts.uri.clone(), |uri| uri.0.clone());
        let trace = parts.extensions.get::<TraceContext>().copied();
        Ok(Self { who, method: parts.method.clone(), headers: parts.headers.clone(), trace, uri })
    }
}

impl Call {
    /// The conversation in `/v1/conversations/{id}…`.
    pub fn conversation(&self) -> Result<ConversationKey, Failure> {
        Ok(ConversationKey::new(self.who.clone(), self.name(3, "conversationId")?))
    }

    /// The run in `/v1/runs/{id}…`.
    pub fn run(&self) -> Result<RunId, Failure> {
        self.name(3, "runId")
    }

    /// The path in `/v1/conversations/{id}/files/{path}`.
    pub fn path(&self) -> Result<SafePath, Failure> {
        let encoded = self.uri.path().splitn(6, '/').nth(5).unwrap_or_default();
        SafePath::from_encoded(encoded).map_err(|why| Failure::argument("path", why))
    }

    /// A name in the path.
    pub fn name<T: FromStr<Err: std::fmt::Display>>(&self, place: usize, name: &str) -> Result<T, Failure> {
        let encoded = self.uri.path().split('/').nth(place).unwrap_or_default();
        let decoded = decode_component(encoded).map_err(|why| Failure::argument(name, why))?;
        let text = String::from_utf8(decoded).map_err(|_| Failure::argument(name, "it is not UTF-8"))?;
        text.parse().map_err(|why| Failure::argument(name, why))
    }

    /// The query, which may hold these arguments, once each.
    pub fn query(&self, known: &[&str]) -> Result<Query, Failure> {
        let mut arguments = HashMap::new();
        let query = self.uri.query().unwrap_or_default();
        for (name, value) in
            query.split('&').filter(|part| !part.is_empty()).map(|part| part.split_once('=').unwrap_or((part, "")))
        {
            let Some(name) = known.iter().find(|known| **known == name) else {
                let shown: String = name.chars().filter(char::is_ascii_graphic).take(40).collect();
                let why = match known {
                    [] => "there is no such argument: this operation takes none".to_owned(),
                    known => format!("there is no such argument: there are {}", known.join(", ")),
                };
                return Err(Failure::argument(&shown, why));
            };
            let text = percent_encoding::percent_decode_str(value).decode_utf8();
            let text = text.map_err(|_| Failure::argument(name, "it is not UTF-8"))?.into_owned();
            if arguments.insert((*name).to_owned(), text).is_some() {
                return Err(Failure::argument(name, "it is there twice: give it once"));
            }
        }
        Ok(Query(arguments))
    }
}

impl Query {
    /// An argument, parsed.
    pub fn get<T: FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Result<Option<T>, Failure> {
        self.0.get(name).map(|text| text.parse().map_err(|why| Failure::argument(name, why))).transpose()
    }

    /// A whole number from 0 to `max`.
    pub fn number(&self, name: &str, max: u64) -> Result<Option<u64>, Failure> {
        let digits = |text: &String| {
            text.parse().ok().filter(|number| text.bytes().all(|b| b.is_ascii_digit()) && *number <= max)
        };
        let Some(text) = self.0.get(name) else { return Ok(None) };
        digits(text)
            .map(Some)
            .ok_or_else(|| Failure::argument(name, format!("it must be a whole number from 0 to {max}")))
    }

    /// How long a page may be.
    pub fn limit(&self) -> Result<usize, Failure> {
        let why = format!("it must be a whole number from 1 to {PAGE_MAX}");
        match self.0.get("limit").map(|text| text.parse()) {
            None => Ok(PAGE_DEFAULT),
            Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => Ok(limit),
            Some(_) => Err(Failure::argument("limit", why)),
        }
    }
}
