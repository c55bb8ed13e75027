//! How many requests, and how many bytes, an owner may make and move in a minute under a policy: the generic cell rate
//! algorithm of `governor`. A burst may use a whole minute's allowance; then the rate applies. Calls of tools are
//! counted too.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use governor::{
    Quota, RateLimiter,
    clock::{self, Clock as _},
    middleware::NoOpMiddleware,
    state::keyed::HashMapStateStore,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::{
    domain::{Principal, network::BYTES_PER_MINUTE_MIN},
    ports::network::Pace,
};

/// How long nothing may pass for as much to pass at once.
const BURST: Duration = Duration::from_mins(1);

/// Up to so many owners of a rate, those whose allowance is whole again are not looked for and removed.
const OWNERS_MIN: usize = 64;

/// The time since the server's start by Tokio's clock, which tests can move.
#[derive(Debug, Clone)]
struct Clock(Instant);

impl clock::Clock for Clock {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// The owners of one rate. An issuer may name any number of them.
type Limiter = RateLimiter<Principal, HashMapStateStore<Principal>, Clock, NoOpMiddleware<Duration>>;

/// By the name of what limits, such as a policy, and what it allows in a minute, which operators may change; each with
/// the number of owners above which those whose allowance is whole again are removed.
type ByRate = HashMap<(String, NonZeroU32), (Arc<Limiter>, usize)>;

pub(in crate::services) struct Limiters {
    all: Mutex<ByRate>,
    clock: Clock,
    debts: Arc<Mutex<Debts>>,
}

impl Default for Limiters {
    fn default() -> Self {
        Self { all: Mutex::default(), clock: Clock(Instant::now()), debts: Arc::default() }
    }
}

/// By what limits them and their owner.
type Debts = HashMap<(String, Principal), Debt>;

/// Bytes that connections had not paid for when they ended.
struct Debt {
    bytes: u32,
    rate: NonZeroU32,
    /// When the allowance was last used up.
    at: Instant,
}

impl Limiters {
    /// Counts one request or call of an owner.
    ///
    /// # Errors
    /// In how many seconds the next one passes.
    pub(in crate::services) fn take(&self, name: &str, rate: NonZeroU32, owner: &Principal) -> Result<(), u64> {
        self.of(name, rate).check_key(owner).map_err(|until| {
            let left = until.wait_time_from(self.clock.now());
            left.as_secs() + u64::from(left.subsec_nanos() > 0)
        })
    }

    /// How fast the bytes of an owner may pass.
    pub(super) fn pace(&self, name: &str, rate: NonZeroU32, owner: &Principal) -> Pace {
        let (limiter, clock, debts) = (self.of(name, rate), self.clock.clone(), Arc::clone(&self.debts));
        let key = (name.to_owned(), owner.clone());
        Arc::new(move |bytes: u32| {
            let (limiter, clock, debts) = (Arc::clone(&limiter), clock.clone(), Arc::clone(&debts));
            let mut uncharged = UnchargedBytes { bytes, rate, limiter, clock, key: key.clone(), debts };
            async move {
                while let Some(wait) = uncharged.charge() {
                    sleep(wait).await;
                }
            }
            .boxed()
        })
    }

