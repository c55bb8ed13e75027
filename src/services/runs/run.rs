//! One run: followed, stopped, sent input, shown. Owns nothing of its execution: when the last reference is dropped the
//! run goes on. Only a [`RunHandle`], which its caller holds, stops it by being dropped.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream::BoxStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    internal,
    log::EventLog,
    output::CapturedOutput,
    stdin::{self, StdinSender},
};
use crate::{
    domain::{ConversationKey, Event, Failure, Language, Outcome, RunId, text::json_bytes, words::named},
    services::{
        admission::QueuePosition,
        files::{FileEntry, FileList},
        sessions::WaitingCell,
    },
};

/// How much of a program is kept with its run, in bytes of JSON.
pub const SOURCE_BYTES_MAX: usize = 64 << 10;

/// A run that was begun.
pub struct Run {
    pub(super) id: RunId,
    pub(super) conversation: ConversationKey,
    pub(super) language: Language,
    pub(super) created_unix_s: i64,
    pub(super) source: Source,
    pub(super) is_cell: bool,
    /// Cancelled when its session is restarted or closed; never where it is no cell.
    pub(super) waiting: WaitingCell,
    pub(super) position: QueuePosition,
    pub(super) log: Arc<EventLog>,
    /// Open only if the request said so.
    pub(super) stdin: Option<StdinSender>,
    pub(super) cancel: CancellationToken,
    /// Set before the last event is logged, so that a reader of that event finds it.
    pub(super) result: OnceLock<Result<Arc<Report>, Failure>>,
}

/// What came of a program that was run.
#[derive(Debug, Clone)]
pub struct Report {
    pub run: RunId,
    pub conversation: ConversationKey,
    pub language: Language,
    pub outcome: Outcome,
    pub stdout: CapturedOutput,
    pub stderr: CapturedOutput,
    /// The conversation's files, those of this run first.
    pub files: FileList,
}

/// The text of a program, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: Arc<str>,
    /// The program goes on after the text.
    pub truncated: bool,
}

impl Source {
    /// At most [`SOURCE_BYTES_MAX`] of a program.
    pub(super) fn of(program: &[u8]) -> Self {
        let begin = &program[..program.len().min(SOURCE_BYTES_MAX)];
        let text = String::from_utf8_lossy(begin);
        let mut bytes = 0;
        let end = text.char_indices().find(|(_, c)| {
            bytes += json_bytes(c.encode_utf8(&mut [0; 4]));
            bytes > SOURCE_BYTES_MAX
        });
        let kept = &text[..end.map_or(text.len(), |(at, _)| at)];
        Self { text: kept.into(), truncated: kept.len() < text.len() || begin.len() < program.len() }
    }
}

named! {
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum RunState {
        /// It waits for its turn, or its sandbox is being started.
        Queued {
            /// How many wait from it on to the front, itself included; nothing when its turn has come.
            position: Option<u32>,
        } = "queued",
        Running = "running",
        Finished = "finished",
    }
}

/// A run at one moment.
#[derive(Debug, Clone)]
pub struct RunView {
    pub run: RunId,
    pub conversation: ConversationKey,
    pub language: Language,
    pub state: RunState,
    /// When it was requested, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// What it runs.
    pub source: Source,
    /// It is a cell of a session.
    pub is_cell: bool,
    /// How long the program has run so far, or took.
    pub wall: Duration,
    /// Whether its program can be sent input.
    pub takes_input: bool,
    /// Once it is over: its report, or the server's own failure.
    pub result: Option<Result<Arc<Report>, Failure>>,
    /// The number of the newest event.
    pub newest: u64,
}

#[derive(Debug, Clone)]
pub struct RunPage {
    /// Newest first.
    pub runs: Vec<RunView>,
    /// Where the next page begins, when there is more.
    pub after: Option<RunId>,
}

impl Run {
    pub fn id(&self) -> RunId {
        self.id
    }

    pub fn view(&self) -> RunView {
        let result = self.result.get().cloned();
        let facts = self.log.facts();
        let state = match (&result, facts.started_at) {
            (Some(_), _) => RunState::Finished,
            (None, Some(_)) => RunState::Running,
            (None, None) => RunState::Queued { position: self.position.now() },
        };
        let so_far = || facts.started_at.map(|at| facts.ended_at.unwrap_or(self.log.age()).saturating_sub(at));
        let wall = match &result {
            Some(Ok(report)) => report.outcome.figures.wall,
            _ => so_far().unwrap_or_default(),
        };
        RunView {
            run: self.id,
            conversation: self.conversation.clone(),
            language: self.language.clone(),
            state,
            created_unix_s: self.created_unix_s,
            source: self.source.clone(),
            is_cell: self.is_cell,
            wall,
            takes_input: result.is_none() && self.stdin.as_ref().is_some_and(StdinSender::is_open),
            result,
            newest: facts.newest,
        }
    }

