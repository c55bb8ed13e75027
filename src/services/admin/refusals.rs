//! Refusals of the last hour by minute and of the last day by quarter of an hour, which the history does not record.
//! They are counted by this process; the number of intervals and codes bounds them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;

use super::Span;
use crate::{
    domain::{clock::Clock, error::Code},
    ports::observer::Observer,
};

/// Counts of one part of time.
type Counts = HashMap<Code, u64>;

pub struct Refusals {
    clock: Arc<dyn Clock>,
    /// By the number of the part.
    counted: Mutex<[BTreeMap<i64, Counts>; Span::ALL.len()]>,
}

impl Refusals {
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, counted: Mutex::default() }
    }

    /// What was refused in a part of time.
    pub(super) fn of(&self, span: Span, part: i64) -> Counts {
        self.counted.lock()[span as usize].get(&part).cloned().unwrap_or_default()
    }
}

impl Observer for Refusals {
    fn refused(&self, code: Code) {
        let now = self.clock.unix_ms();
        let mut counted = self.counted.lock();
        for span in Span::ALL {
            let (part, parts) = (now.div_euclid(span.part_ms()), &mut counted[span as usize]);
            *parts.entry(part).or_default().entry(code).or_default() += 1;
            // A clock that was set back may leave later parts, which are as few.
            parts.retain(|number, _| (part - span.parts()..=part + span.parts()).contains(number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::clock::ManualClock;

    #[test]
    fn refusals_are_counted_by_part_and_forgotten_after_their_span() {
        let clock = Arc::new(ManualClock::at(0));
        let refusals = Refusals::new(clock.clone());
        for minute in 0..10_000 {
            clock.set(minute * 60);
            refusals.refused(Code::QueueFull);
            refusals.refused(Code::QueueFull);
        }
        assert_eq!(refusals.of(Span::Hour, 9_999), Counts::from([(Code::QueueFull, 2)]));
        assert_eq!(refusals.of(Span::Hour, 9_900), Counts::new());
        assert_eq!(refusals.of(Span::Day, 665), Counts::from([(Code::QueueFull, 30)]));
        assert_eq!(refusals.counted.lock().each_ref().map(BTreeMap::len), [61, 97]);
    }
}
