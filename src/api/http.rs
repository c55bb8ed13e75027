//! Everything that is served over HTTP, on one page: the routes, and the middleware that every request passes.
//!
//! ```text
//! request ─ id ─ log ─ errors ─ panics ─ room ─ body ─ host, origin ─┬─ /            the page, no token
//!                                                                    ├─ /files/…     the signature is the right
//!                                                                    └─ bearer ── /mcp, /mcp/events, /v1/…, /api/v2/…,
//!                                                                                 /jupyter/…, CodeRunner's
//! /healthz /readyz /health: no host check, for probes that address machines by number; /metrics neither, but a bearer
//! ```

pub mod auth;
pub mod body;
pub mod coderunner;
pub mod error;
pub mod files;
pub mod guard;
pub mod health;
pub mod json;
pub mod jupyter;
pub mod mcp;
pub mod metrics;
pub mod openapi;
pub mod page;
pub mod piston;
mod sse;
pub mod trace;
pub mod v1;

use std::sync::Arc;

use axum::{Router, middleware, routing::any};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    ports::observer::Observer,
    services::{readiness::Readiness, tokens::Tokens},
};

/// The parts of the router.
pub struct HttpParts {
    /// `/mcp`, behind the bearer token.
    pub mcp: Router,
    /// `/v1`, behind the bearer token.
    pub v1: Router,
    /// `/api/v2`, behind the bearer token.
    pub piston: Router,
    /// CodeRunner's paths, behind the bearer token.
    pub coderunner: coderunner::CodeRunnerParts,
    /// `/jupyter`, behind the bearer token.
    pub jupyter: Router,
    /// `/files`.
    pub files: Router,
    /// Knows the tokens.
    pub tokens: Arc<Tokens>,
    /// Whether a run can start.
    pub readiness: Arc<Readiness>,
    /// What is measured.
    pub metrics: metrics::Exposition,
    /// Is notified of every answer.
    pub observer: Arc<dyn Observer>,
    /// Which names this server answers to.
    pub names: guard::Names,
}

/// The whole surface.
pub fn router(parts: HttpParts) -> Router {
    let HttpParts { mcp, v1, piston, coderunner, jupyter, files, tokens, readiness, metrics, observer, names } = parts;
    // Behind the token, but not behind the check of names: scrapers address machines by number.
    let measured = metrics::router(metrics).layer(middleware::from_fn_with_state(Arc::clone(&tokens), auth::bearer));
    let health = health::router(readiness, Arc::clone(&tokens));
    let bodies = coderunner.bodies.clone();
    let authorized = mcp
        .merge(v1)
        .merge(piston)
        .merge(coderunner::router(coderunner))
        .merge(jupyter)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(middleware::from_fn_with_state(tokens, auth::bearer))
        .layer(middleware::from_fn_with_state(bodies, coderunner::key_from_body));
    let cors = names.cors();
    let router = Router::new()
        .merge(page::router())
        .merge(openapi::router())
        .merge(files)
        .merge(authorized)
        .fallback(any(error::not_found))
        .layer(middleware::from_fn_with_state(Arc::new(names), guard::check))
        .merge(health)
        .merge(measured);
    // Outside the check of names and the token: a browser asks without either.
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .layer(middleware::from_fn(page::headers))
        .layer(middleware::from_fn(body::drain_unread))
        .layer(middleware::from_fn(auth::turn))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn(error::render))
        .layer(middleware::from_fn_with_state(observer, trace::log))
        .layer(middleware::from_fn(trace::identify))
}
