//! The slowest runs, of few lines and of many, the oldest, what lines take, and servers without open lines.

use std::sync::Arc;

use mcp_sandbox_server::{
    domain::{clock::SystemClock, id::InstanceId},
    ports::history::{HistoryLine, HistoryStore, LineEnd, LineFilter, Notable},
    services::history::History,
};

use super::{BEGAN, Base, ended, key, line, recorder::KEEPS_ALL, run_at};
use crate::support::dice::Dice;

/// More than are sorted for one answer.
const LINES: i64 = 3000;

pub async fn slowest_runs_agree_with_a_model(base: Base) {
    let mut dice = Dice::new(11);
    let mut lines: Vec<_> = (0..LINES)
        .map(|n| {
            let (begun, took) = (BEGAN + n * 1000, i64::try_from(dice.below(500)).expect("small"));
            let word = if dice.below(4) == 0 { "server_lost" } else { "exited" };
            let end = (dice.below(10) > 0).then(|| ended(word, begun + took));
            line(run_at(begun, &mut dice), key("ann", "c"), end)
        })
        .collect();
    for batch in lines.chunks(500) {
        base.database.write(batch).await.expect("stored");
    }
    let took = |line: &HistoryLine| {
        let end = line.end.as_ref().filter(|end| end.word.as_str() != "server_lost");
        end.map(|end| end.unix_ms - line.run.unix_ms())
    };
    lines.sort_by_key(|line| std::cmp::Reverse((took(line), line.run.to_string())));
    // The last begins after all of them.
    for from in [0, BEGAN + LINES * 250, BEGAN + LINES * 900, BEGAN + LINES * 1000] {
        let found = base.database.notable(Notable::Slowest, from, 40).await.expect("lines");
        let expected = lines.iter().filter(|line| line.run.unix_ms() >= from && took(line).is_some());
        let (found, expected): (Vec<_>, Vec<_>) =
            (found.iter().map(|line| line.run).collect(), expected.map(|line| line.run).take(40).collect());
        assert_eq!(found, expected, "from {from}");
    }
}

pub async fn lines_are_counted_and_the_oldest_passed_over(base: Base) {
    let mut dice = Dice::new(12);
    let count = async || base.database.count().await.expect("a number");
    let after = async |oldest| base.database.begun_after_oldest(oldest).await.expect("an answer");
    assert_eq!((count().await, after(0).await), (0, None));
    let lines: Vec<_> = (0..20).map(|n| line(run_at(BEGAN + n, &mut dice), key("ann", "c"), None)).collect();
    base.database.write(&lines).await.expect("stored");
    assert_eq!(count().await, 20);
    assert_eq!((after(0).await, after(15).await, after(20).await), (Some(BEGAN), Some(BEGAN + 15), None));
}

pub async fn the_newest_are_measured(base: Base) {
    let mut dice = Dice::new(13);
    let measure = async |before, limit| base.database.newest_bytes(before, limit).await.expect("an answer");
    assert_eq!(measure(i64::MAX, 5).await, None);
    let end = LineEnd { sentence: "\u{e4}".to_owned(), files: Vec::new(), ..ended("exited", BEGAN) };
    let with_source = |n: i64| HistoryLine {
        source: Some("\u{20ac}".repeat(5000)),
        ..line(run_at(BEGAN + n, &mut dice), key("ann", "c"), (n < 3).then(|| end.clone()))
    };
    let lines: Vec<_> = (0..5).map(with_source).collect();
    base.database.write(&lines).await.expect("stored");
    // Bytes and not characters; of an end, the sentence and `[]`.
    let (open, over) = (1024 + 15_000, 1024 + 15_000 + 4);
    assert_eq!(measure(i64::MAX, 2).await, Some((BEGAN + 3, 2 * open)));
    assert_eq!(measure(BEGAN + 3, 2).await, Some((BEGAN + 1, 2 * over)));
    assert_eq!(measure(BEGAN + 4, 50).await, Some((BEGAN, open + 3 * over)));
    assert_eq!(measure(BEGAN, 5).await, None);
}

/// As many lines as a page may have would be 200 MiB. One is longer than a page.
pub async fn lists_of_long_lines_are_bounded(base: Base) {
    let mut dice = Dice::new(15);
    let mut long = |n: i64, bytes: usize| HistoryLine {
        source: Some("\u{1}".repeat(bytes)),
        ..line(run_at(BEGAN + n, &mut dice), key("ann", "c"), Some(ended("timed_out", BEGAN + n + 70)))
    };
    let mut lines: Vec<_> = (0..10).map(|n| long(n, 1 << 20)).collect();
    lines.push(long(10, 5 << 20));
    for one in &lines {
        base.database.write(std::slice::from_ref(one)).await.expect("stored");
    }
    lines.reverse();

    let (store, clock) = (Arc::new(base.database.clone()), Arc::new(SystemClock));
    let history = History::new(store, InstanceId::new(), clock, KEEPS_ALL);
    let (mut filter, mut sizes, mut found) = (LineFilter::default(), Vec::new(), Vec::new());
    loop {
        let page = history.page(&filter, 200).await.expect("a page");
        sizes.push(page.lines.len());
        found.extend(page.lines);
        filter.after = page.after;
        if filter.after.is_none() {
            break;
        }
    }
    assert_eq!(sizes, [1, 3, 3, 3, 1]);
    assert!(found == lines, "each once, in order");
    for which in [Notable::Slowest, Notable::Failing] {
        let found = history.notable(which, 0, 200).await.expect("lines");
        assert_eq!(found.len(), lines.len());
        assert!(found.iter().all(|line| line.source.as_ref().is_some_and(|source| source.len() == 4096)));
    }
}

pub async fn old_beats_are_forgotten(base: Base) {
    let (database, mut dice) = (&base.database, Dice::new(16));
    let open = line(run_at(BEGAN, &mut dice), key("ann", "c"), None);
    database.write(std::slice::from_ref(&open)).await.expect("stored");
    for (instance, beat) in [(open.instance, 1), (InstanceId::new(), 1), (InstanceId::new(), 2)] {
        database.beat(instance, beat).await.expect("a beat");
    }
    let forget = async |before| database.forget_beats(before).await.expect("an answer");
    assert_eq!(forget(2).await, 1, "of two old ones, that of the server without an open line");
    assert_eq!(database.open().await.expect("an answer"), [(open.instance, Some(1))]);
    database.close_lost(open.instance, i64::MAX, BEGAN, "It was lost.").await.expect("an answer");
    assert_eq!((forget(2).await, forget(3).await), (1, 1));
}
