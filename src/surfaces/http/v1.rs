//! `/v1`: the same operations as the tools, as plain JSON over HTTP. Nothing is decided here: a handler reads its request,
//! makes one call of a service and maps the answer. What is refused is told as a problem (RFC 9457), see
//! [`super::failure`].
//!
//! Whoever mounts the router lets nobody in without a `Principal` among the request's extensions.

mod archive;
mod call;
mod conversations;
mod files;
mod runners;

use std::sync::Arc;

use axum::{Router, extract::FromRef};
use utoipa::openapi::OpenApi;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::body::BodyLimits;
use crate::services::{conversations::Conversations, execution::Executions, files::Files};

/// What the surface is made of.
#[derive(Clone, FromRef)]
pub struct V1Parts {
    /// Runs programs.
    pub executions: Executions,
    /// Files of conversations.
    pub files: Arc<Files>,
    /// Conversations as wholes.
    pub conversations: Conversations,
    /// How bodies are taken in.
    pub limits: BodyLimits,
}

fn described() -> OpenApiRouter<V1Parts> {
    OpenApiRouter::new()
        .routes(routes!(runners::list))
        .routes(routes!(conversations::list))
        .routes(routes!(conversations::remove))
        .routes(routes!(files::list))
        .routes(routes!(files::read, files::write, files::remove))
        .routes(routes!(archive::read, archive::write))
}

/// The routes.
pub fn router(parts: V1Parts) -> Router {
    let (router, _) = described().split_for_parts();
    router.with_state(parts)
}

/// What the routes are, for the document.
pub fn document() -> OpenApi {
    described().into_openapi()
}
