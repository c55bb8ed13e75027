//! Sign-in of remote clients: a small OAuth 2.1 authorization server (RFC 6749, 7591, 7009, 7636, 8707, 9207). It owns
//! its rules and knows no HTTP. A person proves who they are by one of the owner's tokens; the client gets a
//! connection, which is a token that came from that one and ends with it, and access and refresh tokens for it.
//!
//! ```text
//! keep ── one task: an hour after another it removes what has expired
//! ```

mod clients;
mod grants;
mod rates;

use std::{sync::Arc, time::Duration};

use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::rates::Rates;
pub use self::{
    clients::{Registered, Registration, redirect_host},
    grants::{Consent, Granted, Request, TokenRequest},
};
use super::tokens::Tokens;
use crate::{
    domain::{
        clock::Clock,
        error::{Code, Failure},
        id::TokenId,
        token::TokenRecord,
    },
    ports::{
        database::DatabaseError,
        observer::{Observer, SignInFacts},
        sign_in::{RegisteredClient, SignInStore},
    },
};

const FORGET_EVERY: Duration = Duration::from_hours(1);

#[derive(Debug, Clone)]
pub struct SignInOptions {
    /// The address of the server, without a slash at its end.
    pub issuer: String,
    pub access: Duration,
    pub refresh: Duration,
    /// Seals consent forms.
    pub key: SecretString,
}

/// Why a client or a person is refused: the words of RFC 6749 and 7591.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the client is not registered, or its secret is wrong")]
    InvalidClient,
    #[error("the code or the refresh token is unknown, has expired, was used before or belongs to another client")]
    InvalidGrant,
    #[error("{0}")]
    InvalidRequest(&'static str),
    #[error("the scope is wider than what was granted")]
    InvalidScope,
    #[error("the resource is not this server's /mcp")]
    InvalidTarget,
    #[error("only the response type `code` is offered")]
    UnsupportedResponseType,
    #[error("only authorization_code and refresh_token are offered")]
    UnsupportedGrantType,
    #[error("none of the redirect addresses can be used: https, or http on localhost, without a fragment")]
    InvalidRedirectUri,
    #[error("{0}")]
    InvalidClientMetadata(&'static str),
    #[error("the person refused")]
    AccessDenied,
    #[error("the token that was entered is not valid, or may neither run programs nor use files")]
    WrongToken,
    #[error("too many requests: try again in a minute")]
    TooMany,
    #[error("the database does not answer: try again in a moment")]
    Unavailable,
}

impl Refusal {
    /// The `error` of the protocol.
    pub fn word(self) -> &'static str {
        match self {
            Self::InvalidClient => "invalid_client",
            Self::InvalidGrant => "invalid_grant",
            Self::InvalidRequest(_) => "invalid_request",
            Self::InvalidScope => "invalid_scope",
            Self::InvalidTarget => "invalid_target",
            Self::UnsupportedResponseType => "unsupported_response_type",
            Self::UnsupportedGrantType => "unsupported_grant_type",
            Self::InvalidRedirectUri => "invalid_redirect_uri",
            Self::InvalidClientMetadata(_) => "invalid_client_metadata",
            Self::AccessDenied | Self::WrongToken => "access_denied",
            Self::TooMany | Self::Unavailable => "temporarily_unavailable",
        }
    }
}

impl From<DatabaseError> for Refusal {
    fn from(error: DatabaseError) -> Self {
        warn!(%error, "sign-in: the database did not answer");
        Self::Unavailable
    }
}

/// The authorization server.
pub struct SignIn {
    store: Arc<dyn SignInStore>,
    tokens: Arc<Tokens>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
    options: SignInOptions,
    rates: Rates,
}

impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SignIn(…)")
    }
}

impl SignIn {
    pub fn new(
        store: Arc<dyn SignInStore>,
        tokens: Arc<Tokens>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
        options: SignInOptions,
    ) -> Self {
        Self { store, tokens, clock, observer, options, rates: Rates::default() }
    }

    pub fn issuer(&self) -> &str {
        &self.options.issuer
    }

    /// The address that access tokens are for.
    pub fn resource(&self) -> String {
        format!("{}/mcp", self.options.issuer)
    }

    pub fn key(&self) -> &[u8] {
        self.options.key.expose_secret().as_bytes()
    }

    /// Unix milliseconds.
    pub fn now(&self) -> i64 {
        self.clock.unix_ms()
    }

    /// # Errors
    /// [`Refusal::InvalidClient`] for one that is not registered, [`Refusal::Unavailable`].
    pub async fn client(&self, id: &str) -> Result<RegisteredClient, Refusal> {
        self.store.client(id).await?.ok_or(Refusal::InvalidClient)
    }

    /// Every connection that was not revoked, newest first.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn connections(&self) -> Result<Vec<TokenRecord>, Failure> {
        let now = self.now();
        let mut all = self.tokens.list(None).await?;
        all.retain(|token| token.is_connection() && token.is_valid(now));
        Ok(all)
    }

    /// Ends a connection: its tokens, and what they opened.
    ///
    /// # Errors
    /// Those of [`Tokens::revoke`].
    pub async fn disconnect(&self, id: TokenId) -> Result<(), Failure> {
        let there = self.connections().await?.iter().any(|token| token.id == id);
        if !there {
            let why = "There is no such connection, or it was revoked before.";
            return Err(Failure::new(Code::TokenNotFound, why));
        }
        self.tokens.revoke(id).await?;
        self.tell("ended", "", Some(id));
        Ok(())
    }

    fn tell(&self, step: &'static str, client: &str, connection: Option<TokenId>) {
        let name = connection.map(|id| id.to_string());
        info!(step, client, connection = name, "sign-in");
        self.observer.signed_in(&SignInFacts { at_unix_s: self.now() / 1000, step, client, connection });
    }

    /// Removes what has expired, until `stop`.
    pub async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut rounds = tokio::time::interval(FORGET_EVERY);
        loop {
            tokio::select! {
                _ = rounds.tick() => {}
                () = stop.cancelled() => return,
            }
            match self.store.forget(self.now()).await {
                Ok(idle) => {
                    for connection in idle {
                        // It may have been revoked meanwhile.
                        let _ = self.tokens.revoke(connection).await;
                    }
                }
                Err(error) => warn!(%error, "sign-in: what has expired was not removed"),
            }
        }
    }
}
