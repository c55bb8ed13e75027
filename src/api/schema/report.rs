//! A run as the tools return it, whether it ended or goes on, and the notices of the feed of all runs.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    FiguresResult, File, OutcomeResult,
    run::{RunEvent, RunStatus},
};
use crate::{
    ports::history::HistoryLine,
    services::runs::{FeedItem, RunView},
};

/// A run: its result, or its state so far. What a program printed comes first, because clients show a beginning.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunReport {
    /// What the program printed to standard output; a mark says where some is left out. Bytes that are not UTF-8 are
    /// replaced by U+FFFD.
    pub stdout: String,
    /// What the program printed to standard error, in the same way.
    pub stderr: String,
    /// How the program ended, once it has.
    pub outcome: Option<OutcomeResult>,
    /// Advice about the result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
    /// The state of the run. Only a finished run has outcome, figures and files.
    #[schemars(extend("enum" = ["queued", "running", "finished"]))]
    pub state: &'static str,
    /// Identifies this run.
    pub run_id: String,
    /// The conversation whose files are /data.
    pub conversation_id: String,
    /// The language's own name.
    pub language: String,
    /// The number of its newest event: give it as afterEvent to see only what is printed later.
    pub newest_event: u64,
    /// The files in /data that this run created or changed.
    pub files: Vec<File>,
    /// The resources that the run used, once it has ended.
    pub figures: Option<FiguresResult>,
}

impl RunReport {
    /// A run as it is, with some of what it printed.
    pub fn of(view: &RunView, stdout: String, stderr: String) -> Self {
        let report = view.result.as_ref().and_then(|result| result.as_ref().ok());
        let files = report.map(|report| report.files.made().map(File::from).collect());
        Self { stdout, stderr, files: files.unwrap_or_default(), ..RunStatus::brief(view).into() }
    }
}

impl From<RunStatus> for RunReport {
    fn from(status: RunStatus) -> Self {
        let RunStatus { outcome, state, run_id, conversation_id, language, newest_event, figures, .. } = status;
        Self { outcome, state, run_id, conversation_id, language, newest_event, figures, ..Self::default() }
    }
}

impl From<&HistoryLine> for RunReport {
    /// A run that is no longer in memory.
    fn from(line: &HistoryLine) -> Self {
        let id = &line.conversation.id;
        let hint = if line.end.is_some() {
            format!("The output is no longer kept; files are still in /data of the conversationId {id}")
        } else {
            "Another server runs it: ask again later how it ended".to_owned()
        };
        Self { hints: vec![hint], ..RunStatus::recorded(line).into() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        domain::id::{InstanceId, Language, RunId},
        ports::history::LineEnd,
    };

    #[test]
    fn recorded_run_without_an_end_is_said_to_go_on() {
        let mut line = HistoryLine {
            run: RunId::new(),
            conversation: "c".parse().expect("a key"),
            token: None,
            is_cell: false,
            language: Language::default(),
            image: String::new(),
            program_sha256: String::new(),
            source: None,
            instance: InstanceId::new(),
            end: None,
        };
        let report = RunReport::from(&line);
        assert_eq!((report.state, report.outcome.is_none()), ("running", true));
        assert!(report.hints[0].starts_with("Another server runs it"), "{:?}", report.hints);
        line.end = Some(LineEnd::lost(0, ""));
        let report = RunReport::from(&line);
        assert!(report.hints[0].starts_with("The output is no longer kept"), "{:?}", report.hints);
    }
}
