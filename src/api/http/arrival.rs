//! A request as it arrives: its token, its id, its trace context, and its line in the log.
//!
//! Some clients cannot send a token as `Authorization: Bearer`: in Jupyter's ways, it is `Authorization: token …`,
//! `?token=…`, or in the path, `/jupyter/t/{token}/…`, for those that send nothing else with their WebSocket; and in
//! the path of LibreChat's server, `/librechat/{token}/v1/…`, whose setting `LIBRECHAT_CODE_BASEURL` is the only place
//! for one. Each becomes an `Authorization` header before the request is routed, logged or traced, so that no other
//! part sees a token in a path or query.
//!
//! The line in the log holds the path and never the query: signatures are there. The observer gets only the route.

use std::sync::Arc;

use axum::{
    body::HttpBody as _,
    extract::{MatchedPath, Request, State},
    http::{self, HeaderMap, HeaderName, HeaderValue, Method, Uri, header, uri::PathAndQuery},
    middleware::Next,
    response::Response,
};
use percent_encoding::percent_decode_str;
use tokio::time::Instant;
use tracing::{Instrument, debug, info, info_span, warn};

use super::{jupyter, librechat, single};
use crate::{
    domain::{Failure, TraceContext, id::RequestId},
    ports::observer::{AnswerFacts, Observer},
};

const PATH_CHARS_MAX: usize = 200;
/// Asked every few seconds by whatever watches the server.
const PROBES: [&str; 4] = ["/healthz", "/readyz", "/health", "/metrics"];

/// Moves the token of a request to the paths of these clients into its `Authorization` header, and takes doubled and
/// last slashes from the path. Of several tokens the one in the path counts, then that of the query, as in Jupyter
/// Server: the path is what the operator of LibreChat configured.
pub fn take_token<B>(request: &mut http::Request<B>) {
    let uri = request.uri();
    let mut names = uri.path().split('/').filter(|name| !name.is_empty());
    let first = names.next().unwrap_or_default();
    let Some(root) = [jupyter::ROOT, librechat::ROOT].into_iter().find(|root| root[1..] == *first) else { return };
    let names: Vec<_> = names.collect();
    let (in_path, rest) = match (root, &names[..]) {
        (jupyter::ROOT, ["t", token, rest @ ..]) => (Some(*token), rest),
        (jupyter::ROOT, ["t"]) => (None, &[][..]),
        (jupyter::ROOT, rest) | (_, rest @ ([] | ["v1", ..])) => (None, rest),
        (_, [token, rest @ ..]) => (Some(*token), rest),
    };
    let (in_query, query) = match uri.query() {
        Some(query) if root == jupyter::ROOT => without_token(query),
        query => (None, query.map(str::to_owned)),
    };
    let mut target = rest.iter().fold(root.to_owned(), |path, name| format!("{path}/{name}"));
    if let Some(query) = query {
        target = format!("{target}?{query}");
    }
    let token = in_path.or(in_query).map(|token| percent_decode_str(token).collect::<Vec<u8>>());
    let mut parts = uri.clone().into_parts();
    // What is left of a valid path and query is one too.
    parts.path_and_query = PathAndQuery::try_from(target).ok();
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static(root));
    match token {
        Some(token) => set_bearer(request.headers_mut(), &token),
        None if root == jupyter::ROOT => rename_scheme(request.headers_mut()),
        None => {}
    }
}

/// The token of a query, and the rest of the query.
fn without_token(query: &str) -> (Option<&str>, Option<String>) {
    let (mut in_query, mut kept) = (None, Vec::new());
    for part in query.split('&').filter(|part| !part.is_empty()) {
        match part.split_once('=') {
            Some(("token", token)) => in_query = Some(token),
            _ if part == "token" => {}
            _ => kept.push(part),
        }
    }
    (in_query.filter(|token| !token.is_empty()), (!kept.is_empty()).then(|| kept.join("&")))
}

/// Jupyter's name of the scheme is `token`.
fn rename_scheme(headers: &mut HeaderMap) {
    let Ok(Some(value)) = single(headers, &header::AUTHORIZATION) else { return };
    let token = value.as_bytes().split_at_checked("token ".len());
    if let Some((_, token)) = token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"token ")) {
        let token = token.trim_ascii().to_vec();
        set_bearer(headers, &token);
    }
}

