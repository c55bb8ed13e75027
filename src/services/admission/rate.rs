//! The rate at which one principal may begin runs: the generic cell rate algorithm of `governor`.

use std::{collections::HashMap, num::NonZeroU32, time::Duration};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock, Reference},
    middleware::NoOpMiddleware,
    state::keyed::HashMapStateStore,
};
use parking_lot::Mutex;

use crate::domain::{
    error::{Code, Failure},
    owner::Principal,
};

/// The rates of all principals, which are bounded by the number of tokens.
#[derive(Debug)]
pub(super) struct Rate<C: Clock = DefaultClock> {
    limiter: RateLimiter<Principal, HashMapStateStore<Principal>, C, NoOpMiddleware<C::Instant>>,
    clock: C,
    /// Until when a principal is refused.
    refused: Mutex<HashMap<Principal, C::Instant>>,
}

impl Rate {
    /// `None` for no limit.
    pub(super) fn new(a_minute: u32, burst: u32) -> Option<Self> {
        Self::at(DefaultClock::default(), a_minute, burst)
    }
}

impl<C: Clock + Clone> Rate<C> {
    fn at(clock: C, a_minute: u32, burst: u32) -> Option<Self> {
        let quota = Quota::per_minute(NonZeroU32::new(a_minute)?);
        let quota = quota.allow_burst(NonZeroU32::new(burst).unwrap_or(NonZeroU32::MIN));
        let limiter = RateLimiter::new(quota, HashMapStateStore::default(), clock.clone());
        Some(Self { limiter, clock, refused: Mutex::default() })
    }

    /// Counts one run.
    pub(super) fn take(&self, who: &Principal) -> Result<(), Failure> {
        self.limiter.check_key(who).map_err(|until| {
            let until = until.earliest_possible();
            self.refused.lock().insert(who.clone(), until);
            self.refusal(until).unwrap_or_else(|| refusal(Duration::ZERO))
        })
    }

    /// Whether the next run is known to be refused. Counts nothing.
    pub(super) fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        let until = self.refused.lock().get(who).copied();
        until.and_then(|until| self.refusal(until)).map_or(Ok(()), Err)
    }

    /// The refusal until then; `None` once it has passed.
    fn refusal(&self, until: C::Instant) -> Option<Failure> {
        let left: Duration = until.duration_since(self.clock.now()).into();
        (!left.is_zero()).then(|| refusal(left))
    }
}

fn refusal(left: Duration) -> Failure {
    // Rounded up to whole seconds, so that a client that waits so long is admitted.
    let wait_s = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    let why = format!("The programs of this owner begin faster than they may: try again in {wait_s} s.");
    Failure::new(Code::RateLimited, why).retry_after(wait_s)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn retry_after_is_the_time_until_the_next_run_is_admitted() {
        let clock = FakeRelativeClock::default();
        let rate = Rate::at(clock.clone(), 12, 3).expect("a rate");
        let who = Principal::default();
        for _ in 0..3 {
            assert!(rate.check_capacity(&who).is_ok() && rate.take(&who).is_ok());
        }
        for round in 0..3 {
            assert!(round > 0 || rate.check_capacity(&who).is_ok(), "not known before it was tried");
            let refused = rate.take(&who).expect_err("too fast");
            let wait_s = refused.retry_after_s.expect("a time");
            assert_eq!(wait_s, 5);
            clock.advance(Duration::from_millis(wait_s * 1000 - 1));
            assert!(rate.check_capacity(&who).is_err() && rate.take(&who).is_err(), "a moment too early");
            clock.advance(Duration::from_millis(1));
            assert!(rate.check_capacity(&who).is_ok() && rate.take(&who).is_ok());
        }
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(Rate::new(0, 5).is_none());
    }
}
