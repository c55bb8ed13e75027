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
    /// Counts from 1 within a run. A gap means a `Cut`, or progress events that a newer one replaced.
    pub number: u64,
    /// Since the run was begun.
    pub at: Duration,
    /// What happened.
    pub kind: EventKind,
}

/// A file that a run created or changed, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileNote {
    /// Where, below `/data`, for people.
    pub path: String,
    /// Where, percent-encoded; only when `path` does not lead back to the file.
    pub path_encoded: Option<String>,
    /// How long, in bytes.
    pub size: u64,
    /// What its name claims it to be.
    pub media_type: String,
    /// `created` or `changed`.
    pub change: &'static str,
    /// When its bytes were last changed, in seconds since the Unix epoch.
    pub modified_unix_s: i64,
    /// A link that downloads it without a token.
    pub url: String,
    /// Until when the link is good, in seconds since the Unix epoch.
    pub url_expires_unix_s: i64,
}

impl EventKind {
    /// Whether nothing comes after it.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Finished(_) | Self::Failed(_))
    }
}

/// What happened.
#[derive(Debug, Clone)]
pub enum EventKind {
    /// It waits for its turn.
    Queued {
        /// How many wait from it on to the front, itself included: 1 is next.
        position: u32,
    },
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
    /// It is still running: sent now and then, so that a silent program is not taken for a lost one.
    Progress {
        /// Since the program was handed over.
        wall: Duration,
        /// What it printed to standard output so far, in bytes.
        stdout_bytes: u64,
        /// What it printed to standard error so far, in bytes.
        stderr_bytes: u64,
    },
    /// It created or changed a file. Sent when the program has ended.
    File(Box<FileNote>),
    /// It ended with a verdict.
    Finished(Box<Outcome>),
    /// It could not be run or its end is not known: our failure, not the program's.
    Failed(Failure),
}
