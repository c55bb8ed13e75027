//! The storage port: the files of conversations, and the folders that become `/data` of sandboxes; why a step on them
//! failed, and what clients see of it.
//!
//! Every method blocks on a disk, for up to a fraction of a second unless documented otherwise: async code calls it on
//! a blocking thread. A program may change its conversation's folder at any moment, so an implementation follows no
//! link and opens nothing that could wait (pipes, devices), and it checks the opened descriptor.

#![expect(clippy::missing_errors_doc, reason = "the variants of StorageError are documented")]

use std::{any::Any, collections::BTreeMap, fmt, fs::File, io, ops::Range, path::PathBuf, sync::Arc};

use super::packages::PackageStore;
pub use crate::domain::Change;
use crate::domain::{
    Code, ConversationId, ConversationKey, Failure, InstanceId, Language, Principal, SafePath, words::words,
};

/// The folders of all conversations of all owners.
pub trait Storage: PackageStore {
    /// The identity of this server; survives a restart.
    fn instance(&self) -> InstanceId;

    /// `None` when the conversation has no folder.
    fn open(&self, key: &ConversationKey) -> FsResult<Option<Box<dyn ConversationFolder>>>;

    /// As [`Storage::open`]; creates a missing folder. May be called concurrently.
    fn create(&self, key: &ConversationKey) -> FsResult<Box<dyn ConversationFolder>>;

    /// Deletes a conversation: `false` when there was none. The name is free at once; a large folder is deleted in the
    /// background. A sandbox that still has the folder keeps an empty one.
    fn remove(&self, key: &ConversationKey) -> FsResult<bool>;

    /// An owner's conversations after `after`, ordered by id, at most `limit`. A change at the top of a folder counts
    /// as a use here.
    fn list(&self, owner: &Principal, after: Option<&ConversationId>, limit: usize) -> FsResult<Vec<LastUse>>;

    /// Every conversation of every owner, unordered. Times come from what no program can set.
    fn last_uses(&self) -> FsResult<Vec<LastUse>>;

    /// `None` when the conversation has no folder. Uses by other processes count too.
    fn last_use(&self, key: &ConversationKey) -> Option<LastUse>;

    /// The time of the root's disk, which is the file server's on a network, in seconds since the Unix epoch: that of
    /// the times of use.
    fn now_unix_s(&self) -> FsResult<i64>;

    /// Free space for this process; `u64::MAX` entries when the file system keeps no count.
    fn free(&self) -> FsResult<Usage>;

    /// Whether the disk of the root can have a file of this length. Takes no space.
    fn can_hold_file(&self, file_bytes: u64) -> FsResult<bool>;

    /// A new, empty folder that belongs to no conversation.
    fn create_unassigned(self: Arc<Self>) -> FsResult<Box<dyn UnassignedFolder>>;

    /// Stores the languages in use, for the next start.
    fn remember_languages(&self, languages: &[String]) -> FsResult<()>;

    /// The stored languages; empty when they are not known.
    fn recall_languages(&self) -> Vec<Language>;

    /// Removes what an earlier process with this identity left, large folders in the background. To be called before
    /// the first folder is created.
    fn recover(&self) -> FsResult<()>;

    /// The size of a conversation's own disk while it is unmounted; `None` when it is mounted or there is none.
    fn resting_bytes(&self, key: &ConversationKey) -> Option<u64>;

    /// Unmounts a conversation's own disk unless one of its files is open. The next `open` mounts it again.
    fn unmount(&self, key: &ConversationKey) -> bool;

    /// Waits until the background work is done. May take minutes.
    fn drain(&self);

    /// Ends the background work after its current step and unmounts what can be; the next start continues the work.
    fn close(&self);
}

/// Which files a page has.
#[derive(Debug, Clone, Default)]
pub struct FileFilter {
    /// Only what is below this folder.
    pub folder: Option<SafePath>,
    /// Only files of that folder whose name begins so, and what is below its folders whose name begins so.
    pub prefix: Vec<u8>,
    /// Only what follows it: the last path of the page before.
    pub after: Option<SafePath>,
}

/// A folder that becomes `/data` of sandboxes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DataFolder {
    /// As this process sees it.
    pub path: PathBuf,
    /// The user and group that its programs run as; the same for as long as there is the folder.
    pub uid: u32,
}

