//! Deleting: a file at once, a folder by moving it to the trash, out of the program's reach, and deleting it there.
//!
//! Deletion never recurses. The content of a subfolder is moved up into the folder that is being deleted, so a tree of
//! any depth takes a few descriptors and no stack.
//!
//! A caller waits for a bounded part of that work. The rest, which has lost its name, is deleted in the background.

use std::{
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{AtFlags, CWD, Dir, Mode, OFlags},
    io::Errno,
};

use super::{Background, Folder, fresh_name, open_beneath, own_disk};
use crate::domain::path::SafePath;

/// Steps that a caller waits for: a fraction of a second.
const STEPS_AT_ONCE: u64 = 2000;
/// Steps in the background that other jobs wait for: a few seconds.
const STEPS_OF_A_SLICE: u64 = 50_000;

/// How far a deletion has come. In both cases the name is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deleted {
    Wholly,
    /// The rest is in the trash.
    Begun,
}

/// How much work may still be done.
pub(super) struct Effort<'a> {
    steps: u64,
    stop: Option<&'a AtomicBool>,
}

impl<'a> Effort<'a> {
    pub(super) fn at_once() -> Self {
        Self { steps: STEPS_AT_ONCE, stop: None }
    }

    pub(super) fn slice(stop: &'a AtomicBool) -> Self {
        Self { steps: STEPS_OF_A_SLICE, stop: Some(stop) }
    }

    fn step(&mut self) -> Result<(), Errno> {
        self.steps = self.steps.checked_sub(1).ok_or(Errno::CANCELED)?;
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) { Err(Errno::CANCELED) } else { Ok(()) }
    }
}

impl Folder {
    pub(super) fn try_delete(&self, path: &SafePath) -> Result<(), Errno> {
        let (folder, name) = path.split_last();
        let parent = open_beneath(&self.files, folder, OFlags::PATH | OFlags::DIRECTORY)?;
        match rustix::fs::unlinkat(&parent, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            other => return other,
        }
        let trash_name = fresh_name();
        match rustix::fs::renameat(&parent, name, &self.trash, &trash_name) {
            // Moving a folder requires the right to write to it.
            Err(Errno::ACCESS) => {
                unlock(&open_beneath(&parent, name, OFlags::PATH | OFlags::DIRECTORY)?)?;
                rustix::fs::renameat(&parent, name, &self.trash, &trash_name)?;
            }
            other => other?,
        }
        purge_or_post(&self.trash, &trash_name, &self.background)
    }
}

/// Deletes the content of the trash. Returns the last error, after every entry was tried.
pub(super) fn empty(trash: &OwnedFd, effort: &mut Effort<'_>) -> Result<Deleted, Errno> {
    let mut result = Ok(Deleted::Wholly);
    for entry in Dir::read_from(trash)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.starts_with(b".") {
            continue;
        }
        match purge(trash, name, effort) {
            Ok(Deleted::Wholly) => {}
            Ok(Deleted::Begun) => return Ok(Deleted::Begun),
            Err(errno) => result = Err(errno),
        }
    }
    result
}

/// Deletes a folder in the trash for as many steps as a caller waits, and posts the rest.
pub(super) fn purge_or_post(trash: &Arc<OwnedFd>, name: &str, background: &Background) -> Result<(), Errno> {
    if purge(trash, name.as_bytes(), &mut Effort::at_once())? == Deleted::Begun {
        background.empty(trash);
    }
    Ok(())
}

/// Deletes a folder (or file) in the trash. Correct also while a surviving program adds to the folder, and while
/// another process deletes it too.
fn purge(trash: &OwnedFd, name: &[u8], effort: &mut Effort<'_>) -> Result<Deleted, Errno> {
    match try_purge(trash, name, effort) {
        // Another process removed the last of it.
        Ok(()) | Err(Errno::NOENT) => Ok(Deleted::Wholly),
        Err(Errno::CANCELED) => Ok(Deleted::Begun),
        Err(errno) => Err(errno),
    }
}

fn try_purge(trash: &OwnedFd, name: &[u8], effort: &mut Effort<'_>) -> Result<(), Errno> {
    match rustix::fs::unlinkat(trash, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        other => return other,
    }
    let folder = open_unlocked(trash, name)?;
    own_disk::lazy_unmount(&folder);
    let mut top = Dir::new(folder)?;
    let mut hoisted = 0;
    loop {
        let mut empty = true;
        top.rewind();
        while let Some(entry) = top.read() {
            let entry = entry?;
            if !is_dots(entry.file_name()) {
                empty = false;
                take_apart(top.fd()?, entry.file_name(), &mut hoisted, effort)?;
            }
        }
        if empty {
            match rustix::fs::unlinkat(trash, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => effort.step()?,
                other => return other,
            }
        }
    }
}

/// Removes one entry of the top folder. A full folder inside it is moved to the top folder.
fn take_apart(top: BorrowedFd<'_>, name: &CStr, hoisted: &mut u64, effort: &mut Effort<'_>) -> Result<(), Errno> {
    effort.step()?;
    if remove(top, name)? {
        return Ok(());
    }
    let mut folder = match open_unlocked(top, name.to_bytes()) {
        Ok(folder) => Dir::new(folder)?,
        // A program replaced it: the next round finds the new entry.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    while let Some(entry) = folder.read() {
        let entry = entry?;
        if is_dots(entry.file_name()) {
            continue;
        }
        effort.step()?;
        if !remove(folder.fd()?, entry.file_name())? {
            hoist(folder.fd()?, entry.file_name(), top, hoisted)?;
        }
    }
    // When a program added to it meanwhile, it stays for the next round.
    remove(top, name).map(|_| ())
}

/// Removes a file or an empty folder; `false` for a folder that is not empty. A missing entry counts as removed.
fn remove(folder: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let removed = match rustix::fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR),
        other => other,
    };
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        // The last: a program put a file where a folder was a moment ago.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Moves a folder up, under a name that nothing else has.
fn hoist(from: BorrowedFd<'_>, name: &CStr, top: BorrowedFd<'_>, hoisted: &mut u64) -> Result<(), Errno> {
    loop {
        *hoisted += 1;
        let new_name = format!("{:016x}", *hoisted);
        match rustix::fs::renameat(from, name, top, &new_name) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // The program, or an earlier process, used the same name.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
            Err(Errno::ACCESS) => {
                unlock(&open_beneath(from, name.to_bytes(), OFlags::PATH | OFlags::DIRECTORY)?)?;
                return rustix::fs::renameat(from, name, top, &new_name);
            }
            Err(errno) => return Err(errno),
        }
    }
}

/// Opens a folder for reading and changing its names, whatever rights the program left on it.
fn open_unlocked(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    if !rustix::process::geteuid().is_root() {
        unlock(&open_beneath(&parent, name, OFlags::PATH | OFlags::DIRECTORY)?)?;
    }
    open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Gives the owner every right to a folder, by its handle: its name may lead elsewhere by now.
/// `fchmod` refuses such a handle, so the change uses the kernel's path of the handle.
fn unlock(folder: &OwnedFd) -> Result<(), Errno> {
    use std::os::fd::AsRawFd as _;
    let name = format!("/proc/self/fd/{}", folder.as_raw_fd());
    match rustix::fs::chmodat(CWD, name, Mode::RWXU, AtFlags::empty()) {
        // Root needs no permission.
        Err(_) if rustix::process::geteuid().is_root() => Ok(()),
        other => other,
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}
