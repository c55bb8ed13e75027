//! Deleting: a file at once, a folder by moving it to the trash, out of the program's reach, and deleting it there.
//!
//! Deletion never recurses. The content of a subfolder is moved up into the folder that is being deleted, so a tree of
//! any depth takes a few descriptors and no stack.
//!
//! A caller waits for a bounded part of that work. The rest, which has lost its name, is deleted in the background.

use std::{
    ffi::{CStr, CString},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::fs::{AtFlags, CWD, Dir, IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};
use tracing::warn;

use super::{Background, Errno, Folder, GONE, TAKEN, fresh_name, ignore, next_entry, open_beneath, own_disk};
use crate::domain::SafePath;

/// Steps that a caller waits for: a fraction of a second.
const STEPS_AT_ONCE: u64 = 2000;
/// The same in time, for a program that made the folder slow to delete or still adds to it.
const TIME_AT_ONCE: Duration = Duration::from_millis(250);
/// How long one entry of the trash is deleted in the background before the next one has its turn.
const TURN: Duration = Duration::from_millis(500);

/// How far a deletion has come. In both cases the name is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deleted {
    Wholly,
    /// The rest is in the trash.
    Begun,
}

/// How much work may still be done.
struct StepBudget<'a> {
    steps: u64,
    until: Instant,
    stop: Option<&'a AtomicBool>,
}

impl StepBudget<'_> {
    fn step(&mut self) -> Result<(), Errno> {
        self.steps = self.steps.checked_sub(1).ok_or(Errno::CANCELED)?;
        let stopped = self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        if stopped || Instant::now() >= self.until { Err(Errno::CANCELED) } else { Ok(()) }
    }
}

/// A trash folder that is being emptied, an entry at a time and in rotation: a program that still adds to its deleted
/// folder delays no other deletion.
pub(super) struct TrashRemoval {
    pub trash: Arc<OwnedFd>,
    entries: Dir,
    /// The current round left something, or something was added.
    pub again: bool,
}

impl TrashRemoval {
    pub(super) fn of(trash: Arc<OwnedFd>) -> Result<Self, Errno> {
        Ok(Self { entries: Dir::read_from(&trash)?, trash, again: false })
    }

    /// Gives the next entry a turn. Returns whether more is to be done.
    pub(super) fn turn(&mut self, stop: &AtomicBool) -> Result<bool, Errno> {
        if stop.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let Some(entry) = next_entry(&mut self.entries) else {
            self.entries.rewind();
            return Ok(std::mem::take(&mut self.again));
        };
        let mut budget = StepBudget { steps: u64::MAX, until: Instant::now() + TURN, stop: Some(stop) };
        match purge(&self.trash, entry?.file_name().to_bytes(), &mut budget) {
            Ok(deleted) => self.again |= deleted == Deleted::Begun,
            Err(errno) => warn!(%errno, "something that was deleted still takes space"),
        }
        Ok(true)
    }
}

