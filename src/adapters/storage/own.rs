//! Files and folders of ours: no program reaches the folders that hold them.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags},
    io::Errno,
    path::Arg,
};
use tracing::debug;

use super::{Background, DiskStorage, delete::purge_or_post, next_entry};

/// Opens a folder whose parent only we can change. It may be a mount of its own.
pub(super) fn open_own(parent: &OwnedFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Makes a folder for its owner alone, unless there is one.
pub(super) fn make_folder(parent: &OwnedFd, name: impl Arg) -> Result<(), Errno> {
    match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Err(Errno::EXIST) => Ok(()),
        other => other,
    }
}

/// Opens a folder of ours, made when it is missing.
pub(super) fn own_folder(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    make_folder(parent, name)?;
    open_own(parent, name)
}

/// The names in a folder, without those that are no text.
pub(super) fn names(folder: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut entries = Dir::read_from(folder)?;
    let mut names = Vec::new();
    while let Some(entry) = next_entry(&mut entries) {
        names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

/// An empty file with a name that was free.
pub(super) fn new_file(parent: &OwnedFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Replaces the text of a small file. After a crash it may hold less of it.
pub(super) fn write_text(parent: &OwnedFd, name: &str, text: &str) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// The text of a small file.
pub(super) fn read_text(parent: &OwnedFd, name: &str) -> Result<String, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let mut text = [0; 4096];
    let read = rustix::io::read(&file, &mut text)?;
    Ok(String::from_utf8_lossy(&text[..read]).into_owned())
}

/// Moves a folder to a name. What had the name gets the folder's old one.
pub(super) fn exchange(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> Result<(), Errno> {
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => rustix::fs::renameat_with(from, old, to, new, RenameFlags::EXCHANGE),
        other => other,
    }
}

/// Removes the unfinished files and folders of a killed process.
pub(super) fn clear_incoming(incoming: &OwnedFd, trash: &OwnedFd) -> Result<(), Errno> {
    let mut entries = Dir::read_from(incoming)?;
    while let Some(entry) = next_entry(&mut entries) {
        let entry = entry?;
        let name = entry.file_name();
        match rustix::fs::unlinkat(incoming, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => match rustix::fs::unlinkat(incoming, name, AtFlags::REMOVEDIR) {
                // Packages on their way into a conversation.
                Err(Errno::NOTEMPTY | Errno::EXIST) => rustix::fs::renameat(incoming, name, trash, name)?,
                other => other?,
            },
            other => other?,
        }
    }
    Ok(())
}

/// Removes a folder that belongs to no conversation, with its content and its disk.
pub(super) fn discard(
    parent: &OwnedFd,
    trash: &Arc<OwnedFd>,
    name: &str,
    background: &Background,
) -> Result<(), Errno> {
    rustix::fs::renameat(parent, name, &**trash, name)?;
    purge_or_post(trash, name, background)
}

impl DiskStorage {
    /// As [`discard`], without waiting for it.
    pub(super) fn discard_later(&self, parent: &Arc<OwnedFd>, name: String) {
        let (parent, trash, background) = (Arc::clone(parent), Arc::clone(&self.trash), self.background.clone());
        self.background.post(move || {
            if let Err(errno) = discard(&parent, &trash, &name, &background) {
                debug!(%errno, name, "a folder is left to the next start");
            }
        });
    }
}
