//! What happens to a run, and the notices of the feed of all runs.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    EventWord, File,
    network::Connection,
    run::{FiguresResult, OutcomeResult, RunError},
    tools::{ApprovalResult, ToolCall},
};
use crate::{
    domain::{Event, EventKind, text::ms},
    services::runs::FeedItem,
};

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

/// A notice of the feed, as the parameters of a notification.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub enum FeedNotice {
    /// Something happened to a run.
    Run {
        run_id: String,
        /// The conversation whose files are /data.
        conversation_id: String,
        event: Box<RunEvent>,
    },
    /// Notices were dropped.
    Missed {
        /// How many, if that is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        notices: Option<u64>,
    },
}

impl FeedNotice {
    /// The name of the notification.
    pub fn method(&self) -> &'static str {
        match self {
            Self::Run { .. } => "notifications/sandbox/run",
            Self::Missed { .. } => "notifications/sandbox/missed",
        }
    }
}

impl From<&FeedItem> for FeedNotice {
    fn from(item: &FeedItem) -> Self {
        match item {
            FeedItem::Event { run, conversation, event } => Self::Run {
                run_id: run.to_string(),
                conversation_id: conversation.id.to_string(),
                event: Box::new(event.into()),
            },
            FeedItem::Missed { notices } => Self::Missed { notices: Some(*notices) },
        }
    }
}
