//! What is counted for each owner before a run may wait for a slot: its share of the capacity, the rate at which it
//! begins runs, and the positions of its waiting runs.
//!
//! Of each owner one run at a time waits for a slot, so owners alternate as conversations do, and where there are
//! several owners, none holds more than three quarters of the capacity. A position is that among the runs of one owner.
//! How many runs of others wait is not for an owner to know, and says little about when its own begins.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    num::NonZeroU32,
    sync::Arc,
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock, Reference},
    middleware::NoOpMiddleware,
    state::keyed::HashMapStateStore,
};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::{
    domain::{Code, Failure, Principal},
    services::shares::has_others,
};

#[derive(Debug)]
pub(super) struct Owners {
    capacity: usize,
    /// Those that have runs. One permit each: the right of an owner's next run to wait for a slot.
    seen: Mutex<HashMap<Principal, Arc<Semaphore>>>,
    /// Two of those that asked since the start.
    asked: Mutex<HashSet<Principal>>,
}

/// One run of an owner, which counts until it is dropped.
#[derive(Debug)]
pub(super) struct Share(Arc<Semaphore>);

impl Owners {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, seen: Mutex::default(), asked: Mutex::default() }
    }

    /// `None` when the owner's share is used up.
    pub(super) fn take(&self, who: &Principal) -> Option<Share> {
        let mut seen = self.seen.lock();
        seen.retain(|_, next| held(next) > 0);
        let next = seen.entry(who.clone()).or_insert_with(|| Arc::new(Semaphore::new(1)));
        let most = if has_others(&mut self.asked.lock(), who) { (self.capacity * 3 / 4).max(1) } else { self.capacity };
        // The lock is held, so no other thread takes one meanwhile.
        (held(next) < most).then(|| Share(Arc::clone(next)))
    }

    /// How many owners have runs, and how many the one with the most has.
    pub(super) fn load(&self) -> (usize, usize) {
        let seen = self.seen.lock();
        let held = seen.values().map(held).filter(|held| *held > 0);
        held.fold((0, 0), |(owners, most), held| (owners + 1, most.max(held)))
    }
}

/// How many runs an owner has: each [`Share`] has a reference, and the map has one.
fn held(next: &Arc<Semaphore>) -> usize {
    Arc::strong_count(next) - 1
}

impl Share {
    /// Waits until the owner's next run may wait for a slot.
    pub(super) async fn next(&self) -> Option<SemaphorePermit<'_>> {
        self.0.acquire().await.ok()
    }
}

/// Principals up to which those that count nothing any more are not looked for. An issuer may name any number of them.
const OWNERS_MIN: usize = 64;

/// The rates of all principals: the generic cell rate algorithm of `governor`.
#[derive(Debug)]
pub(super) struct Rate<C: Clock = DefaultClock> {
    limiter: RateLimiter<Principal, HashMapStateStore<Principal>, C, NoOpMiddleware<C::Instant>>,
    clock: C,
    /// Until when a principal is refused.
    refused: Mutex<HashMap<Principal, C::Instant>>,
    /// Above so many principals, those that count nothing any more are removed.
    owners_max: Mutex<usize>,
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
        Some(Self { limiter, clock, refused: Mutex::default(), owners_max: Mutex::new(OWNERS_MIN) })
    }

    /// Counts one run.
    pub(super) fn take(&self, who: &Principal) -> Result<(), Failure> {
        self.forget();
        self.limiter.check_key(who).map_err(|until| {
            let until = until.earliest_possible();
            self.refused.lock().insert(who.clone(), until);
            self.refusal(until).unwrap_or_else(|| refusal(Duration::ZERO))
        })
    }

    fn forget(&self) {
        let mut owners_max = self.owners_max.lock();
        if self.limiter.len() > *owners_max {
            self.limiter.retain_recent();
            let now = self.clock.now();
            self.refused.lock().retain(|_, until| *until > now);
            *owners_max = OWNERS_MIN.max(2 * self.limiter.len());
        }
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

/// The waiting runs. Gives no right to anything.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    departures: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    /// By owner, in order of arrival.
    runs: BTreeSet<(Principal, u64)>,
}

/// A waiting run; its drop leaves the queue.
#[derive(Debug)]
pub(super) struct QueueEntry(QueuePosition);

/// Reports the position of a waiting run. Reserves nothing.
#[derive(Debug, Clone)]
pub struct QueuePosition {
    run: (Principal, u64),
    queue: Arc<Queue>,
}

impl Queue {
    pub(super) fn join(queue: &Arc<Self>, who: &Principal) -> QueueEntry {
        let mut waiting = queue.waiting.lock();
        waiting.newest += 1;
        let run = (who.clone(), waiting.newest);
        waiting.runs.insert(run.clone());
        QueueEntry(QueuePosition { run, queue: Arc::clone(queue) })
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().runs.len()
    }
}

impl QueueEntry {
    pub(super) fn position(&self) -> QueuePosition {
        self.0.clone()
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let QueuePosition { run, queue } = &self.0;
        queue.waiting.lock().runs.remove(run);
        queue.departures.send_replace(());
    }
}

impl QueuePosition {
    /// Changes whenever a run leaves the queue.
    pub fn departures(&self) -> watch::Receiver<()> {
        self.queue.departures.subscribe()
    }

    /// The position among the waiting runs of the owner: 1 is next. `None` once the run no longer waits. A run that
    /// waits for its own conversation may be overtaken.
    pub fn now(&self) -> Option<u32> {
        let waiting = self.queue.waiting.lock();
        let until_this = (self.run.0.clone(), 0)..=self.run.clone();
        let is_waiting = waiting.runs.contains(&self.run);
        is_waiting.then(|| u32::try_from(waiting.runs.range(until_this).count()).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn owners_without_runs_are_forgotten_and_still_show_that_there_are_several() {
        let owners = Owners::new(8);
        let who = |n: usize| -> Principal { format!("owner-{n}").parse().expect("an owner") };
        let alone: Vec<_> = (0..9).map_while(|_| owners.take(&who(0))).collect();
        assert_eq!(alone.len(), 8);
        drop(alone);
        (1..100).for_each(|n| drop(owners.take(&who(n))));
        assert!(owners.seen.lock().len() <= 3);
        let of_several: Vec<_> = (0..9).map_while(|_| owners.take(&who(100))).collect();
        assert_eq!(of_several.len(), 6);
    }

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
    fn owners_whose_runs_count_no_more_are_forgotten() {
        let clock = FakeRelativeClock::default();
        let rate = Rate::at(clock.clone(), 60, 1).expect("a rate");
        for number in 0..10_000 {
            let who: Principal = format!("owner-{number}").parse().expect("an owner");
            assert!(rate.take(&who).is_ok() && rate.take(&who).is_err() && rate.check_capacity(&who).is_err());
            clock.advance(Duration::from_millis(100));
        }
        let kept = [rate.limiter.len(), rate.refused.lock().len()];
        assert!(kept.iter().all(|kept| *kept <= 2 * OWNERS_MIN), "{kept:?} owners, few of whom count");
    }

    #[test]
    fn zero_is_no_limit() {
        assert!(Rate::new(0, 5).is_none());
    }
}
