//! What the handlers of all surfaces work with: the services, and what the middleware in front of every route adds to a
//! request.

use std::{convert::Infallible, sync::Arc};

use axum::{
    extract::{self, FromRef, FromRequestParts, OptionalFromRequestParts},
    http::request::Parts,
};
use serde::de::DeserializeOwned;

use super::{body::Bodies, error::ApiError};
use crate::{
    domain::{error::Code, owner::Principal, trace::TraceContext},
    services::{
        admin::Admin, check::Checker, containers::Containers, conversations::Conversations, files::Files,
        history::History, idempotency::Idempotency, kernels::Kernels, network::Network, packages::Packages, runs::Runs,
        sessions::Sessions, skills::Skills, tokens::Tokens, tools::Tools,
    },
};

/// The services, and how bodies are read.
#[derive(Clone, FromRef)]
pub struct ApiParts {
    /// Runs programs.
    pub runs: Runs,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Conversations as wholes.
    pub conversations: Conversations,
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
        match <extract::Path<T> as FromRequestParts<S>>::from_request_parts(head, state).await {
            Ok(extract::Path(names)) => Ok(Self(names)),
            Err(_) => Err(ApiError::new(Code::NotFound, "There is nothing at this path: a name in it is not UTF-8.")),
        }
    }
}

/// The arguments of a query. Unknown ones are ignored.
pub struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match <extract::Query<T> as FromRequestParts<S>>::from_request_parts(head, state).await {
            Ok(extract::Query(arguments)) => Ok(Self(arguments)),
            Err(rejection) => Err(ApiError::new(Code::InvalidArgument, format!("{}.", rejection.body_text()))),
        }
    }
}

impl FromRequestParts<ApiParts> for ApiParts {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, parts: &Self) -> Result<Self, Infallible> {
        Ok(parts.clone())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Principal {
    type Rejection = ApiError;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let who = head.extensions.get::<Self>().cloned();
        who.ok_or_else(|| ApiError::new(Code::Internal, "The request has no principal."))
    }
}

impl<S: Send + Sync> OptionalFromRequestParts<S> for TraceContext {
    type Rejection = Infallible;

    async fn from_request_parts(head: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(head.extensions.get::<Self>().copied())
    }
}
