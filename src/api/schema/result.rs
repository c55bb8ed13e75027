//! The result of a run, as clients see it.

use schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Ending, File, answers};
use crate::{
    domain::{
        outcome::{Ended, Figures, Outcome, signal_text},
        text::ms,
    },
    ports::history::LineEnd,
    services::runs::Report,
};

answers! {
    /// The result of a run.
    #[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
    #[serde(rename_all = "camelCase")]
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
}

/// How a program ended.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeResult {
    /// One word for how it ended.
    #[schemars(extend("enum" = Ended::WORDS))]
    #[schema(value_type = Ending)]
    pub ended: &'static str,
    /// The exit status, when the program ended by itself.
    pub exit_code: Option<i32>,
    /// The name of the signal that ended the program, when one did.
    pub signal: Option<String>,
    /// Whether a process was killed for lack of memory: the program itself when it ended `out_of_memory`, else only a
    /// child of it.
    pub oom_killed: Option<bool>,
    /// What happened and what to do about it, in one sentence.
    pub sentence: String,
}

answers! {
    /// The resources that a run used.
    #[serde_with::skip_serializing_none]
    #[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
    #[serde(rename_all = "camelCase")]
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

impl From<&Outcome> for OutcomeResult {
    fn from(outcome: &Outcome) -> Self {
        let (exit_code, signal) = match outcome.ended {
            Ended::Exited { code } => (Some(code), None),
            Ended::Signaled { signal } => (None, Some(signal_text(signal))),
            _ => (None, None),
        };
        Self {
            ended: outcome.ended.word(),
            exit_code,
            signal,
            oom_killed: outcome.oom_killed.then_some(true),
            sentence: outcome.sentence(),
        }
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
