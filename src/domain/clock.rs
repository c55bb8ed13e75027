//! Wall clock time as a parameter, so that tests choose it.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// The time of day. Durations are measured with `tokio::time::Instant` instead, which tests can pause.
pub trait Clock: Send + Sync + 'static {
    fn unix_s(&self) -> i64;

    fn unix_ns(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn unix_s(&self) -> i64 {
        i64::try_from(since_epoch().as_secs()).unwrap_or(i64::MAX)
    }

    fn unix_ns(&self) -> u64 {
        u64::try_from(since_epoch().as_nanos()).unwrap_or(u64::MAX)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the machine's clock")]
fn since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A clock for tests: it changes only when it is set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn at(unix_s: i64) -> Self {
        Self(AtomicI64::new(unix_s))
    }

    pub fn set(&self, unix_s: i64) {
        self.0.store(unix_s, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn unix_s(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    fn unix_ns(&self) -> u64 {
        u64::try_from(self.unix_s()).unwrap_or(0).saturating_mul(1_000_000_000)
    }
}
