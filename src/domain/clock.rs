//! Wall clock time as a parameter, so that tests choose it; and the ticks of what is done again and again.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};
use tracing::warn;

/// How far the wall clock may move apart from the monotonic one between two readings.
const DRIFT_MAX_S: i64 = 30;
/// How long after a step the wall clock is not trusted for deletions, so that an operator can set it right.
const DISTRUST: Duration = Duration::from_hours(1);

/// How long after the first reading nothing is deleted: a machine may boot with a wrong clock, and that it is set right
/// is seen as a step.
pub const SETTLING: Duration = Duration::from_mins(10);

/// A day in milliseconds.
pub const DAY_MS: i64 = 24 * 3600 * 1000;

/// The time of day. Durations are measured with `tokio::time::Instant` instead, which tests can pause.
pub trait Clock: Send + Sync + 'static {
    fn unix_ns(&self) -> u64;

    fn unix_s(&self) -> i64 {
        self.unix_ms() / 1000
    }

    fn unix_ms(&self) -> i64 {
        i64::try_from(self.unix_ns() / 1_000_000).unwrap_or(i64::MAX)
    }

    /// How long the machine was suspended since it was started. The monotonic clock stands still meanwhile.
    fn suspended(&self) -> Duration {
        Duration::ZERO
    }
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix_ns(&self) -> u64 {
        u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
    }

    fn suspended(&self) -> Duration {
        let read = |id| Duration::try_from(clock_gettime(id)).unwrap_or_default();
        let awake = read(ClockId::Monotonic);
        read(ClockId::Boottime).saturating_sub(awake)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Ticks at once, then after each period. One that comes late moves those after it, so that none follows it at once.
pub fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// A moment since which also the time counts for which the machine was suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment {
    at: Instant,
    suspended: Duration,
}

impl Moment {
    pub fn now(clock: &dyn Clock) -> Self {
        Self { at: Instant::now(), suspended: clock.suspended() }
    }

    pub fn elapsed(&self, clock: &dyn Clock) -> Duration {
        self.at.elapsed().saturating_add(clock.suspended().saturating_sub(self.suspended))
    }
}

/// Notices steps of the wall clock, which a suspension of the machine is too: what runs on it stood still meanwhile.
/// After one everything looks old at once, so nothing should be deleted for its age. An age is counted to the reading
/// that was checked, as the clock may have been set when it is read again.
#[derive(Debug, Default)]
pub struct StepWatch(Mutex<Option<Reading>>);

#[derive(Debug)]
struct Reading {
    first: Instant,
    unix_s: i64,
    at: Instant,
    stepped: Option<Instant>,
}

impl StepWatch {
    /// The wall clock in unix milliseconds, if it kept pace with the monotonic one between the calls of the last hour.
    /// To be called regularly; the first call has a time.
    pub fn steady_ms(&self, clock: &dyn Clock) -> Option<i64> {
        self.read(clock).map(|(now, _)| now)
    }

    /// The same once the first call is [`SETTLING`] ago: if something may be deleted for its age.
    pub fn settled_ms(&self, clock: &dyn Clock) -> Option<i64> {
        self.read(clock).filter(|(_, watched)| *watched >= SETTLING).map(|(now, _)| now)
    }

    /// The wall clock, if it is steady, and how long ago the first call was.
    fn read(&self, clock: &dyn Clock) -> Option<(i64, Duration)> {
        // In this order a step between the two is one for the next call, and not in the time that this one returns.
        let (now, at) = (clock.unix_ms(), Instant::now());
        let unix_s = now / 1000;
        let mut last = self.0.lock();
        let first = last.as_ref().map_or(at, |last| last.first);
        let stepped = last.take().and_then(|last| {
            let passed_s = i64::try_from((at - last.at).as_secs()).unwrap_or(i64::MAX);
            let drift_s = unix_s.saturating_sub(last.unix_s).saturating_sub(passed_s);
            if drift_s.abs() > DRIFT_MAX_S {
                warn!(drift_s, "the clock was set, or the machine slept: for an hour nothing is deleted for its age");
                return Some(at);
            }
            last.stepped.filter(|stepped| at - *stepped < DISTRUST)
        });
        *last = Some(Reading { first, unix_s, at, stepped });
        stepped.is_none().then(|| (now, at - first))
    }
}

/// A clock for tests: it changes only when it is set.
#[derive(Debug, Default)]
pub struct ManualClock {
    unix_s: AtomicI64,
    suspended_s: AtomicU64,
}

impl ManualClock {
    pub fn at(unix_s: i64) -> Self {
        Self { unix_s: AtomicI64::new(unix_s), ..Self::default() }
    }

    pub fn set(&self, unix_s: i64) {
        self.unix_s.store(unix_s, Ordering::SeqCst);
    }

    /// Its machine is suspended for so long.
    pub fn suspend(&self, seconds: u32) {
        self.unix_s.fetch_add(i64::from(seconds), Ordering::SeqCst);
        self.suspended_s.fetch_add(u64::from(seconds), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn unix_s(&self) -> i64 {
        self.unix_s.load(Ordering::SeqCst)
    }

    fn unix_ns(&self) -> u64 {
        u64::try_from(self.unix_s()).unwrap_or(0).saturating_mul(1_000_000_000)
    }

    fn suspended(&self) -> Duration {
        Duration::from_secs(self.suspended_s.load(Ordering::SeqCst))
    }
}

/// Keeps pace with the monotonic clock, also where that is paused.
#[cfg(test)]
pub(crate) struct PacedClock(pub(crate) Instant);

#[cfg(test)]
impl Clock for PacedClock {
    fn unix_ns(&self) -> u64 {
        (Duration::from_hours(500_000) + self.0.elapsed()).as_nanos().try_into().expect("a time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_is_not_trusted_for_an_hour() {
        const DAY_S: i64 = 24 * 3600;
        let (clock, watch) = (ManualClock::at(1_800_000_000), StepWatch::default());
        let pass = async |secs: u64, wall_s: i64| {
            tokio::time::advance(Duration::from_secs(secs)).await;
            clock.set(clock.unix_s() + wall_s);
            watch.steady_ms(&clock).is_some()
        };
        assert_eq!(watch.steady_ms(&clock), Some(1_800_000_000_000), "nothing is known yet");
        assert!(pass(60, 60).await && pass(60, 80).await && pass(60, 31).await, "small corrections");
        for step in [365 * DAY_S, -400 * DAY_S, 3600] {
            assert!(!pass(60, step).await, "{step}");
            assert!(!pass(60, 60).await && !pass(3480, 3480).await, "{step}");
            assert!(pass(60, 60).await, "{step}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_is_settled_when_it_was_right_for_a_while() {
        let (clock, watch) = (ManualClock::at(1_800_000_000), StepWatch::default());
        let pass = async |secs: u64, wall_s: i64| {
            tokio::time::advance(Duration::from_secs(secs)).await;
            clock.set(clock.unix_s() + wall_s);
            watch.settled_ms(&clock).is_some()
        };
        assert_eq!(watch.settled_ms(&clock), None, "it may be wrong from the start");
        assert!(!pass(599, 599).await && pass(1, 1).await);
        assert!(!pass(60, -365 * 24 * 3600).await, "now it is set right");
        assert!(!pass(3599, 3599).await && pass(1, 1).await);
    }
}
