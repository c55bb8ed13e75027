//! The access tokens that are accepted, and those of each connection in the order of their ends: to accept one takes as
//! long however many there are, since every request waits for it.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use super::Token;
use crate::domain::TokenDigest;

/// What an access token stands for.
#[derive(Debug, Clone)]
pub(super) struct Access {
    pub connection: TokenDigest,
    pub expires_unix_ms: i64,
    /// Where the token itself says whose it is and what it may do.
    pub acts_as: Option<Arc<Token>>,
}

#[derive(Default)]
pub(super) struct AccessTokens {
    known: HashMap<TokenDigest, Access>,
    /// The connection, the end and the digest of each.
    ordered: BTreeSet<(TokenDigest, i64, TokenDigest)>,
}

impl AccessTokens {
    pub fn valid(&self, token: &TokenDigest, now: i64) -> Option<&Access> {
        self.known.get(token).filter(|access| now < access.expires_unix_ms)
    }

    pub fn insert(&mut self, token: TokenDigest, access: Access) {
        self.remove(&token);
        self.ordered.insert((access.connection, access.expires_unix_ms, token));
        self.known.insert(token, access);
    }

    pub fn remove(&mut self, token: &TokenDigest) -> Option<Access> {
        let access = self.known.remove(token)?;
        self.ordered.remove(&(access.connection, access.expires_unix_ms, *token));
        Some(access)
    }

    /// Those of a connection, the first to expire first.
    pub fn of(&self, connection: TokenDigest) -> impl Iterator<Item = TokenDigest> {
        let (first, last) = ((connection, i64::MIN, [0; 32]), (connection, i64::MAX, [u8::MAX; 32]));
        self.ordered.range(first..=last).map(|(.., token)| *token)
    }

    pub fn remove_of(&mut self, connection: TokenDigest) {
        let tokens: Vec<_> = self.of(connection).collect();
        for token in tokens {
            self.remove(&token);
        }
    }

    pub fn expired(&self, now: i64) -> Vec<TokenDigest> {
        let expired = self.known.iter().filter(|(_, access)| access.expires_unix_ms <= now);
        expired.map(|(token, _)| *token).collect()
    }
}
