//! Answers to programs: those of hosts, without echoes of secrets, and refusals.

use bytes::Bytes;
use futures_util::stream::try_unfold;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    body::{Body as _, Frame, Incoming},
    ext::ReasonPhrase,
};

use crate::domain::network::{Pattern, Redactor, Refusal};

/// As it comes from the host, searched, or our own.
pub(super) type AnswerBody = UnsyncBoxBody<Bytes, hyper::Error>;
pub(super) type Answer = Response<AnswerBody>;

/// A body of our own.
pub(super) fn own(text: String) -> AnswerBody {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

/// Many clients show nothing of a refusal but the reason phrase.
pub(super) fn refuse(refusal: &Refusal) -> Answer {
    let why = refusal.to_string();
    let mut answer = Response::new(own(format!("{why}\n")));
    *answer.status_mut() = match refusal {
        Refusal::Malformed | Refusal::OtherHost(_) => StatusCode::BAD_REQUEST,
        Refusal::TooMany => StatusCode::SERVICE_UNAVAILABLE,
        Refusal::TooFast { .. } => StatusCode::TOO_MANY_REQUESTS,
        Refusal::Idle(_) => StatusCode::GATEWAY_TIMEOUT,
        refusal if refusal.is_forbidden() => StatusCode::FORBIDDEN,
        _ => StatusCode::BAD_GATEWAY,
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
    head.headers = search_headers(&head.headers, patterns);
    // Without a body, as for HEAD, nothing changes the length that the host states.
    if body.is_end_stream() {
        return Some(Response::from_parts(head, body.boxed_unsync()));
    }
    head.headers.remove(header::CONTENT_LENGTH);
    Some(Response::from_parts(head, searched(body, redactor(patterns))))
}

/// A header whose name has a text is left out.
fn search_headers(all: &HeaderMap, patterns: &[Pattern]) -> HeaderMap {
    // Names are in lower case, however the host writes them.
    let lower: Vec<_> = patterns.iter().map(Pattern::in_lower_case).collect();
    let mut headers = HeaderMap::with_capacity(all.len());
    for (name, value) in all {
        let has = |patterns: &[Pattern]| redactor(patterns).whole(name.as_str().as_bytes()).is_some();
        if has(patterns) || has(&lower) {
            continue;
        }
        let searched = redactor(patterns).whole(value.as_bytes()).map(|bytes| HeaderValue::from_bytes(&bytes));
        if let Ok(value) = searched.unwrap_or_else(|| Ok(value.clone())) {
            headers.append(name, value);
        }
    }
    headers
}

fn redactor(patterns: &[Pattern]) -> Redactor {
    Redactor::new(patterns.to_vec())
}

/// The body of a host with texts taken out. It has no trailers.
fn searched(body: Incoming, redactor: Redactor) -> AnswerBody {
    let frames = try_unfold(Some((body, redactor)), |rest| async move {
        let Some((mut body, mut redactor)) = rest else { return Ok(None) };
        loop {
            let searched = match body.frame().await {
                Some(Ok(frame)) => frame.into_data().map(|data| redactor.push(&data)).unwrap_or_default(),
                Some(Err(error)) => return Err(error),
                None => return Ok(Some((Frame::data(Bytes::from(redactor.end())), None))),
            };
            if !searched.is_empty() {
                return Ok(Some((Frame::data(Bytes::from(searched)), Some((body, redactor)))));
            }
        }
    });
    StreamBody::new(frames).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http::{HeaderName, Method, Request};
    use hyper::client::conn::http1;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;
    use crate::domain::network::{Policy, PolicyText, SecretRule, SecretText};

    fn patterns() -> Vec<Pattern> {
        let hosts = vec!["a.example".to_owned()];
        let policy = PolicyText { hosts: hosts.clone(), ..PolicyText::default() };
        let policy = Policy::parse("web", &policy).expect("a policy");
        let rule = SecretRule::parse("api", &SecretText { hosts, ..SecretText::default() }).expect("a rule");
        let secret = Arc::new(rule.with("Canary-Of_The.API42".to_owned().into()).expect("a secret"));
        secret.for_sandbox(&[&policy]).expect("it is given").patterns()
    }

    /// What comes of a host's answer to a request.
    async fn answered(method: Method, answer: &[u8]) -> Answer {
        let (near, mut host) = duplex(1 << 10);
        let (mut sender, connection) = http1::handshake(TokioIo::new(near)).await.expect("a connection");
        tokio::spawn(connection);
        let request = Request::builder().method(method).uri("/").body(Full::<Bytes>::default()).expect("a request");
        let sent = sender.send_request(request);
        let answering = async {
            host.read_u8().await.expect("the request");
            host.write_all(answer).await.expect("written");
        };
        let (received, ()) = tokio::join!(sent, answering);
        search(received.expect("an answer"), &patterns()).expect("it can be searched")
    }

    #[tokio::test]
    async fn length_stays_where_there_is_no_body_to_search() {
        for (method, answer, length) in [
            (Method::HEAD, b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n".as_slice(), Some("1234")),
            (Method::HEAD, b"HTTP/1.1 404 Not Found\r\nX: Canary-Of_The.API42\r\n\r\n", None),
            (Method::GET, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", None),
        ] {
            let answer = answered(method, answer).await;
            let kept = answer.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
            assert_eq!(kept, length, "{:?}", answer.headers());
            assert!(answer.headers().values().all(|value| value != "Canary-Of_The.API42"), "{:?}", answer.headers());
        }
    }

    #[test]
    fn header_whose_name_has_the_value_is_left_out_in_any_case() {
        let mut headers = HeaderMap::new();
        for name in ["X-Canary-Of_The.API42-Y", "canary-of_the.api42", "Canary%2DOf_The%2eAPI42", "x-other"] {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_static("1"));
        }
        let searched = search_headers(&headers, &patterns());
        assert_eq!(searched.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }
}
