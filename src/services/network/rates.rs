//! How many requests, and how many bytes, an owner may make and move in a minute under a policy: the generic cell rate
//! algorithm of `governor`. A burst may use a whole minute's allowance; then the rate applies. Calls of tools are
//! counted too.

use std::{collections::HashMap, num::NonZeroU32, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
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

/// Owners of a rate up to which those that count nothing any more are not looked for.
const OWNERS_MIN: usize = 64;

/// The owners of one rate. An issuer may name any number of them.
type Limiter<C> = RateLimiter<Principal, HashMapStateStore<Principal>, C, NoOpMiddleware<<C as Clock>::Instant>>;
/// With the number of owners from which those that count nothing any more are removed.
type ByName<C> = HashMap<(String, NonZeroU32), (Arc<Limiter<C>>, usize)>;

/// By the name of what limits, such as a policy, and what it allows in a minute, which operators may change.
#[derive(Default)]
pub(in crate::services) struct Limiters<C: Clock = DefaultClock> {
    all: Mutex<ByName<C>>,
    clock: C,
    left: Arc<Mutex<Left>>,
}

/// By what limits them and their owner.
type Left = HashMap<(String, Principal), LeftBytes>;

/// Bytes that connections had not paid for when they ended.
struct LeftBytes {
    bytes: u32,
    rate: NonZeroU32,
    /// When the allowance was last used up.
    at: Instant,
}

impl Limiters {
    /// How fast the bytes of an owner may pass.
    pub(super) fn pace(&self, name: &str, rate: NonZeroU32, owner: &Principal) -> Pace {
        let (limiter, clock, left) = (self.of(name, rate), self.clock.clone(), Arc::clone(&self.left));
        let key = (name.to_owned(), owner.clone());
        Arc::new(move |bytes: u32| {
            let (limiter, clock, left) = (Arc::clone(&limiter), clock.clone(), Arc::clone(&left));
            let mut uncharged = UnchargedBytes { bytes, rate, limiter, clock, key: key.clone(), left };
            async move {
                while let Some(wait) = uncharged.charge() {
                    sleep(wait).await;
                }
            }
            .boxed()
        })
    }
}

/// Bytes of a connection that have passed. Those that it has not paid for when it ends are left to the next ones of its
/// owner: otherwise many short connections would pass them without a limit.
struct UnchargedBytes {
    bytes: u32,
    rate: NonZeroU32,
    limiter: Arc<Limiter<DefaultClock>>,
    clock: DefaultClock,
    key: (String, Principal),
    left: Arc<Mutex<Left>>,
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
        let mut all = self.left.lock();
        if let Some(left) = all.get_mut(&self.key) {
            *left = LeftBytes { bytes: left.debt(), rate: self.rate, at: Instant::now() };
            let wait = charge(&mut left.bytes);
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
            let mut all = self.left.lock();
            // An owner may never connect again, and there may be any number of owners.
            all.retain(|_, left| left.debt() > 0);
            let none = LeftBytes { bytes: 0, rate: self.rate, at: Instant::now() };
            let left = all.entry(self.key.clone()).or_insert(none);
            left.bytes = left.bytes.saturating_add(self.bytes);
        }
    }
}

impl LeftBytes {
    /// The rate has paid for some while nothing passed: for what it allowed beside the burst of a minute that there is.
    fn debt(&self) -> u32 {
        let paid = u64::from(self.rate.get()) * self.at.elapsed().saturating_sub(BURST).as_secs() / BURST.as_secs();
        self.bytes.saturating_sub(paid.try_into().unwrap_or(u32::MAX))
    }
}

impl<C: Clock + Clone> Limiters<C> {
    #[cfg(test)]
    fn at(clock: C) -> Self {
        Self { all: Mutex::default(), clock, left: Arc::default() }
    }

    /// Counts one for an owner.
    ///
    /// # Errors
    /// In how many seconds the next one passes.
    pub(in crate::services) fn take(&self, name: &str, rate: NonZeroU32, owner: &Principal) -> Result<(), u64> {
        self.of(name, rate).check_key(owner).map_err(|until| {
            let left = until.wait_time_from(self.clock.now());
            left.as_secs() + u64::from(left.subsec_nanos() > 0)
        })
    }

