//! Reading, writing and moving one file. What is written is completed in a folder of ours and then moved into place
//! through a handle, so that no write, chown or chmod uses a name that a program could have placed.

use std::{
    any::Any,
    fs::File,
    io::{self, Seek as _, SeekFrom, Write as _},
    os::fd::OwnedFd,
};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, Statx, StatxFlags};
use sha2::{Digest as _, Sha256};

use super::{
    Errno, Folder, TAKEN, errno_of, failed, fresh_name, ignore, kind_of, not_written, open_beneath,
    own::{new_file, own_folder},
    project::share_project,
    stat_of, times,
    walk::open_unreadable,
};
use crate::{
    domain::{SafePath, text::hex},
    ports::storage::{Change, ConversationFolder, Entry, FsResult, IncomingFile, OpenFile, StorageError},
};

/// Attempts while a program keeps removing the folders on the way.
const TRIES: usize = 16;

impl Folder {
    pub(super) fn try_read(&self, path: &SafePath) -> Result<OpenFile, Errno> {
        let handle = open_unreadable(&self.files, path.as_bytes())?;
        let stat = rustix::fs::statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        if !kind_of(&stat).is_file() {
            return Err(Errno::ISDIR);
        }
        let mut hash = Sha256::new();
        for number in [stat.stx_dev_major.into(), stat.stx_dev_minor.into(), stat.stx_ino, stat.stx_size] {
            hash.update(u64::to_be_bytes(number));
        }
        for time in [stat.stx_mtime, stat.stx_ctime] {
            hash.update(time.tv_sec.to_be_bytes());
            hash.update(time.tv_nsec.to_be_bytes());
        }
        let etag = format!("\"{}\"", hex(&hash.finalize()[..16]));
        Ok(OpenFile { file: handle.into(), size: stat.stx_size, modified_unix_s: stat.stx_mtime.tv_sec, etag })
    }

    /// In one step, through handles of the source's folder and the target's.
    pub(super) fn move_entry(&self, from: &SafePath, to: &SafePath, replace: bool) -> FsResult<Option<Entry>> {
        let ((old_folder, old), (new_folder, new)) = (from.split_last(), to.split_last());
        for _ in 0..TRIES {
            let source = open_beneath(&self.files, old_folder, OFlags::PATH | OFlags::DIRECTORY).map_err(absent)?;
            // Before a folder is made for it: what is not there needs none.
            let about = stat_of(&source, old, StatxFlags::BASIC_STATS).map_err(absent)?;
            let target = self.folder(new_folder).map_err(blocked)?;
            let renamed = if replace {
                rustix::fs::renameat(&source, old, &target, new)
            } else {
                rename_to_free(&source, old, &target, new)
            };
            match renamed {
                Ok(()) => {
                    let is_file = kind_of(&about).is_file();
                    // Where both are names of one file, the call succeeds and leaves both. A file with one name that is
                    // still found has another case of letters, where the file system takes both for the same.
                    let has_both = |left: Statx| left.stx_ino == about.stx_ino && left.stx_nlink > 1;
                    if is_file && from != to && stat_of(&source, old, StatxFlags::BASIC_STATS).is_ok_and(has_both) {
                        let removed = rustix::fs::unlinkat(&source, old, AtFlags::empty());
                        ignore(&[Errno::NOENT], removed).map_err(blocked)?;
                    }
                    let (size, modified_unix_s) = (about.stx_size, about.stx_mtime.tv_sec);
                    let entry = || Entry { path: to.clone(), size, modified_unix_s, change: Change::Unchanged };
                    return Ok(is_file.then(entry));
                }
                // The source, or a folder on the way, was removed between the steps.
                Err(Errno::NOENT) => {}
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::ISDIR | Errno::NOTDIR) => {
                    return Err(in_the_way(&target, new));
                }
                Err(errno) => return Err(blocked(errno)),
            }
        }
        Err(StorageError::Busy { act: "move" })
    }

    /// A handle of a folder, which is made with its parents if it is missing.
    pub(super) fn folder(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let mut tries = TRIES;
        let handle = |path: &[u8]| open_beneath(&self.files, path, OFlags::PATH | OFlags::DIRECTORY);
        'again: loop {
            match handle(path) {
                Err(Errno::NOENT) if tries > 0 => tries -= 1,
                other => return other,
            }
            // From the top down, through handles: the first missing one is made by moving a folder of ours into place.
            let mut parent = handle(b"")?;
            for name in path.split(|&b| b == b'/') {
                let there = open_beneath(&parent, name, OFlags::PATH | OFlags::DIRECTORY);
                parent = match ignore(&[Errno::NOENT], there)? {
                    Some(there) => there,
                    None => self.make_folder(&parent, name)?,
                };
                // The parent was removed meanwhile: start again.
                if rustix::fs::fstat(&parent)?.st_nlink == 0 {
                    continue 'again;
                }
            }
        }
    }

    fn make_folder(&self, parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
        let new_name = fresh_name();
        let made = own_folder(self.to_write_in()?, &new_name)?;
        let placed = share_project(&made, &self.files).and_then(|()| self.handover.apply(made, 0o755));
        let placed = placed.and_then(|()| rustix::fs::renameat(&self.incoming, &new_name, parent, name));
        if placed.is_err() {
            // What remains is removed at the next start.
            let _ = rustix::fs::unlinkat(&self.incoming, &new_name, AtFlags::REMOVEDIR);
        }
        // Where another caller or the program was faster, its folder is used.
        ignore(&TAKEN, placed)?;
        open_beneath(parent, name, OFlags::PATH | OFlags::DIRECTORY)
    }
}

