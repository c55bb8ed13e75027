//! Writing one file: it is completed in a folder of ours and then moved into place through a handle, so that no write,
//! chown or chmod uses a name that a program could have placed.

use std::{fs::File, io::Write as _, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags, StatxFlags},
    io::Errno,
};

use super::{Folder, fresh_name, open_beneath};
use crate::{
    domain::path::SafePath,
    ports::storage::{Change, Entry},
};

/// Attempts while a program keeps removing the folders on the way.
const TRIES: usize = 16;

impl Folder {
    pub(super) fn try_write(&self, path: &SafePath, bytes: &[u8]) -> Result<Entry, Errno> {
        let whole = Incoming::file(self, bytes)?;
        let (folder, name) = path.split_last();
        let change = self.place(&whole, folder, name)?;
        let stat = rustix::fs::statx(&whole.handle, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        whole.moved();
        let modified_unix_s = stat.stx_mtime.tv_sec;
        Ok(Entry { path: path.clone(), size: stat.stx_size, modified_unix_s, change })
    }

    fn place(&self, whole: &Incoming<'_>, folder: &[u8], name: &[u8]) -> Result<Change, Errno> {
        for _ in 0..TRIES {
            let parent = self.folder(folder)?;
            let was_there = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok();
            match rustix::fs::renameat(&self.incoming, &whole.name, &parent, name) {
                Ok(()) => return Ok(if was_there { Change::Changed } else { Change::Created }),
                // The folder was removed between the two steps.
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::NOTDIR)
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
struct Incoming<'a> {
    conversation: &'a Folder,
    name: String,
    handle: OwnedFd,
    moved: bool,
    remove: AtFlags,
}

impl<'a> Incoming<'a> {
    fn file(conversation: &'a Folder, bytes: &[u8]) -> Result<Self, Errno> {
        let name = fresh_name();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&conversation.incoming, &name, flags, Mode::RUSR | Mode::WUSR)?;
        let mut file = File::from(handle);
        let written = file.write_all(bytes);
        let this = Self { conversation, name, handle: file.into(), moved: false, remove: AtFlags::empty() };
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        conversation.handover.apply(&this.handle, 0o644)?;
        Ok(this)
    }

    fn folder(conversation: &'a Folder) -> Result<Self, Errno> {
        let name = fresh_name();
        rustix::fs::mkdirat(&conversation.incoming, &name, Mode::RWXU)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(&conversation.incoming, &name, flags, Mode::empty())?;
        let this = Self { conversation, name, handle, moved: false, remove: AtFlags::REMOVEDIR };
        conversation.handover.apply(&this.handle, 0o755)?;
        Ok(this)
    }

    fn moved(mut self) {
        self.moved = true;
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        if !self.moved {
            // What remains is removed at the next start.
            let _ = rustix::fs::unlinkat(&self.conversation.incoming, &self.name, self.remove);
        }
    }
}
