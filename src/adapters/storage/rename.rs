//! Moves a file or a folder in one step, through handles of the source and the target folder.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{AtFlags, FileType, OFlags, RenameFlags, StatxFlags},
    io::Errno,
};

use super::{Folder, error::failed, open_beneath, write::TRIES};
use crate::{
    domain::path::SafePath,
    ports::storage::{Change, Entry, StorageError},
};

impl Folder {
    pub(super) fn try_rename(
        &self,
        from: &SafePath,
        to: &SafePath,
        replace: bool,
    ) -> Result<Option<Entry>, StorageError> {
        let ((old_folder, old), (new_folder, new)) = (from.split_last(), to.split_last());
        for _ in 0..TRIES {
            let source = open_beneath(&self.files, old_folder, OFlags::PATH | OFlags::DIRECTORY).map_err(absent)?;
            // Before a folder is made for it: what is not there needs none.
            let about = rustix::fs::statx(&source, old, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
            let about = about.map_err(absent)?;
            let target = self.folder(new_folder).map_err(blocked)?;
            let renamed = if replace {
                rustix::fs::renameat(&source, old, &target, new)
            } else {
                rename_to_free(&source, old, &target, new)
            };
            match renamed {
                Ok(()) => {
                    let is_file = FileType::from_raw_mode(about.stx_mode.into()) == FileType::RegularFile;
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
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::Directory => StorageError::FolderInTheWay,
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
