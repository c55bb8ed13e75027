//! The endpoints for tokens and their revocation.

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use secrecy::ExposeSecret as _;
use serde_json::json;

use super::{NO_STORE, ServerParts, address, read_form, refused, unreadable};
use crate::services::sign_in::{Refusal, TokenRequest};

const ONCE: [&str; 9] = [
    "grant_type",
    "client_id",
    "client_secret",
    "code",
    "redirect_uri",
    "code_verifier",
    "refresh_token",
    "scope",
    "token",
];

pub(super) async fn token(State(parts): State<ServerParts>, request: Request) -> Response {
    let from = address(&request);
    let (head, body) = request.into_parts();
    let form = match read_form(&parts.bodies, &head.headers, body).await {
        Ok(form) => form,
        Err(failure) => return unreadable(&failure, "invalid_request"),
    };
    if form.repeats(&ONCE) {
        return refused(Refusal::InvalidRequest("a parameter is there twice"));
    }
    let request = TokenRequest {
        grant_type: form.text("grant_type"),
        client: form.text("client_id"),
        secret: form.get("client_secret").map(str::to_owned),
        code: form.text("code"),
        redirect: form.get("redirect_uri").map(str::to_owned),
        verifier: form.text("code_verifier"),
        refresh: form.text("refresh_token"),
        scope: form.text("scope"),
        resources: form.all("resource"),
    };
    match parts.sign_in.grant(&request, from).await {
        Ok(granted) => {
            let scopes: Vec<_> = granted.scopes.iter().map(|scope| scope.as_str()).collect();
            let body = json!({
                "access_token": granted.access.expose_secret(),
                "token_type": "Bearer",
                "expires_in": granted.expires_s,
                "refresh_token": granted.refresh.expose_secret(),
                "scope": scopes.join(" "),
            });
            ([NO_STORE], Json(body)).into_response()
        }
        Err(refusal) => refused(refusal),
    }
}

/// RFC 7009.
pub(super) async fn revoke(State(parts): State<ServerParts>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let form = match read_form(&parts.bodies, &head.headers, body).await {
        Ok(form) => form,
        Err(failure) => return unreadable(&failure, "invalid_request"),
    };
    if form.repeats(&ONCE) {
        return refused(Refusal::InvalidRequest("a parameter is there twice"));
    }
    if form.get("token").is_none() {
        return refused(Refusal::InvalidRequest("the token is missing"));
    }
    let revoked = parts.sign_in.revoke(&form.text("token"), form.get("client_id"), form.get("client_secret")).await;
    revoked.map_or_else(refused, |()| (StatusCode::OK, [NO_STORE]).into_response())
}
