//! The history of runs and cells. A fact is put into a bounded queue at once; one task stores what is queued. A run
//! never waits for the database, and an unavailable, full or locked one delays nothing: facts that do not fit into the
//! queue are dropped and counted.
//!
//! ```text
//! follow ── one task: recovers, then stores what is queued, and in rounds shows that this server lives, reports the
//!           runs of dead servers as lost, and removes old lines; at `stop` it stores the rest within a bounded time
//! ```
//!
//! A line without an end is a run in progress only while its server lives. Lines that this server left are ended before
//! it stores its first line; those of others when their server's heartbeat has not changed for [`DEAD_AFTER`] by this
//! server's clock.

mod read;
mod upkeep;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::upkeep::Upkeep;
pub use self::{read::HistoryPage, upkeep::DEAD_AFTER};
use crate::{
    domain::{Clock, Code, Failure, Figures, InstanceId, Outcome, RunId, clock::every},
    ports::{
        database::{DbResult, within},
        history::{EndWord, HistoryLine, HistoryStore, LineEnd},
        observer::{BeginFacts, HistoryCounts, Observer, RunFacts},
    },
};

/// Names of files in a line, and the longest of them and of sentences.
const FILES_MAX: usize = 64;
const FILE_CHARS_MAX: usize = 256;
const SENTENCE_CHARS_MAX: usize = 1000;
/// The sentence about a run whose server was lost.
const LOST: &str = "The server ended while the program waited or ran, so how it ended is not known; it was not run \
                    again: look at the files, then run it again.";
/// The sentence about a run whose own end was not stored.
const UNRECORDED: &str = "The database did not take how the program ended, so that is not known; it was not run \
                          again: look at the files, then run it again.";
/// Lines that wait to be stored, and their bytes.
const QUEUED_MAX: usize = 10_000;
const QUEUED_BYTES_MAX: usize = 16 << 20;
/// Lines of one transaction.
const BATCH_MAX: usize = 256;
/// How long a line waits for others, so that a short run is stored once.
const LINGER: Duration = Duration::from_millis(50);
const ROUND: Duration = Duration::from_secs(15);
const TRY_AGAIN: Duration = Duration::from_secs(1);
/// How long one call of the database may take.
const CALL_MAX: Duration = Duration::from_secs(10);
/// How long the rest may take when the server stops.
const FLUSH_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
pub struct HistoryOptions {
    /// How much of a program is kept, in bytes; 0: nothing.
    pub source_bytes_max: usize,
    /// How long a line is kept; `None`: no limit.
    pub kept: Option<Duration>,
    /// Lines that are kept.
    pub kept_max: u64,
    /// What they may take.
    pub kept_bytes: u64,
}

pub struct History {
    store: Arc<dyn HistoryStore>,
    instance: InstanceId,
    clock: Arc<dyn Clock>,
    options: HistoryOptions,
    queue: Mutex<Queue>,
    queued: Notify,
    /// Lines without an end that an earlier process of this server left were ended.
    is_recovered: AtomicBool,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<HistoryLine>,
    /// Lines that are being stored.
    storing: usize,
    /// Bytes of the lines, and of those that are being stored.
    bytes: usize,
    /// Runs that have begun and not ended.
    under_way: HashSet<RunId>,
    /// When the newest run began whose end was lost, in unix milliseconds, while its line may be open.
    unrecorded: Option<i64>,
    counts: HistoryCounts,
    /// It was logged that lines are lost.
    is_full: bool,
    /// It was logged that the database fails.
    is_failing: bool,
}

impl History {
    pub fn new(
        store: Arc<dyn HistoryStore>,
        instance: InstanceId,
        clock: Arc<dyn Clock>,
        options: HistoryOptions,
    ) -> Self {
        let (queue, queued, is_recovered) = (Mutex::default(), Notify::new(), AtomicBool::new(false));
        Self { store, instance, clock, options, queue, queued, is_recovered }
    }

    /// Lines since the start.
    pub fn counts(&self) -> HistoryCounts {
        self.queue.lock().counts
    }

