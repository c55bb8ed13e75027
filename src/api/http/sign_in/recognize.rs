//! Tokens of another issuer: each is verified and registered before the token check.

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, header},
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::SignInParts;
use crate::{
    api::http::{access::set_bearer, coderunner, error::ApiError, parts::single},
    domain::error::Code,
    services::issuer::Rejection,
};

/// What Cloudflare Access adds to a request that it lets pass.
const ASSERTION: HeaderName = HeaderName::from_static("cf-access-jwt-assertion");

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
