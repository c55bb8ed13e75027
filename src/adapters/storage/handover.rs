//! Owners of files that programs can reach: gives files of the server to the programs' user, and decides which user
//! owns a conversation's folder.
//!
//! The owner of `files` is the user that programs of the conversation run as. So it lasts as long as the folder, moves
//! with it, and is known to every server on the root.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Gid, Mode, OFlags, Uid};

use super::{DiskStorage, Errno, Folder, next_entry, open_beneath};
use crate::domain::{RunnerUsers, path::COMPONENTS_MAX};

/// How created files become accessible to programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Handover {
    pub method: HandoverMethod,
    /// The user and group of the programs.
    pub uid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandoverMethod {
    /// The server is root: files are given to the user.
    Chown,
    /// The server runs as the user.
    Same,
    /// The server is another user: files are open to all, inside a folder that is closed to others.
    Open,
}

impl HandoverMethod {
    pub(super) fn to(uid: u32) -> Self {
        match rustix::process::geteuid().as_raw() {
            own if own == uid => Self::Same,
            0 => Self::Chown,
            _ => Self::Open,
        }
    }
}

impl Handover {
    /// The mode of what has these permissions for its owner.
    pub(super) fn opened(self, mode: u32) -> u32 {
        if self.method == HandoverMethod::Open { mode | (mode >> 3 & 0o070) | (mode >> 6) } else { mode }
    }

    pub(super) fn apply(self, handle: impl AsFd, mode: u32) -> Result<(), Errno> {
        // The umask was applied when the file was made; this overrides it.
        rustix::fs::fchmod(&handle, Mode::from_raw_mode(self.opened(mode)))?;
        if self.method == HandoverMethod::Chown {
            rustix::fs::fchown(handle, Some(Uid::from_raw(self.uid)), Some(Gid::from_raw(self.uid)))?;
        }
        Ok(())
    }
}

impl DiskStorage {
    /// The users of programs: only root can give files to more than one.
    pub(super) fn users_of(users: RunnerUsers) -> (HandoverMethod, RunnerUsers) {
        match HandoverMethod::to(users.usual) {
            HandoverMethod::Chown => (HandoverMethod::Chown, users),
            method => (method, RunnerUsers::one(users.usual)),
        }
    }

    /// The handover to a new folder's programs. Callers that make the same folder at once get the same.
    pub(super) fn new_handover(&self, conversation: &OwnedFd) -> Result<Handover, Errno> {
        let number = rustix::fs::fstat(conversation)?.st_ino;
        Ok(Handover { method: self.method, uid: self.users.of_folder(number) })
    }

    /// The handover to the programs of a folder that is there.
    pub(super) fn handover_in(&self, files: &OwnedFd) -> Result<Handover, Errno> {
        let owner = rustix::fs::fstat(files)?.st_uid;
        // A folder of root's is not complete yet.
        let uid = if self.method == HandoverMethod::Chown && owner != 0 { owner } else { self.users.usual };
        Ok(Handover { method: self.method, uid })
    }

    /// Makes a folder accessible to its programs, unless it is. Also called when it existed: an earlier process may
    /// have ended before this step, and the settings may have changed. The program may have changed its permissions,
    /// but it cannot have replaced the folder.
    pub(super) fn hand_over(&self, conversation: &mut Folder) -> Result<(), Errno> {
        let stat = rustix::fs::fstat(&conversation.files)?;
        let wanted = match self.method {
            HandoverMethod::Chown => !self.users.contains(stat.st_uid),
            HandoverMethod::Open => stat.st_mode & 0o777 != 0o777,
            HandoverMethod::Same => false,
        };
        if !wanted {
            // Another caller may have handed it over since it was entered.
            conversation.handover = self.handover_in(&conversation.files)?;
            return Ok(());
        }
        conversation.handover = self.new_handover(&conversation.dir)?;
        if self.method == HandoverMethod::Chown && stat.st_uid != 0 {
            change_owner(&conversation.files, stat.st_uid, conversation.handover.uid, COMPONENTS_MAX)?;
        }
        // The last step, so that one that was interrupted is done again.
        conversation.handover.apply(&conversation.files, 0o700)
    }
}

/// Gives what is in a folder and belongs to a user to another one. What belongs to neither stays: installed packages
/// are ours, and other conversations have the same files.
fn change_owner(folder: &OwnedFd, from: u32, to: u32, depth: usize) -> Result<(), Errno> {
    let Some(deeper) = depth.checked_sub(1) else { return Ok(()) };
    let mut entries = Dir::read_from(folder)?;
    while let Some(entry) = next_entry(&mut entries) {
        // What is gone by now needs no user.
        let Ok(entry) = open_beneath(folder, entry?.file_name().to_bytes(), OFlags::PATH | OFlags::NOFOLLOW) else {
            continue;
        };
        let stat = rustix::fs::fstat(&entry)?;
        if stat.st_uid == from {
            let (uid, gid) = (Some(Uid::from_raw(to)), Some(Gid::from_raw(to)));
            rustix::fs::chownat(&entry, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            let opened = open_beneath(&entry, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
            drop(entry);
            change_owner(&opened, from, to, deeper)?;
        }
    }
    Ok(())
}