    fn of(&self, name: &str, rate: NonZeroU32) -> Arc<Limiter> {
        let new = || RateLimiter::new(Quota::per_minute(rate), HashMapStateStore::default(), self.clock.clone());
        let mut all = self.all.lock();
        let key = (name.to_owned(), rate);
        if !all.contains_key(&key) {
            // Where the allowance of all owners is whole again, a new limiter would say the same.
            all.retain(|_, (limiter, _)| {
                limiter.retain_recent();
                Arc::strong_count(limiter) > 1 || !limiter.is_empty()
            });
        }
        let (limiter, owners_max) = all.entry(key).or_insert_with(|| (Arc::new(new()), OWNERS_MIN));
        if limiter.len() > *owners_max {
            limiter.retain_recent();
            *owners_max = OWNERS_MIN.max(2 * limiter.len());
        }
        Arc::clone(limiter)
    }
}

/// Bytes of a connection that have passed. Those that it has not paid for when it ends are left to the next ones of its
/// owner: otherwise many short connections would pass them without a limit.
struct UnchargedBytes {
    bytes: u32,
    rate: NonZeroU32,
    limiter: Arc<Limiter>,
    clock: Clock,
    key: (String, Principal),
    debts: Arc<Mutex<Debts>>,
}

impl UnchargedBytes {
    /// Pays for as many bytes as are allowed now, first for those that others left; how long to wait for the next ones.
    fn charge(&mut self) -> Option<Duration> {
        let charge = |owed: &mut u32| {
            // No limit is less than a piece.
            while let Some(piece) = NonZeroU32::new(BYTES_PER_MINUTE_MIN.min(*owed)) {
                if let Ok(Err(until)) = self.limiter.check_key_n(&self.key.1, piece) {
                    return Some(until.wait_time_from(self.clock.now()));
                }
                *owed -= piece.get();
            }
            None
        };
        let mut all = self.debts.lock();
        if let Some(debt) = all.get_mut(&self.key) {
            *debt = Debt { bytes: debt.owed(), rate: self.rate, at: Instant::now() };
            let wait = charge(&mut debt.bytes);
            if wait.is_some() {
                return wait;
            }
            all.remove(&self.key);
        }
        drop(all);
        charge(&mut self.bytes)
    }
}

impl Drop for UnchargedBytes {
    fn drop(&mut self) {
        if self.bytes > 0 && self.charge().is_some() {
            let mut all = self.debts.lock();
            // An owner may never connect again, and there may be any number of owners.
            all.retain(|_, debt| debt.owed() > 0);
            let none = Debt { bytes: 0, rate: self.rate, at: Instant::now() };
            let debt = all.entry(self.key.clone()).or_insert(none);
            debt.bytes = debt.bytes.saturating_add(self.bytes);
        }
    }
}

impl Debt {
    /// The rate has paid for some while nothing passed: for what it allowed beside the burst of a minute that there is.
    fn owed(&self) -> u32 {
        let paid = u64::from(self.rate.get()) * self.at.elapsed().saturating_sub(BURST).as_secs() / BURST.as_secs();
        self.bytes.saturating_sub(paid.try_into().unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn rate(per_minute: u32) -> NonZeroU32 {
        NonZeroU32::new(per_minute).expect("not 0")
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_an_owner_are_counted_by_policy() {
        let (limiters, rate) = (Limiters::default(), rate(6));
        let (one, other) = (Principal::default(), Principal::self_test());
        for _ in 0..6 {
            assert_eq!(limiters.take("slow", rate, &one), Ok(()));
        }
        assert_eq!(limiters.take("slow", rate, &one), Err(10));
        assert_eq!((limiters.take("other", rate, &one), limiters.take("slow", rate, &other)), (Ok(()), Ok(())));
        advance(Duration::from_millis(9_999)).await;
        assert_eq!(limiters.take("slow", rate, &one), Err(1));
        advance(Duration::from_millis(1)).await;
        assert_eq!(limiters.take("slow", rate, &one), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn rates_that_a_policy_had_are_kept_while_they_count() {
        let (limiters, owner) = (Limiters::default(), Principal::default());
        let take = |per_minute| limiters.take("changed", rate(per_minute), &owner);
        for per_minute in 1..10 {
            assert_eq!(take(per_minute), Ok(()));
        }
        assert_eq!(take(1), Err(60), "it is no new one");
        advance(Duration::from_mins(5)).await;
        assert_eq!(take(10), Ok(()));
        assert_eq!(limiters.all.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_a_connection_left_unpaid_are_paid_by_the_next_ones_of_its_owner() {
        let rate = rate(BYTES_PER_MINUTE_MIN);
        let limiters = Limiters::default();
        let pass = |owner: &Principal, bytes| limiters.pace("a", rate, owner)(bytes);
        let (one, other) = (Principal::default(), Principal::self_test());
        drop(pass(&one, BYTES_PER_MINUTE_MIN));
        assert!(pass(&one, 0).now_or_never().is_some(), "a minute allows them");
        drop(pass(&one, BYTES_PER_MINUTE_MIN));
        for _ in 0..2 {
            assert!(pass(&one, 0).now_or_never().is_none(), "they are left");
        }
        assert!(pass(&other, BYTES_PER_MINUTE_MIN).now_or_never().is_some());
        advance(2 * BURST).await;
        assert!(pass(&one, 0).now_or_never().is_some(), "nothing has passed meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn unpaid_bytes_are_kept_of_no_owner_that_owes_nothing_any_more() {
        let rate = rate(BYTES_PER_MINUTE_MIN);
        let limiters = Limiters::default();
        let pass = |owner: &Principal, bytes| limiters.pace("a", rate, owner)(bytes);
        let (gone, stays) = (Principal::default(), Principal::self_test());
        for owner in [&gone, &stays] {
            drop(pass(owner, 2 * BYTES_PER_MINUTE_MIN));
        }
        assert_eq!(limiters.debts.lock().len(), 2);
        advance(2 * BURST).await;
        drop(pass(&stays, 2 * BYTES_PER_MINUTE_MIN));
        assert_eq!(limiters.debts.lock().len(), 1, "the other one never comes back");
        advance(2 * BURST).await;
        assert!(pass(&stays, 0).now_or_never().is_some());
        assert!(limiters.debts.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn owners_that_count_nothing_any_more_are_not_kept() {
        let (limiters, rate) = (Limiters::default(), rate(60));
        for number in 0..10_000 {
            let owner: Principal = format!("owner-{number}").parse().expect("an owner");
            assert_eq!(limiters.take("a", rate, &owner), Ok(()));
            advance(Duration::from_millis(100)).await;
        }
        let kept = limiters.all.lock().values().map(|(limiter, _)| limiter.len()).sum::<usize>();
        assert!(kept <= 2 * OWNERS_MIN, "{kept} owners, of whom ten count");
    }

    #[test]
    fn limiters_that_count_nothing_any_more_are_not_kept() {
        let (limiters, owner) = (Limiters::default(), Principal::default());
        assert!(limiters.take("a", NonZeroU32::MIN, &owner).is_ok());
        for number in 0..1000 {
            assert!(limiters.take(&format!("b {number}"), NonZeroU32::MAX, &owner).is_ok());
        }
        assert!(limiters.all.lock().len() < 1000);
        assert!(limiters.take("a", NonZeroU32::MIN, &owner).is_err(), "it counts for a minute");
    }
}
