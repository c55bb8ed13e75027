//! The state of a sandbox: its command line, phase, exit report and time limits. No behaviour.

use std::{
    ffi::OsString,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    figures::{Counters, Figures},
    process_tree::ExitStatus,
};

/// How long a killed process may take to be gone (it may sit in the kernel) before the exit is reported without it.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Interval at which the remaining processes are killed again.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(20);

/// How long the server may take nothing of what is left to send, after the program is gone.
pub(super) const SEND_LIMIT: Duration = Duration::from_secs(30);

/// The parsed command line.
#[derive(Debug)]
pub struct Options {
    /// The program's file.
    pub program: PathBuf,
    /// The folder whose files come from the server and go back to it.
    pub data: PathBuf,
    /// Whether the interpreter is started before the program is known.
    pub warm: bool,
    /// Whether one that loads nothing stands by too, until the other is warm.
    pub spare: bool,
    /// What makes a warm interpreter the kernel of a session; without it every session starts the bridge.
    pub kernel_program: Option<PathBuf>,
    /// The interpreter and its arguments, at least one word.
    pub command: Vec<OsString>,
}

/// How this process exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The run was reported, or no program was requested.
    Done,
    /// The request was invalid, or the server is gone.
    Failed,
}

/// The payload of the frame EXIT.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exit {
    #[serde(flatten)]
    pub(super) status: ExitStatus,
    #[serde(flatten)]
    pub(super) figures: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) killed_by: Option<&'static str>,
}

/// The phase of the sandbox.
#[derive(Debug)]
pub(super) enum Phase {
    /// No program yet.
    Standby,
    /// The program runs.
    Running { before: Counters, deadline: Option<Instant> },
    /// All processes are killed; their remaining output is being read. `gone` once they have ended.
    Ending { before: Counters, since: Instant, gone: bool },
    /// The last frame is in the outbox.
    Sending { verdict: Verdict },
}

/// An event source of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Frames,
    Children,
    Server,
    Stdin,
    Stdout,
    Stderr,
    Control,
    Successor,
    Port,
    FromChannels,
    ToChannels,
}
