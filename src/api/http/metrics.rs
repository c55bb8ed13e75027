//! `/metrics`: with the bearer token on the server's own address, without one on an address of its own.

use std::sync::Arc;

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};

/// Makes the text and says of what kind it is.
#[derive(Clone)]
pub struct Exposition {
    /// What the text is.
    pub content_type: &'static str,
    /// Makes it anew each time.
    pub text: Arc<dyn Fn() -> String + Send + Sync>,
}

/// The one path.
pub fn router(exposition: Exposition) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(exposition)
}

async fn metrics(State(exposition): State<Exposition>) -> impl IntoResponse {
    let headers = [(header::CONTENT_TYPE, exposition.content_type), (header::CACHE_CONTROL, "no-store")];
    (headers, (exposition.text)())
}
