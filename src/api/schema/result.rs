//! The result of a run, as clients see it.

use schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Ending, File};
use crate::domain::text::ms;
use crate::{
    domain::outcome::{Ended, Figures, Outcome, signal_text},
    ports::history::LineEnd,
    services::runs::Report,
};

/// The result of a run.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Identifies this run in logs.
    pub run_id: String,
    /// The conversation whose files were /data.
    pub conversation_id: String,
    /// The language's own name, also when the request used an alias.
    pub language: String,
    /// How the program ended.
    pub outcome: OutcomeResult,
    /// What the program printed to standard output. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub stdout: String,
    /// What the program printed to standard error.
    pub stderr: String,
    /// Whether some of standard output was left out; a mark in the text says where and how much.
    pub stdout_truncated: bool,
    /// Whether some of standard error was left out; a mark in the text says where and how much.
    pub stderr_truncated: bool,
    /// The resources that the run used.
    pub figures: FiguresResult,
    /// The files in /data: those this run created or changed first, then the rest.
    pub files: Vec<File>,
    /// Whether there are more files than are listed.
    pub files_truncated: bool,
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

/// The resources that a run used.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FiguresResult {
    /// Running time of the program, in milliseconds.
    pub wall_ms: u64,
    /// CPU time, in milliseconds, where it is known.
    pub cpu_ms: Option<u64>,
    /// Peak memory of its sandbox since the sandbox started, in bytes, where it is known. It includes what the
    /// interpreter has loaded and, in a session, earlier cells.
    pub memory_peak_bytes: Option<u64>,
    /// Bytes printed to standard output, kept or not.
    pub stdout_bytes: u64,
    /// Bytes printed to standard error, kept or not.
    pub stderr_bytes: u64,
    /// Number of files it created or changed, listed or not.
    pub files_changed: u64,
}

impl From<&Report> for RunResult {
    fn from(report: &Report) -> Self {
        Self {
            run_id: report.run.to_string(),
            conversation_id: report.conversation.id.to_string(),
            language: report.language.to_string(),
            outcome: (&report.outcome).into(),
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            stdout_truncated: report.stdout.truncated,
            stderr_truncated: report.stderr.truncated,
            figures: (&report.outcome.figures).into(),
            files: report.files.files.iter().map(File::from).collect(),
            files_truncated: report.files.truncated,
        }
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

impl From<&Figures> for FiguresResult {
    fn from(figures: &Figures) -> Self {
        let Figures { wall, cpu, memory_peak_bytes, stdout_bytes, stderr_bytes, files: files_changed } = *figures;
        let (wall_ms, cpu_ms) = (ms(wall), cpu.map(ms));
        Self { wall_ms, cpu_ms, memory_peak_bytes, stdout_bytes, stderr_bytes, files_changed }
    }
}
