//! A request's id, its place in a trace, and its line in the log. The line holds the path and never the query:
//! signatures are there. The observer gets only the route.

use std::sync::Arc;

use axum::{
    body::HttpBody as _,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method},
    middleware::Next,
    response::Response,
};
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span, warn};

use super::parts::single;
use crate::{
    domain::{Failure, TraceContext, id::RequestId},
    ports::observer::{AnswerFacts, Observer},
};

const PATH_CHARS_MAX: usize = 200;
/// Asked every few seconds by whatever watches the server.
const PROBES: [&str; 4] = ["/healthz", "/readyz", "/health", "/metrics"];

/// Gives a request its id and returns it in a header. A client's own id is ignored: it could be anything.
pub async fn observe(State(observer): State<Arc<dyn Observer>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::new();
    let trace = TraceContext::of_request(id, caller(request.headers()));
    request.extensions_mut().insert(id);
    request.extensions_mut().insert(trace);
    let span = info_span!("request", request = %id);
    let mut response = logged(&*observer, (id, trace), request, next).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

/// The caller's place in a trace. A repeated header is ignored, as the standard requires.
fn caller(headers: &HeaderMap) -> Option<TraceContext> {
    let only = single(headers, &HeaderName::from_static("traceparent")).ok()??;
    only.to_str().ok().and_then(TraceContext::parse)
}

/// One line for each request, once it is answered.
async fn logged(observer: &dyn Observer, ids: (RequestId, TraceContext), request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(PATH_CHARS_MAX).collect();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    observer.answered(&AnswerFacts {
        request: ids.0,
        trace: ids.1,
        method: standard(&method),
        route: route.as_ref().map(MatchedPath::as_str),
        status,
        took,
        bytes: response.body().size_hint().exact(),
    });
    let ms = took.as_millis();
    let refused = response.extensions().get::<Failure>();
    let (code, why) = refused.map(|refused| (refused.code.as_str(), refused.message.as_str())).unzip();
    if response.status().is_server_error() {
        warn!(%method, path, status, ms, code, why, "request failed");
    } else if refused.is_some() {
        info!(%method, path, status, ms, code, why, "request refused");
    } else if PROBES.contains(&path.as_str()) {
        debug!(%method, path, status, ms, "request");
    } else {
        info!(%method, path, status, ms, "request");
    }
    response
}

/// A method by its name, unless a client made it up (OpenTelemetry's conventions for HTTP).
fn standard(method: &Method) -> &'static str {
    let known = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    known.into_iter().find(|known| *known == method.as_str()).unwrap_or("_OTHER")
}
