//! Bearer tokens: decided before a body is read.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

use super::failure::HttpFailure;
use crate::{
    domain::{
        error::{Code, Failure},
        id::RequestId,
    },
    services::tokens::Tokens,
};

/// Lets a request with the token pass and says who asks; everybody else gets 401.
pub async fn bearer(
    State(tokens): State<Arc<Tokens>>,
    Extension(id): Extension<RequestId>,
    mut request: Request,
    next: Next,
) -> Response {
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
    let failure = Failure::new(
        Code::Unauthorized,
        "Send the header `Authorization: Bearer <token>` once, with the server's MCP_API_TOKEN.",
    );
    HttpFailure(failure, id).into_response()
}
