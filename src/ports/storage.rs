//! Where the files of conversations are kept, and the folders that become `/data` of sandboxes.
//!
//! Every method blocks on a disk, for up to a fraction of a second unless it says otherwise: async code calls it on a
//! blocking thread. A program may change what is in its conversation's folder at any moment, so an implementation reaches a
//! file through no link and opens nothing that could wait (pipes, devices); what was opened is what was checked.

#![expect(clippy::missing_errors_doc, reason = "the variants of StorageError say it")]

use std::{fmt, fs::File, io, path::PathBuf, sync::Arc};

use crate::domain::{
    error::{Code, Failure},
    id::{ConversationId, InstanceId, Language},
    owner::{ConversationKey, Principal},
    path::SafePath,
};

/// The folders of all conversations of all owners.
pub trait Storage: fmt::Debug + Send + Sync {
    /// Which server this is: survives a restart.
    fn instance(&self) -> InstanceId;

    /// `None` when the conversation has no folder.
    fn open(&self, key: &ConversationKey) -> Result<Option<Box<dyn ConversationFolder>>, StorageError>;

    /// As [`Storage::open`]; makes the folder where there is none. Any number of callers may do so at once.
    fn create(&self, key: &ConversationKey) -> Result<Box<dyn ConversationFolder>, StorageError>;

    /// Deletes a conversation: `false` when there was none. The name is free at once; what takes long is deleted in the
    /// background. A sandbox that still has the folder keeps an empty one.
    fn remove(&self, key: &ConversationKey) -> Result<bool, StorageError>;

    /// An owner's conversations after `after` in the order of their ids, at most `limit`. A change at the top of a folder
    /// counts as a use here.
    fn list(
        &self,
        owner: &Principal,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<LastUse>, StorageError>;

    /// Every conversation of every owner, in no order, by what no program can set.
    fn last_uses(&self) -> Result<Vec<LastUse>, StorageError>;

    /// `None` when the conversation has no folder. Uses by other processes count too.
    fn last_use(&self, key: &ConversationKey) -> Option<LastUse>;

    /// What is left for us; `u64::MAX` entries where the file system keeps no count.
    fn free(&self) -> Result<Usage, StorageError>;

    /// A new, empty folder that belongs to no conversation.
    fn create_unassigned(self: Arc<Self>) -> Result<Box<dyn UnassignedFolder>, StorageError>;

    /// Writes down which languages are in use, for the next start.
    fn remember_languages(&self, languages: &[String]) -> Result<(), StorageError>;

    /// The languages that were written down; none where that is not known.
    fn recall_languages(&self) -> Vec<Language>;

    /// Removes what an earlier process with this identity left; what takes long goes on in the background. To be called
    /// before the first folder is made.
    fn recover(&self) -> Result<(), StorageError>;

    /// What an unmounted disk of a conversation's own takes; `None` for one that is mounted and where there is none.
    fn resting_bytes(&self, key: &ConversationKey) -> Option<u64>;

    /// Unmounts the disk of a conversation's own unless a file of it is open. The next opening mounts it again.
    fn unmount(&self, key: &ConversationKey) -> bool;

    /// Waits until the background work is done. May take minutes.
    fn drain(&self);

    /// Ends the background work after its current step, which the next start goes on with, and unmounts what can be.
    fn close(&self);
}

/// The folder of one conversation, held open.
pub trait ConversationFolder: fmt::Debug + Send + Sync {
    /// The folder that becomes `/data`, for the engine's mount.
    fn data_dir(&self) -> PathBuf;

    /// Tells this folder from a later one of the same name.
    fn identity(&self) -> Result<FolderId, StorageError>;

    /// The file system's time now: what is created or changed from here on has this time or a later one. Counts as a use.
    fn mark(&self) -> Result<Mark, StorageError>;

    /// Lists plain files; with a mark, tells which were created or changed since.
    fn list(&self, bounds: ListBounds, since: Option<Mark>) -> Result<Listing, StorageError>;

    /// What the files take, counted until it is more than `ceiling`.
    fn usage(&self, ceiling: &Usage) -> Result<Usage, StorageError>;

    /// Opens a plain file. Returns at once, whatever stands there.
    fn read(&self, path: &SafePath) -> Result<OpenFile, StorageError>;

