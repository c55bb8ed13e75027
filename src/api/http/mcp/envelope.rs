//! The envelope of JSON-RPC: that of a message (`jsonrpc`, `id`, `method`) is checked before rmcp reads its parameters,
//! and refusals, also rmcp's own, get the form that its clients can read. Several messages in one body, which only the
//! revision 2025-03-26 of the protocol has, are each treated as if it came alone; the streams of their answers are
//! merged into one.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt, Collected, Limited};
use rmcp::model::ProtocolVersion;
use serde::Deserialize;
use serde_json::{Value, error::Category, value::RawValue};

use super::{BOTH_KINDS, Endpoint, check_method, sessions::Session};
use crate::{
    api::{
        http::{
            error::{ApiError, RpcError, keep_headers, rendered},
            json,
        },
        mcp::{BATCH_MESSAGES_MAX, ID_CHARS_MAX},
    },
    domain::{Code, Failure, id::RequestId},
};

const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;
/// MCP's own code, since 2026-07-28.
pub(super) const HEADER_MISMATCH: i64 = -32020;
/// How much of a sentence of rmcp is passed on, in bytes.
const SENTENCE_BYTES_MAX: usize = 4096;

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Values in one message, keys and values of objects counted one each: far above what any call of ours needs.
const VALUES_MAX: usize = 10_000;
/// What a request may hold beside the arguments of a call, in bytes. A session keeps what its client says of itself,
/// and each call its `_meta`, for as long as they last, when the memory of the body was given back.
const KEPT_BYTES_MAX: usize = 128 << 10;

/// What is known of a message before rmcp reads it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Envelope {
    /// `None` for the answer to a request of this server.
    pub method: Option<String>,
    /// The request's id; `None` for a notification.
    pub id: Option<Value>,
}

impl Envelope {
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let Value::Object(mut members) = outline(body)? else {
            let why = "The body is not one JSON object: send one message at a time, without a batch.";
            return Err(refusal(INVALID_REQUEST, None, why));
        };
        let id = members.remove("id");
        if !id.as_ref().is_none_or(is_echoed) {
            let why = format!("id: it must be a string of at most {ID_CHARS_MAX} characters or a whole number.");
            return Err(refusal(INVALID_REQUEST, None, why));
        }
        let refuse = |rpc, why| Err(refusal(rpc, id.as_ref(), why));
        if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return refuse(INVALID_REQUEST, "jsonrpc: it must be \"2.0\".");
        }
        let method = match members.remove("method") {
            Some(Value::String(method)) => Some(method),
            None if id.is_some() && (members.contains_key("result") || members.contains_key("error")) => None,
            _ => return refuse(INVALID_REQUEST, "method: it must be the name of a method, such as \"tools/call\"."),
        };
        if method.is_some() && body.len() > KEPT_BYTES_MAX && body.len() - arguments_bytes(body) > KEPT_BYTES_MAX {
            let why = "params: beside the arguments of a call they must be shorter than 128 KiB: send less.";
            return refuse(INVALID_PARAMS, why);
        }
        match members.get("params") {
            None | Some(Value::Null | Value::Object(_)) => Ok(Self { method, id }),
            Some(_) => refuse(INVALID_PARAMS, "params: they must be an object."),
        }
    }
}

/// The outside of a body, which is JSON within its bounds.
fn outline(body: &[u8]) -> Result<Value, ApiError> {
    json::outline(body, VALUES_MAX).map_err(|error| {
        let rpc = if error.classify() == Category::Data { INVALID_REQUEST } else { PARSE_ERROR };
        refusal(rpc, None, json::complaint(&error))
    })
}

/// The length of the arguments of a call as they were sent; 0 where there are none.
fn arguments_bytes(body: &[u8]) -> usize {
    #[derive(Deserialize)]
    struct Message<'a> {
        #[serde(borrow)]
        params: Params<'a>,
    }
    #[derive(Deserialize)]
    struct Params<'a> {
        #[serde(borrow)]
        arguments: &'a RawValue,
    }
    serde_json::from_slice::<Message<'_>>(body).map_or(0, |message| message.params.arguments.get().len())
}

/// An id is echoed exactly, so only forms that survive are accepted.
fn is_echoed(id: &Value) -> bool {
    match id {
        Value::String(text) => text.chars().count() <= ID_CHARS_MAX,
        Value::Number(number) => number.is_i64(),
        _ => false,
    }
}

