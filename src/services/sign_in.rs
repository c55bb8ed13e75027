//! Sign-in of remote clients: a small OAuth 2.1 authorization server (RFC 6749, 7591, 7009, 7636, 8707, 9207). It owns
//! its rules and knows no HTTP. A person authenticates with one of the owner's tokens. The client gets a connection,
//! which is a token derived from that one that ends with it, and access and refresh tokens for it.
//!
//! ```text
//! remove_expired ── one task: removes every hour what has expired
//! ```

mod clients;
mod documents;
mod grants;
mod openid;
mod rates;

use std::{net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use self::{
    clients::{Registered, Registration, redirect_host},
    grants::{Consent, Granted, Request, TokenRequest},
    openid::OpenIdOptions,
};
use self::{documents::Documents, rates::Rates};
use super::tokens::Tokens;
use crate::{
    domain::{Clock, StepWatch, TokenId, clock::every},
    ports::{
        database::{DatabaseError, DbResult, ROUND_MAX, in_time, within},
        observer::{Observer, SignInFacts},
        sign_in::{RegisteredClient, SignInStore},
        web::Web,
    },
};

const FORGET_EVERY: Duration = Duration::from_hours(1);

#[derive(Debug, Clone)]
pub struct SignInOptions {
    /// The origin of the server, as browsers write it.
    pub issuer: String,
    pub access: Duration,
    pub refresh: Duration,
    /// Seals consent forms.
    pub key: SecretString,
    /// Whether clients may be named by documents.
    pub documents: bool,
    /// Where people may sign in who have no token.
    pub openid: Option<OpenIdOptions>,
}

/// Why a client or a person is refused: the words of RFC 6749 and 7591.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the client is not registered, or its secret is wrong")]
    InvalidClient,
    #[error("the document that names the client cannot be used: {0}")]
    ClientDocument(&'static str),
    #[error(
        "the code or the refresh token is unknown, has expired, was used before, or does not fit client_id, \
         redirect_uri or code_verifier"
    )]
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
    #[error("the sign-in at the provider did not succeed, or it vouches for a person who may not use this server")]
    NotAllowed,
    #[error("the provider of the sign-in does not say who you are: the operator finds in the log what is missing")]
    Unidentified,
    #[error("the provider of the sign-in does not answer: try again in a moment")]
    ProviderAway,
    #[error("too many requests: try again in a minute")]
    TooMany,
    #[error("the database does not answer: try again in a moment")]
    Unavailable,
}

impl Refusal {
    /// The `error` of the protocol.
    pub fn word(self) -> &'static str {
        match self {
            Self::InvalidClient | Self::ClientDocument(_) => "invalid_client",
            Self::InvalidGrant => "invalid_grant",
            Self::InvalidRequest(_) => "invalid_request",
            Self::InvalidScope => "invalid_scope",
            Self::InvalidTarget => "invalid_target",
            Self::UnsupportedResponseType => "unsupported_response_type",
            Self::UnsupportedGrantType => "unsupported_grant_type",
            Self::InvalidRedirectUri => "invalid_redirect_uri",
            Self::InvalidClientMetadata(_) => "invalid_client_metadata",
            Self::AccessDenied | Self::WrongToken | Self::NotAllowed | Self::Unidentified => "access_denied",
            Self::TooMany | Self::Unavailable | Self::ProviderAway => "temporarily_unavailable",
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
    web: Arc<dyn Web>,
    documents: Mutex<Documents>,
}

impl SignIn {
    pub fn new(
        store: Arc<dyn SignInStore>,
        tokens: Arc<Tokens>,
        clock: Arc<dyn Clock>,
        observer: Arc<dyn Observer>,
        web: Arc<dyn Web>,
        options: SignInOptions,
    ) -> Self {
        let (rates, documents) = (Rates::default(), Mutex::default());
        Self { store, tokens, clock, observer, options, rates, web, documents }
    }

    pub fn issuer(&self) -> &str {
        &self.options.issuer
    }

    /// Whether clients may be named by documents.
    pub fn takes_documents(&self) -> bool {
        self.options.documents
    }

    pub fn key(&self) -> &[u8] {
        self.options.key.expose_secret().as_bytes()
    }

    /// Unix milliseconds.
    pub fn now(&self) -> i64 {
        self.clock.unix_ms()
    }

    /// The client that a request from an address names.
    ///
    /// # Errors
    /// [`Refusal::InvalidClient`] for one that is not registered, [`Refusal::ClientDocument`], [`Refusal::TooMany`],
    /// [`Refusal::Unavailable`].
    pub async fn client(&self, id: &str, from: IpAddr) -> Result<RegisteredClient, Refusal> {
        if documents::is_document(id) && self.options.documents {
            return self.client_of_document(id, from).await;
        }
        in_time(self.store.client(id)).await?.ok_or(Refusal::InvalidClient)
    }

    fn report(&self, step: &'static str, client: &str, connection: Option<TokenId>) {
        let name = connection.map(|id| id.to_string());
        info!(step, client, connection = name, "sign-in");
        self.observer.signed_in(&SignInFacts { at_unix_s: self.now() / 1000, step, client, connection });
    }

    /// Removes what has expired, until `stop`. Nothing at once, nor in the hour after a step of the clock: what is
    /// valid may look as if it had expired.
    pub async fn remove_expired(self: Arc<Self>, stop: CancellationToken) {
        let (mut rounds, steps) = (every(FORGET_EVERY), StepWatch::default());
        while stop.run_until_cancelled(rounds.tick()).await.is_some() {
            let Some(now) = steps.settled_ms(self.clock.as_ref()) else { continue };
            // Where it is broken off, the next one goes on with what is left.
            match stop.run_until_cancelled(within(ROUND_MAX, self.forget(now))).await {
                None => return,
                Some(Ok(())) => {}
                Some(Err(error)) => warn!(%error, "sign-in: what has expired was not removed"),
            }
        }
    }

    async fn forget(&self, now: i64) -> DbResult<()> {
        for connection in self.store.forget(now).await? {
            // It may have been revoked meanwhile.
            let _ = self.tokens.revoke(connection).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
