//! The token in the path, `/librechat/{token}/v1/…`: LibreChat's server sends none with its requests, and its setting
//! `LIBRECHAT_CODE_BASEURL` is the only place for one.
//!
//! It becomes an `Authorization` header before the request is routed, logged or traced.

use axum::http::{Request, Uri, uri::PathAndQuery};
use percent_encoding::percent_decode_str;

use super::ROOT;
use crate::api::http::jupyter::access::set_bearer;

/// Moves the token in the path of a request into its `Authorization` header. A header that is there is replaced: the
/// path is what the operator of LibreChat configured.
pub fn take_token<B>(request: &mut Request<B>) {
    let uri = request.uri();
    let mut names = uri.path().split('/').filter(|name| !name.is_empty());
    if names.next() != Some(&ROOT[1..]) {
        return;
    }
    let names: Vec<_> = names.collect();
    let (token, rest) = match names[..] {
        [] | ["v1", ..] => (None, &names[..]),
        [token, ref rest @ ..] => (Some(token), rest),
    };
    let mut target = rest.iter().fold(ROOT.to_owned(), |path, name| format!("{path}/{name}"));
    if let Some(query) = uri.query() {
        target = format!("{target}?{query}");
    }
    let token = token.map(|token| percent_decode_str(token).collect::<Vec<u8>>());
    let mut parts = uri.clone().into_parts();
    // What is left of a valid path and query is one too.
    parts.path_and_query = PathAndQuery::try_from(target).ok();
    *request.uri_mut() = Uri::from_parts(parts).unwrap_or_else(|_| Uri::from_static(ROOT));
    if let Some(token) = token {
        set_bearer(request.headers_mut(), &token);
    }
}

#[cfg(test)]
mod tests {
    use axum::http::header;

    use super::*;

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