/// An error with the request's own id, so that the client finds what was refused.
pub(super) fn refusal(rpc: i64, id: Option<&Value>, message: impl Into<String>) -> ApiError {
    of(Failure::new(Code::InvalidRequest, message), rpc, id)
}

/// A failure that is not about the form of the message.
pub(super) fn failed(failure: Failure) -> ApiError {
    failed_call(failure, None)
}

/// The same, of a message whose id is known.
pub(super) fn failed_call(failure: Failure, id: Option<&Value>) -> ApiError {
    of(failure, INVALID_REQUEST, id)
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
    answer
}

/// Whether this body is a batch that the session's client may send.
pub(super) fn is_batch(session: &Session, body: &[u8]) -> bool {
    session.version == ProtocolVersion::V_2025_03_26 && body.trim_ascii_start().starts_with(b"[")
}

/// The answers to a batch, as one stream; 202 when none is due.
pub(super) async fn answer_batch(
    endpoint: &Endpoint,
    session: &Session,
    head: &Parts,
    body: &Bytes,
) -> Result<Response, ApiError> {
    outline(body)?;
    let messages: Vec<&RawValue> = serde_json::from_slice(body).unwrap_or_default();
    if !(1..=BATCH_MESSAGES_MAX).contains(&messages.len()) {
        let why = format!("The body is a batch of {}: send 1 to {BATCH_MESSAGES_MAX} messages.", messages.len());
        return Err(refusal(INVALID_REQUEST, None, why));
    }
    let request = head.extensions.get::<RequestId>().copied().unwrap_or_else(RequestId::new);
    let mut streams = Vec::new();
    for message in messages {
        let message = body.slice_ref(message.get().as_bytes());
        let answered = answer_one(endpoint, session, head.clone(), message, request).await;
        let response = answered.unwrap_or_else(IntoResponse::into_response);
        if response.status() != StatusCode::ACCEPTED {
            streams.push(events(rendered(response, request)).await);
        }
    }
    if streams.is_empty() {
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    // As the streams of single messages have them: some proxies collect an answer before they pass it on.
    let headers = [("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("x-accel-buffering", "no")];
    Ok((headers, Body::from_stream(stream::select_all(streams))).into_response())
}

/// The answer to a message of a batch.
async fn answer_one(
    endpoint: &Endpoint,
    session: &Session,
    mut head: Parts,
    message: Bytes,
    request: RequestId,
) -> Result<Response, ApiError> {
    let envelope = Envelope::read(&message)?;
    check_method(&head.headers, &envelope)?;
    if envelope.method.as_deref() == Some("initialize") {
        let why = "method: a batch holds no initialize: send it alone.";
        return Err(refusal(INVALID_REQUEST, envelope.id.as_ref(), why));
    }
    if !endpoint.relay.is_alone()
        && let Some(id) = envelope.id.clone()
        && let Some(peer) = endpoint.other_server(&head, Some(session), &message).await
    {
        let refused = move |failure| failed_call(failure, Some(&id));
        let peer = peer.map_err(&refused)?;
        // Whole, since a piece of another server's stream may be a part of an event.
        head.headers.insert(header::ACCEPT, JSON);
        let answer = endpoint.forward(peer, &head, Some(session), message);
        let event = stream::once(async move {
            let answer = answer.await.unwrap_or_else(|failure| refused(failure).into_response());
            events(rendered(answer, request)).await
        });
        return Ok(([(header::CONTENT_TYPE, EVENT_STREAM)], Body::from_stream(event.flatten())).into_response());
    }
    endpoint.count(&mut head, session, &envelope)?;
    head.headers.insert(header::ACCEPT, BOTH_KINDS);
    let one = Request::from_parts(head, Body::from(message));
    Ok(as_json_rpc(endpoint.sessions.handle(one).await.map(Body::new), envelope.id).await)
}

/// A stream of events as it is; an error as one event.
async fn events(response: Response) -> stream::BoxStream<'static, Result<Bytes, axum::Error>> {
    let streams = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == EVENT_STREAM);
    let body = response.into_body();
    if streams {
        // rmcp makes each event one piece, so merging splits none.
        return Box::pin(body.into_data_stream());
    }
    let error = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let event = [b"data: ", &error[..], b"\n\n"].concat();
    stream::iter([Ok(event.into())]).boxed()
}

#[cfg(test)]
mod tests;
