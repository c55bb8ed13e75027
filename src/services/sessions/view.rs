//! A session as callers see it: its initial state, which a restart keeps, its state, and how it ended.

use std::time::Duration;

use super::display::DisplayFile;
use crate::{
    domain::{
        Code, ConversationKey, DiskLimit, Ended, Environment, Failure, Language, Limits, Outcome, SessionId,
        words::words,
    },
    services::files::Returned,
};

/// What a session begins with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Setup {
    /// Added to its environment.
    pub env: Environment,
    /// The network policies that it wants; `None`: all that hold for it.
    pub network: Option<Vec<String>>,
}

impl Setup {
    /// Whether a session that is open is what this asks for; what it does not say is not asked for.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what is different.
    pub(super) fn check_same(&self, open: &Self) -> Result<(), Failure> {
        let argument = if !self.env.is_empty() && open.env != self.env {
            "env"
        } else if self.network.is_some() && open.network != self.network {
            "network"
        } else {
            return Ok(());
        };
        Err(Failure::argument(argument, "the session is open, with what it began with: close it first"))
    }
}

/// Why a session is no longer there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    Closed,
    /// An operator ended it.
    Operator,
    Restarted,
    Idle,
    Age,
    /// Another session needed its memory.
    Memory,
    /// The kernel ended in a cell or between two.
    Kernel(Ended),
    /// The engine lost it, the image broke its contract, or the bridge gave its kernel up.
    Lost,
    /// A cell did not obey its interrupt.
    Killed,
    /// Its sandbox took no messages for the interpreter any more.
    Unresponsive,
    /// What it left running between its cells wrote on beyond a limit.
    DiskLimit(DiskLimit),
    /// The server that had it stopped or died.
    Server,
}

impl SessionEnd {
    /// What happened, for a model or a person.
    pub fn sentence(self) -> String {
        let why = self.reason();
        format!("The session ended because {why}: its variables are gone, the files in /data are still there.")
    }

    /// Whether this server reports it to the next caller: its callers did not end it. What a server left is reported by
    /// what is recorded.
    pub(super) fn is_news(self) -> bool {
        !matches!(self, Self::Closed | Self::Restarted | Self::Server)
    }

    /// Whether only a session ends so that runs no cell.
    pub(super) fn spares_cells(self) -> bool {
        matches!(self, Self::Idle | Self::Age | Self::Memory)
    }

    /// How the cell ended that was executed then.
    ///
    /// # Errors
    /// [`Code::EngineLost`] when that is not known.
    pub(in crate::services) fn of_cell(self) -> Result<Ended, Failure> {
        match self {
            Self::Kernel(ended) => Ok(ended),
            Self::Lost => {
                let why = "The sandbox of the session was lost while the cell ran, so how it ended is not known; it \
                           was not executed again.";
                Err(Failure::new(Code::EngineLost, why))
            }
            Self::Unresponsive => Ok(Ended::TimedOut),
            _ => Ok(Ended::Cancelled),
        }
    }

    /// Why, in some words.
    pub fn reason(self) -> String {
        match self {
            Self::Closed => "it was closed".to_owned(),
            Self::Operator => "an operator ended it".to_owned(),
            Self::Restarted => "it was restarted".to_owned(),
            Self::Idle => "it was not used for too long".to_owned(),
            Self::Age => "it reached its greatest age".to_owned(),
            Self::Memory => "its memory was needed for another session".to_owned(),
            Self::Kernel(Ended::OutOfMemory) => "its memory limit was reached".to_owned(),
            Self::Kernel(Ended::Exited { code }) => format!("its interpreter ended with status {code}"),
            Self::Kernel(Ended::Signaled { signal }) => format!("its interpreter was ended by signal {signal}"),
            Self::Kernel(_) => "its interpreter ended".to_owned(),
            Self::Lost => "its sandbox was lost".to_owned(),
            Self::Killed => "a cell did not react to its interrupt".to_owned(),
            Self::Unresponsive => "its interpreter took no messages any more".to_owned(),
            Self::DiskLimit(DiskLimit::Free { .. }) => {
                "it wrote on between its cells while the server's disk was nearly full".to_owned()
            }
            Self::DiskLimit(DiskLimit::Closed) => {
                "it closed a folder between its cells, so that the size of its files was not known".to_owned()
            }
            Self::DiskLimit(_) => {
                "it wrote on between its cells beyond the limit of its conversation's files".to_owned()
            }
            Self::Server => "its server stopped".to_owned(),
        }
    }
}

words! {
    /// What a session does now.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SessionState: word {
        Idle = "idle",
        /// A cell runs.
        Busy = "busy",
    }
}

/// A session at one moment.
#[derive(Debug, Clone)]
pub struct SessionView {
    pub session: SessionId,
    /// The conversation whose files are `/data`.
    pub conversation: ConversationKey,
    pub language: Language,
    pub state: SessionState,
    pub created_unix_s: i64,
    /// How long it has not been used.
    pub idle: Duration,
    /// Cells that were executed.
    pub cells: u64,
    /// Its memory limit, in bytes.
    pub memory_bytes_max: u64,
}

/// How a cell ended.
pub(in crate::services) struct CellEnd {
    /// Without what it printed.
    pub outcome: Outcome,
    /// What came back of its files, where they travel.
    pub returned: Option<Result<Returned, Failure>>,
    /// What is to be stored as files.
    pub display_files: Vec<DisplayFile>,
}

impl CellEnd {
    /// It was cancelled before it was handed over.
    pub(super) fn before_it_began(limits: &Limits) -> Self {
        Self { outcome: Outcome::not_begun(*limits), returned: None, display_files: Vec::new() }
    }
}