/// The folder of one conversation, held open.
pub trait ConversationFolder: Any + fmt::Debug + Send + Sync {
    /// The folder that becomes `/data`.
    fn data(&self) -> DataFolder;

    /// Differs for a later folder with the same name.
    fn identity(&self) -> FsResult<FolderId>;

    /// The file system's time now: files that are created or changed from now on have this time or a later one. Counts
    /// as a use.
    fn mark(&self) -> FsResult<Mark>;

    /// Lists plain files; with a mark, also how each changed since, and takes set-user-id and set-group-id from them.
    fn list(&self, bounds: ListBounds, since: Option<Mark>) -> FsResult<Listing>;

    /// Lists plain files, by path. Skipped things are in the first page only.
    fn page(&self, bounds: ListBounds, filter: &FileFilter) -> FsResult<Listing>;

    /// The space that the files take, counted until it exceeds `ceiling`.
    fn usage(&self, ceiling: &Usage) -> FsResult<Usage>;

    /// Opens a plain file. Never waits, whatever kind of file has the name.
    fn read(&self, path: &SafePath) -> FsResult<OpenFile>;

    /// Writes a file atomically: readers see the old bytes or the new, never a part. Missing folders are created. A
    /// link, pipe or socket with that name is replaced, not followed.
    fn write(&self, path: &SafePath, bytes: &[u8]) -> FsResult<Entry>;

    /// Begins a file that is written piece by piece.
    fn incoming(&self) -> FsResult<Box<dyn IncomingFile>>;

    /// Gives a file, a link (not its target) or a folder with its contents another path, in one step, and creates
    /// missing folders. What has that path stays, and the move fails, unless it is no folder and is to be replaced.
    /// Returns a plain file's entry.
    fn rename(&self, from: &SafePath, to: &SafePath, replace: bool) -> FsResult<Option<Entry>>;

    /// Whether there is this folder. What a link leads to is none.
    fn has_folder(&self, path: &SafePath) -> bool;

    /// Gives a plain file a second name, whose missing folders are created.
    fn link(&self, file: &SafePath, name: &SafePath) -> FsResult<()>;

    /// Creates a folder and its missing parents.
    fn make_folders(&self, path: &SafePath) -> FsResult<()>;

    /// Visits every folder and plain file, a folder before what is in it, until `visit` fails. Files can be read where
    /// it `reads`, else only asked about. Links, pipes, sockets, devices and what cannot be opened are counted.
    fn walk(&self, reads: bool, visit: &mut dyn FnMut(Visited) -> io::Result<()>) -> io::Result<SkippedCounts>;

    /// Sets the permissions of a folder, without set-user-id and set-group-id.
    fn set_folder_mode(&self, path: &SafePath, mode: u32) -> FsResult<()>;

    /// Sets when the conversation was last used.
    fn set_last_use(&self, unix_s: i64) -> FsResult<()>;

    /// Deletes a file, a link (not its target) or a folder with its contents. The name is free at once; a large folder
    /// is deleted in the background.
    fn delete(&self, path: &SafePath) -> FsResult<()>;
}

/// A file on its way into a conversation. It leaves nothing unless it is placed.
pub trait IncomingFile: fmt::Debug + Send {
    fn append(&mut self, bytes: &[u8]) -> FsResult<()>;
    /// Makes the file so long, with a hole after what was appended. What is appended next follows that.
    fn extend(&mut self, length: u64) -> FsResult<()>;

    /// Sets the permissions, without set-user-id and set-group-id, and when it was modified. To be called last.
    fn set_attributes(&mut self, mode: u32, modified_unix_s: i64) -> FsResult<()>;

    /// Whether the conversation's usage counts it already.
    fn is_counted(&self) -> bool;

    /// The same file on its way into another folder, as its own was deleted.
    fn moved_to(self: Box<Self>, there: Box<dyn ConversationFolder>) -> FsResult<Box<dyn IncomingFile>>;

    /// As [`ConversationFolder::write`] with the bytes that were appended.
    fn persist(self: Box<Self>, path: &SafePath) -> FsResult<Entry>;
}

