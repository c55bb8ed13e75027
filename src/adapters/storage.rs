//! Conversations as folders of this machine: the only code that opens, lists, writes and deletes them.
//!
//! Programs own the content of a conversation's `files` folder and may change it at any moment, so no name is resolved
//! twice: every file is opened from a directory handle by `openat2`, beneath it, through no link and no mount, and
//! checks apply to the opened file. No call blocks on a pipe, socket or device, and memory and descriptors are bounded
//! for trees of any depth or width.
//!
//! ```text
//! {root}/.instance          which server this is; locked while it runs
//! {root}/.incoming/         files being written, moved into place when complete: a folder for each server, which it
//!                           empties at its start
//! {root}/.trash/            folders being deleted, which are moved here first
//! {root}/.nameless/         folders of sandboxes that belong to no conversation yet, a folder for each server
//! {root}/.packages/         installed packages (`packages`)
//! {root}/{id}/              a conversation; 0700, ours, so that no other user reaches what is below
//! {root}/@{owner}/{id}/     a conversation of an owner other than `default`
//! {root}/{id}/.mark         touched to learn the file system's own time
//! {root}/{id}/files/        `/data` of its programs; theirs. It has a project of its own (`project`), or is a link to
//!                           a folder on a disk of its own (`own_disk`)
//! ```
//!
//! `background` is the only thread; it ends with the last handle of the storage.

mod background;
mod claim;
mod command;
mod conversations;
mod delete;
mod file;
mod handover;
mod list;
mod own;
mod own_disk;
mod packages;
mod project;
mod root;
mod skills;
mod usage;
mod walk;

#[cfg(test)]
pub(crate) mod tests;

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, DirEntry, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp, Timespec,
        Timestamps,
    },
    io::Errno,
    path::Arg,
};

use self::{background::Background, delete::set_mode, file::Incoming, handover::Handover};
pub use self::{claim::RootError, project::hard_limit, root::DiskStorage, skills::DiskSkills};
use crate::{
    domain::SafePath,
    ports::storage::{
        ConversationFolder, DataFolder, Entry, FileFilter, FolderId, FsResult, IncomingFile, ListBounds, Listing, Mark,
        OpenFile, SkippedCounts, StorageError, Usage, Visited,
    },
};

/// One conversation's folder, held open. A clone has the same handles.
#[derive(Debug, Clone)]
struct Folder {
    /// `{root}/{id}`: ours.
    dir: Arc<OwnedFd>,
    /// `{root}/{id}/files`: theirs.
    files: Arc<OwnedFd>,
    incoming: Arc<OwnedFd>,
    trash: Arc<OwnedFd>,
    data_dir: PathBuf,
    handover: Handover,
    on_own_disk: bool,
    background: Background,
}

impl ConversationFolder for Folder {
    fn data(&self) -> DataFolder {
        DataFolder { path: self.data_dir.clone(), uid: self.handover.uid }
    }

    fn identity(&self) -> FsResult<FolderId> {
        let stat = rustix::fs::fstat(&self.files).map_err(failed("open"))?;
        Ok(FolderId { device: stat.st_dev, inode: stat.st_ino })
    }

    fn mark(&self) -> FsResult<Mark> {
        self.try_mark().map_err(failed("mark"))
    }

    fn list(&self, bounds: ListBounds, since: Option<Mark>) -> FsResult<Listing> {
        self.try_list(bounds, since).map_err(failed("list"))
    }

    fn page(&self, bounds: ListBounds, filter: &FileFilter) -> FsResult<Listing> {
        list::Walk::of_page(bounds, filter).page(&self.files).map_err(failed("list"))
    }

    fn usage(&self, ceiling: &Usage) -> FsResult<Usage> {
        self.try_usage(ceiling).map_err(failed("measure"))
    }

    fn read(&self, path: &SafePath) -> FsResult<OpenFile> {
        self.try_read(path).map_err(|errno| match errno {
            Errno::NOTDIR => StorageError::NotFound,
            errno => failed("open")(errno),
        })
    }

    fn write(&self, path: &SafePath, bytes: &[u8]) -> FsResult<Entry> {
        let mut whole = self.incoming()?;
        whole.append(bytes)?;
        whole.persist(path)
    }

    fn incoming(&self) -> FsResult<Box<dyn IncomingFile>> {
        Ok(Box::new(Incoming::new(self.clone()).map_err(not_written)?))
    }

    fn rename(&self, from: &SafePath, to: &SafePath, replace: bool) -> FsResult<Option<Entry>> {
        self.move_entry(from, to, replace)
    }

    fn has_folder(&self, path: &SafePath) -> bool {
        open_beneath(&self.files, path.as_bytes(), OFlags::PATH | OFlags::DIRECTORY).is_ok()
    }

    fn link(&self, file: &SafePath, name: &SafePath) -> FsResult<()> {
        let ((old_folder, old), (new_folder, new)) = (file.split_last(), name.split_last());
        let source = open_beneath(&self.files, old_folder, OFlags::PATH | OFlags::DIRECTORY).map_err(not_written)?;
        let target = self.folder(new_folder).map_err(not_written)?;
        rustix::fs::linkat(&source, old, &target, new, AtFlags::empty()).map_err(not_written)
    }

