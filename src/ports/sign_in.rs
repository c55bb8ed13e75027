//! The store of sign-in: clients that registered, codes, refresh tokens and access tokens. It holds digests only.

use async_trait::async_trait;

use super::database::DbResult;
use crate::domain::{Grant, TokenDigest, TokenId, TokenRecord};

/// A client that registered itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegisteredClient {
    pub id: String,
    pub name: String,
    pub redirects: Vec<String>,
    /// The digest of the client secret; `None` for a public client.
    pub secret: Option<TokenDigest>,
}

/// A code that was given to a client and not redeemed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    pub digest: TokenDigest,
    pub client: String,
    pub redirect: String,
    /// The S256 challenge of PKCE.
    pub challenge: String,
    pub expires_unix_ms: i64,
}

/// What a client shows to redeem a code.
#[derive(Debug, Clone)]
pub struct Redemption {
    pub digest: TokenDigest,
    pub client: String,
    /// `None` where the client does not repeat it.
    pub redirect: Option<String>,
    pub challenge: String,
}

/// The tokens that a client gets.
#[derive(Debug, Clone, Copy)]
pub struct TokenPair {
    pub access: TokenDigest,
    pub access_expires_unix_ms: i64,
    pub refresh: TokenDigest,
    pub refresh_expires_unix_ms: i64,
}

/// What became of a code or a refresh token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exchange {
    /// The pair is stored.
    Granted { connection: TokenId, connection_digest: TokenDigest, grant: Grant },
    /// It was used before: the connection has to end.
    Reused(TokenId),
    /// It is unknown, expired, revoked, or another client's.
    Invalid,
}

/// Each method is one transaction. Moments are unix milliseconds.
#[async_trait]
pub trait SignInStore: Send + Sync {
    /// Stores a client; answers the id of the one that has its fingerprint, which may be an older one. A fingerprint is
    /// a digest of what a client says of itself, and of a client with a secret that of the secret.
    async fn register(&self, client: &RegisteredClient, fingerprint: &TokenDigest, now: i64) -> DbResult<String>;

    async fn client(&self, id: &str) -> DbResult<Option<RegisteredClient>>;

    /// Stores a connection and the code that leads to it, both or neither. `false`, and nothing is stored, when the
    /// stored token that it comes from has ended: a revocation finds the connection, or this finds the revocation.
    async fn connect(&self, connection: &TokenRecord, code: &Code, stored_parent: Option<TokenId>) -> DbResult<bool>;

    /// Redeems a code once, by one conditional update, and stores the pair.
    async fn redeem(&self, what: &Redemption, pair: &TokenPair, now: i64) -> DbResult<Exchange>;

    /// The connection of a refresh token of this client, and what it may do.
    async fn grant_of(&self, refresh: &TokenDigest, client: &str) -> DbResult<Option<(TokenId, Grant)>>;

    /// Retires a refresh token and stores the next pair. One that was retired less than `grace_ms` ago gets another
    /// pair; one that was retired before is reused, and so is one that was retired by a clock that was set back by more
    /// than that.
    async fn rotate(
        &self,
        refresh: &TokenDigest,
        client: &str,
        pair: &TokenPair,
        now: i64,
        grace_ms: i64,
    ) -> DbResult<Exchange>;

    /// The connection of an access token or a refresh token, if it is of this client.
    async fn connection(&self, token: &TokenDigest, client: Option<&str>) -> DbResult<Option<TokenId>>;

    /// Removes what has expired, and clients that were not confirmed for a day; answers connections that have nothing
    /// left to go on with.
    async fn forget(&self, now: i64) -> DbResult<Vec<TokenId>>;
}
