//! A body that has not been read, with what its reading depends on, so that a handler takes them as one value.

use std::convert::Infallible;

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::{FromRef, FromRequest, Request},
    http::{HeaderMap, header},
};
use futures_util::Stream;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Bodies, media_type};
use crate::{
    api::schema::parse::{Source, parse},
    domain::{Code, Failure},
};

pub(in crate::api::http) struct RequestBody {
    bodies: Bodies,
    headers: HeaderMap,
    body: Body,
}

impl<S: Send + Sync> FromRequest<S> for RequestBody
where
    Bodies: FromRef<S>,
{
    type Rejection = Infallible;

    async fn from_request(request: Request, state: &S) -> Result<Self, Infallible> {
        let (head, body) = request.into_parts();
        Ok(Self { bodies: Bodies::from_ref(state), headers: head.headers, body })
    }
}

impl RequestBody {
    pub fn is_empty(&self) -> bool {
        self.body.is_end_stream()
    }

    /// As [`media_type`].
    pub fn media_type(&self) -> Result<String, Failure> {
        media_type(&self.headers)
    }

    /// What separates the members of a form; `None` for a body that is announced as something else.
    pub fn boundary(&self) -> Option<String> {
        multer::parse_boundary(self.headers.get(header::CONTENT_TYPE)?.to_str().ok()?).ok()
    }

    /// As [`Bodies::at_most`].
    #[must_use]
    pub fn at_most(self, bytes_max: usize) -> Self {
        Self { bodies: self.bodies.at_most(bytes_max), ..self }
    }

    /// As [`Bodies::read`].
    pub async fn read(self) -> Result<Bytes, Failure> {
        self.bodies.read(&self.headers, self.body).await
    }

    /// Reads a body of one kind, which may also be announced as plain bytes or not at all.
    pub async fn read_as(self, what: &str, kind: &str) -> Result<Bytes, Failure> {
        if !["", kind, "application/octet-stream"].contains(&self.media_type()?.as_str()) {
            let why = format!("The body must be a {what}: send the header `Content-Type: {kind}`.");
            return Err(Failure::new(Code::UnsupportedMediaType, why));
        }
        self.read().await
    }

    /// As [`Bodies::stream`].
    pub fn stream(self) -> Result<(Option<u64>, impl Stream<Item = Result<Bytes, Failure>> + Send), Failure> {
        self.bodies.stream(&self.headers, self.body)
    }

    /// As [`Bodies::json`].
    pub async fn members(self) -> Result<(Map<String, Value>, Bytes), Failure> {
        self.bodies.json(&self.headers, self.body).await
    }

    /// A JSON object without unknown members.
    pub async fn json<T: DeserializeOwned + JsonSchema>(self) -> Result<T, Failure> {
        parse(self.members().await?.0, Source::Json)
    }

    /// A JSON object whose unknown members are ignored.
    pub async fn lenient<T: DeserializeOwned + JsonSchema>(self) -> Result<T, Failure> {
        parse(self.members().await?.0, Source::Lenient)
    }
}