/// Makes a token the only one of a request.
pub(super) fn set_bearer(headers: &mut HeaderMap, token: &[u8]) {
    // One that no header can hold is wrong in any case.
    let value = HeaderValue::from_bytes(&[b"Bearer ", token].concat());
    let mut value = value.unwrap_or(HeaderValue::from_static("Bearer"));
    value.set_sensitive(true);
    headers.insert(header::AUTHORIZATION, value);
}

/// Gives a request its id and returns it in a header. A client's own id is ignored: it could be anything.
pub async fn observe(State(observer): State<Arc<dyn Observer>>, mut request: Request, next: Next) -> Response {
    let id = RequestId::new();
    let trace = TraceContext::of_request(id, caller(request.headers()));
    request.extensions_mut().insert(id);
    request.extensions_mut().insert(trace);
    let span = info_span!("request", request = %id);
    let mut response = logged(&*observer, id, trace, request, next).instrument(span).await;
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert("x-request-id", value);
    }
    response
}

/// The caller's trace context. A repeated header is ignored, as the standard requires.
fn caller(headers: &HeaderMap) -> Option<TraceContext> {
    let only = single(headers, &HeaderName::from_static("traceparent")).ok()??;
    only.to_str().ok().and_then(TraceContext::parse)
}

/// One line for each request, once it is answered.
async fn logged(observer: &dyn Observer, id: RequestId, trace: TraceContext, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(PATH_CHARS_MAX).collect();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let (status, took) = (response.status().as_u16(), begun.elapsed());
    observer.answered(&AnswerFacts {
        request: id,
        trace,
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

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(uri: &str, authorization: Option<&'static str>) -> (String, Option<String>) {
        let mut request = http::Request::builder().uri(uri).body(()).expect("a request");
        if let Some(value) = authorization {
            request.headers_mut().insert(header::AUTHORIZATION, HeaderValue::from_static(value));
        }
        take_token(&mut request);
        let value = request.headers().get(header::AUTHORIZATION);
        (request.uri().to_string(), value.map(|value| value.to_str().expect("text").to_owned()))
    }

    #[test]
    fn tokens_leave_the_path_and_the_query() {
        let bearer = |token: &str| Some(format!("Bearer {token}"));
        for (uri, authorization, expected, header) in [
            ("/jupyter/t/a%2Fb/api/kernels?x=1", None, "/jupyter/api/kernels?x=1", bearer("a/b")),
            ("//jupyter//t//abc//api/", None, "/jupyter/api", bearer("abc")),
            ("/jupyter/t/abc/c/t/api", None, "/jupyter/c/t/api", bearer("abc")),
            ("/jupyter/t/abc", None, "/jupyter", bearer("abc")),
            ("/jupyter/t/%00/api", None, "/jupyter/api", Some("Bearer".to_owned())),
            ("/jupyter/api?a=b&token=abc&c", None, "/jupyter/api?a=b&c", bearer("abc")),
            ("/jupyter/api?token=abc", Some("Bearer other"), "/jupyter/api", bearer("abc")),
            ("/jupyter/t/one/api?token=two", None, "/jupyter/api", bearer("one")),
            ("/jupyter/api?token=", Some("token  abc"), "/jupyter/api", bearer("abc")),
            ("/jupyter/api?token", Some("Bearer abc"), "/jupyter/api", bearer("abc")),
            ("http://localhost/jupyter/t/abc/api", None, "http://localhost/jupyter/api", bearer("abc")),
            ("/v1/runs?token=abc", Some("token abc"), "/v1/runs?token=abc", Some("token abc".to_owned())),
            ("/jupyterlab/t/abc", None, "/jupyterlab/t/abc", None),
        ] {
            assert_eq!(taken(uri, authorization), (expected.to_owned(), header), "{uri}");
        }
    }

    #[test]
    fn the_token_leaves_the_path() {
        for (uri, expected, token) in [
            ("/librechat/abc/v1/exec", "/librechat/v1/exec", Some("Bearer abc")),
            ("//librechat//a%2Fb//v1/files/s?detail=full", "/librechat/v1/files/s?detail=full", Some("Bearer a/b")),
            ("/librechat/abc", "/librechat", Some("Bearer abc")),
            ("/librechat/abc/exec", "/librechat/exec", Some("Bearer abc")),
            ("/librechat/%00/v1/exec", "/librechat/v1/exec", Some("Bearer")),
            ("/librechat/v1/exec", "/librechat/v1/exec", None),
            ("/librechat", "/librechat", None),
            ("/librechatty/abc/v1", "/librechatty/abc/v1", None),
        ] {
            assert_eq!(taken(uri, None), (expected.to_owned(), token.map(str::to_owned)), "{uri}");
        }
    }
}
