//! A request that goes no further, as a JSON-RPC error with an HTTP status.

use axum::{
    Json,
    body::Body,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, Limited};
use serde_json::{Value, json};

use crate::domain::{
    error::{Code, Failure},
    id::RequestId,
};

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
/// MCP's own code, since 2026-07-28.
const HEADER_MISMATCH: i64 = -32020;
/// How much of another's sentence is passed on, in bytes.
const SENTENCE_BYTES_MAX: usize = 4096;
/// How long a refused client should wait, in seconds.
const RETRY_AFTER_S: u64 = 2;

/// Why a request goes no further.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Refusal {
    pub status: StatusCode,
    rpc: i64,
    code: Code,
    message: String,
    /// Boxed, since a refusal travels in results that are small otherwise.
    id: Option<Box<Value>>,
    request: Option<RequestId>,
    retry_after_s: Option<u64>,
}

impl Refusal {
    /// The request itself is not of the protocol's form, or not taken.
    pub(super) fn request(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self {
            status,
            rpc: INVALID_REQUEST,
            code,
            message: message.into(),
            id: None,
            request: None,
            retry_after_s: None,
        }
    }

    /// It is JSON and no message of the protocol.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::request(StatusCode::BAD_REQUEST, Code::InvalidRequest, message)
    }

    /// It is not JSON.
    pub(super) fn not_json(message: impl Into<String>) -> Self {
        Self { rpc: PARSE_ERROR, ..Self::invalid(message) }
    }

    /// The method's parameters have the wrong form.
    pub(super) fn params(message: impl Into<String>) -> Self {
        Self { rpc: INVALID_PARAMS, ..Self::invalid(message) }
    }

    /// A header says something else than the body.
    pub(super) fn mismatch(message: impl Into<String>) -> Self {
        Self { rpc: HEADER_MISMATCH, ..Self::invalid(message) }
    }

    /// With the request's own id, so that the client finds what was refused.
    pub(super) fn with_id(self, id: Option<Value>) -> Self {
        Self { id: id.map(Box::new), ..self }
    }

    /// With the id under which the request is in the log.
    pub(super) fn of(self, head: &Parts) -> Self {
        Self { request: head.extensions.get::<RequestId>().copied(), ..self }
    }

    #[cfg(test)]
    pub(super) fn rpc(&self) -> i64 {
        self.rpc
    }
}

impl From<&Failure> for Refusal {
    fn from(failure: &Failure) -> Self {
        let status = StatusCode::from_u16(failure.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let refusal = Self::request(status, failure.code, failure.message.clone());
        Self { retry_after_s: failure.retry_after_s, ..refusal }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self { status, rpc, code, message, id, request, retry_after_s } = self;
        let mut data = json!({"code": code.as_str()});
        if let Some(request) = request {
            data["requestId"] = request.to_string().into();
        }
        let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": rpc, "message": message, "data": data}});
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(retry_after_s.unwrap_or(RETRY_AFTER_S)));
        }
        response
    }
}

/// Gives rmcp's plain sentences the form that JSON-RPC clients can read; everything else passes as it is.
///
/// rmcp answers 415 to a body that is no message; the content type was checked before, so it is the form that is wrong.
pub(super) async fn as_json_rpc(response: Response, id: Option<Value>) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let readable = kind.starts_with("application/json") || kind.starts_with("text/event-stream");
    if status.is_success() || readable {
        return response;
    }
    let (head, body) = response.into_parts();
    let refusal = if status.is_server_error() {
        // The sentence could hold a cause of ours, so it stays here.
        Refusal { rpc: INTERNAL_ERROR, ..Refusal::request(status, Code::Internal, "The server failed to answer.") }
    } else if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        Refusal::invalid("The body is no JSON-RPC message that this server knows: see the MCP specification.")
    } else {
        let sentence = match Limited::new(body, SENTENCE_BYTES_MAX).collect().await {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => "The request is refused.".to_owned(),
        };
        Refusal::request(status, Code::InvalidRequest, sentence)
    };
    let mut answer = refusal.with_id(id).into_response();
    // What the status needs, such as Allow, stays; what described the old body does not.
    for (name, value) in &head.headers {
        if !matches!(*name, header::CONTENT_TYPE | header::CONTENT_LENGTH) {
            answer.headers_mut().insert(name, value.clone());
        }
    }
    answer.map(Body::new)
}
