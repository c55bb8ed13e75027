//! Random faults of an engine from a seed. The same seed and the same calls give the same faults.
//!
//! Decides only; the engine acts on it between `inject_faults` and `stop_faults`. The faults are those of real engines:
//! no answer, a late answer, success without an effect, a lost exit, lost output.

use std::time::Duration;

use super::{FakeEngine, StartFault};

/// How long a call takes that is not answered in time.
pub(super) const STALL: Duration = Duration::from_secs(5);

/// What happens to one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallFault {
    /// Nothing.
    Healthy,
    /// The connection is reset.
    Reset,
    /// It is not answered in time.
    Stall,
    /// It is answered as if it had been done.
    Lie,
}

/// Chooses faults (`SplitMix64`, whose only state is a number).
#[derive(Debug)]
pub(super) struct FaultGenerator(u64);

impl FakeEngine {
    /// From now on calls are reset, stall and lie by chance, and sandboxes lose their output and their ends: the same
    /// for the same seed, as long as calls come in the same order.
    pub fn inject_faults(&self, seed: u64) {
        self.faults().storm = Some(FaultGenerator(seed));
    }

    /// From now on calls are answered again. What was done stays done.
    pub fn stop_faults(&self) {
        self.faults().storm = None;
    }
}

impl FaultGenerator {
    /// What happens to the next call.
    pub(super) fn next_fault(&mut self) -> CallFault {
        match self.below(20) {
            0 | 1 => CallFault::Reset,
            2 => CallFault::Stall,
            3 => CallFault::Lie,
            _ => CallFault::Healthy,
        }
    }

    /// What is wrong with the next start, and how long it takes.
    pub(super) fn start(&mut self) -> (Option<StartFault>, Duration) {
        let fault = match self.below(20) {
            0 | 4 => Some(StartFault::Refused),
            1 | 2 => Some(StartFault::HalfWay),
            3 => Some(StartFault::ImageGone),
            _ => None,
        };
        (fault, Duration::from_millis(if self.one_in(8) { self.below(4000) } else { 0 }))
    }

    pub(super) fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}
