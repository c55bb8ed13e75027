//! What Piston's clients get for a program.

use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    domain::{
        event::{Event, EventKind},
        outcome::{Ended, signal_text},
        text::{cut_mark, ms},
    },
    services::runs::Report,
};

/// The result of an execution.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PistonExecuted)]
pub(super) struct Executed {
    /// The run stage; there is no other.
    run: Stage,
    /// The language's own name.
    language: String,
    /// Its version.
    version: String,
}

/// A stage.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = PistonStage)]
struct Stage {
    /// What it printed to standard output.
    stdout: String,
    /// What it printed to standard error.
    stderr: String,
    /// Both, in the order in which they were printed.
    output: String,
    /// The exit status; null when a signal or a limit ended it.
    code: Option<i32>,
    /// The signal that ended it, or null.
    signal: Option<String>,
    /// A sentence about the failure, if it failed.
    message: Option<String>,
    /// Two letters for the failure, if it failed: RE for a nonzero exit status, SG for a signal, TO for the time limit,
    /// OL and EL for the limit on output.
    status: Option<&'static str>,
    /// CPU time in milliseconds, where it is known.
    cpu_time: Option<u64>,
    /// Wall clock in milliseconds.
    wall_time: u64,
    /// Peak memory of its sandbox, in bytes, where it is known.
    memory: Option<u64>,
}

impl Executed {
    pub(super) fn new(report: &Report, events: Vec<Event>, version: String) -> Self {
        let outcome = &report.outcome;
        let figures = &outcome.figures;
        let stopped = || (None, Some("SIGKILL".to_owned()));
        let ((code, signal), status) = match outcome.ended {
            Ended::Exited { code: 0 } => ((Some(0), None), None),
            Ended::Exited { code } => ((Some(code), None), Some("RE")),
            Ended::ProcessLimit => ((Some(1), None), Some("RE")),
            Ended::Signaled { signal } => ((None, Some(signal_text(signal))), Some("SG")),
            Ended::TimedOut => (stopped(), Some("TO")),
            Ended::OutputLimit if figures.stderr_bytes > figures.stdout_bytes => (stopped(), Some("EL")),
            Ended::OutputLimit => (stopped(), Some("OL")),
            Ended::OutOfMemory | Ended::DiskLimit(_) | Ended::Cancelled => (stopped(), Some("SG")),
        };
        let run = Stage {
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            output: output(events),
            code,
            signal,
            message: status.map(|_| outcome.sentence()),
            status,
            cpu_time: figures.cpu.map(ms),
            wall_time: ms(figures.wall),
            memory: figures.memory_peak_bytes,
        };
        Self { run, language: report.language.to_string(), version }
    }
}

fn output(events: Vec<Event>) -> String {
    let mut bytes = Vec::new();
    for event in events {
        match event.kind {
            EventKind::Output(_, piece) => bytes.extend_from_slice(&piece),
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                bytes.extend_from_slice(cut_mark(stdout_bytes + stderr_bytes).as_bytes());
            }
            _ => {}
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
