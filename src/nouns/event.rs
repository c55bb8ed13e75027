//! What happens to a run, numbered.

use std::time::Duration;

use bytes::Bytes;

use super::{error::Failure, outcome::Outcome};

/// Which of a program's two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One thing that happened to a run.
#[derive(Debug, Clone)]
pub struct Event {
    /// Counts from 1 within a run, without gaps; a reader that sees a gap was told of a cut.
    pub number: u64,
    /// Since the run was begun.
    pub at: Duration,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// It waits for its turn.
    Queued,
    /// The program was handed to a sandbox.
    Started,
    /// The program printed. A UTF-8 sequence is never split between two events of one stream.
    Output(StreamKind, Bytes),
    /// Output in the middle was dropped: the kept beginning and the kept end are full.
    Cut {
        /// Dropped bytes of standard output.
        stdout_bytes: u64,
        /// Dropped bytes of standard error.
        stderr_bytes: u64,
    },
    /// It ended with a verdict.
    Finished(Box<Outcome>),
    /// It could not be run or its end is not known: our failure, not the program's.
    Failed(Failure),
}