    /// Writes a file in one step: readers see the old bytes or the new, never a part. Folders on the way are made. A link,
    /// pipe or socket with that name is replaced, not followed.
    fn write(&self, path: &SafePath, bytes: &[u8]) -> Result<Entry, StorageError>;

    /// Makes a folder and those above it, where they are missing.
    fn make_folders(&self, path: &SafePath) -> Result<(), StorageError>;

    /// Deletes a file, a link (not what it points to) or a folder with all it holds. The name is free at once; what takes
    /// long is deleted in the background.
    fn delete(&self, path: &SafePath) -> Result<(), StorageError>;
}

/// A folder that belongs to no conversation yet. When it is dropped unassigned, its removal is posted to the background.
pub trait UnassignedFolder: fmt::Debug + Send + Sync {
    fn is_assigned(&self) -> bool;

    /// The folder that becomes `/data`. It stays `/data` of the sandbox that has it after [`UnassignedFolder::assign`].
    fn data_dir(&self) -> PathBuf;

    /// Makes the folder a conversation's. `None`, and it stays unassigned, when the conversation has one already.
    fn assign(&mut self, key: &ConversationKey) -> Result<Option<Box<dyn ConversationFolder>>, StorageError>;
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

/// What files take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Blocks on disk, not lengths: a sparse file is small.
    pub bytes: u64,
    /// Names: files, folders, links and whatever else has one.
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

    /// What a new file of this length takes on a disk with blocks of 4 KiB, and its name.
    pub fn of_file(size: u64) -> Self {
        Self { bytes: size.checked_next_multiple_of(4096).unwrap_or(u64::MAX), entries: 1 }
    }
}

/// What became of a file since a [`Mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    Created,
    /// Its bytes, its name or its rights were changed.
    Changed,
    /// Also where no mark was given.
    Unchanged,
}

impl Change {
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        }
    }
}

/// A plain file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub path: SafePath,
    pub size: u64,
    /// A program may have set it to anything.
    pub modified_unix_s: i64,
    pub change: Change,
}

/// Why something in a folder is not listed as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipKind {
    Link,
    Pipe,
    Socket,
    Device,
    /// A folder that this process may not read.
    Unreadable,
    /// A folder below the deepest level that is listed, or a path longer than a [`SafePath`].
    TooDeep,
}

impl SkipKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Pipe => "pipe",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::Unreadable => "unreadable",
            Self::TooDeep => "too_deep",
        }
    }
}

/// Something that is not listed as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// For people: see [`SafePath::display`].
    pub path: String,
    pub kind: SkipKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListBounds {
    /// Files in the listing, and as many skipped things.
    pub entries_max: usize,
    /// Levels of folders: 1 is the top folder alone.
    pub depth_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Created and changed files in the order of their paths, then the rest in the order of their paths.
    pub entries: Vec<Entry>,
    /// Created and changed files, including those beyond the bounds.
    pub changed: u64,
    /// There is more than the bounds allow.
    pub truncated: bool,
    pub skipped: Vec<Skipped>,
    /// What all of it takes on disk, when all of it was seen.
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
    #[error("a folder is in the way")]
    FolderInTheWay,
    #[error("a file or link is where a folder should be")]
    FolderBlocked,
    #[error("a name in the path is too long for the disk")]
    NameTooLong,
    /// The program took the right away, and this process is not root.
    #[error("no right to {act} it")]
    Denied { act: &'static str },
    #[error("no space to {act} it")]
    NoSpace { act: &'static str },
    #[error("cannot {act} it")]
    Io {
        act: &'static str,
        #[source]
        source: io::Error,
    },
}

impl StorageError {
    /// What a client reads: no path of this host.
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
            Self::FolderBlocked => (
                Code::NotAFile,
                "A part of the path that should be a folder is a file or a link: choose another path or delete it \
                 first.",
            ),
            Self::NameTooLong => {
                return Failure::argument("path", "a name in it is longer than the disk takes: give a shorter one");
            }
            Self::Denied { act } => {
                let why = "let a program change its rights or remove it";
                return Failure::new(Code::Forbidden, format!("The server has no right to {act} that file: {why}."));
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
