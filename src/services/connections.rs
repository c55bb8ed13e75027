//! The clients that are signed in, and the subjects of another issuer that were seen: both are tokens that no person
//! has, and end by being revoked.

use std::sync::Arc;

use tracing::info;

use super::tokens::Tokens;
use crate::{
    domain::{
        clock::Clock,
        error::{Code, Failure},
        id::TokenId,
        token::TokenRecord,
    },
    ports::observer::{Observer, SignInFacts},
};

pub struct Connections {
    tokens: Arc<Tokens>,
    clock: Arc<dyn Clock>,
    observer: Arc<dyn Observer>,
}

impl Connections {
    pub fn new(tokens: Arc<Tokens>, clock: Arc<dyn Clock>, observer: Arc<dyn Observer>) -> Self {
        Self { tokens, clock, observer }
    }

    /// Every connection that was not ended, and every subject of another issuer, newest first.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn list(&self) -> Result<Vec<TokenRecord>, Failure> {
        let now = self.clock.unix_ms();
        let mut all = self.tokens.list(None).await?;
        all.retain(|token| token.is_connection() && (token.is_valid(now) || token.is_refused_subject()));
        let configured = self.tokens.configured_id();
        for token in &mut all {
            // No token of the list has this id.
            token.parent = token.parent.filter(|parent| Some(*parent) != configured);
        }
        Ok(all)
    }

    /// Ends a connection: its tokens, and what they opened. A subject of another issuer is refused until it is allowed.
    ///
    /// # Errors
    /// Those of [`Tokens::revoke`].
    pub async fn end(&self, id: TokenId) -> Result<(), Failure> {
        let there = self.list().await?.iter().any(|token| token.id == id && !token.is_refused_subject());
        if !there {
            let why = "There is no such connection, or it was revoked before.";
            return Err(Failure::new(Code::TokenNotFound, why));
        }
        self.tokens.revoke(id).await?;
        self.report("ended", id);
        Ok(())
    }

    /// Allows a subject of another issuer that was ended.
    ///
    /// # Errors
    /// Those of [`Tokens::restore`].
    pub async fn allow(&self, id: TokenId) -> Result<(), Failure> {
        self.tokens.restore(id).await?;
        self.report("allowed", id);
        Ok(())
    }

    fn report(&self, step: &'static str, id: TokenId) {
        info!(step, connection = %id, "sign-in");
        let at_unix_s = self.clock.unix_ms() / 1000;
        self.observer.signed_in(&SignInFacts { at_unix_s, step, client: "", connection: Some(id) });
    }
}
