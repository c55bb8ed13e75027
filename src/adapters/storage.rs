//! Files of conversations on disk: the one way to open, list, write and delete them.
//!
//! Programs own what is in a conversation's `files` folder and may change it at any moment, so nothing here follows a
//! name twice: every file is reached from a directory handle by `openat2`, beneath it, through no link and no mount,
//! and what was opened is what was checked. Nothing here blocks on what a program planted (pipes, sockets, devices),
//! and no tree is deep or wide enough to use up memory or descriptors. Everything is blocking disk work: callers in
//! async code put it on blocking threads.
//!
//! ```text
//! {root}/.instance          which server this is; locked while it runs
//! {root}/.incoming/         files being written, moved into place when whole; emptied at start
//! {root}/.trash/            folders being deleted, moved here first
//! {root}/.nameless/         folders of sandboxes that belong to no conversation yet, a folder for each server
//! {root}/{id}/              a conversation; 0700, ours, so that no other user reaches what is below
//! {root}/{id}/.mark         touched to learn the file system's own time
//! {root}/{id}/files/        `/data` of its programs; theirs. Or a link to it, on a disk of its own (`own_disk`)
//! ```

mod all;
mod delete;
mod error;
mod list;
mod own_disk;
mod read;
mod root;
mod unassigned;
mod usage;
mod write;

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, ResolveFlags, StatxFlags, StatxTimestamp, Timespec, Timestamps},
    io::Errno,
};

use crate::domain::path::SafePath;

pub use self::{
    all::{KnownConversation, LastUse},
    delete::Deleted,
    error::StoreError,
    root::{RootError, Store},
    unassigned::UnassignedFolder,
    usage::Usage,
};

/// The user and group that programs run as, and that their files belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// Which folder it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FolderId {
    device: u64,
    inode: u64,
}

/// A point in the file system's own time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    unix_s: i64,
    ns: u32,
}

impl From<StatxTimestamp> for Mark {
    fn from(stamp: StatxTimestamp) -> Self {
        Self { unix_s: stamp.tv_sec, ns: stamp.tv_nsec }
    }
}

/// What became of a file since a [`Mark`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It came into being.
    Created,
    /// It was there, and its bytes, its name or its rights were changed.
    Changed,
    /// Nothing, or no mark was given.
    Unchanged,
}

impl Change {
    /// One word for it.
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
    /// Where.
    pub path: SafePath,
    /// How long, in bytes.
    pub size: u64,
    /// When its bytes were last changed, in seconds since the Unix epoch; the program may have set it to anything.
    pub modified_unix_s: i64,
    /// What became of it since the mark.
    pub change: Change,
}

/// Why something in a folder is not listed as a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipKind {
    /// A symbolic link: never followed.
    Link,
    /// A pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character or block device.
    Device,
    /// A folder that this process may not read.
    Unreadable,
    /// A folder below the deepest level that is listed, or a path longer than can be written down.
    TooDeep,
}

impl SkipKind {
    /// One word for it.
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

/// Something that is there and is not listed as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Where, for people.
    pub path: String,
    /// Why.
    pub kind: SkipKind,
}

/// How much of a folder is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListBounds {
    /// Files in the listing, and as many skipped things.
    pub entries_max: usize,
    /// Levels: 1 is the top folder alone.
    pub depth_max: usize,
}

/// The files of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Created and changed files in the order of their paths, then the rest in the order of their paths.
    pub entries: Vec<Entry>,
    /// Files that were created or changed, those too that the bounds leave out.
    pub changed: u64,
    /// There is more than the bounds allow.
    pub truncated: bool,
    /// What is there and is no plain file.
    pub skipped: Vec<Skipped>,
    /// What all of it takes on disk, where all of it was seen.
    pub usage: Option<Usage>,
}

/// A plain file, opened and checked: read this descriptor and never the path again.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: File,
    /// How long it was when it was checked, in bytes.
    pub size: u64,
    /// When its bytes were last changed, in seconds since the Unix epoch.
    pub modified_unix_s: i64,
    /// A strong validator (RFC 9110) with its quotes: another file or other bytes have another one.
    pub etag: String,
}

