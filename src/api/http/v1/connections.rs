//! `/v1/connections`: the clients that are signed in. Needs the scope `admin`.

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    api::http::{Answer, Path, Reply, no_content},
    domain::{Code, Failure, Principal, TokenId, TokenRecord, text::rfc3339},
    services::admin::Admin,
};

/// A client that is signed in.
#[serde_with::skip_serializing_none]
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = ClientConnection)]
pub struct Connection {
    /// Its id.
    pub id: String,
    /// What the client calls itself, and where it is.
    pub name: String,
    /// The owner whose conversations it uses.
    pub owner: String,
    /// What it may do.
    pub scopes: Vec<&'static str>,
    /// The token that was entered to sign it in, with whose end it ends too; absent for `MCP_API_TOKEN`.
    pub token_id: Option<String>,
    /// When it was made.
    pub created_at: String,
    /// When it was last used; absent before the first use.
    pub last_used_at: Option<String>,
    /// Whether it is a person or program of another issuer, not a client that signed in here.
    pub is_subject: bool,
    /// Since when the tokens of this subject are refused; absent while they are accepted.
    pub refused_at: Option<String>,
}

/// The clients that are signed in.
#[derive(Debug, Serialize, ToSchema)]
pub struct ConnectionList {
    /// Newest first.
    pub connections: Vec<Connection>,
}

impl From<TokenRecord> for Connection {
    fn from(token: TokenRecord) -> Self {
        let time = |unix_ms: i64| rfc3339(unix_ms / 1000);
        Self {
            is_subject: token.is_subject(),
            refused_at: token.revoked_unix_ms.map(time),
            id: token.id.to_string(),
            name: token.name,
            owner: token.owner.name().to_owned(),
            scopes: token.grant.scopes.iter().map(|scope| scope.as_str()).collect(),
            token_id: token.parent.map(|id| id.to_string()),
            created_at: time(token.created_unix_ms),
            last_used_at: token.used_unix_ms.map(time),
        }
    }
}

/// List the clients that are signed in.
///
/// The list is empty where sign-in is off.
#[utoipa::path(
    get, path = "/v1/connections", tag = "connections", operation_id = "listConnections",
    responses((status = 200, description = "The clients of all owners.", body = ConnectionList)),
)]
pub(super) async fn list(State(admin): State<Admin>) -> Answer<ConnectionList> {
    let connections = admin.connections().await?.into_iter().map(Connection::from).collect();
    Ok(Json(ConnectionList { connections }))
}

/// End a connection.
///
/// Its tokens stop working at once, and its streams, programs and sessions end. The tokens of a subject of another
/// issuer are refused until it is allowed.
#[utoipa::path(
    delete, path = "/v1/connections/{connectionId}", tag = "connections", operation_id = "endConnection",
    params(("connectionId" = String, Path, description = "The connection.", pattern = "^token-[0-9a-f]{32}$")),
    responses((status = 204, description = "It has ended.")),
)]
pub(super) async fn end(State(admin): State<Admin>, who: Principal, Path(id): Path<String>) -> Reply<StatusCode> {
    let none = || Failure::new(Code::TokenNotFound, "There is no such connection, or it was revoked before.");
    let id: TokenId = id.parse().map_err(|_| none())?;
    no_content(admin.disconnect(&who, id).await)
}

/// Allow a subject of another issuer that was ended.
///
/// Its tokens are accepted again, including earlier ones that have not expired.
#[utoipa::path(
    post, path = "/v1/connections/{connectionId}/allow", tag = "connections", operation_id = "allowSubject",
    params(("connectionId" = String, Path, description = "The connection.", pattern = "^token-[0-9a-f]{32}$")),
    responses((status = 204, description = "It is allowed.")),
)]
pub(super) async fn allow(State(admin): State<Admin>, who: Principal, Path(id): Path<String>) -> Reply<StatusCode> {
    let none = || Failure::new(Code::TokenNotFound, "There is no such subject that is refused.");
    no_content(admin.allow(&who, id.parse().map_err(|_| none())?).await)
}