    /// Waits for the end. May be dropped and called again.
    ///
    /// # Errors
    /// The server's own failures; a program that fails has a report.
    pub async fn finished(&self) -> Result<Arc<Report>, Failure> {
        self.log.ended().await;
        self.result.get().cloned().unwrap_or_else(|| Err(internal()))
    }

    /// Waits for the end, at most so long; the run as it is then.
    pub async fn wait(&self, at_most: Duration) -> RunView {
        drop(timeout(at_most, self.log.ended()).await);
        self.view()
    }

    /// Stops the program; [`Self::wait`] returns when it is dead. A run that is over stays as it is.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Events from this number on: those that are kept, then each as it comes; ends after the last. A `Cut` stands for
    /// what was dropped before it was read, and counts all that the log has dropped so far.
    pub fn events(&self, from: u64) -> BoxStream<'static, Event> {
        EventLog::stream(Arc::clone(&self.log), from)
    }

    /// Kept output of the events after `after`, up to and including `last`.
    pub fn output(&self, after: u64, last: u64) -> (CapturedOutput, CapturedOutput) {
        CapturedOutput::of(&self.log.range(after.saturating_add(1), last))
    }

    /// Sends a piece of standard input, whole or not at all; `last` ends the input. A piece for a program that has not
    /// started is kept; while the program does not read, this waits, for a bounded time. That it returns does not say
    /// that the program has read the piece.
    ///
    /// # Errors
    /// [`Code::InputClosed`] when the run or its input is over, or it takes none; [`Code::InputFull`] when the program
    /// does not read; [`Code::TooLarge`] above [`super::INPUT_BYTES_MAX`].
    ///
    /// [`Code::InputClosed`]: crate::domain::error::Code::InputClosed
    /// [`Code::InputFull`]: crate::domain::error::Code::InputFull
    /// [`Code::TooLarge`]: crate::domain::error::Code::TooLarge
    pub async fn send_input(&self, bytes: Bytes, last: bool) -> Result<(), Failure> {
        if self.result.get().is_some() {
            return Err(stdin::over());
        }
        let complete = || stdin::closed("its input was complete; begin a run with `stdinOpen` to send it more");
        self.stdin.as_ref().ok_or_else(complete)?.send(bytes, last).await
    }

    /// What it costs to keep this run, in bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        /// What does not depend on the program: ids, locks, outcome.
        const RUN_BYTES: usize = 4096;
        let report = self.result.get().and_then(|result| result.as_ref().ok()).map_or(0, |report| {
            let files = report.files.files.iter().map(FileEntry::wire_bytes);
            let skipped = report.files.skipped.iter().map(|skipped| skipped.path.len() + 32);
            report.stdout.text.len() + report.stderr.text.len() + files.chain(skipped).sum::<usize>()
        });
        RUN_BYTES + self.source.text.len() + self.log.facts().kept_bytes + report
    }
}

/// A run in the hands of its caller. Its drop cancels the run, unless it is detached.
pub struct RunHandle {
    pub(super) run: Arc<Run>,
    pub(super) detached: bool,
}

impl RunHandle {
    /// Whether the run goes on when its caller goes away.
    pub fn is_detached(&self) -> bool {
        self.detached
    }

    /// From now on the run goes on without its caller.
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl Deref for RunHandle {
    type Target = Run;

    fn deref(&self) -> &Run {
        &self.run
    }
}

impl Drop for RunHandle {
    fn drop(&mut self) {
        if !self.detached {
            self.run.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_kept_whole_or_cut_by_its_length_in_json() {
        let whole = Source::of("print('é')\n".as_bytes());
        assert_eq!((&*whole.text, whole.truncated), ("print('é')\n", false));
        for program in ["\u{1}".repeat(100_000), "é\"".repeat(100_000), "x".repeat(SOURCE_BYTES_MAX + 1)] {
            let source = Source::of(program.as_bytes());
            let bytes = json_bytes(&source.text);
            assert!(program.starts_with(&*source.text) && source.truncated);
            assert!((SOURCE_BYTES_MAX - 6..=SOURCE_BYTES_MAX).contains(&bytes), "{bytes}");
        }
    }
}
