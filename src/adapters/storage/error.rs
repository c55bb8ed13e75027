//! The system's error numbers as errors of the port, and why the root folder cannot be used.

use std::{io, path::PathBuf};

use rustix::io::Errno;

use super::root::SERVERS_MAX;
use crate::ports::storage::StorageError;

/// Why the root folder cannot be used. Each sentence says what the operator should do.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// It cannot be made or opened.
    #[error("{root:?} cannot be opened: create it, or name a folder that the server's user may enter")]
    Open {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Nothing can be made in it.
    #[error("{root:?} cannot be written: give it to the server's user with chown, or choose another folder")]
    Unwritable {
        root: PathBuf,
        #[source]
        source: io::Error,
    },
    /// Any user of the machine could plant things in it.
    #[error("{root:?} can be written by every user of this machine: run chmod o-w on it")]
    OpenToAll { root: PathBuf },
    /// Too many servers have it.
    #[error("{root:?} is in use by {SERVERS_MAX} servers already: stop one, or choose another folder")]
    InUse { root: PathBuf },
    /// The command wants it for itself.
    #[error("{root:?} is in use by a server: stop it first")]
    Served { root: PathBuf },
    /// The file with the instance id has other content.
    #[error("{file:?} does not hold an instance id: delete it if no sandbox of this server is left")]
    Damaged { file: PathBuf },
    /// No file system can be made and mounted for a conversation.
    #[error(
        "no disk can be made for a conversation: run the server as root on the engine's host with e2fsprogs \
         installed, or unset SANDBOX_QUOTA__HARD"
    )]
    OwnDisks {
        #[source]
        source: io::Error,
    },
    /// The kernel or a filter in front of it has no `openat2`, and there is no safe way to do without.
    #[error(
        "this system refuses openat2, without which links cannot be refused safely: use Linux 5.6 or newer and, in a \
             container, an engine whose seccomp profile knows the call"
    )]
    NoOpenat2 {
        #[source]
        source: io::Error,
    },
}

/// The number of an error of the standard library.
pub(super) fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// What a system error means for a step.
pub(super) fn failed(act: &'static str) -> impl Fn(Errno) -> StorageError {
    move |errno| match errno {
        Errno::NOENT => StorageError::NotFound,
        // A name that the file system cannot hold is a name that nothing has.
        Errno::NAMETOOLONG if act == "open" => StorageError::NotFound,
        Errno::LOOP | Errno::XDEV | Errno::NXIO | Errno::ISDIR | Errno::NODEV => StorageError::NotAFile,
        Errno::NOTDIR => StorageError::FolderBlocked,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => StorageError::Denied { act },
        Errno::NAMETOOLONG => StorageError::NameTooLong,
        // `O_NONBLOCK` does not wait until the holder of a lease gives it up.
        Errno::AGAIN => StorageError::Busy { act },
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => StorageError::NoSpace { act },
        other => StorageError::Io { act, source: other.into() },
    }
}
