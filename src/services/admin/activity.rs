//! The counts of the last hour and the last day, part by part of time.

use std::{collections::BTreeMap, str::FromStr};

use super::Refusals;
use crate::{
    domain::{error::Code, words::words},
    ports::history::{EndWord, PartLine, TOOK_MS},
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
    pub runs: BTreeMap<&'static str, u64>,
    /// From begin to end, in milliseconds: the 50th, 90th and 99th percentile, interpolated in classes. `None` without
    /// runs.
    pub took_ms: Option<[u64; PERCENTS.len()]>,
    pub refusals: BTreeMap<&'static str, u64>,
}

pub(super) fn of(span: Span, first: i64, lines: Option<&[PartLine]>, refusals: &Refusals) -> Activity {
    let parts = (first..first + span.parts()).map(|number| {
        let of_part = || lines.unwrap_or_default().iter().filter(move |line| line.part == number);
        let mut runs = BTreeMap::new();
        for line in of_part() {
            *runs.entry(line.ended.as_str()).or_default() += line.runs;
        }
        let refused = refusals.of(span, number);
        Part {
            begin_ms: number * span.part_ms(),
            runs,
            // Nothing is known of how long a run took that its server lost.
            took_ms: took(of_part().filter(|line| line.ended != EndWord::SERVER_LOST)),
            refusals: refused.into_iter().map(|(code, count)| (Code::as_str(code), count)).collect(),
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
