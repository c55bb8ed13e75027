//! Rate limits of client registration, of the entry of tokens, of consents and of refreshes. Every table is bounded.

use std::{hash::Hash, net::IpAddr};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, RateLimiter};

use super::Refusal;
use crate::{
    domain::{Principal, TokenId},
    services::tokens::quota,
};

/// At once and a minute. Assistants in the cloud share addresses, and so do all clients behind a proxy.
const REGISTRATIONS_OF_ADDRESS: (u32, u32) = (60, 60);
const REGISTRATIONS: (u32, u32) = (300, 300);
/// What a stranger makes this server ask of others: documents of clients, and the provider. A flood of registrations
/// does not use it up.
const OUTGOING_OF_ADDRESS: (u32, u32) = (60, 60);
const OUTGOING: (u32, u32) = (300, 300);
/// Wrong tokens entered from one address. Right ones do not count, so another person's mistakes lock no person out.
const WRONG_TOKENS: (u32, u32) = (10, 10);
/// The same for wrong codes and refresh tokens.
const WRONG_GRANTS: (u32, u32) = (60, 60);
/// Clients that one owner connects. Each is listed for 30 days after its end, and its token is in memory until then.
const CONNECTIONS_OF_OWNER: (u32, u32) = (60, 1);
/// Refreshes of one connection. Each leaves two tokens that are kept until they expire, so a client that refreshes in a
/// loop must not; several processes of a client refresh at once.
const REFRESHES_OF_CONNECTION: (u32, u32) = (60, 10);
const KEYS_MAX: usize = 10_000;

pub(super) struct Rates {
    pub registrations: Rate<IpAddr>,
    pub outgoing: Rate<IpAddr>,
    pub wrong_tokens: Rate<IpAddr>,
    pub wrong_grants: Rate<IpAddr>,
    pub connections: Rate<Principal>,
    pub refreshes: Rate<TokenId>,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            registrations: Rate::new(REGISTRATIONS_OF_ADDRESS, Some(REGISTRATIONS)),
            outgoing: Rate::new(OUTGOING_OF_ADDRESS, Some(OUTGOING)),
            wrong_tokens: Rate::new(WRONG_TOKENS, None),
            wrong_grants: Rate::new(WRONG_GRANTS, None),
            connections: Rate::new(CONNECTIONS_OF_OWNER, None),
            refreshes: Rate::new(REFRESHES_OF_CONNECTION, None),
        }
    }
}

/// How often something may be done by one key, and by all keys together.
pub(super) struct Rate<K: Clone + Eq + Hash> {
    of_key: DefaultKeyedRateLimiter<K>,
    of_all: Option<DefaultDirectRateLimiter>,
}

impl<K: Clone + Eq + Hash> Rate<K> {
    fn new(of_key: (u32, u32), of_all: Option<(u32, u32)>) -> Self {
        Self { of_key: RateLimiter::keyed(quota(of_key)), of_all: of_all.map(|rate| RateLimiter::direct(quota(rate))) }
    }

    pub(super) fn take(&self, key: &K) -> Result<(), Refusal> {
        if self.of_key.len() >= KEYS_MAX {
            self.of_key.retain_recent();
        }
        if self.of_key.len() >= KEYS_MAX {
            return Err(Refusal::TooMany);
        }
        self.of_key.check_key(key).map_err(|_| Refusal::TooMany)?;
        self.of_all.as_ref().map_or(Ok(()), |all| all.check().map_err(|_| Refusal::TooMany))
    }

    /// Counts what is refused: with this reason, unless there were too many.
    pub(super) fn refuse(&self, key: &K, why: Refusal) -> Refusal {
        self.take(key).err().unwrap_or(why)
    }
}
