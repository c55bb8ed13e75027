//! A walk over everything in a conversation, for a backup and for a sandbox to which files travel. Depth first; a path
//! has at most [`COMPONENTS_MAX`] names, so as many folders are open.

use std::{io, iter, ops::Range, os::fd::OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Statx, StatxFlags};

use super::{
    Errno, Folder,
    delete::set_mode,
    ignore, kind_of, next_if_there, open_beneath, stat_of,
    usage::{BLOCK_BYTES, open_closed, unlocked},
};
#[cfg(doc)]
use crate::domain::path::COMPONENTS_MAX;
use crate::{
    domain::SafePath,
    ports::storage::{SkipKind, SkippedCounts, Visited},
};

impl Folder {
    /// A concurrent change may be seen or not.
    pub(super) fn try_walk(
        &self,
        reads: bool,
        visit: &mut dyn FnMut(Visited) -> io::Result<()>,
    ) -> io::Result<SkippedCounts> {
        let mut walk = Walk { visit, reads, left_out: SkippedCounts::new() };
        walk.folder(&open_closed(&self.files, b"")?, &mut Vec::new())?;
        Ok(walk.left_out)
    }
}

struct Walk<'a> {
    visit: &'a mut dyn FnMut(Visited) -> io::Result<()>,
    reads: bool,
    left_out: SkippedCounts,
}

impl Walk<'_> {
    fn folder(&mut self, folder: &OwnedFd, path: &mut Vec<Vec<u8>>) -> io::Result<()> {
        let Some(mut names) = ignore_missing(unlocked(folder, || Dir::read_from(folder)))? else { return Ok(()) };
        while let Some(entry) = next_if_there(&mut names) {
            path.push(entry?.file_name().to_bytes().to_vec());
            self.entry(folder, path)?;
            path.pop();
        }
        Ok(())
    }

    fn entry(&mut self, folder: &OwnedFd, path: &mut Vec<Vec<u8>>) -> io::Result<()> {
        let name = path.last().cloned().unwrap_or_default();
        let stat = unlocked(folder, || stat_of(folder, &*name, StatxFlags::BASIC_STATS));
        let Some(stat) = ignore_missing(stat)? else { return Ok(()) };
        let Ok(safe) = SafePath::from_components(&*path) else { return self.skip(SkipKind::TooDeep) };
        match kind_of(&stat) {
            FileType::Directory => {
                (self.visit)(visited(safe, &stat, None))?;
                match open_closed(folder, &name) {
                    Err(Errno::ACCESS | Errno::PERM) => self.skip(SkipKind::Unreadable),
                    opened => ignore_missing(opened)?.map_or(Ok(()), |opened| self.folder(&opened, path)),
                }
            }
            FileType::RegularFile => self.file(folder, &name, safe),
            FileType::Symlink => self.skip(SkipKind::Link),
            FileType::Fifo => self.skip(SkipKind::Pipe),
            FileType::Socket => self.skip(SkipKind::Socket),
            _ => self.skip(SkipKind::Device),
        }
    }

    /// The opened file decides what it is: a program may have replaced it.
    fn file(&mut self, folder: &OwnedFd, name: &[u8], path: SafePath) -> io::Result<()> {
        // A handle that only names the file is enough to ask about it, and leaves its mode and its times alone.
        let opened = if self.reads { open_unreadable(folder, name) } else { open_beneath(folder, name, OFlags::PATH) };
        let handle = match opened {
            Err(Errno::ACCESS | Errno::PERM | Errno::AGAIN) => return self.skip(SkipKind::Unreadable),
            other => ignore_missing(other)?,
        };
        let Some(handle) = handle else { return Ok(()) };
        let stat = rustix::fs::statx(&handle, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        if !kind_of(&stat).is_file() {
            return Ok(());
        }
        let data = if self.reads { data(&handle, &stat) } else { Vec::new() };
        (self.visit)(Visited { data, ..visited(path, &stat, Some((handle.into(), stat.stx_size))) })
    }

    #[expect(clippy::unnecessary_wraps, reason = "the end of a step")]
    fn skip(&mut self, kind: SkipKind) -> io::Result<()> {
        *self.left_out.entry(kind).or_default() += 1;
        Ok(())
    }
}

/// Opens a file below a folder, also when the program took the right to read it from its owner, who has it meanwhile.
pub(super) fn open_unreadable(folder: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let open = || open_beneath(folder, name, OFlags::RDONLY);
    let refused = match open() {
        Err(Errno::ACCESS) => open_beneath(folder, name, OFlags::PATH)?,
        other => return other,
    };
    let mode = rustix::fs::fstat(&refused)?.st_mode;
    if !FileType::from_raw_mode(mode).is_file() {
        return Err(Errno::ACCESS);
    }
    let mode = Mode::from_raw_mode(mode & 0o7777);
    set_mode(&refused, mode | Mode::RUSR)?;
    let opened = open();
    set_mode(&refused, mode)?;
    opened
}

fn visited(path: SafePath, stat: &Statx, file: Option<(std::fs::File, u64)>) -> Visited {
    let mode = u32::from(stat.stx_mode) & 0o1777;
    Visited { path, mode, modified_unix_s: stat.stx_mtime.tv_sec, file, data: Vec::new() }
}

/// Where a file has bytes: all of it where the file system reports no holes. Moves the position of the descriptor.
fn data(file: &OwnedFd, stat: &Statx) -> Vec<Range<u64>> {
    let size = stat.stx_size;
    let whole = || iter::once(0..size).collect();
    if stat.stx_blocks.saturating_mul(BLOCK_BYTES) >= size {
        return whole();
    }
    let (mut found, mut at) = (Vec::new(), 0);
    while at < size {
        let begin = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(begin) if begin < size => begin,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(_) => return whole(),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(begin)).map_or(size, |end| end.clamp(begin + 1, size));
        found.push(begin..end);
        at = end;
    }
    found
}

/// `None` for what a program removed or replaced meanwhile; other errors end the walk.
fn ignore_missing<T>(opened: Result<T, Errno>) -> io::Result<Option<T>> {
    // `STALE`: removed on NFS.
    const REPLACED: [Errno; 7] =
        [Errno::NOENT, Errno::NOTDIR, Errno::LOOP, Errno::NXIO, Errno::XDEV, Errno::ISDIR, Errno::STALE];
    Ok(ignore(&REPLACED, opened)?)
}
