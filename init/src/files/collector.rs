//! Sends what was changed, one frame after the other. The program may go on meanwhile: what is not there any more, or
//! cannot be opened, is left out and reported with the next round.

use std::{collections::VecDeque, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{BYTES, END, ENTRY, Files, GONE, S_IFMT, S_IFREG, Stamp, beneath, split};
use crate::{
    flow::{Outbox, Progress},
    frame::OutputFrame,
};

#[derive(Debug)]
pub(super) enum Todo {
    Gone(Vec<u8>),
    Entry(Vec<u8>, Stamp),
}

/// What is still to be sent of the changes.
#[derive(Debug)]
pub struct Collector {
    pub(super) root: OwnedFd,
    pub(super) todo: VecDeque<Todo>,
    pub(super) open: Option<OwnedFd>,
    pub(super) left_out: u64,
}

impl Collector {
    /// Adds the next frame; `false` after the last.
    pub fn push_next(&mut self, files: &mut Files, outbox: &mut Outbox) -> bool {
        if let Some(open) = &self.open {
            if !matches!(outbox.push_read(OutputFrame::Files, &[BYTES], open), Progress::Moved(_)) {
                self.open = None;
            }
            return true;
        }
        match self.todo.pop_front() {
            Some(Todo::Gone(path)) => outbox.push(OutputFrame::Files, &[&[GONE], &path[..]].concat()),
            Some(Todo::Entry(path, stamp)) => self.push_entry(path, stamp, files, outbox),
            None => {
                outbox.push(OutputFrame::Files, &[&[END], &self.left_out.to_be_bytes()[..]].concat());
                return false;
            }
        }
        true
    }

    fn push_entry(&mut self, path: Vec<u8>, stamp: Stamp, files: &mut Files, outbox: &mut Outbox) {
        let head = [&[ENTRY], &stamp.mode.to_be_bytes()[..], &stamp.modified.0.to_be_bytes(), &path[..]].concat();
        if stamp.mode & S_IFMT == S_IFREG {
            let Some((file, opened)) = self.file(&path, stamp) else {
                self.left_out += 1;
                return files.resend(path, S_IFREG);
            };
            self.open = Some(file);
            if let Some(known) = files.known.get_mut(&path).filter(|known| **known == stamp) {
                *known = opened;
            }
        }
        outbox.push(OutputFrame::Files, &head);
    }

    /// Opens a plain file, if it still is one. With the stamp from which the program's next change is seen.
    fn file(&self, path: &[u8], found: Stamp) -> Option<(OwnedFd, Stamp)> {
        let (above, name) = split(path);
        let parent = beneath(&self.root, above, OFlags::PATH | OFlags::DIRECTORY).ok()?;
        let stat = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_plain = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        let file = is_plain(&stat).then(|| open_file(&parent, name, &stat).ok())??;
        let opened = Stamp::of(&rustix::fs::fstat(&file).ok().filter(is_plain)?);
        // To open one that was closed changes the time of its inode.
        let is_same = Stamp { changed: found.changed, ..opened } == found;
        Some((file, if is_same { opened } else { found }))
    }
}

/// Opens a file for reading, also one that a program has closed to itself.
fn open_file(folder: &OwnedFd, name: &[u8], stat: &Stat) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o1777);
    let is_closed = !mode.contains(Mode::RUSR);
    if is_closed {
        rustix::fs::chmodat(folder, name, mode | Mode::RUSR, AtFlags::empty())?;
    }
    let file = beneath(folder, name, OFlags::RDONLY | OFlags::NONBLOCK)?;
    if is_closed {
        rustix::fs::fchmod(&file, mode)?;
    }
    Ok(file)
}
