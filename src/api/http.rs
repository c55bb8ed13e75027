//! Everything that is served over HTTP, on one page: the routes, and the middleware that every request passes.
//!
//! ```text
//! request ─ id ─ log ─ errors ─ panics ─ room ─ body ─ host, origin ─┬─ /            the page, no token
//!                                                                    ├─ /files/…     the signature is the right
//!                                                                    └─ bearer ─ peers ─ /mcp, /mcp/events, /v1/…,
//!                                                                                 /api/v2/…, /jupyter/…, CodeRunner's,
//!                                                                                 /librechat/…, /e2b/…,
//!                                                                                 /openai/v1/…
//! /.well-known/… /register /token /revoke, where sign-in is on: for any page, so without these checks; /authorize is
//! behind the check of names
//! /healthz /readyz /health: no host check, for probes that address machines by number; /metrics neither, but a bearer
//! ```

pub mod arrival;
pub mod auth;
pub mod body;
pub mod coderunner;
pub mod e2b;
pub mod error;
pub mod files;
pub mod guard;
pub mod health;
pub mod json;
pub mod jupyter;
pub mod librechat;
mod listed;
pub mod mcp;
mod multipart;
pub mod openai;
pub mod openapi;
pub mod page;
mod parts;
pub mod peers;
pub mod piston;
pub mod sign_in;
mod sse;
pub mod v1;

use std::sync::Arc;

use axum::{
    Router,
    http::{HeaderMap, HeaderName, HeaderValue},
    middleware,
    routing::any,
};
use tower_http::catch_panic::CatchPanicLayer;

// The words that most interfaces use, without their modules.
pub use self::{
    error::{Answer, Reply},
    parts::ApiParts,
};
use self::{
    error::{ApiError, no_content},
    listed::Room,
    multipart::Form,
    parts::{ApiCall, Path, Query, RequestBody},
};
use crate::{
    domain::{Code, Failure},
    ports::observer::Observer,
    services::stats::Readiness,
};

/// Whether a path is that of a surface at this root.
fn is_below(root: &str, path: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A header that is there once or not at all.
fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Failure> {
    let mut all = headers.get_all(name).iter();
    let (value, None) = (all.next(), all.next()) else {
        return Err(Failure::new(Code::InvalidRequest, format!("The header `{name}` is there twice: send it once.")));
    };
    Ok(value)
}

/// The parts of the router.
pub struct HttpParts {
    /// Sends on what is at another server.
    pub relay: peers::Relay,
    /// `/mcp`, behind the bearer token.
    pub mcp: Router,
    /// For `/v1`, `/files`, `/jupyter` and the interfaces of other products.
    pub api: ApiParts,
    /// `None` where sign-in is off: its paths do not exist then.
    pub sign_in: Option<sign_in::SignInParts>,
    /// Whether a run can start.
    pub readiness: Arc<Readiness>,
    /// What is measured.
    pub metrics: health::Exposition,
    /// Is notified of every answer.
    pub observer: Arc<dyn Observer>,
    /// Which names this server answers to.
    pub names: guard::Names,
    /// Who may say where a request comes from.
    pub proxies: auth::Proxies,
}

/// The whole surface.
pub fn router(parts: HttpParts) -> Router {
    let HttpParts { relay, mcp, api, sign_in, readiness, metrics, observer, names, proxies } = parts;
    let ApiParts { tokens, bodies, .. } = api.clone();
    let recognize = || middleware::from_fn_with_state(sign_in.clone(), sign_in::recognize);
    // Behind the token, but not behind the check of names: scrapers address machines by number.
    let measured =
        health::metrics_router(metrics).layer(middleware::from_fn_with_state(Arc::clone(&tokens), auth::bearer));
    let measured = measured.merge(health::router(readiness, Arc::clone(&tokens))).layer(recognize());
    let authorized = mcp
        .merge(v1::router(api.clone()))
        .merge(coderunner::router(api.clone()))
        .merge(jupyter::router(api.clone()))
        .merge(piston::router(api.clone()))
        .merge(e2b::router(api.clone()))
        .merge(openai::router(api.clone()))
        .merge(librechat::router(api.clone()))
        .method_not_allowed_fallback(error::no_such_method)
        .layer(middleware::from_fn_with_state(relay, peers::send_on))
        .layer(middleware::from_fn_with_state(tokens, auth::bearer))
        .layer(middleware::from_fn_with_state(bodies, coderunner::key_from_body))
        .layer(recognize())
        .layer(middleware::from_fn_with_state(sign_in.clone(), sign_in::challenge));
    let cors = names.cors();
    let router = Router::new()
        .merge(page::router())
        .merge(openapi::router())
        .merge(files::router(api.files, api.bodies))
        .merge(authorized)
        .merge(sign_in.as_ref().map_or_else(Router::new, sign_in::pages))
        .fallback(any(error::not_found))
        .layer(middleware::from_fn_with_state(Arc::new(names), guard::check))
        .merge(measured);
    // Outside the check of names and the token: a browser asks without either.
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router
        .merge(sign_in.map_or_else(Router::new, sign_in::open))
        .layer(middleware::from_fn(guard::add_headers))
        .layer(middleware::from_fn(body::drain_unread))
        .layer(middleware::from_fn_with_state(proxies, auth::admit))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(middleware::from_fn(error::render))
        .layer(middleware::from_fn_with_state(observer, arrival::observe))
}
