//! What a folder holds, and in which state. Follows no link and reads no file. One folder is open at a time: process 1
//! has the same limit on open files as the program.

use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{PATH_BYTES_MAX, Stamp, beneath};

/// Names of one path; what is deeper is not sent.
const NAMES_MAX: usize = 64;

/// Everything below one folder.
#[derive(Default)]
pub(super) struct Walk {
    pub(super) found: BTreeMap<Vec<u8>, Stamp>,
    /// Links, pipes, sockets, and what is too deep or cannot be read.
    pub(super) left_out: u64,
    /// Folders whose entries are not all in `found`, though they may be there.
    pub(super) unread: Vec<Vec<u8>>,
    /// Folders that are still to be read.
    ahead: Vec<Vec<u8>>,
}

impl Walk {
    pub(super) fn of(top: &OwnedFd) -> Result<Self, Errno> {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(top)?.st_mode & 0o7777);
        if !mode.contains(Mode::RWXU) {
            // Without these rights nothing below it is found. A folder of another user stays as it is.
            let _ = rustix::fs::fchmod(top, mode | Mode::RWXU);
        }
        let mut walk = Self { ahead: vec![Vec::new()], ..Self::default() };
        while let Some(path) = walk.ahead.pop() {
            match walk.folder(top, &path) {
                // A folder that the program removed or replaced meanwhile has no entries.
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(_) => walk.cannot_read(path),
            }
        }
        Ok(walk)
    }

    fn folder(&mut self, top: &OwnedFd, path: &[u8]) -> Result<(), Errno> {
        let at = if path.is_empty() { b"." } else { path };
        let mut names = Dir::new(beneath(top, at, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        while let Some(entry) = names.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let path = if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() };
                self.entry(names.fd()?, name, path)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, folder: BorrowedFd<'_>, name: &[u8], path: Vec<u8>) -> Result<(), Errno> {
        let stat = match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            // It was removed meanwhile.
            Err(Errno::NOENT) => return Ok(()),
            stat => stat?,
        };
        if path.len() > PATH_BYTES_MAX || path.split(|byte| *byte == b'/').count() > NAMES_MAX {
            self.left_out += 1;
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if open(folder, name, &stat).is_err() => self.cannot_read(path),
            FileType::Directory => {
                self.found.insert(path.clone(), Stamp::of(&stat));
                self.ahead.push(path);
            }
            FileType::RegularFile => drop(self.found.insert(path, Stamp::of(&stat))),
            _ => self.left_out += 1,
        }
        Ok(())
    }

    fn cannot_read(&mut self, path: Vec<u8>) {
        self.left_out += 1;
        self.unread.push(path);
    }
}

/// Opens a folder that a program has closed to itself. It stays open from then on, since its entries are looked up
/// again when they are sent; the server gets the mode that the program set.
fn open(folder: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    if mode.contains(Mode::RWXU) {
        return Ok(());
    }
    rustix::fs::chmodat(folder, name, mode | Mode::RWXU, AtFlags::empty())
}
