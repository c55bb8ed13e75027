//! Answers to programs: those of hosts, without echoes of secrets, and refusals.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::{
    body::{Body, Frame, Incoming},
    ext::ReasonPhrase,
};

use crate::domain::network::{Pattern, Redactor, Refusal};

/// As it comes from the host, searched, or of our own.
pub(super) type Answer = Response<Either<Incoming, Either<Searched, Full<Bytes>>>>;

/// Many clients show nothing of a refusal but the reason phrase.
pub(super) fn refuse(refusal: &Refusal) -> Answer {
    let why = refusal.to_string();
    let mut answer = Response::new(Either::Right(Either::Right(Full::from(format!("{why}\n")))));
    *answer.status_mut() = match refusal {
        Refusal::Malformed | Refusal::OtherHost(_) => StatusCode::BAD_REQUEST,
        Refusal::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::TooFast { .. } => StatusCode::TOO_MANY_REQUESTS,
        Refusal::NotFound(_) | Refusal::Unreachable(_) | Refusal::Untrusted(_) | Refusal::Unsearchable(_) => {
            StatusCode::BAD_GATEWAY
        }
        _ => StatusCode::FORBIDDEN,
    };
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer.headers_mut().insert("x-sandbox-refusal", HeaderValue::from_static(refusal.word()));
    if let Refusal::TooFast { wait_s, .. } = refusal {
        answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(*wait_s));
    }
    // A host's name is ASCII, and so is what is repeated of a request: the reason is always one.
    if let Ok(reason) = ReasonPhrase::try_from(why.into_bytes()) {
        answer.extensions_mut().insert(reason);
    }
    answer
}

/// Takes texts out of an answer, its trailers included. `None` for one that cannot be searched: a part, a compressed or
/// otherwise encoded one.
pub(super) fn search(answer: Response<Incoming>, patterns: &[Pattern]) -> Option<Answer> {
    let (mut head, body) = answer.into_parts();
    let is_plain = |name, plain: &str| {
        let mut all = head.headers.get_all(name).iter();
        all.all(|value| value.as_bytes().eq_ignore_ascii_case(plain.as_bytes()))
    };
    let is_whole = !matches!(head.status, StatusCode::PARTIAL_CONTENT | StatusCode::SWITCHING_PROTOCOLS);
    if !is_whole || !is_plain(header::CONTENT_ENCODING, "identity") || !is_plain(header::TRANSFER_ENCODING, "chunked") {
        return None;
    }
    let mut headers = HeaderMap::with_capacity(head.headers.len());
    for (name, value) in &head.headers {
        // A header whose name has the text is left out.
        if redactor(patterns).whole(name.as_str().as_bytes()).is_some() {
            continue;
        }
        let searched = redactor(patterns).whole(value.as_bytes()).map(|bytes| HeaderValue::from_bytes(&bytes));
        if let Ok(value) = searched.unwrap_or_else(|| Ok(value.clone())) {
            headers.append(name, value);
        }
    }
    headers.remove(header::CONTENT_LENGTH);
    head.headers = headers;
    let body = Searched { body, redactor: redactor(patterns), has_ended: false };
    Some(Response::from_parts(head, Either::Right(Either::Left(body))))
}

fn redactor(patterns: &[Pattern]) -> Redactor {
    Redactor::new(patterns.to_vec())
}

/// A body of a host with texts taken out. It has no trailers.
#[derive(Debug)]
pub(super) struct Searched {
    body: Incoming,
    redactor: Redactor,
    has_ended: bool,
}

impl Body for Searched {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        while !self.has_ended {
            let searched = match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.redactor.push(&data)
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.has_ended = true;
                    self.redactor.end()
                }
            };
            if !searched.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(searched.into()))));
            }
        }
        Poll::Ready(None)
    }
}
