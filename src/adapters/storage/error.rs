//! Why the store did not do it, in the system's words for logs and in ours for clients.

use std::io;

use rustix::io::Errno;

use super::RootError;
use crate::domain::error::{Code, Failure};

/// Why the store did not do it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The root folder cannot be used: only at start.
    #[error(transparent)]
    Root(#[from] RootError),
    /// Nothing has that path.
    #[error("no such file")]
    NotFound,
    /// A folder, a link, a pipe, a socket or a device has that path.
    #[error("not a plain file")]
    NotAFile,
    /// A folder has the path that a file should get.
    #[error("a folder is in the way")]
    FolderInTheWay,
    /// A file or a link has the path that a folder should get.
    #[error("a file or link is where a folder should be")]
    FolderBlocked,
    /// A name longer than this file system takes.
    #[error("a name in the path is too long for the disk")]
    NameTooLong,
    /// The program took our right to it away, and we are not root.
    #[error("no right to {act} it")]
    Denied {
        /// The verb that was tried.
        act: &'static str,
    },
    /// The disk or the quota is full.
    #[error("no space to {act} it")]
    NoSpace {
        /// The verb that was tried.
        act: &'static str,
    },
    /// Anything else.
    #[error("cannot {act} it")]
    Io {
        /// The verb that was tried.
        act: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl StoreError {
    pub(super) fn new(act: &'static str, errno: Errno) -> Self {
        match errno {
            Errno::NOENT => Self::NotFound,
            // A name that the file system cannot hold is a name that nothing has.
            Errno::NAMETOOLONG if act == "open" => Self::NotFound,
            Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::ISDIR | Errno::NODEV => Self::NotAFile,
            Errno::NOTDIR => Self::FolderBlocked,
            Errno::ACCESS | Errno::PERM | Errno::ROFS => Self::Denied { act },
            Errno::NAMETOOLONG => Self::NameTooLong,
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Self::NoSpace { act },
            other => Self::Io { act, source: other.into() },
        }
    }

    /// What a client is told: no host path.
    pub fn failure(&self) -> Failure {
        match self {
            Self::NotFound => Failure::new(
                Code::FileNotFound,
                "There is no such file in the conversation: list its files to see what is there.",
            ),
            Self::NotAFile => Failure::new(
                Code::NotAFile,
                "That path is not a plain file but a folder, a link, a pipe, a socket or a device, and only plain \
                 files can be read.",
            ),
            Self::FolderInTheWay => Failure::new(
                Code::NotAFile,
                "A folder already has that path: choose another path or delete the folder first.",
            ),
            Self::FolderBlocked => Failure::new(
                Code::NotAFile,
                "A part of the path that should be a folder is a file or a link: choose another path or delete it \
                 first.",
            ),
            Self::NameTooLong => {
                Failure::argument("path", "a name in it is longer than the disk takes: give a shorter one")
            }
            Self::Denied { act } => Failure::new(
                Code::Forbidden,
                format!("The server has no right to {act} that file: let a program change its rights or remove it."),
            ),
            Self::NoSpace { .. } => Failure::new(
                Code::NoSpace,
                "No room is left on the disk: delete files, or the operator must free space.",
            ),
            Self::Root(_) => Failure::new(Code::Internal, "The server has no folder for files: its log says why."),
            Self::Io { act, .. } => {
                Failure::new(Code::Internal, format!("The server could not {act} that file: its log says why."))
            }
        }
    }
}
