//! The database port: what outlives the process beside files. Callers on the way of a run never wait for it.

use async_trait::async_trait;

use crate::domain::{
    id::TokenId,
    token::{AccessRecord, TokenDigest, TokenRecord},
};

/// Why the database did not answer: it is away, locked, full or read-only. The text is the driver's, for the log.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the database: {0}")]
pub struct DatabaseError(pub String);

/// The tokens of all owners.
#[async_trait]
pub trait TokenStore: Send + Sync {
    /// Tokens that were made, changed or revoked at `since` or later, in unix milliseconds; from 0, all of them.
    async fn changed(&self, since: i64) -> Result<Vec<TokenRecord>, DatabaseError>;

    /// Access tokens that were made at `since` or later, in unix milliseconds; from 0, all of them.
    async fn access(&self, since: i64) -> Result<Vec<AccessRecord>, DatabaseError>;

    /// Stores a new token.
    async fn insert(&self, token: &TokenRecord) -> Result<(), DatabaseError>;

    /// Marks a token as revoked, and those that came from it: all of them; empty when there is no such token, or it was
    /// revoked before.
    async fn revoke(&self, token: &TokenId, at_unix_ms: i64) -> Result<Vec<TokenId>, DatabaseError>;

    /// Stores when tokens were last used, in unix milliseconds.
    async fn used(&self, tokens: &[(TokenId, i64)]) -> Result<(), DatabaseError>;

    /// Removes tokens that have been revoked or expired since before this moment.
    async fn forget(&self, before_unix_ms: i64) -> Result<Vec<TokenDigest>, DatabaseError>;
}
