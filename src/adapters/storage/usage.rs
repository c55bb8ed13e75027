//! The disk usage of a conversation.
//!
//! A walk depth first that ends as soon as a ceiling is passed, so its cost is bounded by that of a folder of the
//! allowed size. It reaches any depth with a bounded number of descriptors. It counts blocks, not lengths: a sparse
//! file is small, and space reserved beyond a file's end counts.

use std::{
    collections::HashSet,
    ffi::CStr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::fs::{Dir, FileType, Mode, OFlags, Statx, StatxFlags};
use tracing::debug;

use super::{
    Errno, Folder,
    delete::{open_unlocked, set_mode, unlock},
    kind_of, next_if_there, open_beneath, stat_of,
};
use crate::ports::storage::Usage;

/// Folders on the way down that stay open.
const HELD_MAX: usize = 32;
/// The longest path passed to the kernel in one call, in bytes: below its own limit of 4096.
const PIECE_BYTES_MAX: usize = 3500;
/// What `st_blocks` counts in, in bytes, whatever the file system's blocks are.
pub(super) const BLOCK_BYTES: u64 = 512;

/// The usage counted so far. A file with several names takes its space once.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub usage: Usage,
    linked: HashSet<u64>,
}

impl Tally {
    pub(super) fn add(&mut self, stat: &Statx) {
        self.usage.entries += 1;
        let is_folder = kind_of(stat).is_dir();
        if is_folder || stat.stx_nlink < 2 || self.linked.insert(stat.stx_ino) {
            self.usage.bytes = self.usage.bytes.saturating_add(stat.stx_blocks.saturating_mul(BLOCK_BYTES));
        }
    }
}

impl Folder {
    /// A concurrent change may be counted or not. Unlinked open files are not counted. A folder that the program closed
    /// is opened again; where this process may not do that, the usage is unknown. A disk of its own counts everything;
    /// there a file with several names is one entry.
    pub(super) fn try_usage(&self, ceiling: &Usage) -> Result<Usage, Errno> {
        self.disk_usage()?.map_or_else(|| usage_below(&self.files, ceiling), Ok)
    }
}

/// As [`Folder::try_usage`], of any folder of programs. Takes set-user-id from files that a listing did not reach.
pub(super) fn usage_below(top: &OwnedFd, ceiling: &Usage) -> Result<Usage, Errno> {
    Walk { top, tally: Tally::default(), levels: Vec::new() }.run(ceiling)
}

/// Takes set-user-id and set-group-id from a plain file that a program made: outside of a sandbox they would act.
pub(super) fn clear_set_id(folder: BorrowedFd<'_>, name: &CStr, stat: &Statx) {
    if stat.stx_mode & 0o6000 == 0 || !kind_of(stat).is_file() {
        return;
    }
    let cleared = open_beneath(folder, name.to_bytes(), OFlags::PATH).and_then(|handle| {
        let mode = rustix::fs::fstat(&handle)?.st_mode;
        let is_file = FileType::from_raw_mode(mode).is_file();
        if is_file { set_mode(&handle, Mode::from_raw_mode(mode & 0o1777)) } else { Ok(()) }
    });
    if let Err(errno) = cleared {
        debug!(%errno, "set-user-id was not cleared");
    }
}

/// A folder on the way down.
struct Level {
    name: Vec<u8>,
    /// Closed when the walk goes far below it.
    handle: Option<OwnedFd>,
    /// Folders in it that were not visited yet.
    ahead: Vec<Vec<u8>>,
}

struct Walk<'a> {
    top: &'a OwnedFd,
    tally: Tally,
    levels: Vec<Level>,
}

impl Walk<'_> {
    fn run(mut self, ceiling: &Usage) -> Result<Usage, Errno> {
        let top = open_closed(self.top, b"")?;
        self.enter(Vec::new(), top, ceiling)?;
        while self.tally.usage.fits(ceiling) {
            let Some(level) = self.levels.last_mut() else { break };
            let Some(name) = level.ahead.pop() else {
                self.levels.pop();
                continue;
            };
            if level.handle.is_none() && ignore_missing(self.reopen())?.is_none() {
                // It was moved away meanwhile, with its unvisited folders.
                self.levels.pop();
                continue;
            }
            let parent = self.levels.last().and_then(|level| level.handle.as_ref()).unwrap_or(self.top);
            if let Some(folder) = ignore_missing(open_closed(parent, &name))? {
                self.enter(name, folder, ceiling)?;
            }
        }
        Ok(self.tally.usage)
    }

    /// Counts the entries of a folder and enters it.
    fn enter(&mut self, name: Vec<u8>, folder: OwnedFd, ceiling: &Usage) -> Result<(), Errno> {
        let mut ahead = Vec::new();
        let Some(mut names) = ignore_missing(unlocked(&folder, || Dir::read_from(&folder)))? else { return Ok(()) };
        while let Some(entry) = next_if_there(&mut names) {
            let entry = entry?;
            let name = entry.file_name();
            let stat = unlocked(&folder, || stat_of(&folder, name, StatxFlags::BASIC_STATS));
            // An entry that is not there was removed.
            let Some(stat) = ignore_missing(stat)? else { continue };
            self.tally.add(&stat);
            clear_set_id(folder.as_fd(), name, &stat);
            if !self.tally.usage.fits(ceiling) {
                break;
            }
            if kind_of(&stat).is_dir() {
                ahead.push(name.to_bytes().to_vec());
            }
        }
        if let Some(far) = self.levels.len().checked_sub(HELD_MAX) {
            self.levels[far].handle = None;
        }
        self.levels.push(Level { name, handle: Some(folder), ahead });
        Ok(())
    }

    /// Reopens the last folders of the way from the top: as many as may stay open, so that not every step up a deep
    /// tree walks from the top.
    fn reopen(&mut self) -> Result<(), Errno> {
        let mut at = open_beneath(self.top, b"", OFlags::PATH | OFlags::DIRECTORY)?;
        let mut piece = Vec::new();
        let held = self.levels.len().saturating_sub(HELD_MAX);
        for (number, level) in self.levels.iter_mut().enumerate().skip(1) {
            if !piece.is_empty() {
                piece.push(b'/');
            }
            piece.extend_from_slice(&level.name);
            if number >= held || piece.len() > PIECE_BYTES_MAX {
                at = open_beneath(&at, &piece, OFlags::PATH | OFlags::DIRECTORY)?;
                piece.clear();
            }
            if number >= held {
                level.handle = Some(rustix::io::dup(&at)?);
            }
        }
        Ok(())
    }
}

/// Opens a folder below an open one, also when the program removed permissions from either.
pub(super) fn open_closed(parent: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    match open_beneath(parent, name, OFlags::RDONLY | OFlags::DIRECTORY) {
        Err(Errno::ACCESS) => unlocked(parent, || open_unlocked(parent, name)),
        other => other,
    }
}

/// A step in a folder, done again with the owner's rights when the program removed them.
pub(super) fn unlocked<T>(folder: &OwnedFd, step: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
    match step() {
        Err(Errno::ACCESS) => unlock(folder).and_then(|()| step()),
        other => other,
    }
}

/// `None` for an entry that is no longer there or no longer a folder; other errors are returned.
fn ignore_missing<T>(opened: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO | Errno::ACCESS | Errno::PERM)) => {
            Err(errno)
        }
        Err(_) => Ok(None),
    }
}
