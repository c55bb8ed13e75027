//! What sign-in adds before the token check, and to its answer: tokens of another issuer, each of which is verified and
//! registered, and the challenge of a 401 of `/mcp`, which says where a client finds how to sign in.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::{RESOURCE, SignInParts};
use crate::{
    api::http::{ApiError, arrival::set_bearer, coderunner, single},
    domain::Code,
    services::issuer::Rejection,
};

/// What Cloudflare Access adds to a request that it lets pass.
const ASSERTION: HeaderName = HeaderName::from_static("cf-access-jwt-assertion");
/// What the query of `/mcp` may choose, as `api::mcp::View` reads it.
const KNOWN: [&str; 5] = ["tools", "names", "structured", "links", "images"];
const VALUE_BYTES_MAX: usize = 100;

/// Names the metadata in each 401 of `/mcp`, and the scope that is missing in a 403.
pub async fn challenge(State(parts): State<Option<SignInParts>>, request: Request, next: Next) -> Response {
    let of_mcp = parts.filter(|_| matches!(request.uri().path(), "/mcp" | "/mcp/" | "/mcp/events"));
    let Some(SignInParts { base, .. }) = of_mcp else { return next.run(request).await };
    let query = known_query(request.uri().query());
    let has_token = request.headers().contains_key(header::AUTHORIZATION);
    let mut response = next.run(request).await;
    let error = match response.status() {
        StatusCode::UNAUTHORIZED if has_token => "error=\"invalid_token\", ",
        StatusCode::UNAUTHORIZED => "",
        StatusCode::FORBIDDEN if response.headers().contains_key(header::WWW_AUTHENTICATE) => {
            "error=\"insufficient_scope\", "
        }
        _ => return response,
    };
    let value = format!("Bearer {error}resource_metadata=\"{base}{RESOURCE}/mcp{query}\", scope=\"run files\"");
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, value);
    }
    response
}

/// The part of a query that `/mcp` knows, with its question mark; empty when there is none.
pub(super) fn known_query(query: Option<&str>) -> String {
    let is_known = |pair: &&str| {
        let Some((key, value)) = pair.split_once('=') else { return false };
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.,".contains(&byte);
        // Browsers write the comma of a list as `%2C`.
        let is_value = value.replace("%2C", ",").replace("%2c", ",").bytes().all(is_plain);
        KNOWN.contains(&key) && value.len() <= VALUE_BYTES_MAX && is_value
    };
    let known: Vec<_> = query.unwrap_or_default().split('&').filter(is_known).take(KNOWN.len()).collect();
    if known.is_empty() { String::new() } else { format!("?{}", known.join("&")) }
}

/// Verifies the token of a request, if it can be one of an issuer. An assertion of Cloudflare Access becomes the token
/// of a request that has none.
pub async fn recognize(State(parts): State<Option<SignInParts>>, mut request: Request, next: Next) -> Response {
    let Some(parts) = parts.filter(|parts| parts.embedded.is_none()) else { return next.run(request).await };
    let (issuer, jwt) = match jwt(request.headers()) {
        Some(jwt) => (parts.issuer, Some(jwt)),
        None if request.headers().contains_key(header::AUTHORIZATION) => (None, None),
        None => (parts.access.clone(), assertion(request.headers())),
    };
    let is_assertion = jwt.is_some() && !request.headers().contains_key(header::AUTHORIZATION);
    let (Some(issuer), Some(jwt)) = (issuer, jwt) else { return next.run(request).await };
    match issuer.recognize(&jwt).await {
        Ok(()) if is_assertion && !request.headers().contains_key(coderunner::KEY) => {
            set_bearer(request.headers_mut(), jwt.as_bytes());
        }
        // What is not valid is refused, and counted, as any wrong token.
        Ok(()) | Err(Rejection::Invalid) => {}
        Err(Rejection::Unavailable) => {
            let why = "The token cannot be verified now: try again in a moment.";
            return ApiError::new(Code::IssuerUnavailable, why).into_response();
        }
    }
    next.run(request).await
}

/// The assertion of Cloudflare Access that a request has. Whether it counts is for [`recognize`] to say.
pub fn assertion(headers: &HeaderMap) -> Option<String> {
    only(headers, &ASSERTION)
}

/// The token of a request, where it has the form of a JWT.
fn jwt(headers: &HeaderMap) -> Option<String> {
    let bearer = only(headers, &header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
    });
    let token = bearer.or_else(|| only(headers, &coderunner::KEY))?;
    (token.split('.').count() == 3).then_some(token)
}

fn only(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    single(headers, name).ok()??.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_that_mcp_knows_is_echoed_as_it_was_written() {
        for whole in [
            "?names=dotted",
            "?links=off&images=off",
            "?tools=run,files",
            "?tools=run%2Cfiles%2csessions",
            "?tools=run&names=dotted&structured=on&links=off&images=off",
        ] {
            assert_eq!(known_query(whole.strip_prefix('?')), whole);
        }
        assert_eq!(known_query(Some("x=1&links=off&y")), "?links=off");
        for none in ["", "x=1", "links", "names=%22", "tools=run%2", "tools=%2Crun%0d", "names=a\"b", "images=a b"] {
            assert_eq!(known_query(Some(none)), "", "{none}");
        }
        assert_eq!(known_query(Some(&format!("tools={}", "x".repeat(VALUE_BYTES_MAX + 1)))), "");
        assert_eq!(known_query(None), "");
    }
}
