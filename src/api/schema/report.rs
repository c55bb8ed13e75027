//! The result of a run, a run as the tools return it, whether it ended or goes on, and the notices of the feed of all
//! runs.

use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Ending, File, answers,
    run::{RunEvent, RunStatus, report},
};
use crate::{
    domain::{Ended, Figures, Outcome, outcome::signal_text, text::ms},
    ports::history::{HistoryLine, LineEnd},
    services::runs::{FeedItem, Report, RunView},
};

answers! {
    /// The result of a run.
    pub struct RunResult(report: &Report) {
        /// Identifies this run in logs.
        run_id: String = report.run.to_string(),
        /// The conversation whose files were /data.
        conversation_id: String = report.conversation.id.to_string(),
        /// The language's own name, also when the request used an alias.
        language: String = report.language.to_string(),
        /// How the program ended.
        outcome: OutcomeResult = (&report.outcome).into(),
        /// What the program printed to standard output. Bytes that are not UTF-8 are replaced by U+FFFD.
        stdout: String = report.stdout.text.clone(),
        /// What the program printed to standard error.
        stderr: String = report.stderr.text.clone(),
        /// Whether some of standard output was left out; a mark in the text says where and how much.
        stdout_truncated: bool = report.stdout.truncated,
        /// Whether some of standard error was left out; a mark in the text says where and how much.
        stderr_truncated: bool = report.stderr.truncated,
        /// The resources that the run used.
        figures: FiguresResult = (&report.outcome.figures).into(),
        /// The files in /data: those this run created or changed first, then the rest.
        files: Vec<File> = report.files.files.iter().map(File::from).collect(),
        /// Whether there are more files than are listed.
        files_truncated: bool = report.files.truncated,
    }

    /// How a program ended.
    #[derive(JsonSchema)]
    pub struct OutcomeResult(outcome: &Outcome) {
        /// One word for how it ended.
        #[schemars(extend("enum" = Ended::WORDS))]
        #[schema(value_type = Ending)]
        ended: &'static str = outcome.ended.word(),
        /// The exit status, when the program ended by itself.
        exit_code: Option<i32> = outcome.ended.status_or_signal().0,
        /// The name of the signal that ended the program, when one did.
        signal: Option<String> = outcome.ended.status_or_signal().1.map(signal_text),
        /// Whether a process was killed for lack of memory: the program itself when it ended `out_of_memory`, else only
        /// a child of it.
        oom_killed: Option<bool> = outcome.oom_killed.then_some(true),
        /// What happened and what to do about it, in one sentence.
        sentence: String = outcome.sentence(),
    }

    /// The resources that a run used.
    #[derive(JsonSchema)]
    pub struct FiguresResult(figures: &Figures) {
        /// Running time of the program, in milliseconds.
        wall_ms: u64 = ms(figures.wall),
        /// CPU time, in milliseconds, where it is known.
        cpu_ms: Option<u64> = figures.cpu.map(ms),
        /// Peak memory of its sandbox since the sandbox started, in bytes, where it is known. It includes what the
        /// interpreter has loaded and, in a session, earlier cells.
        memory_peak_bytes: Option<u64> = figures.memory_peak_bytes,
        /// Bytes printed to standard output, kept or not.
        stdout_bytes: u64 = figures.stdout_bytes,
        /// Bytes printed to standard error, kept or not.
        stderr_bytes: u64 = figures.stderr_bytes,
        /// Number of files it created or changed, listed or not.
        files_changed: u64 = figures.files,
    }
}

impl From<&LineEnd> for OutcomeResult {
    fn from(end: &LineEnd) -> Self {
        Self {
            ended: end.word.as_str(),
            exit_code: end.exit_code,
            signal: end.signal.map(signal_text),
            oom_killed: end.oom_killed.then_some(true),
            sentence: end.sentence.clone(),
        }
    }
}

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
        let files = report(view).map(|report| report.files.made().map(File::from).collect());
        Self { stdout, stderr, files: files.unwrap_or_default(), ..RunStatus::from(view).into() }
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

    #[test]
    fn recorded_run_without_an_end_is_said_to_go_on() {
        let mut line = HistoryLine::begun("c".parse().expect("a key"));
        let report = RunReport::from(&line);
        assert_eq!((report.state, report.outcome.is_none()), ("running", true));
        assert!(report.hints[0].starts_with("Another server runs it"), "{:?}", report.hints);
        line.end = Some(LineEnd::lost(0, ""));
        let report = RunReport::from(&line);
        assert!(report.hints[0].starts_with("The output is no longer kept"), "{:?}", report.hints);
    }
}
