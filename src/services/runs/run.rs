//! One run: what its caller asks for, and, once it is begun, how it is followed, stopped, sent input and shown. Owns
//! nothing of its execution: when the last reference is dropped the run goes on. Only a [`RunHandle`], which its caller
//! holds, stops it by being dropped.

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
    output::{CapturedOutput, Source},
    stdin::{self, StdinSender},
};
use crate::{
    domain::{
        ConversationKey, Environment, Event, Failure, Language, Limits, Outcome, RunId, SafePath, SessionId,
        TraceContext, environment::check_args, error::Operation, words::named,
    },
    ports::runner::Runner,
    services::{
        admission::QueuePosition,
        files::{FileEntry, FileList},
        sandbox::Sandboxes,
        sessions::{LineMeter, TEXT_BYTES_MAX, WaitingCell, fits},
    },
};

/// The least that the server's own test of the engine is given, whatever the limits of programs.
const SELF_TEST_WALL_MS: u64 = 30_000;
const SELF_TEST_OUTPUT_BYTES: u64 = 64 << 10;

/// The session that executes a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellSession {
    /// That of the conversation and the language; one is opened where there is none.
    Any,
    /// This one, if it is still open.
    Open(SessionId),
    /// One that ends with the cell. For a conversation of its own: its other sessions end too.
    Once,
}

/// A program and how to run it. Only a framed runner takes arguments and input.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// Its id, where that was stored before it begins; used for no other run.
    pub id: Option<RunId>,
    /// The conversation whose files are `/data`.
    pub conversation: ConversationKey,
    /// A language or an alias of one.
    pub language: Language,
    pub program: Bytes,
    pub args: Vec<String>,
    /// Variables for its environment. Those of a session are given when it is opened.
    pub env: Environment,
    /// The network policies that it wants, of those that hold for it; `None`: all of them. Those of a session are given
    /// when it is opened.
    pub network: Option<Vec<String>>,
    /// What the program reads from its standard input.
    pub stdin: Bytes,
    /// More of it follows while the program runs: [`Run::send_input`].
    pub stdin_open: bool,
    /// The program is a cell of this session.
    pub session: Option<CellSession>,
    /// What this run may use, where it is less than the server's limits; [`Limits::UNBOUNDED`] in what it leaves to
    /// them.
    pub limits: Option<Limits>,
    /// What is written to `/data` before the program starts.
    pub files: Vec<(SafePath, Bytes)>,
    /// The conversation is deleted when the run is over.
    pub throw_away: bool,
    /// Whether the run goes on when its caller goes away; otherwise it is cancelled. By default as the settings say.
    pub detach: Option<bool>,
    /// The caller's trace context.
    pub within: Option<TraceContext>,
}

impl RunRequest {
    /// A program without arguments and input, under the server's limits.
    pub fn new(conversation: ConversationKey, language: Language, program: Bytes) -> Self {
        Self {
            id: None,
            conversation,
            language,
            program,
            args: Vec::new(),
            env: Environment::default(),
            network: None,
            stdin: Bytes::new(),
            stdin_open: false,
            session: None,
            limits: None,
            files: Vec::new(),
            throw_away: false,
            detach: None,
            within: None,
        }
    }

    /// What it holds in memory, in bytes. Variables are left out: they are bounded by
    /// [`AllowedVariables`](crate::domain::environment::AllowedVariables).
    pub(super) fn bytes(&self) -> usize {
        let args = self.args.iter().map(String::len);
        let files = self.files.iter().map(|(_, bytes)| bytes.len());
        self.program.len() + self.stdin.len() + args.chain(files).sum::<usize>()
    }

    /// What it may use in this runner.
    pub(super) fn limits(&self, runner: &Runner, sandboxes: &Sandboxes) -> Limits {
        if self.conversation.owner.is_self_test() {
            // Its sandbox has the usual limits, which the isolation check expects, whatever memory its runner asks for;
            // the waiting time and the output are not what is tested.
            let usual = &sandboxes.limits;
            return Limits {
                wall_ms: usual.wall_ms.max(SELF_TEST_WALL_MS),
                output_bytes_max: usual.output_bytes_max.max(SELF_TEST_OUTPUT_BYTES),
                output_kept_bytes: usual.output_kept_bytes.max(SELF_TEST_OUTPUT_BYTES),
                ..*usual
            };
        }
        let usual = sandboxes.limits_of(runner);
        self.limits.map_or(usual, |asked| asked.at_most(&usual))
    }

    /// Whether this runner can run it.
    pub(super) fn check(&self, runner: &Runner, program_bytes_max: usize) -> Result<(), Failure> {
        if self.program.len() > program_bytes_max {
            let why = format!(
                "it is longer than {program_bytes_max} bytes: write long data to a file and read it from /data"
            );
            return Err(Failure::argument("code", why).see(Operation::WriteFile));
        }
        check_args(&self.args)?;
        let (args, env) = (("args", !self.args.is_empty()), ("env", !self.env.is_empty()));
        let first_used =
            |members: &[(&'static str, bool)]| members.iter().find(|(_, used)| *used).map(|(name, _)| *name);
        if self.session.is_some() {
            if let Some(argument) = first_used(&[args, env, ("network", self.network.is_some())]) {
                return Err(Failure::argument(argument, "a cell of a session takes none"));
            }
            // Only framed runners offer sessions.
            return runner.check_sessions().and_then(|()| self.check_messages());
        }
        let framed_only = [args, env, ("stdin", !self.stdin.is_empty()), ("stdinOpen", self.stdin_open)];
        first_used(&framed_only).filter(|_| !runner.is_framed).map_or(Ok(()), |argument| {
            let why = format!("the runner of `{}` takes neither arguments nor variables nor input", runner.language);
            Err(Failure::argument(argument, why))
        })
    }

    /// Measures the lines of a cell's input, beginning with those of the request, which were checked to fit.
    pub(super) fn line_meter(&self) -> Option<LineMeter> {
        let mut lines = self.session.map(|_| LineMeter::default())?;
        lines.take(&self.stdin);
        Some(lines)
    }

    /// Whether a cell's code and each line of its input fit into a message for its kernel.
    fn check_messages(&self) -> Result<(), Failure> {
        let texts = [
            ("code", "it is", fits(&String::from_utf8_lossy(&self.program))),
            ("stdin", "a line is", LineMeter::default().take(&self.stdin)),
        ];
        let refused = texts.into_iter().find(|(.., is_short)| !is_short);
        refused.map_or(Ok(()), |(argument, what, _)| {
            let why = format!(
                "{what} longer in JSON than the {TEXT_BYTES_MAX} bytes that a cell takes: write long data to a file \
                 and read it from /data"
            );
            Err(Failure::argument(argument, why).see(Operation::WriteFile))
        })
    }
}

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
    /// does not read; [`Code::TooLarge`] above [`super::INPUT_BYTES_MAX`], and for a line that no message for a kernel
    /// can carry.
    ///
    /// [`Code::InputClosed`]: crate::domain::error::Code::InputClosed
    /// [`Code::InputFull`]: crate::domain::error::Code::InputFull
    /// [`Code::TooLarge`]: crate::domain::error::Code::TooLarge
    pub async fn send_input(&self, bytes: Bytes, last: bool) -> Result<(), Failure> {
        if self.result.get().is_some() {
            return Err(stdin::input_closed());
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
