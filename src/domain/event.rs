//! What happens to a run, numbered.

use std::time::Duration;

use bytes::Bytes;

use super::{
    error::Failure,
    file::FileEntry,
    network::NetworkUse,
    outcome::Outcome,
    tools::{Approval, ToolUse},
    words::words,
};

words! {
    /// Where a program prints.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum StreamKind: word {
        Stdout = "stdout",
        Stderr = "stderr",
    }
}

words! {
    /// Why a cell shows something.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum DisplayKind: word {
        Display = "display",
        /// The value of the cell's last expression.
        Result = "result",
        /// It replaces what was shown with the same display id.
        Update = "update",
    }
}

/// Something that a cell shows, in one or more media types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Display {
    pub kind: DisplayKind,
    /// Media types and contents: text as it is, pictures in base64, JSON as its text.
    pub data: Vec<(String, String)>,
    pub display_id: Option<String>,
}

impl Display {
    /// What it costs to keep, in bytes.
    pub fn bytes(&self) -> usize {
        let data = self.data.iter().map(|(media_type, content)| media_type.len() + content.len());
        data.sum::<usize>() + self.display_id.as_ref().map_or(0, String::len)
    }
}

/// One thing that happened to a run.
#[derive(Debug, Clone)]
pub struct Event {
    /// Counts from 1 within a run. A gap means a `Cut`, pieces of output that were joined to the
    /// next one, or progress events that a newer one replaced.
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
        /// Among the waiting runs of the owner: 1 is next.
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
    /// A cell shows something, or its last expression has a value: more forms of what its output holds as text.
    Display(Box<Display>),
    /// A cell ended with an exception; its traceback is in the standard error without its colours.
    Error {
        name: String,
        value: String,
        /// As the kernel sends it, with escape sequences for colours. Empty where the kernel sends none, and where the
        /// cell has shown too much.
        traceback: String,
    },
    /// What the cell has shown so far is out of date. With `wait`, once something new is shown.
    Clear {
        wait: bool,
    },
    /// The cell waits for a line of input.
    InputRequest {
        prompt: String,
        password: bool,
    },
    /// The newest request for input was answered, by any client; what was typed is not told.
    InputAnswered,
    /// A connection of the program is over, or was refused.
    Network(Box<NetworkUse>),
    /// A call of a tool by the program is over.
    Tool(Box<ToolUse>),
    /// The program waits until a person says whether a call may be made.
    Approval(Box<Approval>),
    /// The program created or changed a file. Sent when it has ended.
    File(Box<FileEntry>),
    Finished(Box<Outcome>),
    /// The program could not be run or its end is not known: a failure of the server.
    Failed(Failure),
}
