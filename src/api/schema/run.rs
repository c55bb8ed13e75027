//! A run as clients see it while it goes on and when it is over, and what happens to it.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use utoipa::ToSchema;

use super::{FiguresResult, File, OutcomeResult, RunResult, rfc3339};
use crate::domain::text::ms;
use crate::{
    domain::{
        error::Failure,
        event::{Event, EventKind, StreamKind},
    },
    services::runs::{RunPage, RunState, RunView},
};

/// A run as it is now.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStatus {
    /// Its id.
    pub run_id: String,
    /// The conversation whose files are /data.
    pub conversation_id: String,
    /// The language's own name.
    pub language: String,
    /// Its state.
    #[schema(value_type = StateWord)]
    pub state: &'static str,
    /// Its place in the queue, counted from 1; only while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub position: Option<u32>,
    /// When it was created (RFC 3339).
    pub created_at: String,
    /// How long the program has run so far, or took, in milliseconds.
    pub wall_ms: u64,
    /// Whether its program can be sent input now.
    pub stdin_open: bool,
    /// The number of its newest event.
    pub newest_event: u64,
    /// How the program ended, once it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub outcome: Option<OutcomeResult>,
    /// What it used, once it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub figures: Option<FiguresResult>,
    /// Why the server could not run it, when that is how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<RunError>,
    /// The whole result, once it ended; not in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub result: Option<Box<RunResult>>,
}

/// The state of a run.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for the words in the API's description")]
enum StateWord {
    Queued,
    Running,
    Finished,
}

/// Why the server could not run a program.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RunError {
    /// A stable word for programs.
    pub code: &'static str,
    /// One sentence that says what to do.
    pub message: String,
}

/// A page of runs.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RunList {
    /// Newest first.
    pub runs: Vec<RunStatus>,
    /// Give it as `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub after: Option<String>,
}

/// A server-sent event.
#[derive(ToSchema)]
#[expect(dead_code, reason = "stands for the stream in the API's description")]
pub struct RunEventMessage {
    /// The event's number.
    id: String,
    /// Its kind.
    event: String,
    /// The event itself: a `RunEvent`.
    #[schema(content_media_type = "application/json")]
    data: String,
}

/// One thing that happened to a run.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunEvent {
    /// Counts from 1 within a run.
    pub number: u64,
    /// When, in milliseconds since the run was created.
    pub at_ms: u64,
    /// What happened.
    #[serde(flatten)]
    pub what: RunEventKind,
}

/// What happened.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum RunEventKind {
    /// It waits in the queue.
    Queued {
        /// Its place in the queue, counted from 1.
        position: u32,
    },
    /// The program runs.
    Started,
    /// It printed to standard output.
    Stdout(Printed),
    /// It printed to standard error.
    Stderr(Printed),
    /// Output in the middle was not kept.
    Cut {
        /// Bytes of standard output.
        stdout_bytes: u64,
        /// Bytes of standard error.
        stderr_bytes: u64,
    },
    /// It still runs.
    Progress {
        /// How long the program has run, in milliseconds.
        wall_ms: u64,
        /// Bytes it printed to standard output.
        stdout_bytes: u64,
        /// Bytes it printed to standard error.
        stderr_bytes: u64,
    },
    /// It created or changed a file.
    File {
        /// The file.
        file: File,
    },
    /// It ended.
    Finished {
        /// How it ended.
        outcome: OutcomeResult,
        /// What it used.
        figures: FiguresResult,
    },
    /// The server could not run it.
    Failed {
        /// The reason.
        error: RunError,
    },
}

/// A piece of output.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Printed {
    /// Valid UTF-8.
    Text(String),
    /// Bytes that are not UTF-8.
    Base64(String),
}

impl RunStatus {
    /// A run with its whole result.
    pub fn whole(view: &RunView) -> Self {
        let result = view.result.as_ref().and_then(|result| result.as_ref().ok());
        Self { result: result.map(|report| Box::new(RunResult::from(&**report))), ..Self::brief(view) }
    }

    /// A run without its output and files.
    pub fn brief(view: &RunView) -> Self {
        let report = view.result.as_ref().and_then(|result| result.as_ref().ok());
        let failure = view.result.as_ref().and_then(|result| result.as_ref().err());
        Self {
            run_id: view.run.to_string(),
            conversation_id: view.conversation.id.to_string(),
            language: view.language.to_string(),
            state: view.state.word(),
            position: if let RunState::Queued { position } = view.state { position } else { None },
            created_at: rfc3339(view.created_unix_s),
            wall_ms: ms(view.wall),
            stdin_open: view.takes_input,
            newest_event: view.newest,
            outcome: report.map(|report| (&report.outcome).into()),
            figures: report.map(|report| (&report.outcome.figures).into()),
            error: failure.map(RunError::from),
            result: None,
        }
    }
}

impl From<&RunPage> for RunList {
    fn from(page: &RunPage) -> Self {
        Self {
            runs: page.runs.iter().map(RunStatus::brief).collect(),
            after: page.after.as_ref().map(ToString::to_string),
        }
    }
}

impl From<&Failure> for RunError {
    fn from(failure: &Failure) -> Self {
        Self { code: failure.code.as_str(), message: failure.message.clone() }
    }
}

impl From<&Event> for RunEvent {
    fn from(event: &Event) -> Self {
        Self { number: event.number, at_ms: ms(event.at), what: RunEventKind::from(&event.kind) }
    }
}

impl From<&EventKind> for RunEventKind {
    fn from(kind: &EventKind) -> Self {
        match kind {
            EventKind::Queued { position } => Self::Queued { position: *position },
            EventKind::Started => Self::Started,
            EventKind::Output(StreamKind::Stdout, bytes) => Self::Stdout(bytes[..].into()),
            EventKind::Output(StreamKind::Stderr, bytes) => Self::Stderr(bytes[..].into()),
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                Self::Cut { stdout_bytes: *stdout_bytes, stderr_bytes: *stderr_bytes }
            }
            EventKind::Progress { wall, stdout_bytes, stderr_bytes } => {
                Self::Progress { wall_ms: ms(*wall), stdout_bytes: *stdout_bytes, stderr_bytes: *stderr_bytes }
            }
            EventKind::File(file) => Self::File { file: File::from(&**file) },
            EventKind::Finished(outcome) => {
                Self::Finished { outcome: (&**outcome).into(), figures: (&outcome.figures).into() }
            }
            EventKind::Failed(failure) => Self::Failed { error: failure.into() },
        }
    }
}

impl From<&[u8]> for Printed {
    fn from(bytes: &[u8]) -> Self {
        let text = std::str::from_utf8(bytes).map(|text| Self::Text(text.to_owned()));
        text.unwrap_or_else(|_| Self::Base64(BASE64_STANDARD.encode(bytes)))
    }
}
