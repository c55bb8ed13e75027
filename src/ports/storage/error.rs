//! Why a step on storage failed, and what clients see of it.

use std::io;

use crate::domain::{Code, Failure};

/// Why a step on storage failed. `act` is the verb that was tried.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("no such file")]
    NotFound,
    #[error("not a plain file")]
    NotAFile,
    #[error("a folder already has that path")]
    FolderInTheWay,
    #[error("a file already has that path")]
    FileInTheWay,
    #[error("a file or link is where a folder should be")]
    FolderBlocked,
    #[error("a name in the path is too long for the disk")]
    NameTooLong,
    /// A program changed the mode, and this process is not root.
    #[error("permission denied to {act} the file")]
    Denied { act: &'static str },
    /// A program holds a lease on it (`F_SETLEASE`), or keeps moving the folders on the way.
    #[error("a program keeps the server from it: cannot {act} the file")]
    Busy { act: &'static str },
    #[error("no space left to {act} the file")]
    NoSpace { act: &'static str },
    #[error("cannot {act} the file")]
    Io { act: &'static str, source: io::Error },
}

pub type FsResult<T> = Result<T, StorageError>;

impl StorageError {
    /// The failure for a client: no path of this host.
    pub fn failure(&self) -> Failure {
        let (code, sentence) = match self {
            Self::NotFound => {
                (Code::FileNotFound, "There is no such file in the conversation: list its files to see what is there.")
            }
            Self::NotAFile => (
                Code::NotAFile,
                "That path is not a plain file but a folder, a link, a pipe, a socket or a device, and only plain \
                 files can be read.",
            ),
            Self::FolderInTheWay => {
                (Code::NotAFile, "A folder already has that path: choose another path or delete the folder first.")
            }
            Self::FileInTheWay => (
                Code::PreconditionFailed,
                "A file already has that path: choose another path, or have a file replace it.",
            ),
            Self::FolderBlocked => (
                Code::NotAFile,
                "A part of the path that should be a folder is a file or a link: choose another path or delete it \
                 first.",
            ),
            Self::NameTooLong => {
                return Failure::argument("path", "a name in it is longer than the disk allows; use a shorter one");
            }
            Self::Denied { act } => {
                let why = "let a program change its mode or delete it";
                return Failure::new(Code::Forbidden, format!("The server may not {act} that file: {why}."));
            }
            Self::Busy { .. } => (
                Code::FileBusy,
                "A program holds that file, or keeps moving its folder: try again when the program has ended.",
            ),
            Self::NoSpace { .. } => {
                (Code::NoSpace, "No room is left on the disk: delete files, or the operator must free space.")
            }
            Self::Io { act, .. } => {
                let why = format!("The server could not {act} that file: its log says why.");
                return Failure::new(Code::Internal, why);
            }
        };
        Failure::new(code, sentence)
    }
}
