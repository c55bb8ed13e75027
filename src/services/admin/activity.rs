//! The counts of the last hour by minute and of the last day by quarter of an hour. Runs are those of the history;
//! refusals, which it does not record, are counted by this process: the number of intervals and codes bounds them.

use std::{collections::BTreeMap, str::FromStr, sync::Arc};

use parking_lot::Mutex;

use crate::{
    domain::{Clock, Code, words::words},
    ports::{
        history::{EndWord, PartLine, TOOK_MS},
        observer::Observer,
    },
};

/// The reported percentiles.
const PERCENTS: [u64; 3] = [50, 90, 99];

words! {
    /// Which time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Span: as_str {
        /// The last hour by minute.
        Hour = "hour",
        /// The last day by quarter of an hour.
        Day = "day",
    }
}

impl Span {
    /// The length of a part, in milliseconds.
    pub fn part_ms(self) -> i64 {
        match self {
            Self::Hour => 60_000,
            Self::Day => 15 * 60_000,
        }
    }

    /// How many parts there are.
    pub fn parts(self) -> i64 {
        match self {
            Self::Hour => 60,
            Self::Day => 96,
        }
    }
}

impl FromStr for Span {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text).ok_or("it must be hour or day")
    }
}

/// What happened in a span of time.
#[derive(Debug, Clone)]
pub struct Activity {
    pub span: Span,
    /// Every part, the oldest first.
    pub parts: Vec<Part>,
    /// The database answered; otherwise only refusals are counted.
    pub has_history: bool,
}

/// What happened in a part of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// When it begins, in unix milliseconds.
    pub begin_ms: i64,
    /// Runs that began in it and have ended, by how they ended.
    pub runs: Counts,
    /// From begin to end, in milliseconds: the 50th, 90th and 99th percentile, interpolated in classes. `None` without
    /// runs.
    pub took_ms: Option<[u64; PERCENTS.len()]>,
    pub refusals: Counts,
}

/// What one part of time had of each word.
type Counts = BTreeMap<&'static str, u64>;

/// What this process refused.
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
    fn of(&self, span: Span, part: i64) -> Counts {
        self.counted.lock()[span as usize].get(&part).cloned().unwrap_or_default()
    }
}

impl Observer for Refusals {
    fn refused(&self, code: Code) {
        let now = self.clock.unix_ms();
        let mut counted = self.counted.lock();
        for span in Span::ALL {
            let (part, parts) = (now.div_euclid(span.part_ms()), &mut counted[span as usize]);
            *parts.entry(part).or_default().entry(code.as_str()).or_default() += 1;
            // A clock that was set back may leave later parts, which are as few.
            parts.retain(|number, _| (part - span.parts()..=part + span.parts()).contains(number));
        }
    }
}

pub(super) fn of(span: Span, first: i64, lines: Option<&[PartLine]>, refusals: &Refusals) -> Activity {
    let parts = (first..first + span.parts()).map(|number| {
        let of_part = || lines.unwrap_or_default().iter().filter(move |line| line.part == number);
        let mut runs = Counts::new();
        for line in of_part() {
            *runs.entry(line.ended.as_str()).or_default() += line.runs;
        }
        Part {
            begin_ms: number * span.part_ms(),
            runs,
            // Nothing is known of how long a run took that its server lost.
            took_ms: took(of_part().filter(|line| line.ended != EndWord::SERVER_LOST)),
            refusals: refusals.of(span, number),
        }
    });
    Activity { span, parts: parts.collect(), has_history: lines.is_some() }
}

fn took<'a>(lines: impl Iterator<Item = &'a PartLine>) -> Option<[u64; PERCENTS.len()]> {
    let mut classes = [0_u64; TOOK_MS.len() + 1];
    for line in lines {
        classes[line.class.min(TOOK_MS.len())] += line.runs;
    }
    let all: u64 = classes.iter().sum();
    (all > 0).then(|| PERCENTS.map(|percent| percentile(&classes, (all * percent).div_ceil(100))))
}

/// How long the run took that has this rank, counted from 1.
fn percentile(classes: &[u64], rank: u64) -> u64 {
    let bound = |class: usize| TOOK_MS.get(class).map_or(0, |bound| bound.unsigned_abs());
    let mut before = 0;
    for (class, &count) in classes.iter().enumerate() {
        if before + count >= rank {
            let low = class.checked_sub(1).map_or(0, bound);
            let high = bound(class).max(low);
            return low + (high - low) * (rank - before) / count.max(1);
        }
        before += count;
    }
    0
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
        assert_eq!(refusals.of(Span::Hour, 9_999), Counts::from([(Code::QueueFull.as_str(), 2)]));
        assert_eq!(refusals.of(Span::Hour, 9_900), Counts::new());
        assert_eq!(refusals.of(Span::Day, 665), Counts::from([(Code::QueueFull.as_str(), 30)]));
        assert_eq!(refusals.counted.lock().each_ref().map(BTreeMap::len), [61, 97]);
    }

    #[test]
    fn percentiles_lie_in_the_class_of_their_run() {
        let line = |class, runs| PartLine { part: 0, ended: EndWord::FAILED, class, runs };
        assert_eq!(took([].iter()), None);
        // 90 runs of 70 to 100 ms, ten of 700 ms to 1 s.
        let [half, most, nearly_all] = took([line(7, 90), line(13, 10)].iter()).expect("runs");
        assert!((70..=100).contains(&half) && half < most, "{half} {most}");
        assert_eq!(most, 100);
        assert!((700..=1000).contains(&nearly_all), "{nearly_all}");
        assert_eq!(took([line(31, 1)].iter()), Some([3_600_000; 3]), "the last class has no upper bound");
    }
}
