//! Several messages in one body, which only the revision 2025-03-26 of the protocol has. Each is treated as if it came
//! alone; the streams of their answers are merged into one.

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, Collected};
use rmcp::model::ProtocolVersion;
use serde_json::value::RawValue;

use super::{
    BOTH_KINDS, Service,
    envelope::{Envelope, INVALID_REQUEST, as_json_rpc, outline, refusal},
    resumable::Session,
};
use crate::{
    api::{
        http::error::{ApiError, rendered},
        mcp::BATCH_MESSAGES_MAX,
    },
    domain::id::RequestId,
};

const EVENT_STREAM: HeaderValue = HeaderValue::from_static("text/event-stream");

/// Whether this body is a batch that the session's client may send.
pub(super) fn is_taken(session: &Session, body: &[u8]) -> bool {
    session.version == ProtocolVersion::V_2025_03_26 && body.trim_ascii_start().starts_with(b"[")
}

/// The answers, as one stream; 202 when none is due.
pub(super) async fn answer(service: &Service, head: &Parts, body: &Bytes) -> Result<Response, ApiError> {
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
        let response = match Envelope::read(&message) {
            Ok(Envelope { method, id }) if method.as_deref() == Some("initialize") => {
                let why = "method: a batch holds no initialize: send it alone.";
                refusal(INVALID_REQUEST, id.as_ref(), why).into_response()
            }
            Ok(Envelope { id, .. }) => {
                let mut one = Request::from_parts(head.clone(), Body::from(message));
                one.headers_mut().insert(header::ACCEPT, BOTH_KINDS);
                as_json_rpc(service.handle(one).await.map(Body::new), id).await
            }
            Err(error) => error.into_response(),
        };
        if response.status() != StatusCode::ACCEPTED {
            streams.push(events(rendered(response, request)).await);
        }
    }
    if streams.is_empty() {
        return Ok(StatusCode::ACCEPTED.into_response());
    }
    let mut merged = Body::from_stream(stream::select_all(streams)).into_response();
    merged.headers_mut().insert(header::CONTENT_TYPE, EVENT_STREAM);
    merged.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(merged)
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