impl Folder {
    pub(super) fn try_delete(&self, path: &SafePath) -> Result<(), Errno> {
        let (folder, name) = path.split_last();
        let parent = open_beneath(&self.files, folder, OFlags::PATH | OFlags::DIRECTORY)?;
        if ignore(&[Errno::ISDIR], rustix::fs::unlinkat(&parent, name, AtFlags::empty()))?.is_some() {
            return Ok(());
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
        purge_or_post(&self.trash, &trash_name, &self.background);
        Ok(())
    }
}

/// Deletes a folder in the trash for as many steps as a caller waits, and posts the rest, also after an error: for the
/// caller it is gone.
pub(super) fn purge_or_post(trash: &Arc<OwnedFd>, name: &str, background: &Background) {
    let mut budget = StepBudget { steps: STEPS_AT_ONCE, until: Instant::now() + TIME_AT_ONCE, stop: None };
    if purge(trash, name.as_bytes(), &mut budget) != Ok(Deleted::Wholly) {
        background.empty(trash);
    }
}

/// Deletes a folder (or file) in the trash. Correct also while a surviving program adds to the folder, and while
/// another process deletes it too.
fn purge(trash: &OwnedFd, name: &[u8], budget: &mut StepBudget<'_>) -> Result<Deleted, Errno> {
    try_purge(trash, name, budget).map_or_else(|errno| interrupted(trash, name, errno), |()| Ok(Deleted::Wholly))
}

/// How far a deletion has come that ended with an error.
fn interrupted(trash: &OwnedFd, name: &[u8], errno: Errno) -> Result<Deleted, Errno> {
    match errno {
        Errno::CANCELED => Ok(Deleted::Begun),
        // Another process removed the last of it, or a program moved or replaced something in it.
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP => {
            match rustix::fs::statat(trash, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => Ok(Deleted::Wholly),
                there => there.map(|_| Deleted::Begun),
            }
        }
        errno => Err(errno),
    }
}

fn try_purge(trash: &OwnedFd, name: &[u8], budget: &mut StepBudget<'_>) -> Result<(), Errno> {
    if ignore(&[Errno::ISDIR], rustix::fs::unlinkat(trash, name, AtFlags::empty()))?.is_some() {
        return Ok(());
    }
    let folder = open_to_empty(trash, name)?;
    own_disk::lazy_unmount(&folder);
    let mut top = Dir::new(folder)?;
    let mut hoisted = 0;
    loop {
        let mut empty = true;
        top.rewind();
        while let Some(entry) = next_entry(&mut top) {
            empty = false;
            remove_entry(top.fd()?, entry?.file_name(), &mut hoisted, budget)?;
        }
        if empty {
            match rustix::fs::unlinkat(trash, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => budget.step()?,
                other => return other,
            }
        }
    }
}

/// Removes one entry of the top folder. A full folder inside it is moved to the top folder.
fn remove_entry(top: BorrowedFd<'_>, name: &CStr, hoisted: &mut u64, budget: &mut StepBudget<'_>) -> Result<(), Errno> {
    budget.step()?;
    if remove(top, name)? {
        return Ok(());
    }
    // Where a program replaced it, the next round finds the new entry.
    let Some(folder) = ignore(&GONE, open_to_empty(top, name.to_bytes()))? else { return Ok(()) };
    let mut folder = Dir::new(folder)?;
    while let Some(entry) = next_entry(&mut folder) {
        let entry = entry?;
        budget.step()?;
        if !remove(folder.fd()?, entry.file_name())? {
            match hoist(folder.fd()?, entry.file_name(), top, hoisted) {
                // `XDEV`: installed packages have no project, and the folder at the top has one.
                Err(Errno::NOSPC | Errno::DQUOT | Errno::XDEV) => {
                    remove_bottom(folder.fd()?, entry.file_name(), budget)?;
                }
                other => other?,
            }
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
        // `NOTDIR`: a program put a file where a folder was a moment ago.
        Err(errno) if TAKEN.contains(&errno) => Ok(false),
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

/// Removes a folder at the bottom of a tree. That needs no room, which a full disk has only afterwards.
fn remove_bottom(from: BorrowedFd<'_>, name: &CStr, budget: &mut StepBudget<'_>) -> Result<(), Errno> {
    let (mut way, mut name): (Option<Dir>, CString) = (None, name.to_owned());
    loop {
        let parent = way.as_ref().map_or(Ok(from), Dir::fd)?;
        let mut folder = Dir::new(open_to_empty(parent, name.to_bytes())?)?;
        let mut below = None;
        while let Some(entry) = next_entry(&mut folder) {
            let entry = entry?;
            budget.step()?;
            if !remove(folder.fd()?, entry.file_name())? {
                below = Some(entry.file_name().to_owned());
                break;
            }
        }
        let Some(next) = below else { return remove(parent, &name).map(|_| ()) };
        (way, name) = (Some(folder), next);
    }
}

/// Opens a folder whose entries are to be removed, and ends synchronous updates, which a program can ask for and which
/// make that several times slower.
pub(super) fn open_to_empty(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    const SLOW: IFlags = IFlags::SYNC.union(IFlags::DIRSYNC);
    let folder = open_unlocked(parent, name)?;
    match ioctl_getflags(&folder) {
        Ok(flags) if flags.intersects(SLOW) => drop(ioctl_setflags(&folder, flags - SLOW)),
        // Not every file system has such flags.
        _ => {}
    }
    Ok(folder)
}

/// Opens a folder for reading and changing its names, whatever rights the program left on it.
pub(super) fn open_unlocked(parent: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    if !rustix::process::geteuid().is_root() {
        unlock(&open_beneath(&parent, name, OFlags::PATH | OFlags::DIRECTORY)?)?;
    }
    open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Gives the owner every right to a folder, by its handle: its name may lead elsewhere by now.
pub(super) fn unlock(folder: &OwnedFd) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(folder)?.st_mode & 0o777) | Mode::RWXU;
    match set_mode(folder, mode) {
        // Root needs no permission.
        Err(_) if rustix::process::geteuid().is_root() => Ok(()),
        other => other,
    }
}

/// Sets the mode of what an `O_PATH` handle names. `fchmod` refuses such a handle, so this uses its path in `/proc`.
pub(super) fn set_mode(handle: &OwnedFd, mode: Mode) -> Result<(), Errno> {
    use std::os::fd::AsRawFd as _;
    rustix::fs::chmodat(CWD, format!("/proc/self/fd/{}", handle.as_raw_fd()), mode, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_deleted_wholly_only_when_the_folder_is_gone() {
        let root = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(root.path().join("there")).expect("a folder");
        let trash = OwnedFd::from(std::fs::File::open(root.path()).expect("opened"));
        for errno in [Errno::NOENT, Errno::NOTDIR, Errno::LOOP] {
            assert_eq!(interrupted(&trash, b"there", errno), Ok(Deleted::Begun), "{errno}");
            assert_eq!(interrupted(&trash, b"gone", errno), Ok(Deleted::Wholly), "{errno}");
        }
        assert_eq!(interrupted(&trash, b"there", Errno::IO), Err(Errno::IO));
    }
}
