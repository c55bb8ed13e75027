//! A run as clients see it while it goes on and when it is over, and what happens to it.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    ErrorCode, EventWord, FiguresResult, File, OutcomeResult, RunResult, StateWord, answers, moment,
    network::Connection,
    rfc3339,
    tools::{ApprovalResult, ToolCall},
};
use crate::{
    domain::{
        Event, EventKind, Failure,
        text::{ms, sha256},
    },
    ports::history::HistoryLine,
    services::{
        history::failure,
        runs::{Report, RunPage, RunState, RunView},
    },
};

answers! {
    /// A run as it is now.
    #[derive(Default)]
    pub struct RunStatus(view: &RunView) {
        /// Its id.
        run_id: String = view.run.to_string(),
        /// The conversation whose files are /data.
        conversation_id: String = view.conversation.id.to_string(),
        /// The language's own name.
        language: String = view.language.to_string(),
        /// Whether it is a cell of a session.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        cell: bool = view.is_cell,
        /// Its state.
        #[schema(value_type = StateWord)]
        state: &'static str = view.state.word(),
        /// Its position among the waiting runs of its owner, counted from 1; only while it waits.
        position: Option<u32> = if let RunState::Queued { position } = view.state { position } else { None },
        /// When it was created (RFC 3339).
        created_at: String = rfc3339(view.created_unix_s),
        /// How long the program has run so far, or took, in milliseconds.
        wall_ms: u64 = ms(view.wall),
        /// Whether its program can be sent input now.
        stdin_open: bool = view.takes_input,
        /// The number of its newest event.
        newest_event: u64 = view.newest,
        /// How the program ended, once it has.
        outcome: Option<OutcomeResult> = report(view).map(|report| (&report.outcome).into()),
        /// The resources it used, once it has ended.
        figures: Option<FiguresResult> = report(view).map(|report| (&report.outcome.figures).into()),
        /// Why the server could not run it, when that is how it ended.
        error: Option<RunError> = view.result.as_ref().and_then(|result| result.as_ref().err()).map(RunError::from),
        /// Whether the run is no longer in memory: this is its outcome from the history, without output and files.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        from_history: bool = false,
        /// The program, at most its first 64 KiB, when the run is read by its id.
        source: Option<String> = None,
        /// Whether the program is longer than `source`.
        source_truncated: Option<bool> = None,
        /// The whole result, once it ended; not in lists.
        result: Option<Box<RunResult>> = None,
    }

    /// Why the server could not run a program.
    pub struct RunError(failure: &Failure) {
        /// A stable word for programs.
        #[schema(value_type = ErrorCode)]
        code: &'static str = failure.code.as_str(),
        /// One sentence that says what to do.
        message: String = failure.message.clone(),
    }

    /// A page of runs.
    pub struct RunList(page: &RunPage) {
        /// Newest first.
        runs: Vec<RunStatus> = page.runs.iter().map(Into::into).collect(),
        /// Give it as `after` for the next page; absent on the last.
        after: Option<String> = page.after.as_ref().map(ToString::to_string),
    }
}

/// The events of a run: messages for a client that reads them one by one, a text for one that reads the whole stream.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum RunEventStream {
    Message(RunEventMessage),
    Text(String),
}

/// A server-sent event.
#[derive(Serialize, ToSchema)]
pub struct RunEventMessage {
    /// The event's number.
    id: String,
    #[schema(value_type = EventWord)]
    event: String,
    /// The event itself: a `RunEvent`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// One thing that happened to a run: its kind, and the members that this kind has.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunEvent {
    /// Counts from 1 within a run.
    pub number: u64,
    /// Time since the run was created, in milliseconds.
    pub at_ms: u64,
    /// What happened.
    #[schema(value_type = EventWord)]
    pub kind: &'static str,
    /// `queued`: its position among the waiting runs of its owner, counted from 1.
    pub position: Option<u32>,
    /// `stdout`, `stderr`: what it printed, when that is UTF-8.
    pub text: Option<String>,
    /// `stdout`, `stderr`: what it printed, when that is not UTF-8.
    pub base64: Option<String>,
    /// `progress`: how long the program has run, in milliseconds.
    pub wall_ms: Option<u64>,
    /// Bytes of standard output: printed (`progress`), or not kept (`cut`).
    pub stdout_bytes: Option<u64>,
    /// Bytes of standard error: printed (`progress`), or not kept (`cut`).
    pub stderr_bytes: Option<u64>,
    /// `display`, `result`, `update`: what the cell shows by media type: text as it is, pictures in base64, JSON as its
    /// text. A terminal's form of it is in `stdout` as well.
    pub data: Option<BTreeMap<String, String>>,
    /// `display`, `update`: an update replaces what was shown with the same id.
    pub display_id: Option<String>,
    /// `error`: the exception's name. Its traceback is in `stderr` without colours.
    pub name: Option<String>,
    /// `error`: the exception's text.
    pub value: Option<String>,
    /// `error`: the traceback as the kernel sends it, with a terminal's escape sequences for colours.
    pub traceback: Option<String>,
    /// `clear`: whether what was shown is removed only when something new is shown.
    pub wait: Option<bool>,
    /// `input_request`: the question. The answer is a line of standard input.
    pub prompt: Option<String>,
    /// `input_request`: whether the answer must be hidden, as a password is.
    pub password: Option<bool>,
    /// `network`: a connection that has ended or was not made.
    pub network: Option<Connection>,
    /// `tool`: a finished call of a tool.
    pub tool: Option<ToolCall>,
    /// `approval`: a question whose answer the program waits for.
    pub approval: Option<ApprovalResult>,
    /// `file`: a file that the run created or changed.
    pub file: Option<File>,
    /// `finished`: how it ended.
    pub outcome: Option<OutcomeResult>,
    /// `finished`: the resources it used.
    pub figures: Option<FiguresResult>,
    /// `failed`: why the server could not run it.
    pub error: Option<RunError>,
}