    fn make_folders(&self, path: &SafePath) -> FsResult<()> {
        self.folder(path.as_bytes()).map(drop).map_err(|errno| match errno {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR => StorageError::FolderBlocked,
            errno => failed("write")(errno),
        })
    }

    fn walk(&self, reads: bool, visit: &mut dyn FnMut(Visited) -> io::Result<()>) -> io::Result<SkippedCounts> {
        self.try_walk(reads, visit)
    }

    fn set_folder_mode(&self, path: &SafePath, mode: u32) -> FsResult<()> {
        let folder = open_beneath(&self.files, path.as_bytes(), OFlags::PATH | OFlags::DIRECTORY);
        let mode = Mode::from_raw_mode(self.handover.opened(mode & 0o1777));
        folder.and_then(|folder| set_mode(&folder, mode)).map_err(failed("write"))
    }

    fn set_last_use(&self, unix_s: i64) -> FsResult<()> {
        let times = times(unix_s, 0);
        // A listing counts the later of both times, and what was written has changed the folder's.
        rustix::fs::utimensat(&self.dir, "files", &times, AtFlags::SYMLINK_NOFOLLOW)
            .and_then(|()| rustix::fs::futimens(self.marker()?, &times))
            .map_err(failed("mark"))
    }

    fn delete(&self, path: &SafePath) -> FsResult<()> {
        self.try_delete(path).map_err(|errno| match errno {
            Errno::NOTDIR | Errno::LOOP => StorageError::NotFound,
            errno => failed("delete")(errno),
        })
    }
}

/// The number of an error of the standard library.
fn errno_of(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// What these errors mean where something may be missing: a name that nothing has, or something else has by now.
const GONE: [Errno; 3] = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
/// What these mean where a folder gets a name, or loses it: something has the name, or is in the folder.
const TAKEN: [Errno; 3] = [Errno::EXIST, Errno::NOTEMPTY, Errno::NOTDIR];

/// `None` for an error that says that there is nothing to do; other errors are returned.
fn ignore<T>(errors: &[Errno], result: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match result {
        Err(errno) if errors.contains(&errno) => Ok(None),
        other => other.map(Some),
    }
}

/// What a system error means for a step.
fn failed(act: &'static str) -> impl Fn(Errno) -> StorageError {
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

fn not_written(errno: Errno) -> StorageError {
    match errno {
        Errno::ISDIR => StorageError::FolderInTheWay,
        Errno::LOOP | Errno::XDEV => StorageError::FolderBlocked,
        errno => failed("write")(errno),
    }
}

impl Folder {
    fn marker(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, ".mark", flags, Mode::RUSR | Mode::WUSR)
    }

    fn try_mark(&self) -> Result<Mark, Errno> {
        let marker = self.marker()?;
        // A time that was read is followed by an exact one (multigrain timestamps, Linux 6.13), so the second touch
        // lies after everything that happened before the call, even within one tick.
        touch(&marker)?;
        Ok(mark(touch(&marker)?))
    }
}

/// Gives a file of ours the file system's time, and returns it.
fn touch(file: impl AsFd) -> Result<StatxTimestamp, Errno> {
    rustix::fs::futimens(&file, &NOW)?;
    rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::CTIME).map(|stat| stat.stx_ctime)
}

const NOW: Timestamps = times(0, rustix::fs::UTIME_NOW);

/// One time for both of a file.
const fn times(unix_s: i64, ns: i64) -> Timestamps {
    let time = Timespec { tv_sec: unix_s, tv_nsec: ns };
    Timestamps { last_access: time, last_modification: time }
}

fn mark(stamp: StatxTimestamp) -> Mark {
    Mark { unix_s: stamp.tv_sec, ns: stamp.tv_nsec }
}

/// Opens what is beneath a folder: through no link, into no other mount, without waiting. An empty path is the folder
/// itself.
fn open_beneath(folder: impl AsFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    const NEVER_OUT: ResolveFlags = ResolveFlags::BENEATH
        .union(ResolveFlags::NO_SYMLINKS)
        .union(ResolveFlags::NO_MAGICLINKS)
        .union(ResolveFlags::NO_XDEV);
    /// The kernel asks to try again when names were moved during the resolution.
    const TRIES: usize = 32;

    let path = if path.is_empty() { b"." } else { path };
    // A handle that only names things opens nothing that could wait, and `O_PATH` refuses these flags.
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

/// What has a name in a folder: a link is itself.
fn stat_of(folder: impl AsFd, name: impl Arg, what: StatxFlags) -> Result<Statx, Errno> {
    rustix::fs::statx(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT, what)
}

fn kind_of(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// The next entry of a folder, without the folder itself and its parent.
fn next_entry(folder: &mut impl Iterator<Item = Result<DirEntry, Errno>>) -> Option<Result<DirEntry, Errno>> {
    folder.find(|entry| !entry.as_ref().is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b"..")))
}

/// As [`next_entry`], of a folder that a program may remove meanwhile: it has no more entries then, and on NFS reading
/// it is an error.
fn next_if_there(folder: &mut impl Iterator<Item = Result<DirEntry, Errno>>) -> Option<Result<DirEntry, Errno>> {
    next_entry(folder).filter(|entry| !matches!(entry, Err(Errno::STALE)))
}

/// A name of our own that nothing else has.
fn fresh_name() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}
