//! A run as the tools return it, whether it ended or goes on, and the notices of the feed of all runs.

use schemars::JsonSchema;
use serde::Serialize;

use super::{FiguresResult, File, OutcomeResult, run::RunEvent};
use crate::services::runs::{CapturedOutput, FeedItem, Report, RunState, RunView};

/// A run: its result, or its state so far.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// Identifies this run: for `get_run` and `cancel_run` while it goes on, and in logs.
    pub run_id: String,
    /// The conversation whose files are /data.
    pub conversation_id: String,
    /// The language's own name, also when the request used an alias.
    pub language: String,
    /// Where it is on its way. Only a finished run has outcome, figures and files.
    #[schemars(extend("enum" = ["queued", "running", "finished"]))]
    pub state: &'static str,
    /// The number of its newest event: give it to `get_run` as afterEvent to see only what is printed later.
    pub newest_event: u64,
    /// How the program ended, once it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "OutcomeResult")]
    pub outcome: Option<OutcomeResult>,
    /// What the program printed to standard output: all of it when it ended, else what came after the event that was
    /// asked for. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub stdout: String,
    /// What the program printed to standard error, in the same way.
    pub stderr: String,
    /// Some of standard output was not kept; a mark in the text says where and how much.
    pub stdout_truncated: bool,
    /// Some of standard error was not kept; a mark in the text says where and how much.
    pub stderr_truncated: bool,
    /// What the run used, once it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "FiguresResult")]
    pub figures: Option<FiguresResult>,
    /// The files in /data: those this run created or changed first, then the rest. Empty until the program has ended.
    pub files: Vec<File>,
    /// There are more files than are listed.
    pub files_truncated: bool,
}

impl RunReport {
    /// A run that is over.
    pub fn finished(report: &Report, newest_event: u64) -> Self {
        Self {
            run_id: report.run.to_string(),
            conversation_id: report.conversation.id.to_string(),
            language: report.language.to_string(),
            state: RunState::Finished.word(),
            newest_event,
            outcome: Some((&report.outcome).into()),
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            stdout_truncated: report.stdout.truncated,
            stderr_truncated: report.stderr.truncated,
            figures: Some((&report.outcome.figures).into()),
            files: report.files.files.iter().map(File::from).collect(),
            files_truncated: report.files.truncated,
        }
    }

    /// A run that goes on, with some of what it printed so far.
    pub fn so_far(view: &RunView, (stdout, stderr): (CapturedOutput, CapturedOutput)) -> Self {
        Self {
            run_id: view.run.to_string(),
            conversation_id: view.conversation.id.to_string(),
            language: view.language.to_string(),
            state: view.state.word(),
            newest_event: view.newest,
            outcome: None,
            stdout: stdout.text,
            stderr: stderr.text,
            stdout_truncated: stdout.truncated,
            stderr_truncated: stderr.truncated,
            figures: None,
            files: Vec::new(),
            files_truncated: false,
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