/// A folder or a plain file that a walk found.
#[derive(Debug)]
pub struct Visited {
    pub path: SafePath,
    /// The permission bits.
    pub mode: u32,
    pub modified_unix_s: i64,
    /// A file, opened and checked, and its length; `None` for a folder.
    pub file: Option<(File, u64)>,
    /// Where a file that is read has bytes, in order; elsewhere are holes.
    pub data: Vec<Range<u64>>,
}

/// What a walk left out, by kind.
pub type SkippedCounts = BTreeMap<SkipKind, u64>;

/// A folder that belongs to no conversation yet. When it is dropped unassigned, it is removed in the background.
pub trait UnassignedFolder: fmt::Debug + Send + Sync {
    fn is_assigned(&self) -> bool;

    /// The folder that becomes `/data`. It stays `/data` of the sandbox that has it after [`UnassignedFolder::assign`].
    fn data(&self) -> DataFolder;

    /// Assigns the folder to a conversation. `None`, and it stays unassigned, when the conversation already has one.
    fn assign(&mut self, key: &ConversationKey) -> FsResult<Option<Box<dyn ConversationFolder>>>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderId {
    pub device: u64,
    pub inode: u64,
}

/// A point in the file system's own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    pub unix_s: i64,
    pub ns: u32,
}

/// When a conversation was last used: a run began in it or a client wrote to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastUse {
    pub unix_s: i64,
    pub key: ConversationKey,
}

/// Space on a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Blocks on disk, not lengths: a sparse file is small.
    pub bytes: u64,
    /// Directory entries of any kind: files, folders, links, pipes.
    pub entries: u64,
}

impl Usage {
    pub fn fits(&self, ceiling: &Self) -> bool {
        self.bytes <= ceiling.bytes && self.entries <= ceiling.entries
    }

    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        Self { bytes: self.bytes.saturating_add(more.bytes), entries: self.entries.saturating_add(more.entries) }
    }

    #[must_use]
    pub fn minus(&self, part: &Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(part.bytes), entries: self.entries.saturating_sub(part.entries) }
    }

    /// The usage of a new file of this length on a disk with blocks of 4 KiB.
    pub fn of_file(size: u64) -> Self {
        Self { bytes: size.checked_next_multiple_of(4096).unwrap_or(u64::MAX), entries: 1 }
    }
}

/// A plain file. Entries are in the order of their paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub path: SafePath,
    pub size: u64,
    /// A program may have set it to anything.
    pub modified_unix_s: i64,
    pub change: Change,
}

words! {
    /// Why something in a folder is not listed as a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum SkipKind: as_str {
        Link = "link",
        Pipe = "pipe",
        Socket = "socket",
        Device = "device",
        /// A folder, or in a walk a file, that this process may not read.
        Unreadable = "unreadable",
        /// A folder below the deepest level that is listed, or a path longer than a [`SafePath`].
        TooDeep = "too_deep",
    }
}

/// Something that is not listed as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// See [`SafePath::display`].
    pub path: String,
    pub kind: SkipKind,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListBounds {
    /// Files in the listing, and as many skipped things.
    pub entries_max: usize,
    /// Bytes of the paths in the listing, and as many of skipped paths. The first file is listed in any case.
    pub bytes_max: usize,
    /// Levels of folders: 1 is the top folder alone.
    pub depth_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Created and changed files in the order of their paths, then the rest in the order of their paths.
    pub entries: Vec<Entry>,
    /// Created and changed files, including those beyond the bounds.
    pub changed: u64,
    /// Files follow the last entry.
    pub more: bool,
    /// All plain files that were found; `None` when the walk was ended early, or folders are too deep or too many for
    /// it.
    pub total: Option<u64>,
    /// More exists than the bounds allow, files or skipped things.
    pub truncated: bool,
    pub skipped: Vec<Skipped>,
    /// `None` for a page, and when the bounds ended the listing early.
    pub usage: Option<Usage>,
}

/// A plain file, opened and checked: read this descriptor, never the path again.
#[derive(Debug)]
pub struct OpenFile {
    pub file: File,
    /// Its length when it was checked.
    pub size: u64,
    pub modified_unix_s: i64,
    /// A strong validator (RFC 9110) with its quotes.
    pub etag: String,
}

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
            Self::Busy { .. } => {
                (Code::FileBusy, "A program holds that file, or keeps moving its folder: try again when it has ended.")
            }
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
