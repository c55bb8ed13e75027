//! Who is told what happens: metrics, the audit log, traces. Services tell facts and know nobody who listens.
//!
//! An observer answers at once: it counts, or it puts a line into a queue. It must neither wait nor fail.

use std::{sync::Arc, time::Duration};

use crate::domain::{
    error::{Code, Failure},
    id::{Language, RequestId, RunId, SandboxId},
    limits::Limits,
    outcome::Outcome,
    owner::ConversationKey,
    path::SafePath,
    trace::TraceContext,
};

/// Is told what happens. Every method may be called concurrently and returns at once.
pub trait Observer: Send + Sync + 'static {
    /// A run is over: it has its verdict, or it failed for a reason of ours. RunnerMessage once for each run that was begun.
    fn run_over(&self, _run: &RunFacts<'_>) {}

    /// A run was refused before it began.
    fn refused(&self, _code: Code) {}

    /// A sandbox is a run's from now on. RunnerMessage before the engine is asked to start it, or when one that stood by is taken.
    fn sandbox_held(&self, _run: TraceContext, _sandbox: SandboxId) {}

    /// The engine answered a call, or did not.
    fn engine_called(&self, _call: &CallFacts) {}

    /// An HTTP request was answered.
    fn answered(&self, _answer: &AnswerFacts<'_>) {}
}

/// What is known of a call of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFacts {
    /// The verb of the port.
    pub operation: &'static str,
    /// Which sandbox it was about, where it was about one.
    pub sandbox: Option<SandboxId>,
    /// `ok` or [`super::engine::EngineError::word`].
    pub result: &'static str,
    /// How long it took.
    pub took: Duration,
}

/// What is known of a request whose answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerFacts<'a> {
    /// Which.
    pub request: RequestId,
    /// Where in a trace.
    pub trace: TraceContext,
    /// One of the standard methods, or `_OTHER`.
    pub method: &'static str,
    /// The route that it matched, as it is written in the server; never what the client asked for.
    pub route: Option<&'a str>,
    /// The HTTP status.
    pub status: u16,
    /// How long until the answer began.
    pub took: Duration,
    /// How long the answer is, where it is no stream.
    pub bytes: Option<u64>,
}

/// What is known of a run that is over.
#[derive(Debug, Clone)]
pub struct RunFacts<'a> {
    /// Which.
    pub run: RunId,
    /// Where in a trace.
    pub trace: TraceContext,
    /// Who asked.
    pub principal: &'a str,
    /// Whose files.
    pub conversation: &'a ConversationKey,
    /// The language's own name.
    pub language: &'a Language,
    /// The image, pinned by its digest.
    pub image: &'a str,
    /// The program's text. It may be measured and hashed; it is nobody's to keep.
    pub program: &'a [u8],
    /// How many arguments it had.
    pub args: usize,
    /// How long its input was, in bytes.
    pub stdin_bytes: u64,
    /// What it might use.
    pub limits: &'a Limits,
    /// When it was asked for, in seconds since the Unix epoch.
    pub begun_unix_s: i64,
    /// When it was over, in seconds since the Unix epoch.
    pub ended_unix_s: i64,
    /// How long each of its stages took.
    pub stages: Stages,
    /// How it ended, or why it could not be run.
    pub end: Result<&'a Outcome, &'a Failure>,
    /// The files that it created or changed, as many as its answer named.
    pub files: Vec<FileFact<'a>>,
    /// There were more.
    pub files_truncated: bool,
}

/// A file that a run created or changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFact<'a> {
    pub path: &'a SafePath,
    /// How long, in bytes.
    pub size: u64,
    /// `created` or `changed`.
    pub change: &'static str,
}

/// How long each stage of a run took; nothing for one that was not come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    /// Waiting for its turn and a slot.
    pub queue: Option<Duration>,
    /// Taking a sandbox that stood by, or starting one.
    pub start: Option<Duration>,
    /// The sandbox had been standing by.
    pub stood_by: bool,
    /// From the program being handed over until its end was known.
    pub program: Option<Duration>,
    /// Finding and linking what it wrote.
    pub collect: Option<Duration>,
    /// All of it.
    pub total: Duration,
}

/// What is the case at this moment, for whoever asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Programs that may run at once.
    pub slots: usize,
    /// Slots that are taken.
    pub slots_taken: usize,
    /// Runs that wait for a turn or a slot.
    pub waiting: usize,
    /// Runs that wait or run.
    pub under_way: usize,
    /// Sandboxes that somebody holds: runs, and those that stand by.
    pub leased: usize,
    /// Sandboxes that nobody wants and that are not destroyed yet.
    pub unwanted: usize,
    /// How many stand by: language, how far they are, how many.
    pub standbys: Vec<(Language, &'static str, usize)>,
    /// How many that stood by served a program so far.
    pub standbys_taken: u64,
    /// Languages that can be run now.
    pub languages: usize,
}

/// Several observers as one, told in their order.
#[derive(Clone, Default)]
pub struct Observers(pub Vec<Arc<dyn Observer>>);

impl Observer for Observers {
    fn run_over(&self, run: &RunFacts<'_>) {
        self.0.iter().for_each(|observer| observer.run_over(run));
    }

    fn refused(&self, code: Code) {
        self.0.iter().for_each(|observer| observer.refused(code));
    }

    fn sandbox_held(&self, run: TraceContext, sandbox: SandboxId) {
        self.0.iter().for_each(|observer| observer.sandbox_held(run, sandbox));
    }

    fn engine_called(&self, call: &CallFacts) {
        self.0.iter().for_each(|observer| observer.engine_called(call));
    }

    fn answered(&self, answer: &AnswerFacts<'_>) {
        self.0.iter().for_each(|observer| observer.answered(answer));
    }
}