    fn of(&self, name: &str, rate: NonZeroU32) -> Arc<Limiter<C>> {
        let new = || RateLimiter::new(Quota::per_minute(rate), HashMapStateStore::default(), self.clock.clone());
        let mut all = self.all.lock();
        let key = (name.to_owned(), rate);
        if !all.contains_key(&key) {
            // Of names and rates that were before: those that count nothing any more are as new ones.
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

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use tokio::time::advance;

    use super::*;
    use crate::domain::network::{Policy, PolicyText};

    /// A request under a policy.
    fn take(rates: &Limiters<FakeRelativeClock>, policy: &Policy, owner: &Principal) -> Result<(), u64> {
        policy.requests_per_minute.map_or(Ok(()), |rate| rates.take(&policy.name, rate, owner))
    }

    #[test]
    fn requests_of_an_owner_are_counted_by_policy() {
        let limited = |name: &str, requests_per_minute| {
            let text = PolicyText { hosts: vec!["a.example".into()], requests_per_minute, ..PolicyText::default() };
            Policy::parse(name, &text).expect("a policy")
        };
        let (slow, free) = (limited("slow", 6), limited("free", 0));
        let clock = FakeRelativeClock::default();
        let rates = Limiters::at(clock.clone());
        let (one, other) = (Principal::default(), Principal::self_test());
        for _ in 0..6 {
            assert_eq!(take(&rates, &slow, &one), Ok(()));
        }
        assert_eq!(take(&rates, &slow, &one), Err(10));
        assert_eq!((take(&rates, &free, &one), take(&rates, &slow, &other)), (Ok(()), Ok(())));
        clock.advance(Duration::from_millis(9_999));
        assert_eq!(take(&rates, &slow, &one), Err(1));
        clock.advance(Duration::from_millis(1));
        assert_eq!(take(&rates, &slow, &one), Ok(()));
    }

    #[test]
    fn rates_that_a_policy_had_are_kept_while_they_count() {
        let limited = |requests_per_minute| {
            let text = PolicyText { hosts: vec!["a.example".into()], requests_per_minute, ..PolicyText::default() };
            Policy::parse("changed", &text).expect("a policy")
        };
        let clock = FakeRelativeClock::default();
        let rates = Limiters::at(clock.clone());
        let owner = Principal::default();
        assert_eq!(take(&rates, &limited(1), &owner), Ok(()));
        for rate in 2..10 {
            assert_eq!(take(&rates, &limited(rate), &owner), Ok(()));
        }
        assert_eq!(take(&rates, &limited(1), &owner), Err(60), "it is no new one");
        clock.advance(Duration::from_mins(5));
        assert_eq!(take(&rates, &limited(10), &owner), Ok(()));
        assert_eq!(rates.all.lock().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_that_a_connection_left_unpaid_are_paid_by_the_next_ones_of_its_owner() {
        let rate = NonZeroU32::new(BYTES_PER_MINUTE_MIN).expect("not 0");
        let limiters = Limiters::<DefaultClock>::default();
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
        let rate = NonZeroU32::new(BYTES_PER_MINUTE_MIN).expect("not 0");
        let limiters = Limiters::<DefaultClock>::default();
        let pass = |owner: &Principal, bytes| limiters.pace("a", rate, owner)(bytes);
        let (gone, stays) = (Principal::default(), Principal::self_test());
        for owner in [&gone, &stays] {
            drop(pass(owner, 2 * BYTES_PER_MINUTE_MIN));
        }
        assert_eq!(limiters.left.lock().len(), 2);
        advance(2 * BURST).await;
        drop(pass(&stays, BYTES_PER_MINUTE_MIN));
        assert_eq!(limiters.left.lock().len(), 1, "the other one never comes back");
        advance(2 * BURST).await;
        assert!(pass(&stays, 0).now_or_never().is_some());
        assert!(limiters.left.lock().is_empty());
    }

    #[test]
    fn owners_that_count_nothing_any_more_are_not_kept() {
        let clock = FakeRelativeClock::default();
        let limiters = Limiters::at(clock.clone());
        let rate = NonZeroU32::new(60).expect("not 0");
        for number in 0..10_000 {
            let owner: Principal = format!("owner-{number}").parse().expect("an owner");
            assert_eq!(limiters.take("a", rate, &owner), Ok(()));
            clock.advance(Duration::from_millis(100));
        }
        let kept = limiters.all.lock().values().map(|(limiter, _)| limiter.len()).sum::<usize>();
        assert!(kept <= 2 * OWNERS_MIN, "{kept} owners, of whom ten count");
    }

    #[test]
    fn limiters_that_count_nothing_any_more_are_not_kept() {
        let (limiters, owner) = (Limiters::<DefaultClock>::default(), Principal::default());
        assert!(limiters.take("a", NonZeroU32::MIN, &owner).is_ok());
        for number in 0..1000 {
            assert!(limiters.take(&format!("b {number}"), NonZeroU32::MAX, &owner).is_ok());
        }
        assert!(limiters.all.lock().len() < 1000);
        assert!(limiters.take("a", NonZeroU32::MIN, &owner).is_err(), "it counts for a minute");
    }
}
