//! What the handlers of all surfaces work with: the services, what the middleware in front of every route adds to a
//! request, and its path, query and body.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::{Body, Bytes, HttpBody as _},
    extract::{self, FromRef, FromRequest, FromRequestParts, OriginalUri, Request},
    http::{HeaderMap, HeaderName, Method, Uri, header, request::Parts},
};
use futures_util::Stream;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::{
    Reply,
    body::{Bodies, media_type},
    error::ApiError,
    files,
    peers::MayBeElsewhere,
    single,
};
use crate::{
    api::schema::parse::{Source, by_size, parse},
    domain::{Code, ConversationId, ConversationKey, Failure, Principal, SafePath, TraceContext},
    services::{
        admin::Admin,
        check::Checker,
        containers::Containers,
        files::Files,
        history::History,
        idempotency::{Digest, Idempotency},
        kernels::Kernels,
        network::Network,
        packages::Packages,
        runs::{Report, RunHandle, RunRequest, Runs},
        sessions::Sessions,
        skills::Skills,
        tokens::{Token, Tokens},
        tools::Tools,
    },
};

const KEY_CHARS_MAX: usize = 255;

/// The services, and how bodies are read.
#[derive(Clone, FromRef)]
pub struct ApiParts {
    /// Runs programs; lists and deletes conversations.
    pub runs: Runs,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Conversations that clients of E2B and OpenAI hold for a time.
    pub containers: Containers,
    /// What was run.
    pub history: Arc<History>,
    /// Which requests began which runs.
    pub keys: Arc<Idempotency>,
    /// Reads request bodies.
    pub bodies: Bodies,
    /// Sandboxes that keep an interpreter.
    pub sessions: Sessions,
    /// Sessions with several clients.
    pub kernels: Kernels,
    pub tokens: Arc<Tokens>,
    /// What operators see and change.
    pub admin: Admin,
    /// The connections of programs.
    pub network: Network,
    /// Installs packages.
    pub packages: Packages,
    pub skills: Skills,
    pub tools: Tools,
    /// Formats programs.
    pub checker: Checker,
}

/// The names in a path, decoded. A path that they cannot be read from names nothing.
pub struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let names = <extract::Path<T> as FromRequestParts<S>>::from_request_parts(head, state).await;
        let why = "There is nothing at this path: a name in it is not UTF-8.";
        names.map(|names| Self(names.0)).map_err(|_| ApiError::new(Code::NotFound, why))
    }
}

/// The arguments of a query. Unknown ones are ignored.
pub struct Query<T>(pub T);

impl<T: DeserializeOwned> Query<T> {
    pub(super) fn of(uri: &Uri) -> Result<Self, ApiError> {
        match extract::Query::try_from_uri(uri) {
            Ok(extract::Query(arguments)) => Ok(Self(arguments)),
            Err(rejection) => Err(ApiError::new(Code::InvalidArgument, format!("{}.", rejection.body_text()))),
        }
    }
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, ApiError> {
        Self::of(&head.uri)
    }
}

/// A body that has not been read, with what its reading depends on, so that a handler takes them as one value.
pub struct RequestBody {
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

/// Refuses the first of the arguments that breaks its rule: its name, whether it does, and the rule.
pub(super) fn check_rules<const N: usize>(rules: [(&str, bool, &str); N]) -> Result<(), Failure> {
    let broken = rules.into_iter().find(|(_, is_broken, _)| *is_broken);
    broken.map_or(Ok(()), |(argument, _, why)| Err(Failure::argument(argument, why)))
}

/// The key by which a repeated request is known.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let repeated = |_| Failure::argument("Idempotency-Key", "it is there twice: send it once");
    let key = single(headers, &HeaderName::from_static("idempotency-key")).map_err(repeated)?;
    let Some(key) = key else { return Ok(None) };
    let text = key.to_str().ok().map(str::trim).filter(|text| (1..=KEY_CHARS_MAX).contains(&text.len()));
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    let why = format!("it must be 1 to {KEY_CHARS_MAX} visible characters");
    text.map(|text| Some(text.to_owned())).ok_or_else(|| Failure::argument("Idempotency-Key", why))
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let who = head.extensions.get::<Self>().cloned();
        who.ok_or_else(|| ApiError::new(Code::Internal, "The request has no principal."))
    }
}

/// The key of a request, and the digest by which it is the same.
pub(super) type KeyedRequest = Option<(String, Digest)>;

/// A request without its body, and the services.
pub struct ApiCall {
    pub parts: ApiParts,
    pub who: Principal,
    pub method: Method,
    /// With what routers take from the path of a surface.
    pub uri: Uri,
    pub headers: HeaderMap,
    pub trace: Option<TraceContext>,
    /// `None` where no middleware checked one.
    pub token: Option<Arc<Token>>,
    /// What is not in memory here may be at another server.
    pub others_may_know: bool,
}

impl FromRequestParts<ApiParts> for ApiCall {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, parts: &ApiParts) -> Result<Self, ApiError> {
        let who = Principal::from_request_parts(head, parts).await?;
        let (method, headers, trace) = (head.method.clone(), head.headers.clone(), head.extensions.get().copied());
        let uri = head.extensions.get().map_or_else(|| head.uri.clone(), |OriginalUri(uri)| uri.clone());
        let token = head.extensions.get::<Arc<Token>>().cloned();
        let others_may_know = head.extensions.get::<MayBeElsewhere>().is_some();
        Ok(Self { parts: parts.clone(), who, method, uri, headers, trace, token, others_may_know })
    }
}

impl ApiCall {
    pub fn key(&self, id: ConversationId) -> ConversationKey {
        ConversationKey::new(self.who.clone(), id)
    }

    /// Begins a program; a client that disconnects cancels it.
    pub fn begin(&self, request: RunRequest) -> Result<RunHandle, Failure> {
        self.parts.runs.begin(RunRequest { detach: Some(false), within: self.trace, ..request })
    }

    /// The members of a request that begins something, and its key with the digest of what is sent, where it has a key.
    /// `route` is what the request means beside its body. Without capacity the body is not read; what exists already
    /// needs none.
    pub async fn repeatable(
        &self,
        route: &str,
        body: RequestBody,
    ) -> Result<(Map<String, Value>, KeyedRequest), Failure> {
        let ApiParts { runs, keys, .. } = &self.parts;
        let key = idempotency_key(&self.headers)?;
        if key.as_ref().is_none_or(|key| !keys.knows(&self.who, key)) {
            runs.check_capacity(&self.who)?;
        }
        // The memory of the bytes is for others while a run is waited for; admission counts what the run keeps.
        let (members, bytes) = body.members().await?;
        let Some(key) = key else { return Ok((members, None)) };
        let hasher = Sha256::new().chain_update(route);
        let digest = by_size(bytes.len(), move || hasher.chain_update(&bytes).finalize().into()).await;
        Ok((members, Some((key, digest))))
    }

    /// Runs a program to its end, as [`Self::begin`].
    pub async fn finished(&self, request: RunRequest) -> Result<Arc<Report>, Failure> {
        let run = self.begin(request)?;
        run.finished().await
    }

    /// The bytes of a file, as far as the request's headers ask for them.
    pub async fn download(&self, conversation: &ConversationKey, path: &SafePath) -> Reply {
        let download = self.parts.files.open(conversation, path).await?;
        Ok(files::present_to(&self.method, &self.headers, &download))
    }
}
