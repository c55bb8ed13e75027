//! What a folder holds, and in which state. Follows no link and reads no file.

use std::{collections::BTreeMap, os::fd::OwnedFd};

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
}

impl Walk {
    pub(super) fn of(top: &OwnedFd) -> Result<Self, Errno> {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(top)?.st_mode & 0o7777);
        if !mode.contains(Mode::RWXU) {
            // Without these rights nothing below it is found. A folder of another user stays as it is.
            let _ = rustix::fs::fchmod(top, mode | Mode::RWXU);
        }
        let top = beneath(top, b".", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut walk = Self::default();
        walk.folder(&top, &mut Vec::new(), 1);
        Ok(walk)
    }

    fn folder(&mut self, folder: &OwnedFd, path: &mut Vec<u8>, depth: usize) {
        let Ok(mut names) = Dir::read_from(folder) else { return self.leave_out() };
        let length = path.len();
        while let Some(Ok(entry)) = names.next() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            self.entry(folder, name, path, depth);
            path.truncate(length);
        }
    }

    fn entry(&mut self, folder: &OwnedFd, name: &[u8], path: &mut Vec<u8>, depth: usize) {
        // What is not there any more was removed meanwhile.
        let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { return };
        if depth > NAMES_MAX || path.len() > PATH_BYTES_MAX {
            return self.leave_out();
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let Ok(inner) = open_folder(folder, name, &stat) else { return self.leave_out() };
                self.found.insert(path.clone(), Stamp::of(&stat));
                self.folder(&inner, path, depth + 1);
            }
            FileType::RegularFile => drop(self.found.insert(path.clone(), Stamp::of(&stat))),
            _ => self.leave_out(),
        }
    }

    fn leave_out(&mut self) {
        self.left_out += 1;
    }
}

/// Opens a folder for reading. A folder that a program has closed to itself stays open from then on, since its entries
/// are looked up again when they are sent; the server gets the mode that the program set.
fn open_folder(folder: &OwnedFd, name: &[u8], stat: &Stat) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
    if !mode.contains(Mode::RWXU) {
        rustix::fs::chmodat(folder, name, mode | Mode::RWXU, AtFlags::empty())?;
    }
    beneath(folder, name, OFlags::RDONLY | OFlags::DIRECTORY)
}