/// The kinds of events.
pub const EVENT_WORDS: [&str; 19] = [
    "queued",
    "started",
    "stdout",
    "stderr",
    "cut",
    "progress",
    "display",
    "result",
    "update",
    "error",
    "clear",
    "input_request",
    "input_answered",
    "network",
    "tool",
    "approval",
    "file",
    "finished",
    "failed",
];

/// What came of a program that the server could run.
pub(super) fn report(view: &RunView) -> Option<&Report> {
    view.result.as_ref()?.as_deref().ok()
}

impl RunStatus {
    /// A run with its whole result.
    pub fn whole(view: &RunView) -> Self {
        Self { result: report(view).map(|report| Box::new(report.into())), ..view.into() }
    }

    /// The same with its program.
    pub fn with_source(view: &RunView) -> Self {
        let (source, truncated) = (view.source.text.to_string(), view.source.truncated);
        Self { source: Some(source), source_truncated: Some(truncated), ..Self::whole(view) }
    }

    /// A run of the history. Where it has no end, another server runs it.
    pub fn recorded(line: &HistoryLine) -> Self {
        let end = line.end.as_ref();
        let error = end.and_then(failure);
        let is_told = end.filter(|_| error.is_none());
        Self {
            run_id: line.run.to_string(),
            conversation_id: line.conversation.id.to_string(),
            language: line.language.to_string(),
            cell: line.is_cell,
            state: if end.is_some() { RunState::Finished.word() } else { RunState::Running.word() },
            created_at: moment(line.run.unix_ms()),
            wall_ms: end.map_or(0, |end| ms(end.figures.wall)),
            outcome: is_told.map(OutcomeResult::from),
            figures: is_told.map(|end| (&end.figures).into()),
            error: error.as_ref().map(RunError::from),
            from_history: true,
            source: line.source.clone(),
            source_truncated: line.source.as_ref().map(|source| sha256(source.as_bytes()) != line.program_sha256),
            ..Self::default()
        }
    }
}

impl From<&Event> for RunEvent {
    fn from(event: &Event) -> Self {
        let of = |kind| Self { number: event.number, at_ms: ms(event.at), kind, ..Self::default() };
        match &event.kind {
            EventKind::Queued { position } => Self { position: Some(*position), ..of("queued") },
            EventKind::Started => of("started"),
            EventKind::Output(stream, bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => Self { text: Some(text.to_owned()), ..of(stream.word()) },
                Err(_) => Self { base64: Some(BASE64_STANDARD.encode(bytes)), ..of(stream.word()) },
            },
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                Self { stdout_bytes: Some(*stdout_bytes), stderr_bytes: Some(*stderr_bytes), ..of("cut") }
            }
            EventKind::Progress { wall, stdout_bytes, stderr_bytes } => Self {
                wall_ms: Some(ms(*wall)),
                stdout_bytes: Some(*stdout_bytes),
                stderr_bytes: Some(*stderr_bytes),
                ..of("progress")
            },
            EventKind::Display(display) => Self {
                data: Some(display.data.iter().cloned().collect()),
                display_id: display.display_id.clone(),
                ..of(display.kind.word())
            },
            EventKind::Error { name, value, traceback } => Self {
                name: Some(name.clone()),
                value: Some(value.clone()),
                traceback: Some(traceback.clone()).filter(|traceback| !traceback.is_empty()),
                ..of("error")
            },
            EventKind::Clear { wait } => Self { wait: Some(*wait), ..of("clear") },
            EventKind::InputRequest { prompt, password } => {
                Self { prompt: Some(prompt.clone()), password: Some(*password), ..of("input_request") }
            }
            EventKind::InputAnswered => of("input_answered"),
            EventKind::Network(used) => Self { network: Some((&**used).into()), ..of("network") },
            EventKind::Tool(used) => Self { tool: Some((&**used).into()), ..of("tool") },
            EventKind::Approval(question) => Self { approval: Some((&**question).into()), ..of("approval") },
            EventKind::File(file) => Self { file: Some(File::from(&**file)), ..of("file") },
            EventKind::Finished(outcome) => {
                Self { outcome: Some((&**outcome).into()), figures: Some((&outcome.figures).into()), ..of("finished") }
            }
            EventKind::Failed(failure) => Self { error: Some(failure.into()), ..of("failed") },
        }
    }
}
