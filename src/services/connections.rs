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

    /// Every connection that was not ended, newest first.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn list(&self) -> Result<Vec<TokenRecord>, Failure> {
        let now = self.clock.unix_ms();
        let mut all = self.tokens.list(None).await?;
        all.retain(|token| token.is_connection() && token.is_valid(now));
        Ok(all)
    }

    /// Ends a connection: its tokens, and what they opened. A subject of another issuer is refused from then on.
    ///
    /// # Errors
    /// Those of [`Tokens::revoke`].
    pub async fn end(&self, id: TokenId) -> Result<(), Failure> {
        let there = self.list().await?.iter().any(|token| token.id == id);
        if !there {
            let why = "There is no such connection, or it was revoked before.";
            return Err(Failure::new(Code::TokenNotFound, why));
        }
        self.tokens.revoke(id).await?;
        info!(step = "ended", connection = %id, "sign-in");
        let at_unix_s = self.clock.unix_ms() / 1000;
        self.observer.signed_in(&SignInFacts { at_unix_s, step: "ended", client: "", connection: Some(id) });
        Ok(())
    }
}
