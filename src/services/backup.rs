//! Backup and restore: the database and the files of every owner as one tar archive.
//!
//! ```text
//! manifest.json                      the form, the versions, when
//! database/{table}/{number}.jsonl    rows, a JSON object a line, about a mebibyte in each
//! conversations/{id}/…               or conversations/@{owner}/{id}/…: folders and plain files of `/data`, without
//!                                    their holes; further names of a file as links to its first one
//! sums.json                          counts, and the SHA-256 of all bytes before it
//! ```
//!
//! The rows are those of one moment; the files are read after it, each once. A restore reads the whole archive and
//! checks it before it changes anything. Nothing in an archive names a path outside of the conversation that it is in:
//! names are parsed as ids and as [`SafePath`], and only folders, plain files and further names of these are accepted.

mod check;
mod read;
mod restore;
mod sparse;
mod write;

use std::{collections::BTreeMap, io, sync::Arc};

use serde::{Deserialize, Serialize};

pub use self::restore::Restored;
#[cfg(doc)]
use crate::domain::SafePath;
use crate::ports::{
    database::{DatabaseError, DumpStore},
    history::HistoryStore,
    storage::{Storage, StorageError},
};

/// The form of archives that this server writes, and the newest that it reads.
const FORMAT: u32 = 2;
const MANIFEST: &str = "manifest.json";
const SUMS: &str = "sums.json";
const DATABASE: &str = "database";
const CONVERSATIONS: &str = "conversations";
/// Rows are gathered to entries of about this size, in bytes.
const ROWS_BYTES: usize = 1 << 20;
/// Rows that wait to be written, or stored.
const ROWS_WAITING_MAX: usize = 1000;
/// The longest entry of rows: the gathered ones, and one row with the longest program that the history keeps.
const ROWS_BYTES_MAX: u64 = 64 << 20;
/// The longest manifest, or sums.
const HEAD_BYTES_MAX: u64 = 1 << 20;
/// How much of a file is in memory at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Why a backup or a restore ended.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("the archive cannot be {act}")]
    Archive { act: &'static str, source: io::Error },
    /// The archive is not one, or was changed.
    #[error("the archive is refused, and nothing was changed: {0}")]
    Refused(String),
    /// What is there would be lost.
    #[error("nothing was changed: {0}")]
    InTheWay(String),
    #[error("a conversation cannot be copied into the archive")]
    Read(#[source] io::Error),
    /// It was checked, and the restore has begun.
    #[error("the archive cannot be read again: run the restore again with --force when the reason is gone")]
    ReadAgain(#[source] io::Error),
    #[error("{key} cannot be restored: run the restore again with --force when the reason is gone")]
    Write { key: String, source: StorageError },
    #[error("the files are restored and the rows are not: run it again with --force when the reason is gone")]
    Load(#[source] DatabaseError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error(transparent)]
    Database(#[from] DatabaseError),
}

/// The first entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    /// The version of the server that wrote it.
    pub server: String,
    /// The version of the tables.
    pub tables: i64,
    /// As RFC 3339.
    pub created: String,
}

/// The last entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Sums {
    /// By table.
    pub rows: BTreeMap<String, u64>,
    pub conversations: u64,
    pub folders: u64,
    pub files: u64,
    /// Bytes of the files, without their holes.
    pub bytes: u64,
    /// Files that a program changed while they were read: as long as they were, but perhaps of two moments.
    pub changed: u64,
    /// What is not in it, by kind.
    pub left_out: BTreeMap<String, u64>,
    /// The digest of all bytes before this entry, in hexadecimal digits.
    pub sha256: String,
}

/// The rows and files of a server.
#[derive(Clone)]
pub struct Backup {
    store: Arc<dyn Storage>,
    database: Arc<dyn Database>,
}

/// What a backup needs of a database.
pub trait Database: DumpStore + HistoryStore {}

impl<T: DumpStore + HistoryStore> Database for T {}

impl Backup {
    pub fn new(store: Arc<dyn Storage>, database: Arc<dyn Database>) -> Self {
        Self { store, database }
    }
}

/// A failure of the disk that the archive is on.
fn archive(act: &'static str) -> impl Fn(io::Error) -> BackupError {
    move |source| BackupError::Archive { act, source }
}

/// Works on the archive on a blocking thread.
async fn blocking<T: Send + 'static>(
    act: &'static str,
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| archive(act)(io::Error::other(error)))?
}
