//! `/healthz`: the process is alive. `/readyz` and `/health`: a run can start.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::{Map, json};

use crate::services::readiness::{Readiness, Ready};

/// The three paths.
pub fn router(readiness: Arc<Readiness>) -> Router {
    let alive = || async { ([(header::CACHE_CONTROL, "no-store")], Json(json!({"status": "alive"}))) };
    Router::new()
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .route("/health", get(ready))
        .with_state(readiness)
}

async fn ready(State(readiness): State<Arc<Readiness>>) -> Response {
    let state = readiness.check().await;
    let reason = match &state {
        Ready::Yes => "A run can start.",
        Ready::NoEngine => "The container engine does not answer.",
        Ready::NoRunner => "No runner image is installed: build them with ./build.sh.",
        Ready::NotTested(None) => "The isolation check has not ended yet.",
        Ready::NotTested(Some(_)) => "The isolation check could not be made: the server's log says why.",
        Ready::NoIsolationProgram(why) => why,
        Ready::NoIsolation => "The engine does not isolate programs: run `mcp-sandbox-server doctor`.",
    };
    let (status, word) = match &state {
        Ready::Yes => (StatusCode::OK, "ready"),
        _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let mut standbys = Map::new();
    for (language, stage, count) in readiness.standing_by() {
        standbys.entry(language.to_string()).or_insert_with(|| json!({}))[stage] = json!(count);
    }
    let headers = [(header::CACHE_CONTROL, "no-store")];
    (status, headers, Json(json!({"status": word, "reason": reason, "standbys": standbys}))).into_response()
}
