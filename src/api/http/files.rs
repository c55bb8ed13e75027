//! `GET|HEAD /files/{conversationId}/{path}?expires=…&sig=…`, or `/files/@{owner}/{conversationId}/{path}?…` for an
//! owner other than `default`: a file by its signed link, without a token. A link with `max=…` takes an upload by `PUT`
//! of at most so many bytes, and nothing else. Without a path it is to all files as an archive.
//!
//! Owns the form of the request and of the answer; the service decides whether a link is valid and what it opens. The
//! path is taken raw from the request and split at slashes, and each name is decoded exactly once; the router's own
//! decoding is not used.

#[cfg(test)]
mod fuzz;
mod present;
mod range;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{OriginalUri, Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
    routing::any,
};
use futures_util::StreamExt as _;

use self::range::Part;
use super::{body::Bodies, error::ApiError};
use crate::{
    domain::{Code, ConversationKey, Failure, path::decode_component},
    services::{
        files::{Archive, Download, Files, Precondition, media_type},
        links::SignedLink,
    },
};

/// The longest file that an answer of JSON holds, in bytes, and where a longer one is.
pub(super) const WHOLE_BYTES_MAX: u64 = 8 << 20;
pub(super) const NOT_WHOLE: &str =
    "The file is too large for one answer: read it at /v1/conversations/{conversationId}/files/{path}.";

/// On every answer, refusals too: nothing a program wrote runs, is guessed at, is kept by a cache, is embedded
/// elsewhere or sends another site its referrer.
const ALWAYS: [(HeaderName, HeaderValue); 7] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("x-robots-tag"), HeaderValue::from_static("noindex")),
    (header::CACHE_CONTROL, HeaderValue::from_static("private, no-store, no-transform")),
    (header::ACCEPT_RANGES, HeaderValue::from_static("bytes")),
];

/// The routes of downloads. Everything below `/files` ends here, so that a bad link and a missing route get the same
/// answer.
pub fn router(files: Arc<Files>, bodies: Bodies) -> Router {
    let serve = any(serve);
    Router::new()
        .route("/files", serve.clone())
        .route("/files/", serve.clone())
        .route("/files/{*path}", serve)
        .with_state((files, bodies))
}