    /// Stores what is queued until `stop`, then the rest.
    pub async fn follow(&self, stop: CancellationToken) {
        while !self.call(self.recover()).await {
            if stop.run_until_cancelled(sleep(TRY_AGAIN)).await.is_none() {
                return self.give_up();
            }
        }
        let mut upkeep = Upkeep::default();
        let mut rounds = every(ROUND);
        // Storing is not broken off: a transaction that is dropped is rolled back. Upkeep is: the next start goes on.
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = rounds.tick() => {
                    stop.run_until_cancelled(self.call(self.upkeep(&mut upkeep))).await;
                }
                () = self.filled() => {
                    stop.run_until_cancelled(sleep(LINGER)).await;
                    if !self.store_some().await {
                        stop.run_until_cancelled(sleep(TRY_AGAIN)).await;
                    }
                }
            }
        }
        let rest = async { while !self.queue.lock().lines.is_empty() && self.store_some().await {} };
        drop(timeout(FLUSH_MAX, rest).await);
        self.give_up();
    }

    /// Waits until a line is queued.
    async fn filled(&self) {
        while self.queue.lock().lines.is_empty() {
            self.queued.notified().await;
        }
    }

    /// Stores the oldest lines of the queue; whether that worked.
    async fn store_some(&self) -> bool {
        let batch: Vec<_> = {
            let mut queue = self.queue.lock();
            queue.storing = queue.lines.len().min(BATCH_MAX);
            let count = queue.storing;
            queue.lines.drain(..count).collect()
        };
        let stored = self.call(async { self.store.write(&without_begins(&batch)).await }).await;
        let mut queue = self.queue.lock();
        queue.storing = 0;
        if stored {
            queue.bytes -= batch.iter().map(bytes).sum::<usize>();
            queue.counts.written += batch.len() as u64;
            queue.is_full = false;
        } else {
            for line in batch.into_iter().rev() {
                queue.lines.push_front(line);
            }
        }
        stored
    }

    /// Calls the database, for a bounded time; whether that worked.
    async fn call(&self, call: impl Future<Output = DbResult<()>>) -> bool {
        let done = within(CALL_MAX, call).await;
        let mut queue = self.queue.lock();
        match (&done, queue.is_failing) {
            (Ok(()), true) => info!("the history is recorded again"),
            (Err(error), false) => warn!(%error, "the history cannot be recorded for now: runs go on"),
            _ => {}
        }
        queue.counts.errors += u64::from(done.is_err());
        queue.is_failing = done.is_err();
        done.is_ok()
    }

    fn line(&self, run: &BeginFacts<'_>, end: Option<LineEnd>) -> HistoryLine {
        let source_bytes_max = self.options.source_bytes_max;
        HistoryLine {
            run: run.run,
            conversation: run.conversation.clone(),
            token: run.conversation.owner.token(),
            is_cell: run.is_cell,
            language: run.language.clone(),
            image: run.image.to_owned(),
            program_sha256: run.program.sha256.to_owned(),
            source: (source_bytes_max > 0).then(|| source(run.program.bytes, source_bytes_max)),
            instance: self.instance,
            end,
        }
    }

    fn put(&self, line: HistoryLine) {
        let (bytes, has_ended) = (bytes(&line), line.end.is_some());
        let mut queue = self.queue.lock();
        if has_ended {
            queue.under_way.remove(&line.run);
        } else {
            queue.under_way.insert(line.run);
        }
        if queue.lines.len() >= QUEUED_MAX || queue.bytes + bytes > QUEUED_BYTES_MAX {
            if !queue.is_full {
                warn!("the database does not take the history in time: lines are lost");
            }
            queue.counts.lost += 1;
            queue.is_full = true;
            if has_ended {
                queue.unrecorded = queue.unrecorded.max(Some(line.run.unix_ms()));
            }
            return;
        }
        queue.bytes += bytes;
        queue.lines.push_back(line);
        drop(queue);
        self.queued.notify_one();
    }

    /// When the newest run began whose end was lost, and the oldest whose end may still come.
    fn unrecorded(&self) -> Option<(i64, i64)> {
        let queue = self.queue.lock();
        let newest = queue.unrecorded?;
        let to_come = queue.under_way.iter().chain(queue.lines.iter().map(|line| &line.run));
        Some((newest, to_come.map(RunId::unix_ms).min().unwrap_or(i64::MAX)))
    }

    /// Counts what cannot be stored any more.
    fn give_up(&self) {
        let mut queue = self.queue.lock();
        // What was being stored when the time was up may be lost.
        let left = (std::mem::take(&mut queue.lines).len() + std::mem::take(&mut queue.storing)) as u64;
        queue.counts.lost += left;
        if left > 0 {
            warn!(left, "the server ends, and lines of the history were not stored");
        }
    }
}

