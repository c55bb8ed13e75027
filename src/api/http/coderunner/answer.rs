//! Answers in CodeRunner's form.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    domain::{
        error::Failure,
        outcome::{Ended, Figures},
        text::rfc3339,
    },
    services::runs::{Report, RunView},
};

/// A program that was run. Times are in seconds.
#[derive(Debug, Default, Serialize)]
pub(super) struct Executed {
    stdout: String,
    stderr: String,
    execution_time: f64,
    cpu_time: f64,
}

/// A refusal: the members of each of CodeRunner's answers, so that any of its clients finds what it reads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CodeRunnerRefusal {
    pub status: &'static str,
    pub error: String,
    pub detail: String,
    pub code: &'static str,
    pub request_id: String,
    #[serde(flatten)]
    executed: Executed,
}

impl CodeRunnerRefusal {
    pub fn new(code: &'static str, message: String, request_id: String) -> Self {
        let executed = Executed { stderr: message.clone(), ..Executed::default() };
        Self { status: "error", error: message.clone(), detail: message, code, request_id, executed }
    }
}

/// Wall clock and CPU time.
fn seconds(figures: &Figures) -> (f64, f64) {
    (figures.wall.as_secs_f64(), figures.cpu.unwrap_or_default().as_secs_f64())
}

/// What the program printed to standard error, and what stopped it where that does not say so.
pub(in crate::api::http) fn stderr(report: &Report) -> String {
    let mut text = report.stderr.text.clone();
    let is_said = match report.outcome.ended {
        Ended::Exited { code: 0 } => true,
        Ended::Exited { .. } => !text.is_empty(),
        _ => false,
    };
    if !is_said {
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&report.outcome.sentence());
    }
    text
}

impl From<&Report> for Executed {
    fn from(report: &Report) -> Self {
        let (execution_time, cpu_time) = seconds(&report.outcome.figures);
        Self { stdout: report.stdout.text.clone(), stderr: stderr(report), execution_time, cpu_time }
    }
}

/// A task of `execute_async`.
pub(super) fn task(view: &RunView) -> Value {
    let (stdout, stderr, times) = match &view.result {
        None => Default::default(),
        Some(Ok(report)) => (report.stdout.text.clone(), stderr(report), Some(seconds(&report.outcome.figures))),
        Some(Err(Failure { message, .. })) => (String::new(), message.clone(), None),
    };
    let (wall, cpu) = times.unzip();
    json!({
        "task_id": view.run.to_string(),
        "is_complete": view.result.is_some(),
        "serialized_stdout": stdout,
        "serialized_stderr": stderr,
        "execution_time": wall,
        "cpu_time": cpu,
        "created_at": rfc3339(view.created_unix_s),
    })
}