async fn serve(
    State((files, bodies)): State<(Arc<Files>, Bodies)>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Response {
    let link = link(&uri);
    let takes_upload = link.as_ref().is_some_and(|link| link.bytes_max.is_some());
    let answered = match *request.method() {
        Method::GET | Method::HEAD => match link {
            Some(link) if link.components.is_empty() => {
                files.open_archive(link).await.map(|(conversation, pieces)| archive(&conversation, pieces))
            }
            link => files.open_signed(link).await.map(|file| answer(request.method(), request.headers(), &file)),
        },
        Method::PUT if takes_upload => upload(&files, &bodies, link, request).await,
        _ => Ok(not_allowed(takes_upload)),
    };
    confined(answered.unwrap_or_else(|failure| ApiError::from(failure).into_response()))
}

/// Keeps browsers from running what is answered.
fn confined(mut response: Response) -> Response {
    for (name, value) in ALWAYS {
        response.headers_mut().insert(name, value);
    }
    response
}

async fn upload(
    files: &Files,
    bodies: &Bodies,
    link: Option<SignedLink>,
    request: Request,
) -> Result<Response, Failure> {
    let (conversation, path, bytes_max) = files.open_upload(link)?;
    let (head, body) = request.into_parts();
    let (announced, pieces) = bodies.stream(&head.headers, body)?;
    let too_large = move || {
        Failure::new(Code::TooLarge, format!("The file is longer than the {bytes_max} bytes that this link takes."))
    };
    if announced.is_some_and(|bytes| bytes > bytes_max) {
        return Err(too_large());
    }
    let mut received = 0;
    let bounded = pieces.map(move |piece| {
        let piece = piece?;
        received += piece.len() as u64;
        if received > bytes_max { Err(too_large()) } else { Ok(piece) }
    });
    files.upload(&conversation, &path, None, announced, bounded).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn not_allowed(takes_upload: bool) -> Response {
    let (why, allowed) = if takes_upload {
        ("This link takes its file with PUT, as the body alone: use `curl -T FILE URL`.", "PUT")
    } else {
        ("A link downloads its file with GET or HEAD: files are changed through the API.", "GET, HEAD")
    };
    let mut response = ApiError::new(Code::MethodNotAllowed, why).into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// Takes a link apart; `None` when it has not the form of one.
fn link(uri: &Uri) -> Option<SignedLink> {
    let mut names = uri.path().strip_prefix("/files/")?.split('/').map(|name| decode_component(name).ok());
    let first = names.next()??;
    let conversation = if first.starts_with(b"@") { [first, names.next()??].join(&b'/') } else { first };
    let components = names.collect::<Option<Vec<_>>>()?;
    let (mut expires, mut signature, mut bytes_max) = (None, None, None);
    for parameter in uri.query()?.split('&') {
        let (name, value) = parameter.split_once('=')?;
        let slot = match name {
            "expires" => &mut expires,
            "sig" => &mut signature,
            "max" => &mut bytes_max,
            _ => return None,
        };
        if slot.replace(value.to_owned()).is_some() {
            return None;
        }
    }
    Some(SignedLink { conversation, components, expires: expires?, signature: signature?, bytes_max })
}

/// The condition of a request that changes a file.
pub fn condition(headers: &HeaderMap) -> Option<Precondition> {
    let conditional = [header::IF_MATCH, header::IF_NONE_MATCH].iter().any(|name| headers.contains_key(name));
    let headers = conditional.then(|| headers.clone())?;
    Some(Box::new(move |etag| range::holds(&headers, etag)))
}

/// The condition on the file that a request moves: `If-Match` alone.
pub fn condition_on_source(headers: &HeaderMap) -> Option<Precondition> {
    let mut headers = headers.clone();
    headers.remove(header::IF_NONE_MATCH);
    condition(&headers)
}

/// A conversation's archive, as a file to save.
pub fn archive(conversation: &ConversationKey, pieces: Archive) -> Response {
    let mut response = Response::new(Body::from_stream(pieces));
    set(&mut response, header::CONTENT_TYPE, "application/x-tar");
    set(&mut response, header::CONTENT_DISPOSITION, &format!("attachment; filename=\"{}.tar\"", conversation.id));
    set(&mut response, header::CACHE_CONTROL, "private, no-store");
    response
}

/// A file for an authorized client, with the headers that keep browsers from running it.
pub fn present_to(method: &Method, headers: &HeaderMap, download: &Download) -> Response {
    confined(answer(method, headers, download))
}

fn answer(method: &Method, headers: &HeaderMap, download: &Download) -> Response {
    let (name, size) = (&download.name, download.size);
    let part = match range::requested(method, headers, &download.etag, size) {
        Ok(part) => part,
        Err(status) => return with_validators(without_file(status, size), download),
    };
    let Part { first, length } = part.unwrap_or(Part { first: 0, length: size });
    // A file that became shorter ends the connection: an incomplete body must not look complete.
    let body = if *method == Method::HEAD { Body::empty() } else { Body::from_stream(download.pieces(first, length)) };
    let mut response = Response::new(body);
    if part.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        set(&mut response, header::CONTENT_RANGE, &format!("bytes {first}-{}/{size}", first + length - 1));
    }
    let (content_type, disposition) = present::present(media_type(name), name);
    set(&mut response, header::CONTENT_TYPE, content_type);
    set(&mut response, header::CONTENT_DISPOSITION, &disposition);
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    with_validators(response, download)
}

/// An error says what to do, and 304 has no content.
fn without_file(status: StatusCode, size: u64) -> Response {
    match status {
        StatusCode::PRECONDITION_FAILED => {
            let why = "The file is another version than `If-Match` names: read it again and decide anew.";
            ApiError::new(Code::PreconditionFailed, why).into_response()
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let why = format!("The requested part is beyond the file's {size} bytes: ask for one that begins in them.");
            let error = ApiError { status: Some(status), ..ApiError::new(Code::InvalidRequest, why) };
            let mut response = error.into_response();
            set(&mut response, header::CONTENT_RANGE, &format!("bytes */{size}"));
            response
        }
        _ => status.into_response(),
    }
}

fn with_validators(mut response: Response, download: &Download) -> Response {
    set(&mut response, header::ETAG, &download.etag);
    if let Some(date) = http_date(download.modified_unix_s) {
        set(&mut response, header::LAST_MODIFIED, &date);
    }
    response
}

/// A file's time in the form of HTTP; `None` for a time outside its range, which a program may set.
fn http_date(unix_s: i64) -> Option<String> {
    /// The end of the year 9999.
    const LAST: u64 = 253_402_300_799;
    let unix_s = u64::try_from(unix_s).ok().filter(|&unix_s| unix_s <= LAST)?;
    Some(httpdate::fmt_http_date(std::time::UNIX_EPOCH + std::time::Duration::from_secs(unix_s)))
}

/// Sets a header whose value is visible ASCII by the way it is made.
fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
