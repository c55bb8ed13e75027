//! The token of clients that cannot send it as `Authorization: Bearer`: in Jupyter's ways, `Authorization: token …`,
//! `?token=…`, or in the path, `/jupyter/t/{token}/…`, for those that send nothing else with their WebSocket; and in
//! the path of LibreChat's server, `/librechat/{token}/v1/…`, whose setting `LIBRECHAT_CODE_BASEURL` is the only place
//! for one.
//!
//! Each becomes an `Authorization` header before the request is routed, logged or traced, so that no other part sees a
//! token in a path or query.

use axum::http::{HeaderMap, HeaderValue, Request, Uri, header, uri::PathAndQuery};
use percent_encoding::percent_decode_str;

use super::{jupyter, librechat, parts::single};

/// Moves the token of a request to the paths of these clients into its `Authorization` header, and takes doubled and
/// last slashes from the path. Of several tokens the one in the path counts, then that of the query, as in Jupyter
/// Server: the path is what the operator of LibreChat configured.
pub fn take_token<B>(request: &mut Request<B>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(uri: &str, authorization: Option<&'static str>) -> (String, Option<String>) {
        let mut request = Request::builder().uri(uri).body(()).expect("a request");
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
            let mut request = Request::builder().uri(uri).body(()).expect("a request");
            take_token(&mut request);
            let value = request.headers().get(header::AUTHORIZATION).map(|value| value.to_str().expect("text"));
            assert_eq!((request.uri().to_string().as_str(), value), (expected, token), "{uri}");
        }
    }
}
