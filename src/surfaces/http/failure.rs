//! Our errors as HTTP answers: a status, a code, a sentence, the request's id.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::nouns::{
    error::{Code, Failure},
    id::RequestId,
};

/// How long a refused client should wait, in seconds.
const RETRY_AFTER_S: u32 = 2;

/// A failure on its way to a client.
pub struct HttpFailure(pub Failure, pub RequestId);

impl IntoResponse for HttpFailure {
    fn into_response(self) -> Response {
        let Self(Failure { code, message }, request) = self;
        let status = StatusCode::from_u16(code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = json!({"error": {"code": code.as_str(), "message": message, "requestId": request.to_string()}});
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        }
        response
    }
}

/// For paths that nobody serves.
pub async fn not_found(axum::Extension(request): axum::Extension<RequestId>) -> Response {
    let body = json!({"error": {
        "code": "not_found",
        "message": "Nothing is served at this path: the tools are at /mcp, the page is at /.",
        "requestId": request.to_string(),
    }});
    (StatusCode::NOT_FOUND, Json(body)).into_response()
}

/// For a handler that panicked: the panic itself was logged by the hook, the client learns nothing of it.
pub fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    let failure = Failure::new(Code::Internal, "The server failed to answer: its log says why.");
    HttpFailure(failure, RequestId::new()).into_response()
}
