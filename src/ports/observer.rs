//! What observers (metrics, the audit log, traces) receive. Services report facts and do not know the observers.
//!
//! An observer returns at once: it counts, or it puts a line into a queue. It neither waits nor fails.

use std::{ops::Deref, sync::Arc, time::Duration};

use crate::domain::{
    Code, ConversationKey, Failure, Figures, FileEntry, Language, Limits, Outcome, Principal, RunId, SandboxId,
    TokenId, TraceContext, id::RequestId, network::Decision, tools::ToolUse, words::words,
};

/// The trait, and several observers as one, from the list of what is observed.
macro_rules! observer {
    ($($(#[$doc:meta])* fn $name:ident($($fact:ident: $type:ty),+);)+) => {
        /// Receives facts. Every method may be called concurrently and returns at once.
        pub trait Observer: Send + Sync + 'static {
            $($(#[$doc])* fn $name(&self, $(_: $type),+) {})+
        }

        impl Observer for Observers {
            $(fn $name(&self, $($fact: $type),+) {
                self.0.iter().for_each(|observer| observer.$name($($fact),+));
            })+
        }
    };
}

observer! {
    /// A run was begun: it waits for its turn. A notebook's own code is begun when its kernel executes it.
    fn run_begun(run: &BeginFacts<'_>);
    /// A run is over: it has its outcome, or the server failed it. Called once for each run that was begun.
    fn run_over(run: &RunFacts<'_>);
    /// A run was refused before it began.
    fn refused(code: Code);
    /// A client registered, got tokens or lost its connection.
    fn signed_in(step: &SignInFacts<'_>);
    /// An operator changed something.
    fn administered(act: &AdminFacts<'_>);
    /// A connection of a sandbox is over, or was refused.
    fn connected(connection: &Decision);
    /// A call of a tool by a program is over.
    fn tool_called(call: &ToolFacts<'_>);
    /// A language is served by another image than before.
    fn runner_changed(language: &Language);
    /// A run got a sandbox. Called before the engine starts it, or when a standby is taken.
    fn sandbox_held(run: TraceContext, sandbox: SandboxId);
    /// An engine call ended.
    fn engine_called(call: &CallFacts);
    /// An HTTP request was answered.
    fn answered(answer: &AnswerFacts<'_>);
}

/// One step of sign-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignInFacts<'a> {
    pub at_unix_s: i64,
    /// `registered`, `allowed`, `redeemed`, `refreshed`, `reused` (which ends the connection), `ended`.
    pub step: &'static str,
    /// Its id; empty where it is not known.
    pub client: &'a str,
    pub connection: Option<TokenId>,
}

/// What an operator changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminFacts<'a> {
    pub at_unix_s: i64,
    pub action: AdminAction,
    /// The operator, who remembers by which token the request came.
    pub by: &'a Principal,
    /// Whose it was; `None` where that is not known.
    pub owner: Option<&'a Principal>,
    /// What it was: an id.
    pub subject: &'a str,
}

words! {
    /// What an operator may change.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum AdminAction: word {
        TokenCreated = "token_created",
        TokenRevoked = "token_revoked",
        /// By another process, as the command line.
        TokenCreatedElsewhere = "token_created_elsewhere",
        TokenRevokedElsewhere = "token_revoked_elsewhere",
        ConnectionEnded = "connection_ended",
        /// A subject of another issuer that was refused.
        SubjectAllowed = "subject_allowed",
        RunCancelled = "run_cancelled",
        SessionEnded = "session_ended",
        ConversationDeleted = "conversation_deleted",
        PolicyChanged = "network_policy_changed",
        PolicyDeleted = "network_policy_deleted",
        ToolServerChanged = "tool_server_changed",
        ToolServerDeleted = "tool_server_deleted",
        /// A person allowed a call of a tool, said no to it, or took an answer back.
        CallAllowed = "tool_call_allowed",
        CallDenied = "tool_call_denied",
        ApprovalRevoked = "approval_revoked",
        /// The server checked itself.
        Checked = "checked",
    }
}

/// One call of a tool.
#[derive(Debug, Clone, Copy)]
pub struct ToolFacts<'a> {
    pub at_unix_s: i64,
    pub conversation: &'a ConversationKey,
    pub language: &'a Language,
    pub used: &'a ToolUse,
}

/// One engine call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFacts {
    /// The verb of the engine port; for `kill` it is `signal`.
    pub operation: &'static str,
    pub sandbox: Option<SandboxId>,
    /// `ok` or [`super::engine::EngineError::word`].
    pub result: &'static str,
    pub took: Duration,
}

/// One HTTP request, when its answer begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerFacts<'a> {
    pub request: RequestId,
    pub trace: TraceContext,
    /// One of the standard methods, or `_OTHER`.
    pub method: &'static str,
    /// The pattern of the matched route, never the path that the client sent.
    pub route: Option<&'a str>,
    pub status: u16,
    /// Until the answer began.
    pub took: Duration,
    /// The length of the answer, unless it is a stream.
    pub bytes: Option<u64>,
}

/// One run that was begun.
#[derive(Debug, Clone, Copy)]
pub struct BeginFacts<'a> {
    pub run: RunId,
    pub conversation: &'a ConversationKey,
    /// It is a cell of a session.
    pub is_cell: bool,
    pub language: &'a Language,
    /// The digest of the image.
    pub image: &'a str,
    pub program: ProgramFacts<'a>,
}

/// A program. An observer may measure it; it keeps it only where a setting says so.
#[derive(Debug, Clone, Copy)]
pub struct ProgramFacts<'a> {
    pub bytes: &'a [u8],
    /// In hexadecimal digits.
    pub sha256: &'a str,
}

/// One run that is over.
#[derive(Debug, Clone)]
pub struct RunFacts<'a> {
    pub begin: BeginFacts<'a>,
    pub trace: TraceContext,
    pub args: usize,
    pub stdin_bytes: u64,
    pub limits: &'a Limits,
    pub begun_unix_s: i64,
    pub ended_unix_s: i64,
    pub stages: Stages,
    /// How the program ended, or why the server failed the run.
    pub end: Result<&'a Outcome, &'a Failure>,
    /// What a program is known to have used whose run the server failed; `None` where it had not started.
    pub lost: Option<Figures>,
    /// The created and changed files that the answer names.
    pub files: Vec<&'a FileEntry>,
    /// There were more than `files` holds.
    pub files_truncated: bool,
}

