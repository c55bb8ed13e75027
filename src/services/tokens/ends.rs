//! Notifies of the ends of tokens, for streams, runs and sessions that end with them; and tokens that had ended by a
//! wrong clock.

use std::sync::Arc;

use tokio::sync::broadcast::{Receiver, error::RecvError};

use super::{Token, Tokens};
use crate::domain::{id::TokenId, owner::Principal};

/// The tokens that end from now on.
pub struct TokenEnds {
    tokens: Arc<Tokens>,
    ends: Receiver<TokenId>,
}

impl TokenEnds {
    /// The next that have ended. A reader that more ends have overtaken than are kept gets every token that has ended,
    /// since what it opened may still be there.
    pub async fn next(&mut self) -> Option<Vec<TokenId>> {
        match self.ends.recv().await {
            Ok(token) => Some(vec![token]),
            Err(RecvError::Lagged(_)) => Some(self.tokens.ended()),
            Err(RecvError::Closed) => None,
        }
    }
}

impl Tokens {
    /// The tokens that end from now on.
    pub fn ends(self: &Arc<Self>) -> TokenEnds {
        TokenEnds { tokens: Arc::clone(self), ends: self.ends.subscribe() }
    }

    /// A valid token, as one that opens things. It may have ended by a clock that was ahead and is right again.
    pub(super) fn valid_again(&self, token: Arc<Token>) -> Option<Arc<Token>> {
        if !token.ended().is_cancelled() {
            return Some(token);
        }
        let mut known = self.known.write();
        // Meanwhile it may have been revoked, or another request was first.
        let ended = known.tokens.get(&token.record.digest).filter(|token| token.record.is_valid(self.now()))?;
        if ended.ended().is_cancelled() {
            let restored = ended.restored(ended.record.clone());
            known.add(restored);
        }
        known.tokens.get(&token.record.digest).cloned()
    }

    /// The tokens that are known and not valid any more.
    fn ended(&self) -> Vec<TokenId> {
        let (known, now) = (self.known.read(), self.now());
        known.tokens.values().filter(|token| !token.record.is_valid(now)).map(|token| token.record.id).collect()
    }

    /// Whose a token is or was; `None` for one that this process does not know.
    pub fn owner_of(&self, id: TokenId) -> Option<Principal> {
        self.known.read().by_id(id).map(|token| token.record.owner.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{
        super::{ENDS_MAX, blank_record, digest},
        *,
    };
    use crate::domain::{clock::SystemClock, token::TokenRecord};

    #[tokio::test]
    async fn a_reader_that_is_overtaken_gets_every_token_that_has_ended() {
        let tokens = Arc::new(Tokens::new(&"0123456789abcdef".to_owned().into(), None, Arc::new(SystemClock)));
        let record = |n: usize| TokenRecord { digest: digest(&n.to_be_bytes()), ..blank_record() };
        // One more than is kept, beside the one that is read in time.
        let records: Vec<_> = (0..ENDS_MAX + 2).map(record).collect();
        tokens.learn(records.clone());
        let mut ends = tokens.ends();
        let revoked = |record: TokenRecord| TokenRecord { revoked_unix_ms: Some(1), ..record };
        tokens.learn(vec![revoked(records[1].clone())]);
        assert_eq!(ends.next().await, Some(vec![records[1].id]));
        tokens.learn(records.iter().cloned().map(revoked).collect());
        let ended: HashSet<_> = ends.next().await.expect("ends").into_iter().collect();
        assert!(records.iter().all(|record| ended.contains(&record.id)), "the first was overtaken");
    }
}