/// The last line of each run: a run that has ended needs no line of its begin.
fn without_begins(batch: &[HistoryLine]) -> Vec<HistoryLine> {
    let last: HashMap<_, _> = batch.iter().enumerate().map(|(at, line)| (line.run, at)).collect();
    let lines = batch.iter().enumerate().filter(|(at, line)| last[&line.run] == *at);
    lines.map(|(_, line)| line.clone()).collect()
}

impl Observer for History {
    fn run_begun(&self, run: &BeginFacts<'_>) {
        if !run.conversation.owner.is_self_test() {
            self.put(self.line(run, None));
        }
    }

    fn run_over(&self, run: &RunFacts<'_>) {
        if !run.conversation.owner.is_self_test() {
            let end = run.end.map_or_else(|failure| failed(failure, run), ended);
            self.put(self.line(run, Some(LineEnd { unix_ms: self.clock.unix_ms(), files: files(run), ..end })));
        }
    }
}

/// Why the server failed the run, if it did.
pub fn failure(end: &LineEnd) -> Option<Failure> {
    end.failure.map(|code| Failure::new(code, end.sentence.clone()))
}

/// What a line takes in memory, about. Its parts are bounded, and so is the line.
fn bytes(line: &HistoryLine) -> usize {
    /// Ids, digests and numbers.
    const LINE_BYTES: usize = 768;
    let end =
        line.end.iter().map(|end| end.sentence.len() + end.files.iter().map(|name| name.len() + 24).sum::<usize>());
    LINE_BYTES + line.image.len() + line.source.as_ref().map_or(0, String::len) + end.sum::<usize>()
}

fn ended(outcome: &Outcome) -> LineEnd {
    let (exit_code, signal) = outcome.ended.status_or_signal();
    let (oom_killed, figures) = (outcome.oom_killed, outcome.figures);
    let cpu_max = figures.cpu.is_none().then(|| figures.cpu_or_most(outcome.limits.cpu_millis));
    let sentence = outcome.sentence();
    LineEnd { exit_code, signal, oom_killed, sentence, figures, cpu_max, ..LineEnd::of(outcome.ended.into()) }
}

fn failed(failure: &Failure, run: &RunFacts<'_>) -> LineEnd {
    let sentence = text(failure.message.chars().take(SENTENCE_CHARS_MAX));
    let cpu_max = run.lost.filter(|used| used.cpu.is_none()).map(|used| used.cpu_or_most(run.limits.cpu_millis));
    let figures = run.lost.unwrap_or_default();
    LineEnd { failure: Some(failure.code), sentence, figures, cpu_max, ..LineEnd::of(EndWord::FAILED) }
}

fn files(run: &RunFacts<'_>) -> Vec<String> {
    let names = run.files.iter().take(FILES_MAX);
    names.map(|file| text(file.path.display().chars().take(FILE_CHARS_MAX))).collect()
}

fn source(program: &[u8], bytes_max: usize) -> String {
    let begin = String::from_utf8_lossy(&program[..program.len().min(bytes_max)]);
    let mut begin = text(begin.chars());
    // Replacing zeros and broken bytes makes it longer.
    begin.truncate(begin.floor_char_boundary(bytes_max));
    begin
}

/// Without the zero character, which a text in `PostgreSQL` cannot hold.
fn text(chars: impl Iterator<Item = char>) -> String {
    chars.map(|c| if c == '\0' { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

impl LineEnd {
    /// The end of a run that no server knows.
    pub(crate) fn lost(unix_ms: i64, sentence: &str) -> Self {
        let (failure, sentence) = (Some(Code::ServerLost), sentence.to_owned());
        Self { unix_ms, failure, sentence, ..Self::of(EndWord::SERVER_LOST) }
    }

    fn of(word: EndWord) -> Self {
        Self {
            unix_ms: 0,
            word,
            exit_code: None,
            signal: None,
            oom_killed: false,
            failure: None,
            sentence: String::new(),
            figures: Figures::default(),
            cpu_max: None,
            files: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
