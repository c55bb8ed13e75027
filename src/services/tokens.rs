//! Authentication: maps a bearer token to its principal, and delays the answers to wrong ones.

use std::{net::IpAddr, num::NonZeroU32, time::Duration};

use governor::{
    DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::domain::owner::Principal;

/// Wrong tokens that are answered without delay, at once and a minute: of one address, and of all.
const WRONG_OF_ADDRESS: (u32, u32) = (10, 30);
const WRONG_OF_ALL: (u32, u32) = (100, 300);
/// The longest delay.
const DELAY_MAX: Duration = Duration::from_secs(2);
/// Addresses that are remembered; more count as one.
const ADDRESSES_MAX: usize = 4096;

/// The accepted token, and how often wrong ones came.
pub struct Tokens {
    /// Of the accepted token: a comparison takes the same time for a token of any content and length.
    digest: [u8; 32],
    wrong: DefaultDirectRateLimiter,
    wrong_of: DefaultKeyedRateLimiter<Option<IpAddr>>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tokens(…)")
    }
}

impl Tokens {
    pub fn new(token: &SecretString) -> Self {
        let quota = |(burst, a_minute): (u32, u32)| {
            let at_least_1 = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
            Quota::per_minute(at_least_1(a_minute)).allow_burst(at_least_1(burst))
        };
        Self {
            digest: Sha256::digest(token.expose_secret()).into(),
            wrong: RateLimiter::direct(quota(WRONG_OF_ALL)),
            wrong_of: RateLimiter::keyed(quota(WRONG_OF_ADDRESS)),
        }
    }

    /// Counts a wrong token. The answer to it is due after this time.
    pub fn refused(&self, from: IpAddr) -> Duration {
        if self.wrong_of.len() >= ADDRESSES_MAX {
            self.wrong_of.retain_recent();
        }
        let from = (self.wrong_of.len() < ADDRESSES_MAX).then_some(from);
        let now = DefaultClock::default().now();
        let refusals = [self.wrong_of.check_key(&from).err(), self.wrong.check().err()];
        let delay = refusals.iter().flatten().map(|until| until.wait_time_from(now)).max();
        delay.unwrap_or_default().min(DELAY_MAX)
    }

    /// The owner of a token; `None` for an unknown token.
    pub fn principal(&self, token: &[u8]) -> Option<Principal> {
        let digest: [u8; 32] = Sha256::digest(token).into();
        bool::from(digest.ct_eq(&self.digest)).then(Principal::default)
    }

    /// Parses the value of an `Authorization` header (RFC 6750): the scheme in any case, one or more spaces, the token.
    pub fn authorize(&self, header: &[u8]) -> Option<Principal> {
        let split = header.iter().position(|&b| b == b' ')?;
        let (scheme, rest) = header.split_at(split);
        let token = rest.trim_ascii();
        (scheme.eq_ignore_ascii_case(b"bearer") && !token.is_empty()).then(|| self.principal(token)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorize_accepts_the_token_only() {
        let tokens = Tokens::new(&"0123456789abcdef".to_owned().into());
        for good in ["Bearer 0123456789abcdef", "bearer 0123456789abcdef", "BEARER   0123456789abcdef "] {
            assert_eq!(tokens.authorize(good.as_bytes()), Some(Principal::default()), "{good}");
        }
        let bad: [&[u8]; 12] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"0123456789abcdef",
            b"Basic 0123456789abcdef",
            b"Bearer 0123456789abcde",
            b"Bearer 0123456789abcdef0",
            b"Bearer 0123456789abcdeF",
            b"Bearer 0123456789abcdef\0",
            b"Bearer\t0123456789abcdef",
            b"Bearer 0123456789abcdef, Bearer 0123456789abcdef",
            b"Bearer \xff\xfe",
        ];
        for header in bad {
            assert_eq!(tokens.authorize(header), None, "{header:?}");
        }
        assert_eq!(format!("{tokens:?}"), "Tokens(…)");
    }

    #[test]
    fn wrong_tokens_are_delayed_by_address_and_in_all_in_bounded_memory() {
        let tokens = Tokens::new(&"0123456789abcdef".to_owned().into());
        let address = |n: u32| IpAddr::from(n.to_be_bytes());
        let delays: Vec<_> = (0..40).map(|_| tokens.refused(address(1))).collect();
        assert!(delays[..10].iter().all(Duration::is_zero), "{delays:?}");
        assert!(delays[12..].iter().all(|delay| (Duration::from_secs(1)..=DELAY_MAX).contains(delay)), "{delays:?}");
        assert!(tokens.refused(address(2)).is_zero(), "another address");
        let many: Vec<_> = (0..20_000).map(|n| tokens.refused(address(n))).collect();
        assert!(many[200..].iter().all(|delay| !delay.is_zero()), "each address is new, but together they are many");
        assert!(tokens.wrong_of.len() <= ADDRESSES_MAX + 1, "{}", tokens.wrong_of.len());
    }
}
