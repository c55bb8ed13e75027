//! Rate limits of client registration, of the entry of tokens, of consents and of refreshes. Every table is bounded.

use std::{hash::Hash, net::IpAddr, num::NonZeroU32};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::Refusal;
use crate::domain::{id::TokenId, owner::Principal};

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
    registrations_of: DefaultKeyedRateLimiter<IpAddr>,
    registrations: DefaultDirectRateLimiter,
    outgoing_of: DefaultKeyedRateLimiter<IpAddr>,
    outgoing: DefaultDirectRateLimiter,
    wrong_tokens: DefaultKeyedRateLimiter<IpAddr>,
    wrong_grants: DefaultKeyedRateLimiter<IpAddr>,
    connections_of: DefaultKeyedRateLimiter<Principal>,
    refreshes_of: DefaultKeyedRateLimiter<TokenId>,
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            registrations_of: RateLimiter::keyed(quota(REGISTRATIONS_OF_ADDRESS)),
            registrations: RateLimiter::direct(quota(REGISTRATIONS)),
            outgoing_of: RateLimiter::keyed(quota(OUTGOING_OF_ADDRESS)),
            outgoing: RateLimiter::direct(quota(OUTGOING)),
            wrong_tokens: RateLimiter::keyed(quota(WRONG_TOKENS)),
            wrong_grants: RateLimiter::keyed(quota(WRONG_GRANTS)),
            connections_of: RateLimiter::keyed(quota(CONNECTIONS_OF_OWNER)),
            refreshes_of: RateLimiter::keyed(quota(REFRESHES_OF_CONNECTION)),
        }
    }
}

impl Rates {
    pub(super) fn registration(&self, from: IpAddr) -> Result<(), Refusal> {
        take(&self.registrations_of, &from)?;
        self.registrations.check().map_err(|_| Refusal::TooMany)
    }

    pub(super) fn outgoing(&self, from: IpAddr) -> Result<(), Refusal> {
        take(&self.outgoing_of, &from)?;
        self.outgoing.check().map_err(|_| Refusal::TooMany)
    }

    pub(super) fn wrong_token(&self, from: IpAddr) -> Refusal {
        take(&self.wrong_tokens, &from).err().unwrap_or(Refusal::WrongToken)
    }

    pub(super) fn wrong_grant(&self, from: IpAddr) -> Refusal {
        take(&self.wrong_grants, &from).err().unwrap_or(Refusal::InvalidGrant)
    }

    pub(super) fn connection(&self, owner: &Principal) -> Result<(), Refusal> {
        take(&self.connections_of, owner)
    }

    pub(super) fn refresh(&self, connection: TokenId) -> Result<(), Refusal> {
        take(&self.refreshes_of, &connection)
    }
}

fn quota((burst, a_minute): (u32, u32)) -> Quota {
    let at_least_1 = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    Quota::per_minute(at_least_1(a_minute)).allow_burst(at_least_1(burst))
}

fn take<K: Clone + Eq + Hash>(of: &DefaultKeyedRateLimiter<K>, key: &K) -> Result<(), Refusal> {
    if of.len() >= KEYS_MAX {
        of.retain_recent();
    }
    if of.len() >= KEYS_MAX {
        return Err(Refusal::TooMany);
    }
    of.check_key(key).map_err(|_| Refusal::TooMany)
}