/// One conversation's folder, held open.
#[derive(Debug)]
pub struct Conversation {
    /// `{root}/{id}`: ours.
    dir: OwnedFd,
    /// `{root}/{id}/files`: theirs.
    files: OwnedFd,
    incoming: OwnedFd,
    trash: OwnedFd,
    data_dir: PathBuf,
    handover: Handover,
    /// Where it is on a disk of its own: who is told that its trash has to be emptied.
    own_disk: Option<Unfinished>,
}

/// Folders of trash that somebody has to empty.
type Unfinished = Arc<Mutex<Vec<OwnedFd>>>;

/// How files we make become the program's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Handover {
    /// We are root: they are given to the owner.
    Chown(Owner),
    /// We are the owner.
    Same,
    /// We are somebody else: they are open to all, inside a folder that is closed to all.
    Open,
}

impl Handover {
    fn apply(self, handle: impl AsFd, mode: u32) -> Result<(), Errno> {
        let mode = if self == Self::Open { mode | (mode >> 3 & 0o070) | (mode >> 6) } else { mode };
        // The umask had its say when the file was made; this has the last word.
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(mode))?;
        if let Self::Chown(Owner { uid, gid }) = self {
            rustix::fs::fchown(handle, Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))?;
        }
        Ok(())
    }
}

impl Conversation {
    /// The folder that becomes `/data`, for the engine's mount.
    pub fn data_dir(&self) -> PathBuf {
        self.data_dir.clone()
    }

    /// What the folder is, whatever its name: another folder of the same name is another one.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the system does not say.
    pub fn identity(&self) -> Result<FolderId, StoreError> {
        let stat = rustix::fs::fstat(&self.files).map_err(|errno| StoreError::new("open", errno))?;
        Ok(FolderId { device: stat.st_dev, inode: stat.st_ino })
    }

    /// The file system's time now: whatever is created or changed from here on has this time or a later one. A change
    /// within the same tick of the clock before the call may count as later too; none after it is missed.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] on a full disk, [`StoreError::Io`] otherwise.
    pub fn mark(&self) -> Result<Mark, StoreError> {
        self.try_mark().map_err(|errno| StoreError::new("mark", errno))
    }

    fn try_mark(&self) -> Result<Mark, Errno> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let marker = rustix::fs::openat(&self.dir, ".mark", flags, Mode::RUSR | Mode::WUSR)?;
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let touch = || {
            rustix::fs::futimens(&marker, &Timestamps { last_access: now, last_modification: now })?;
            rustix::fs::statx(&marker, "", AtFlags::EMPTY_PATH, StatxFlags::CTIME)
        };
        // A time that somebody has read is followed by an exact one (multigrain timestamps, Linux 6.13), so the second
        // touch lies after everything that happened before the call, even within one tick.
        touch()?;
        Ok(touch()?.stx_ctime.into())
    }
}

/// Opens what is beneath a folder: through no link, into no other mount, waiting for nothing. An empty path is the folder
/// itself.
fn open_beneath(folder: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    const NEVER_OUT: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS)
        .union(ResolveFlags::NO_XDEV);
    /// The kernel asks to try again when names moved under its feet.
    const TRIES: usize = 32;

    let path = if path.is_empty() { b"." } else { path };
    // A handle that only names things opens nothing that could wait, and takes no flags that say so.
    let never_wait = if flags.contains(OFlags::PATH) { OFlags::empty() } else { OFlags::NOCTTY | OFlags::NONBLOCK };
    let flags = flags | never_wait | OFlags::CLOEXEC;
    let mut result = Err(Errno::AGAIN);
    for _ in 0..TRIES {
        result = rustix::fs::openat2(&folder, path, flags, Mode::empty(), NEVER_OUT);
        if !matches!(result, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    result
}

/// A name of our own that nothing else has.
fn fresh_name() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}
