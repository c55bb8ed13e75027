//! Writing one file: it is completed in a folder of ours and then moved into place through a handle, so that no write,
//! chown or chmod uses a name that a program could have placed.

use std::{
    any::Any,
    borrow::Borrow,
    fs::File,
    io::{self, Seek as _, SeekFrom, Write as _},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxFlags},
    io::Errno,
};

use super::{
    Folder,
    error::{errno_of, failed},
    fresh_name, not_written, open_beneath,
    own::{new_file, own_folder},
    set_modified,
};
use crate::{
    domain::path::SafePath,
    ports::storage::{Change, ConversationFolder, Entry, IncomingFile, StorageError},
};

/// Attempts while a program keeps removing the folders on the way.
pub(super) const TRIES: usize = 16;

impl Folder {
    pub(super) fn try_write(&self, path: &SafePath, bytes: &[u8]) -> Result<Entry, Errno> {
        let mut whole = Incoming::file(self)?;
        whole.append(bytes)?;
        whole.place(path)
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
                match open_beneath(&parent, name, OFlags::PATH | OFlags::DIRECTORY) {
                    Ok(there) => parent = there,
                    Err(Errno::NOENT) => parent = self.make_folder(&parent, name)?,
                    Err(errno) => return Err(errno),
                }
                // The parent was removed meanwhile: start again.
                if rustix::fs::fstat(&parent)?.st_nlink == 0 {
                    continue 'again;
                }
            }
        }
    }

    pub(super) fn try_link(&self, file: &SafePath, name: &SafePath) -> Result<(), Errno> {
        let ((old_folder, old), (new_folder, new)) = (file.split_last(), name.split_last());
        let source = open_beneath(&self.files, old_folder, OFlags::PATH | OFlags::DIRECTORY)?;
        let target = self.folder(new_folder)?;
        rustix::fs::linkat(&source, old, &target, new, AtFlags::empty())
    }

    fn make_folder(&self, parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
        let made = Incoming::folder(self)?;
        match rustix::fs::renameat(&self.incoming, &made.name, parent, name) {
            Ok(()) => made.moved(),
            // Another caller or the program was faster: its folder is used.
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
            Err(errno) => return Err(errno),
        }
        open_beneath(parent, name, OFlags::PATH | OFlags::DIRECTORY)
    }
}

/// A file or folder that is not in place yet; removed when dropped before [`Incoming::moved`].
#[derive(Debug)]
pub(super) struct Incoming<F: Borrow<Folder>> {
    conversation: F,
    name: String,
    handle: File,
    moved: bool,
    remove: AtFlags,
}

impl<F: Borrow<Folder>> Incoming<F> {
    /// An empty file.
    pub(super) fn file(conversation: F) -> Result<Self, Errno> {
        let (folder, name) = (conversation.borrow(), fresh_name());
        let handle = new_file(&folder.incoming, &name)?;
        Self { conversation, name, handle: handle.into(), moved: false, remove: AtFlags::empty() }.handed_over(0o644)
    }

    fn folder(conversation: F) -> Result<Self, Errno> {
        let (folder, name) = (conversation.borrow(), fresh_name());
        let handle = own_folder(&folder.incoming, &name)?;
        Self { conversation, name, handle: handle.into(), moved: false, remove: AtFlags::REMOVEDIR }.handed_over(0o755)
    }

    fn handed_over(self, mode: u32) -> Result<Self, Errno> {
        self.conversation.borrow().handover.apply(&self.handle, mode)?;
        Ok(self)
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.handle.write_all(bytes).map_err(|error| errno_of(&error))
    }

    /// Moves the file to its place, through a handle of its folder.
    pub(super) fn place(mut self, path: &SafePath) -> Result<Entry, Errno> {
        let conversation = self.conversation.borrow();
        let (folder, name) = path.split_last();
        for _ in 0..TRIES {
            let parent = conversation.folder(folder)?;
            let was_there = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            match rustix::fs::renameat(&conversation.incoming, &self.name, &parent, name) {
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

    fn moved(mut self) {
        self.moved = true;
    }
}

impl Incoming<Folder> {
    /// The same in the folder of another disk. A deleted disk is there as long as a file of it is open.
    fn copied_to(&self, there: Folder) -> Result<Self, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let whole = rustix::fs::openat(&self.conversation.incoming, &self.name, flags, Mode::empty())?;
        let mut copy = Self::file(there)?;
        io::copy(&mut File::from(whole), &mut copy.handle).map_err(|error| errno_of(&error))?;
        Ok(copy)
    }
}

impl IncomingFile for Incoming<Folder> {
    fn append(&mut self, bytes: &[u8]) -> Result<(), StorageError> {
        Incoming::append(self, bytes).map_err(not_written)
    }

    fn extend(&mut self, length: u64) -> Result<(), StorageError> {
        let extended = self.handle.set_len(length).and_then(|()| self.handle.seek(SeekFrom::Start(length)));
        extended.map(drop).map_err(|error| not_written(errno_of(&error)))
    }

    /// Programs may change both, so neither is a promise.
    fn set_attributes(&mut self, mode: u32, modified_unix_s: i64) -> Result<(), StorageError> {
        let applied = self.conversation.handover.apply(&self.handle, mode & 0o1777);
        applied.and_then(|()| set_modified(&self.handle, modified_unix_s)).map_err(failed("write"))
    }

    fn is_counted(&self) -> bool {
        self.conversation.on_own_disk
    }

    fn moved_to(
        mut self: Box<Self>,
        there: Box<dyn ConversationFolder>,
    ) -> Result<Box<dyn IncomingFile>, StorageError> {
        let there: Box<dyn Any> = there;
        // This storage has no other folders.
        let there = *there.downcast::<Folder>().map_err(|_| StorageError::NotFound)?;
        if self.conversation.on_own_disk || there.on_own_disk {
            return Ok(Box::new(self.copied_to(there).map_err(not_written)?));
        }
        self.conversation = there;
        Ok(Box::new((*self).handed_over(0o644).map_err(not_written)?))
    }

    fn place(self: Box<Self>, path: &SafePath) -> Result<Entry, StorageError> {
        Incoming::place(*self, path).map_err(not_written)
    }
}

impl<F: Borrow<Folder>> Drop for Incoming<F> {
    fn drop(&mut self) {
        if !self.moved {
            // What remains is removed at the next start.
            let _ = rustix::fs::unlinkat(&self.conversation.borrow().incoming, &self.name, self.remove);
        }
    }
}
