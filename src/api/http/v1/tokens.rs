//! Tokens: made, listed, revoked. Needs the scope `admin`, which [`crate::api::http::auth`] checks.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse as _,
};
use schemars::JsonSchema;
use secrecy::ExposeSecret as _;
use serde::Deserialize;
use tracing::info;
use utoipa::IntoParams;

use super::call::Call;
use crate::{
    api::{
        http::{Answer, ApiParts, Reply, body::RequestBody},
        schema::token::{CreateToken, TokenCreated, TokenList, TokenStatus},
    },
    domain::{id::TokenId, owner::Principal},
    services::{
        admin::Admin,
        tokens::{NewToken, Tokens},
    },
};

#[derive(Deserialize, JsonSchema, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ListTokens {
    /// Only those of this owner.
    #[param(value_type = Option<String>, pattern = "^[A-Za-z0-9][A-Za-z0-9._-]*$", min_length = 1, max_length = 64)]
    owner: Option<Principal>,
}

/// Make a token.
///
/// It is shown in this answer only. Requests with it act for its owner, within its scopes and limits.
#[utoipa::path(
    post, path = "/v1/tokens", tag = "tokens", operation_id = "createToken",
    request_body(content = CreateToken),
    responses((status = 201, description = "The token.", body = TokenCreated)),
)]
pub(super) async fn create(parts: ApiParts, call: Call, body: RequestBody) -> Reply {
    let create: CreateToken = body.json().await?;
    let (owner, grant) = (create.owner()?, create.grant()?);
    let expires_unix_ms = create.expires()?.map(|left| parts.tokens.in_seconds(left));
    let (record, token) = parts
        .admin
        .create_token(&call.who, NewToken { owner, name: create.name, grant, expires_unix_ms, parent: None })
        .await?;
    info!(token = %record.id, owner = record.owner.name(), by = call.who.name(), "a token was made");
    let created = TokenCreated { token: token.expose_secret().to_owned(), status: TokenStatus::from(&record) };
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(created)).into_response())
}

/// List the tokens.
///
/// Newest first: of one owner or of all, those that have ended within the last 30 days too. The configured token is not
/// among them.
#[utoipa::path(
    get, path = "/v1/tokens", tag = "tokens", operation_id = "listTokens",
    params(ListTokens),
    responses((status = 200, description = "The tokens.", body = TokenList)),
)]
pub(super) async fn list(State(tokens): State<Arc<Tokens>>, call: Call<ListTokens>) -> Answer<TokenList> {
    let tokens = tokens.list(call.query.owner.as_ref()).await?;
    Ok(Json(TokenList { tokens: tokens.iter().map(TokenStatus::from).collect() }))
}

/// Revoke a token.
///
/// At once: its streams end, its programs are cancelled, its sessions are closed.
#[utoipa::path(
    delete, path = "/v1/tokens/{tokenId}", tag = "tokens", operation_id = "revokeToken",
    params(("tokenId" = String, Path, description = "The token's id.", pattern = "^token-[0-9a-f]{32}$")),
    responses((status = 204, description = "It is revoked.")),
)]
pub(super) async fn revoke(State(admin): State<Admin>, call: Call) -> Reply<StatusCode> {
    let id: TokenId = call.name(3, "tokenId")?;
    admin.revoke_token(&call.who, id).await?;
    info!(token = %id, by = call.who.name(), "a token was revoked");
    Ok(StatusCode::NO_CONTENT)
}
