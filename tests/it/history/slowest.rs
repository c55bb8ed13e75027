//! The slowest runs, of few lines and of many, the oldest, and what lines take.

use mcp_sandbox_server::ports::history::{HistoryLine, HistoryStore, LineEnd, Notable};

use super::{BEGAN, Base, ended, key, line, run_at};
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
