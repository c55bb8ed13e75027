//! Queries of the history.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::{History, LOST};
use crate::{
    domain::{Code, Failure, Principal, RunId},
    ports::{
        database::{DbResult, within},
        history::{HistoryLine, LineEnd, LineFilter, Notable, PartLine, UsageFilter, UsageLine},
    },
    services::fitting,
};

/// How long a caller waits for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// How often a line is read again whose end is waited for, and for how long at most: a server that stops waits for the
/// answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(20);
/// What the lines of a page take together; a single one may take more.
const PAGE_BYTES_MAX: u64 = 4 << 20;

/// A page of the history.
#[derive(Debug, Clone)]
pub struct HistoryPage {
    /// Newest first.
    pub lines: Vec<HistoryLine>,
    /// Where the next page begins, when there is more.
    pub after: Option<RunId>,
}

impl History {
    /// A run of this caller that is no longer in memory. One that its server lost has an end that says so.
    ///
    /// # Errors
    /// [`Code::RunNotFound`]; [`Code::DatabaseUnavailable`].
    pub async fn run(&self, who: &Principal, run: RunId) -> Result<HistoryLine, Failure> {
        let unknown = || {
            let why = format!("runId: there is no run `{run}`, or it is no longer kept: run the program again.");
            Failure::new(Code::RunNotFound, why)
        };
        let line = answer(self.store.line(who, run)).await?.map(|line| self.with_lost_end(line));
        // Without an end it is over nevertheless, unless another server runs it: its end is not stored yet.
        line.filter(|line| line.end.is_some() || line.instance != self.instance).ok_or_else(unknown)
    }

    /// The same. The end of a run of another server is waited for, at most so long, and at most 20 seconds.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub async fn run_within(&self, wait: Duration, who: &Principal, run: RunId) -> Result<HistoryLine, Failure> {
        let (begun, wait) = (Instant::now(), wait.min(LOOK_MAX));
        loop {
            let line = self.run(who, run).await?;
            let left = wait.saturating_sub(begun.elapsed());
            if line.end.is_some() || left.is_zero() {
                return Ok(line);
            }
            sleep(left.min(LOOK_AGAIN)).await;
        }
    }

    /// Lines of all owners, newest first: fewer than `limit` where they are long.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn page(&self, filter: &LineFilter, limit: usize) -> Result<HistoryPage, Failure> {
        let (has_more, lines) = answer(async {
            // One more than requested shows whether there is another page.
            let bytes = self.store.page_bytes(filter, limit.saturating_add(1)).await?;
            let limit = limit.min(fitting(bytes.iter().copied(), PAGE_BYTES_MAX));
            let has_more = bytes.len() > limit;
            // A line that has come meanwhile takes the place of the last one.
            let mut lines = self.store.page(filter, limit + usize::from(!has_more)).await?;
            let has_more = has_more || lines.len() > limit;
            lines.truncate(limit);
            Ok((has_more, lines))
        })
        .await?;
        let after = lines.last().filter(|_| has_more).map(|line| line.run);
        Ok(HistoryPage { lines: lines.into_iter().map(|line| self.with_lost_end(line)).collect(), after })
    }

    /// Usage of all owners; and whether there is more than `limit`.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn usage(&self, filter: &UsageFilter, limit: usize) -> Result<(Vec<UsageLine>, bool), Failure> {
        let mut lines = answer(self.store.usage(filter, limit.saturating_add(1))).await?;
        let more = lines.len() > limit;
        lines.truncate(limit);
        Ok((lines, more))
    }

    /// Runs that are slow, or failed.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn notable(&self, which: Notable, from: i64, limit: usize) -> Result<Vec<HistoryLine>, Failure> {
        answer(self.store.notable(which, from, limit)).await
    }

    /// Counts over time, of what began at this moment or later.
    ///
    /// # Errors
    /// [`Code::DatabaseUnavailable`].
    pub async fn parts(&self, from: i64, part_ms: i64) -> Result<Vec<PartLine>, Failure> {
        answer(self.store.parts(from, part_ms)).await
    }

    /// A line of this server without an end was lost by an earlier process, until this one has recovered.
    fn with_lost_end(&self, line: HistoryLine) -> HistoryLine {
        let is_lost =
            line.end.is_none() && line.instance == self.instance && !self.is_recovered.load(Ordering::Acquire);
        if is_lost { HistoryLine { end: Some(LineEnd::lost(self.clock.unix_ms(), LOST)), ..line } } else { line }
    }
}

async fn answer<T>(call: impl Future<Output = DbResult<T>>) -> Result<T, Failure> {
    within(ANSWER_MAX, call).await.map_err(|error| {
        debug!(%error, "the history was not read");
        Failure::new(Code::DatabaseUnavailable, "The database does not answer: try again in a moment.")
    })
}
