//! Listing: one pass over the tree, level by level, with bounded work, memory and descriptors (two at a time).

use std::collections::BTreeMap;

use rustix::fs::{Dir, FileType, OFlags, Statx, StatxFlags};

use super::{
    Errno, Folder, look, mark, next_entry, open_beneath,
    packages::is_of_packages,
    usage::{Tally, clear_set_id},
};
use crate::{
    domain::{
        SafePath,
        path::{PATH_BYTES_MAX, show},
    },
    ports::storage::{Change, Entry, ListBounds, Listing, Mark, SkipKind, Skipped},
};

/// Names examined in one listing: a fraction of a second of work.
const VISITS_MAX: usize = 100_000;
/// Folders remembered in one listing: a few megabytes.
const FOLDERS_MAX: usize = 20_000;

impl Folder {
    /// A concurrent change may be listed or not. Only folders are opened.
    pub(super) fn try_list(&self, bounds: ListBounds, since: Option<Mark>) -> Result<Listing, Errno> {
        let mut walk = Walk { since, ..Walk::new(bounds) };
        walk.run(self)?;
        let usage = (walk.listing.total.is_some() && !walk.unseen).then(|| walk.tally.usage());
        let usage = self.disk_usage()?.or(usage);
        Ok(Listing { usage, ..walk.listing() })
    }
}

/// A folder to visit. Its path is built when it is visited.
struct Unvisited {
    parent: usize,
    name: Vec<u8>,
    level: usize,
}

#[derive(Default)]
pub(super) struct Walk {
    bounds: ListBounds,
    since: Option<Mark>,
    after: Option<SafePath>,
    visits: usize,
    /// The first is the folder where the walk begins, and its own parent.
    folders: Vec<Unvisited>,
    /// The first files in the order of the answer: changed before unchanged.
    found: BTreeMap<(bool, SafePath), Found>,
    found_bytes: usize,
    skipped_bytes: usize,
    files: u64,
    listing: Listing,
    tally: Tally,
    /// Some entries were not examined.
    unseen: bool,
}

/// What is known of a file beside its path.
struct Found {
    size: u64,
    modified_unix_s: i64,
    change: Change,
}

impl Walk {
    fn new(bounds: ListBounds) -> Self {
        let folders = vec![Unvisited { parent: 0, name: Vec::new(), level: 1 }];
        Self { bounds, folders, ..Self::default() }
    }

    /// Begins in a folder, and lists what follows a file.
    pub(super) fn of_page(bounds: ListBounds, folder: Option<&SafePath>, after: Option<&SafePath>) -> Self {
        let mut walk = Self { after: after.cloned(), ..Self::new(bounds) };
        if let Some(folder) = folder {
            let level = 1 + folder.components().count();
            walk.folders[0] = Unvisited { parent: 0, name: folder.as_bytes().to_vec(), level };
        }
        walk
    }

    pub(super) fn page(mut self, conversation: &Folder) -> Result<Listing, Errno> {
        self.run(conversation)?;
        Ok(self.listing())
    }

    fn run(&mut self, conversation: &Folder) -> Result<(), Errno> {
        let mut next = 0;
        while next < self.folders.len() && self.visits < VISITS_MAX {
            self.folder(conversation, next)?;
            next += 1;
        }
        let ended_early = next < self.folders.len() || self.visits == VISITS_MAX;
        self.listing.truncated |= ended_early;
        self.listing.total = (!ended_early).then_some(self.files);
        Ok(())
    }

    fn listing(self) -> Listing {
        let entry =
            |((_, path), Found { size, modified_unix_s, change })| Entry { path, size, modified_unix_s, change };
        Listing { entries: self.found.into_iter().map(entry).collect(), ..self.listing }
    }

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
        while let Some(entry) = next_entry(&mut names) {
            let entry = entry?;
            let name = entry.file_name();
            if self.visits == VISITS_MAX {
                self.listing.truncated = true;
                self.unseen = true;
                break;
            }
            self.visits += 1;
            match look(names.fd()?, name, StatxFlags::BASIC_STATS | StatxFlags::BTIME) {
                Ok(stat) => {
                    self.tally.add(&stat);
                    self.entry(index, &path, name.to_bytes(), &stat);
                    if self.since.is_some() {
                        clear_set_id(names.fd()?, name, &stat);
                    }
                }
                // A folder that may be read and not searched.
                Err(Errno::ACCESS) => self.unseen = true,
                // It was removed.
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn entry(&mut self, index: usize, folder: &[u8], name: &[u8], stat: &Statx) {
        let path = if folder.is_empty() { name.to_vec() } else { [folder, b"/", name].concat() };
        // They are counted and not listed.
        let is_hidden = is_of_packages(&path);
        let kind = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::Directory => return self.remember(index, name, &path),
            _ if is_hidden => return,
            FileType::RegularFile => return self.file(&path, stat),
            FileType::Symlink => SkipKind::Link,
            FileType::Fifo => SkipKind::Pipe,
            FileType::Socket => SkipKind::Socket,
            _ => SkipKind::Device,
        };
        self.skip(&path, kind);
    }

    fn file(&mut self, path: &[u8], stat: &Statx) {
        let change = self.change(stat);
        let unchanged = change == Change::Unchanged;
        self.files += 1;
        self.listing.changed += u64::from(!unchanged);
        if self.after.as_ref().is_some_and(|after| path <= after.as_bytes()) {
            return;
        }
        let ListBounds { entries_max, bytes_max, .. } = self.bounds;
        let full = self.found.len() >= entries_max || self.found_bytes >= bytes_max;
        let is_behind = |((kind, last), _): (&(bool, SafePath), _)| (unchanged, path) > (*kind, last.as_bytes());
        if full && self.found.last_key_value().is_some_and(is_behind) {
            self.listing.more = true;
            self.listing.truncated = true;
            return;
        }
        let Ok(safe) = SafePath::from_components(path.split(|&b| b == b'/')) else {
            return self.skip(path, SkipKind::TooDeep);
        };
        self.found_bytes += path.len();
        let found = Found { size: stat.stx_size, modified_unix_s: stat.stx_mtime.tv_sec, change };
        self.found.insert((unchanged, safe), found);
        while self.found.len() > entries_max || (self.found_bytes > bytes_max && self.found.len() > 1) {
            let Some(((_, last), _)) = self.found.pop_last() else { return };
            self.found_bytes -= last.as_bytes().len();
            self.listing.more = true;
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
        if self.after.is_some() || is_of_packages(path) {
            // The first page names them.
        } else if self.listing.skipped.len() < self.bounds.entries_max && self.skipped_bytes < self.bounds.bytes_max {
            let path = show(path);
            self.skipped_bytes += path.len();
            self.listing.skipped.push(Skipped { path, kind });
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
        names.extend(Some(self.folders[0].name.as_slice()).filter(|name| !name.is_empty()));
        names.reverse();
        names.join(&b'/')
    }
}
