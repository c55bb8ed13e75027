//! A request's id and its line in the log. The line holds the path and never the query: signatures are there.

use std::sync::Arc;

use axum::{
    body::HttpBody as _,
    extract::{Request, State},
    http::HeaderValue,
    middleware::Next,
    response::Response,
};
use tokio::time::Instant;
use tracing::{Instrument, info, info_span, warn};

use crate::{nouns::id::RequestId, ports::observer::Observer};

const PATH_CHARS_MAX: usize = 200;

/// Gives a request its id and tells it to the client. A client's own id is not taken over: it could be anything.
pub async fn identify(mut request: Request, next: Next) -> Response {
    let id = RequestId::new();
    request.extensions_mut().insert(id);
    let span = info_span!("request", request = %id);
    let mut response = next.run(request).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

/// One line for each request, once it is answered.
pub async fn log(State(observer): State<Arc<dyn Observer>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(PATH_CHARS_MAX).collect();
    let response = next.run(request).await;
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    observer.answered(status, took, response.body().size_hint().exact());
    let ms = took.as_millis();
    if response.status().is_server_error() {
        warn!(%method, path, status, ms, "request failed");
    } else {
        info!(%method, path, status, ms, "request");
    }
    response
}
