//! The challenge of a 401 of `/mcp`: where a client finds how to sign in.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::Next,
    response::Response,
};

use super::RESOURCE;

/// What the query of `/mcp` may choose.
const KNOWN: [&str; 3] = ["tools", "names", "structured"];
const VALUE_BYTES_MAX: usize = 100;

/// The address of the server, without a slash at its end; `None` when sign-in is off.
pub type Challenge = Option<Arc<str>>;

/// Names the metadata in each 401 of `/mcp`, and the scope that is missing in a 403.
pub async fn challenge(State(issuer): State<Challenge>, request: Request, next: Next) -> Response {
    let Some(issuer) = issuer.filter(|_| matches!(request.uri().path(), "/mcp" | "/mcp/events")) else {
        return next.run(request).await;
    };
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
    let value = format!("Bearer {error}resource_metadata=\"{issuer}{RESOURCE}/mcp{query}\", scope=\"run files\"");
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
        KNOWN.contains(&key) && value.len() <= VALUE_BYTES_MAX && value.bytes().all(is_plain)
    };
    let known: Vec<_> = query.unwrap_or_default().split('&').filter(is_known).take(KNOWN.len()).collect();
    if known.is_empty() { String::new() } else { format!("?{}", known.join("&")) }
}
