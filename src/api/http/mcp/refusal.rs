//! JSON-RPC errors for refused requests.

use axum::{
    body::Body,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use crate::{
    api::http::error::{ApiError, RpcError, keep_headers},
    domain::error::{Code, Failure},
};

pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
/// MCP's own code, since 2026-07-28.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// How much of a sentence of rmcp is passed on, in bytes.
const SENTENCE_BYTES_MAX: usize = 4096;

/// An error with the request's own id, so that the client finds what was refused.
pub(super) fn refusal(rpc: i64, id: Option<&Value>, message: impl Into<String>) -> ApiError {
    of(Failure::new(Code::InvalidRequest, message), rpc, id)
}

/// A failure that is not about the form of the message.
pub(super) fn failed(failure: Failure) -> ApiError {
    of(failure, INVALID_REQUEST, None)
}

fn of(failure: Failure, code: i64, id: Option<&Value>) -> ApiError {
    ApiError { rpc: Some(RpcError { code, id: id.cloned().map(Box::new) }), ..failure.into() }
}

/// Gives rmcp's plain sentences the form that JSON-RPC clients can read; everything else passes as it is.
///
/// rmcp answers 415 to a body that is no message; the content type was checked before, so the form of the body is
/// wrong.
pub(super) async fn as_json_rpc(response: Response, id: Option<Value>) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let readable = kind.starts_with("application/json") || kind.starts_with("text/event-stream");
    if status.is_success() || readable {
        return response;
    }
    let (head, body) = response.into_parts();
    let id = id.as_ref();
    let error = if status.is_server_error() {
        // The sentence could hold an internal cause, so it is not passed on.
        let failure = Failure::new(Code::Internal, "The server failed to answer.");
        ApiError { status: Some(status), ..of(failure, INTERNAL_ERROR, id) }
    } else if status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
        let why = "The body is no JSON-RPC message that this server knows: see the MCP specification.";
        refusal(INVALID_REQUEST, id, why)
    } else {
        let sentence = match Limited::new(body, SENTENCE_BYTES_MAX).collect().await {
            Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
            Err(_) => "The request is refused.".to_owned(),
        };
        ApiError { status: Some(status), ..refusal(INVALID_REQUEST, id, sentence) }
    };
    let mut answer = error.into_response();
    keep_headers(&head.headers, &mut answer);
    answer.map(Body::new)
}
