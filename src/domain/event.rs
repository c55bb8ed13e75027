//! What happens to a run, numbered.

use std::time::Duration;

use bytes::Bytes;

use super::{error::Failure, file::FileEntry, outcome::Outcome};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    Stdout,
    Stderr,
}

/// One thing that happened to a run.
#[derive(Debug, Clone)]
pub struct Event {
    /// Counts from 1 within a run. A gap means a `Cut`, or progress events that a newer one replaced.
    pub number: u64,
    /// Since the run was begun.
    pub at: Duration,
    pub kind: EventKind,
}

impl EventKind {
    /// Whether nothing comes after it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Failed(_))
    }
}

#[derive(Debug, Clone)]
pub enum EventKind {
    /// The run waits for its turn.
    Queued {
        /// 1 is next.
        position: u32,
    },
    /// The program was handed to a sandbox.
    Started,
    /// The program printed. A UTF-8 sequence is never split between two events of one stream.
    Output(StreamKind, Bytes),
    /// Output in the middle was dropped: the kept beginning and the kept end are full.
    Cut {
        stdout_bytes: u64,
        stderr_bytes: u64,
    },
    /// Sent regularly while the program runs, so that a silent program is not taken for a lost one.
    Progress {
        /// Since the program was handed over.
        wall: Duration,
        stdout_bytes: u64,
        stderr_bytes: u64,
    },
    /// The program created or changed a file. Sent when it has ended.
    File(Box<FileEntry>),
    Finished(Box<Outcome>),
    /// The program could not be run or its end is not known: a failure of the server.
    Failed(Failure),
}
