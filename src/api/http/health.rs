//! `/healthz`: the process is alive. `/readyz` and `/health`: a run can start; with the scope `admin`, the standbys,
//! whose number follows from what all owners do, and late with a wrong token, as elsewhere. `/metrics`: with the bearer
//! token on the server's own address, without one on an address of its own.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Map, json};
use tokio::time::sleep;

use super::auth::{caller, tried};
use crate::{
    domain::Scope,
    services::{
        stats::{Readiness, Ready},
        tokens::Tokens,
    },
};

pub(super) const PATHS: [&str; 3] = ["/healthz", "/readyz", "/health"];

type Parts = (Arc<Readiness>, Arc<Tokens>);

/// The three paths.
pub fn router(readiness: Arc<Readiness>, tokens: Arc<Tokens>) -> Router {
    let alive = || async { ([(header::CACHE_CONTROL, "no-store")], Json(json!({"status": "alive"}))) };
    let [healthz, readyz, health] = PATHS;
    Router::new()
        .route(healthz, get(alive))
        .route(readyz, get(ready))
        .route(health, get(ready))
        .with_state((readiness, tokens))
}

async fn ready(State((readiness, tokens)): State<Parts>, request: Request) -> Response {
    let (found, tried) = (caller(&tokens, "", request.headers()), tried(&request));
    // The answer tells whether a token is valid. Only this header can hold one here: clients send others everywhere.
    let is_wrong = found.is_none() && request.headers().contains_key(header::AUTHORIZATION);
    if let Some(from) = tried.filter(|_| is_wrong) {
        sleep(tokens.refused(from)).await;
    }
    let state = readiness.check().await;
    let reason = match &state {
        Ready::Yes => "A run can start.",
        Ready::NoEngine => "The container engine does not answer.",
        Ready::NoRunner => "No runner is installed: run ./build.sh, or with Kubernetes apply pod templates.",
        Ready::NotTested(None) => "The isolation check has not ended yet.",
        Ready::NotTested(Some(_)) => "The isolation check could not be made: the server's log says why.",
        Ready::Except(why) | Ready::NoIsolationProgram(why) => why,
        Ready::NoIsolation => "The engine does not isolate programs: run `mcp-sandbox-server doctor`.",
    };
    let (status, word) = match &state {
        Ready::Yes | Ready::Except(_) => (StatusCode::OK, "ready"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let mut body = json!({"status": word, "reason": reason});
    if found.is_some_and(|caller| caller.token.record.grant.has(Scope::Admin)) {
        let mut standbys = Map::new();
        for (language, stage, count) in readiness.standing_by() {
            standbys.entry(language.to_string()).or_insert_with(|| json!({}))[stage] = json!(count);
        }
        body["standbys"] = standbys.into();
    }
    (status, [(header::CACHE_CONTROL, "no-store")], Json(body)).into_response()
}

/// Makes the text and says of what kind it is.
#[derive(Clone)]
pub struct Exposition {
    /// What the text is.
    pub content_type: &'static str,
    /// Makes it anew each time.
    pub text: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The one path.
pub fn metrics_router(exposition: Exposition) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(exposition)
}

async fn metrics(State(exposition): State<Exposition>) -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, exposition.content_type), (header::CACHE_CONTROL, "no-store")];
    (headers, (exposition.text)())
}
