//! Bodies of requests: bounded in bytes and in time, announced as what they are, sent once.

use std::time::Duration;

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, HeaderValue, header},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value, error::Category};
use tokio::time::timeout;

use super::json;
use crate::nouns::error::{Code, Failure};

/// Values in one JSON body, keys and values of objects counted one each.
const VALUES_MAX: usize = 10_000;

/// How much of a body that nobody wants is let in, and for how long.
const DISCARD_BYTES_MAX: usize = 256 << 10;
const DISCARD_MAX: Duration = Duration::from_millis(200);

/// Lets in what is on its way and throws it away. A connection that is closed while its client still writes takes the answer
/// with it, so whoever refuses a request unread does this before the answer goes out.
pub async fn discard(body: Body) {
    let mut body = Limited::new(body, DISCARD_BYTES_MAX);
    let rest = async { while matches!(body.frame().await, Some(Ok(_))) {} };
    // Who sends more or more slowly may be cut off.
    drop(timeout(DISCARD_MAX, rest).await);
}

/// How bodies are taken in.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// The largest, in bytes.
    pub bytes_max: usize,
    /// How long a client may take to send one.
    pub read_max: Duration,
}

impl BodyLimits {
    /// A whole body.
    ///
    /// # Errors
    /// [`Code::TooLarge`], [`Code::BodyTimeout`], [`Code::UnsupportedMediaType`] for a compressed one,
    /// [`Code::InvalidRequest`] for one that breaks off.
    pub async fn read(self, headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
        let max = self.bytes_max;
        plain(headers)?;
        let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let too_large = || Failure::new(Code::TooLarge, format!("The body is larger than {max} bytes: send less."));
        if announced.is_some_and(|length: u64| length > max as u64) {
            return Err(too_large());
        }
        match timeout(self.read_max, Limited::new(body, max).collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(Failure::new(Code::InvalidRequest, "The body broke off: send it again.")),
            Err(_) => {
                let why = format!("The body took longer than {} s: send it faster.", self.read_max.as_secs());
                Err(Failure::new(Code::BodyTimeout, why))
            }
        }
    }

    /// A body that is one JSON object.
    ///
    /// # Errors
    /// As [`Self::read`]; [`Code::UnsupportedMediaType`] when it is not announced as JSON, [`Code::InvalidRequest`] when
    /// it is none, or holds a key twice.
    pub async fn json(self, headers: &HeaderMap, body: Body) -> Result<(Map<String, Value>, Bytes), Failure> {
        if media_type(headers)? != "application/json" {
            let why = "The body is not announced as JSON: send the header `Content-Type: application/json`.";
            return Err(Failure::new(Code::UnsupportedMediaType, why));
        }
        let bytes = self.read(headers, body).await?;
        json::check(&bytes, VALUES_MAX).map_err(|error| not_json(&error))?;
        match serde_json::from_slice(&bytes).map_err(|error| not_json(&error))? {
            Value::Object(members) => Ok((members, bytes)),
            _ => Err(Failure::new(Code::InvalidRequest, "The body is not one JSON object: send an object.")),
        }
    }
}

/// The media type of a body in lower case, without parameters; empty when none is announced.
///
/// # Errors
/// [`Code::InvalidRequest`] when two are announced.
pub fn media_type(headers: &HeaderMap) -> Result<String, Failure> {
    let mut kinds = headers.get_all(header::CONTENT_TYPE).iter();
    let kind = kinds.next().map(HeaderValue::to_str).and_then(Result::ok).unwrap_or_default();
    if kinds.next().is_some() {
        let why = "The header `content-type` is there twice: send it once.";
        return Err(Failure::new(Code::InvalidRequest, why));
    }
    Ok(kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn plain(headers: &HeaderMap) -> Result<(), Failure> {
    let is_identity = |value: &HeaderValue| value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if headers.get_all(header::CONTENT_ENCODING).iter().all(is_identity) {
        return Ok(());
    }
    let why = "The body is compressed: send it as it is, without Content-Encoding.";
    Err(Failure::new(Code::UnsupportedMediaType, why))
}

fn not_json(error: &serde_json::Error) -> Failure {
    let place = format!("line {}, column {}", error.line(), error.column());
    let why = match error.classify() {
        Category::Data => format!("The body holds {} ({place}).", json::reason(error)),
        Category::Eof => "The body is not JSON: it ends too early.".to_owned(),
        Category::Syntax | Category::Io => format!("The body is not JSON: see {place}."),
    };
    Failure::new(Code::InvalidRequest, why)
}