/// Renames unless something has the new name. File systems on a network, such as NFS, have no such call: there a
/// program can still place something between the two steps; clients cannot, because they take turns.
fn rename_to_free(source: &OwnedFd, old: &[u8], target: &OwnedFd, new: &[u8]) -> Result<(), Errno> {
    match rustix::fs::renameat_with(source, old, target, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => match rustix::fs::statat(target, new, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => rustix::fs::renameat(source, old, target, new),
            Err(errno) => Err(errno),
        },
        other => other,
    }
}

fn in_the_way(target: &OwnedFd, name: &[u8]) -> StorageError {
    match rustix::fs::statat(target, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => StorageError::FolderInTheWay,
        _ => StorageError::FileInTheWay,
    }
}

/// What an error on the way to the source means.
fn absent(errno: Errno) -> StorageError {
    match errno {
        Errno::NOTDIR | Errno::LOOP => StorageError::NotFound,
        errno => failed("move")(errno),
    }
}

/// The same for the target.
fn blocked(errno: Errno) -> StorageError {
    match errno {
        Errno::LOOP | Errno::XDEV | Errno::NOTDIR => StorageError::FolderBlocked,
        // A folder would be inside itself: a program moved its target there meanwhile.
        Errno::INVAL | Errno::BUSY => StorageError::Busy { act: "move" },
        errno => failed("move")(errno),
    }
}

/// A file that is not in place yet; removed when dropped before.
#[derive(Debug)]
pub(super) struct Incoming {
    conversation: Folder,
    name: String,
    handle: File,
    moved: bool,
}

impl Incoming {
    /// An empty file.
    pub(super) fn new(conversation: Folder) -> Result<Self, Errno> {
        let name = fresh_name();
        let handle = new_file(conversation.to_write_in()?, &name)?.into();
        Self { conversation, name, handle, moved: false }.handed_over()
    }

    fn handed_over(self) -> Result<Self, Errno> {
        self.conversation.handover.apply(&self.handle, 0o644)?;
        Ok(self)
    }

    /// Moves the file to its place, through a handle of its folder.
    fn try_persist(&mut self, path: &SafePath) -> Result<Entry, Errno> {
        let (folder, name) = path.split_last();
        // Not before: what arrives is checked against the quota, and what it replaces is still there.
        share_project(&self.handle, &self.conversation.files)?;
        for _ in 0..TRIES {
            let parent = self.conversation.folder(folder)?;
            let was_there = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            match rustix::fs::renameat(&self.conversation.incoming, &self.name, &parent, name) {
                Ok(()) => {
                    let stat = rustix::fs::statx(&self.handle, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
                    self.moved = true;
                    let change = if was_there { Change::Changed } else { Change::Created };
                    let (size, modified_unix_s) = (stat.stx_size, stat.stx_mtime.tv_sec);
                    return Ok(Entry { path: path.clone(), size, modified_unix_s, change });
                }
                // The folder was removed between the two steps.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::NOTDIR)
    }

    /// The same in the folder of another disk. A deleted disk is there as long as a file of it is open.
    fn copied_to(&self, there: Folder) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let whole = rustix::fs::openat(&self.conversation.incoming, &self.name, flags, Mode::empty())?;
        let mut copy = Self::new(there)?;
        io::copy(&mut File::from(whole), &mut copy.handle).map_err(|error| errno_of(&error))?;
        Ok(copy)
    }
}

impl IncomingFile for Incoming {
    fn append(&mut self, bytes: &[u8]) -> FsResult<()> {
        self.handle.write_all(bytes).map_err(|error| not_written(errno_of(&error)))
    }

    fn extend(&mut self, length: u64) -> FsResult<()> {
        let extended = self.handle.set_len(length).and_then(|()| self.handle.seek(SeekFrom::Start(length)));
        extended.map(drop).map_err(|error| not_written(errno_of(&error)))
    }

    /// Programs may change both, so neither is a promise.
    fn set_attributes(&mut self, mode: u32, modified_unix_s: i64) -> FsResult<()> {
        let applied = self.conversation.handover.apply(&self.handle, mode & 0o1777);
        let times = times(modified_unix_s, 0);
        applied.and_then(|()| rustix::fs::futimens(&self.handle, &times)).map_err(failed("write"))
    }

    fn is_counted(&self) -> bool {
        self.conversation.on_own_disk
    }

    fn moved_to(mut self: Box<Self>, there: Box<dyn ConversationFolder>) -> FsResult<Box<dyn IncomingFile>> {
        let there: Box<dyn Any> = there;
        // This storage has no other folders.
        let there = *there.downcast::<Folder>().map_err(|_| StorageError::NotFound)?;
        if self.conversation.on_own_disk || there.on_own_disk {
            return Ok(Box::new(self.copied_to(there).map_err(not_written)?));
        }
        self.conversation = there;
        Ok(Box::new((*self).handed_over().map_err(not_written)?))
    }

    fn persist(mut self: Box<Self>, path: &SafePath) -> FsResult<Entry> {
        self.try_persist(path).map_err(not_written)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        if !self.moved {
            // What remains is removed at the next start.
            let _ = rustix::fs::unlinkat(&self.conversation.incoming, &self.name, AtFlags::empty());
        }
    }
}
