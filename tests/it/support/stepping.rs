//! A clock that is set a year ahead each time after it was read.

use std::sync::atomic::{AtomicI64, Ordering};

use mcp_sandbox_server::domain::clock::Clock;

const YEAR_S: i64 = 365 * 24 * 3600;

pub struct SteppingClock(AtomicI64);

impl SteppingClock {
    pub fn at(unix_s: i64) -> Self {
        Self(AtomicI64::new(unix_s))
    }
}

impl Clock for SteppingClock {
    fn unix_s(&self) -> i64 {
        self.0.fetch_add(YEAR_S, Ordering::SeqCst)
    }

    fn unix_ns(&self) -> u64 {
        u64::try_from(self.unix_s()).unwrap_or(0).saturating_mul(1_000_000_000)
    }
}
