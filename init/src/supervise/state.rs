//! What a sandbox knows of itself: what it was asked on the command line, where it stands, how it ends, and how long
//! each of that may take. No acts.

use std::{
    ffi::OsString,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    figures::{Counters, Figures},
    process_tree::Ending,
};

/// How long a killed process may take to be gone (it may sit in the kernel) before the end is told without it.
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(5);

/// How often what is left is killed again meanwhile.
pub(super) const KILL_AGAIN: Duration = Duration::from_millis(20);

/// How long the server may take nothing of what is left to send, after the program is gone.
pub(super) const SEND_LIMIT: Duration = Duration::from_secs(30);

/// What the command line says.
#[derive(Debug)]
pub struct Setting {
    /// The program's file.
    pub program: PathBuf,
    /// Whether the interpreter is started before the program is known.
    pub warm: bool,
    /// Whether one that loads nothing stands by too, until the other has loaded everything.
    pub spare: bool,
    /// The interpreter and its arguments, at least one word.
    pub command: Vec<OsString>,
}

/// How this process is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All is said, or nobody wanted anything.
    Done,
    /// The request was broken, or nobody listens any more.
    Failed,
}

/// The payload of the frame EXIT.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Exit<'a> {
    #[serde(flatten)]
    pub(super) ending: Ending,
    #[serde(flatten)]
    pub(super) figures: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) killed_by: Option<&'a str>,
}

/// Where the sandbox stands.
#[derive(Debug)]
pub(super) enum Phase {
    /// No program yet.
    Standby,
    /// The program runs.
    Running { before: Counters, deadline: Option<Instant> },
    /// Everything is killed; what it wrote is still on its way. Nothing more comes when all are gone.
    Ending { before: Counters, since: Instant, gone: bool },
    /// The last frame is in the outbox.
    Sending { verdict: Verdict, since: Instant },
}

/// What the loop woke for.
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
}
