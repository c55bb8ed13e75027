//! Bearer tokens: decided before a body is read.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::error::ApiError;
use crate::{domain::error::Code, services::tokens::Tokens};

/// Passes a request with a valid token on with its principal; any other is 401.
pub async fn bearer(State(tokens): State<Arc<Tokens>>, mut request: Request, next: Next) -> Response {
    let mut headers = request.headers().get_all(header::AUTHORIZATION).iter();
    let principal = match (headers.next(), headers.next()) {
        (Some(one), None) => tokens.authorize(one.as_bytes()),
        // Of two headers one could be a proxy's and the other an attacker's.
        _ => None,
    };
    if let Some(principal) = principal {
        request.extensions_mut().insert(principal);
        return next.run(request).await;
    }
    let why = "Send the header `Authorization: Bearer <token>` once, with the server's MCP_API_TOKEN.";
    ApiError::new(Code::Unauthorized, why).into_response()
}
