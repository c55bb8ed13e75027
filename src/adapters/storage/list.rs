//! Listing: one pass over the tree, level by level, with bounded work, memory and descriptors (two at a time).

use std::collections::BTreeMap;

use rustix::{
    fs::{AtFlags, Dir, FileType, OFlags, Statx, StatxFlags},
    io::Errno,
};

use super::{Folder, mark, open_beneath, usage::Tally};
use crate::{
    domain::path::{PATH_BYTES_MAX, SafePath, show},
    ports::storage::{Change, Entry, ListBounds, Listing, Mark, SkipKind, Skipped},
};

/// Names examined in one listing: a fraction of a second of work.
const VISITS_MAX: usize = 100_000;
/// Folders remembered in one listing: a few megabytes.
const FOLDERS_MAX: usize = 20_000;

impl Folder {
    /// A concurrent change may be listed or not. Only folders are opened.
    pub(super) fn try_list(&self, bounds: ListBounds, since: Option<Mark>) -> Result<Listing, Errno> {
        let mut walk = Walk {
            bounds,
            since,
            visits: 0,
            folders: vec![Unvisited { parent: 0, name: Vec::new(), level: 1 }],
            found: BTreeMap::new(),
            listing: Listing::default(),
            tally: Tally::default(),
            unseen: false,
        };
        let mut next = 0;
        while next < walk.folders.len() && walk.visits < VISITS_MAX {
            walk.folder(self, next)?;
            next += 1;
        }
        let ended_early = next < walk.folders.len();
        walk.listing.truncated |= ended_early;
        let on_disk = self.disk_usage()?;
        walk.listing.usage = on_disk.or_else(|| (!ended_early && !walk.unseen).then(|| walk.tally.usage()));
        walk.listing.entries = walk.found.into_values().collect();
        Ok(walk.listing)
    }
}

/// A folder to visit. Its path is built when it is visited.
struct Unvisited {
    parent: usize,
    name: Vec<u8>,
    level: usize,
}

struct Walk {
    bounds: ListBounds,
    since: Option<Mark>,
    visits: usize,
    /// The first is the top and its own parent.
    folders: Vec<Unvisited>,
    /// The first files in the order of the answer: changed before unchanged.
    found: BTreeMap<(bool, SafePath), Entry>,
    listing: Listing,
    tally: Tally,
    /// Some entries were not examined.
    unseen: bool,
}

impl Walk {
    fn folder(&mut self, conversation: &Folder, index: usize) -> Result<(), Errno> {
        let path = self.path(index);
        let handle = match open_beneath(&conversation.files, &path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(handle) => handle,
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO) => return Err(Errno::IO),
            // It is no longer a folder.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
            Err(_) => {
                self.unseen = true;
                self.skip(&path, SkipKind::Unreadable);
                return Ok(());
            }
        };
        let mut names = Dir::new(handle)?;
        while let Some(entry) = names.read() {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.visits == VISITS_MAX {
                self.listing.truncated = true;
                self.unseen = true;
                break;
            }
            self.visits += 1;
            let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
            let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
            // An entry that cannot be examined was removed.
            if let Ok(stat) = rustix::fs::statx(names.fd()?, name, flags, mask) {
                self.tally.add(&stat);
                self.entry(index, &path, name.to_bytes(), &stat);
            }
        }
        Ok(())
    }

    fn entry(&mut self, index: usize, folder: &[u8], name: &[u8], stat: &Statx) {
        let path = if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() };
        let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => return self.file(&path, stat),
            FileType::Directory => return self.remember(index, name, &path),
            FileType::Symlink => SkipKind::Link,
            FileType::Fifo => SkipKind::Pipe,
            FileType::Socket => SkipKind::Socket,
            _ => SkipKind::Device,
        };
        self.skip(&path, kind);
    }

    fn file(&mut self, path: &[u8], stat: &Statx) {
        let Ok(safe) = SafePath::from_components(path.split(|&b| b == b'/')) else {
            return self.skip(path, SkipKind::TooDeep);
        };
        let change = self.change(stat);
        self.listing.changed += u64::from(change != Change::Unchanged);
        let key = (change == Change::Unchanged, safe.clone());
        let modified_unix_s = stat.stx_mtime.tv_sec;
        self.found.insert(key, Entry { path: safe, size: stat.stx_size, modified_unix_s, change });
        if self.found.len() > self.bounds.entries_max {
            self.found.pop_last();
            self.listing.truncated = true;
        }
    }

    fn change(&self, stat: &Statx) -> Change {
        let has_birth = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        match self.since {
            Some(since) if has_birth && mark(stat.stx_btime) >= since => Change::Created,
            Some(since) if mark(stat.stx_ctime) >= since => Change::Changed,
            _ => Change::Unchanged,
        }
    }

    fn remember(&mut self, parent: usize, name: &[u8], path: &[u8]) {
        let level = self.folders[parent].level + 1;
        if level > self.bounds.depth_max || path.len() > PATH_BYTES_MAX {
            self.unseen = true;
            self.skip(path, SkipKind::TooDeep);
        } else if self.folders.len() == FOLDERS_MAX {
            self.unseen = true;
            self.listing.truncated = true;
        } else {
            self.folders.push(Unvisited { parent, name: name.to_vec(), level });
        }
    }

    fn skip(&mut self, path: &[u8], kind: SkipKind) {
        if self.listing.skipped.len() < self.bounds.entries_max {
            self.listing.skipped.push(Skipped { path: show(path), kind });
        } else {
            self.listing.truncated = true;
        }
    }

    fn path(&self, mut index: usize) -> Vec<u8> {
        let mut names = Vec::new();
        while index != 0 {
            names.push(self.folders[index].name.as_slice());
            index = self.folders[index].parent;
        }
        names.reverse();
        names.join(&b'/')
    }
}