impl<'a> Deref for RunFacts<'a> {
    type Target = BeginFacts<'a>;

    fn deref(&self) -> &BeginFacts<'a> {
        &self.begin
    }
}

/// How long each stage of a run took; `None` for a stage that was not reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stages {
    /// Waiting for the conversation and a slot.
    pub queue: Option<Duration>,
    /// Taking a standby or starting a sandbox.
    pub start: Option<Duration>,
    /// The sandbox was a standby.
    pub stood_by: bool,
    /// From sending the program until its end is known.
    pub program: Option<Duration>,
    /// Listing and linking the files that it wrote.
    pub collect: Option<Duration>,
    pub total: Duration,
}

impl Stages {
    /// The stages that were reached, in their order, by the names that metrics and traces have for them.
    pub fn reached(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let began = if self.stood_by { "take" } else { "start" };
        let all = [("queue", self.queue), (began, self.start), ("program", self.program), ("collect", self.collect)];
        all.into_iter().filter_map(|(name, took)| Some((name, took?)))
    }
}

/// The state of the server at one moment, for gauges.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerGauges {
    pub load: LoadStats,
    pub sessions: SessionsLoad,
    /// Runs that wait or run.
    pub under_way: usize,
    /// Sandboxes of runs and standbys.
    pub leased: usize,
    /// Sandboxes that are released and not destroyed yet.
    pub unwanted: usize,
    /// Standbys: language, stage, count.
    pub standbys: Vec<(Language, &'static str, usize)>,
    /// Standbys that served a program since the start.
    pub standbys_taken: u64,
    /// Languages that can be run now.
    pub languages: usize,
    pub packages: PackagesCounts,
    /// How often other servers could not be told which files changed here.
    pub file_changes_unannounced: u64,
}

/// What is admitted at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadStats {
    /// Programs that may run at once.
    pub slots: usize,
    pub slots_taken: usize,
    /// Runs that wait for their conversation or a slot.
    pub waiting: usize,
    /// Owners with runs that wait or run, and how many of those the owner with the most has.
    pub owners: usize,
    pub owner_runs_max: usize,
}

/// Sessions at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionsLoad {
    pub open: usize,
    /// Their memory limits together, and those of the owner with the most.
    pub memory_bytes: u64,
    pub owner_memory_bytes_max: u64,
}

/// Installations of packages since the start, and what is kept of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackagesCounts {
    pub made: u64,
    /// For which an earlier one of the same owner was used.
    pub reused: u64,
    pub failed: u64,
    /// What is kept of all owners.
    pub trees: u64,
    pub bytes: u64,
}

/// Lines of the audit log since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AuditCounts {
    pub written: u64,
    pub lost: u64,
    /// Attempts to write that failed.
    pub errors: u64,
}

/// Lines of the history since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HistoryCounts {
    pub written: u64,
    pub lost: u64,
    /// Calls of the database that failed.
    pub errors: u64,
    /// Idempotency keys that were not stored before their run.
    pub keys_unstored: u64,
}

/// Spans of traces since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TraceCounts {
    /// Accepted by the collector.
    pub sent: u64,
    pub lost: u64,
}

/// Several observers as one, called in this order.
#[derive(Clone, Default)]
pub struct Observers(pub Vec<Arc<dyn Observer>>);
