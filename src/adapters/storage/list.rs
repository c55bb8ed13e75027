//! Listing: one pass over the tree, level by level, with bounded work, memory and descriptors (two at a time).

use std::{collections::BTreeSet, os::fd::OwnedFd};

use rustix::fs::{Dir, FileType, OFlags, Statx, StatxFlags};

use super::{
    Errno, Folder, kind_of, mark, next_if_there, open_beneath,
    packages::is_of_packages,
    stat_of,
    usage::{Tally, clear_set_id},
};
use crate::{
    domain::{
        SafePath,
        path::{PATH_BYTES_MAX, show},
    },
    ports::storage::{Change, Entry, FileFilter, ListBounds, Listing, Mark, SkipKind, Skipped},
};

/// Names examined in one listing: a fraction of a second of work.
const VISITS_MAX: usize = 100_000;
/// Folders remembered in one listing: a few megabytes.
const FOLDERS_MAX: usize = 20_000;

impl Folder {
    /// A concurrent change may be listed or not. Only folders are opened.
    pub(super) fn try_list(&self, bounds: ListBounds, since: Option<Mark>) -> Result<Listing, Errno> {
        let listing = Walk { since, ..Walk::of_page(bounds, &FileFilter::default()) }.run(&self.files)?;
        Ok(Listing { usage: self.disk_usage()?.or(listing.usage), ..listing })
    }
}

/// A folder to visit. Its path is built when it is visited.
struct PendingFolder {
    parent: usize,
    name: Vec<u8>,
    level: usize,
}

#[derive(Default)]
pub(super) struct Walk {
    bounds: ListBounds,
    since: Option<Mark>,
    /// How the names in the folder where it begins have to begin.
    prefix: Vec<u8>,
    after: Option<SafePath>,
    visits: usize,
    /// The first is the folder where the walk begins, and its own parent.
    folders: Vec<PendingFolder>,
    /// The first files in the order of the answer: changed before unchanged.
    found: BTreeSet<(bool, Entry)>,
    found_bytes: usize,
    skipped_bytes: usize,
    files: u64,
    listing: Listing,
    tally: Tally,
    /// The first file that did not fit. What follows it is left to the next page.
    left_out: Option<(bool, SafePath)>,
    /// Some entries were not examined.
    unseen: bool,
    /// Files may be where no walk within these bounds gets.
    out_of_reach: bool,
    /// Installed packages are counted and not listed.
    hides_packages: bool,
}

impl Walk {
    /// Begins at the top, and lists everything.
    pub(super) fn new(bounds: ListBounds) -> Self {
        let folders = vec![PendingFolder { parent: 0, name: Vec::new(), level: 1 }];
        Self { bounds, folders, ..Self::default() }
    }

    /// Lists files of a conversation.
    pub(super) fn of_page(bounds: ListBounds, filter: &FileFilter) -> Self {
        let FileFilter { folder, prefix, after } = filter.clone();
        let mut walk = Self { prefix, after, hides_packages: true, ..Self::new(bounds) };
        if let Some(folder) = folder {
            let level = 1 + folder.components().count();
            walk.folders[0] = PendingFolder { parent: 0, name: folder.as_bytes().to_vec(), level };
        }
        walk
    }

    pub(super) fn page(self, top: &OwnedFd) -> Result<Listing, Errno> {
        Ok(Listing { usage: None, ..self.run(top)? })
    }

    fn run(mut self, top: &OwnedFd) -> Result<Listing, Errno> {
        let mut next = 0;
        while next < self.folders.len() && self.visits < VISITS_MAX {
            self.folder(top, next)?;
            next += 1;
        }
        let ended_early = next < self.folders.len() || self.visits == VISITS_MAX;
        self.listing.truncated |= ended_early;
        let total = (!ended_early && !self.out_of_reach).then_some(self.files);
        let usage = (!ended_early && !self.unseen).then_some(self.tally.usage);
        let mut entries: Vec<_> = self.found.into_iter().map(|(_, entry)| entry).collect();
        // A folder may show a name twice that a program gave to another file meanwhile.
        entries.dedup_by(|one, other| one.path == other.path);
        Ok(Listing { entries, total, usage, ..self.listing })
    }

    fn folder(&mut self, top: &OwnedFd, index: usize) -> Result<(), Errno> {
        let path = self.path(index);
        let handle = match open_beneath(top, &path, OFlags::RDONLY | OFlags::DIRECTORY) {
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
        while let Some(entry) = next_if_there(&mut names) {
            let entry = entry?;
            let name = entry.file_name();
            if self.visits == VISITS_MAX {
                self.listing.truncated = true;
                self.unseen = true;
                break;
            }
            self.visits += 1;
            if index == 0 && !name.to_bytes().starts_with(&self.prefix) {
                continue;
            }
            match stat_of(names.fd()?, name, StatxFlags::BASIC_STATS | StatxFlags::BTIME) {
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
        let kind = match kind_of(stat) {
            FileType::Directory => return self.remember(index, name, &path),
            _ if self.is_hidden(&path) => return,
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
        let Ok(safe_path) = SafePath::from_components(path.split(|&b| b == b'/')) else {
            self.out_of_reach = true;
            return self.skip(path, SkipKind::TooDeep);
        };
        let ListBounds { entries_max, bytes_max, .. } = self.bounds;
        // Also where its path is short enough to fit: the next page begins behind the last file of this one.
        let is_left_out = |(kind, first): &(bool, SafePath)| (unchanged, path) >= (*kind, first.as_bytes());
        if self.left_out.as_ref().is_some_and(is_left_out) {
            return;
        }
        self.found_bytes += path.len();
        let (size, modified_unix_s) = (stat.stx_size, stat.stx_mtime.tv_sec);
        self.found.insert((unchanged, Entry { path: safe_path, size, modified_unix_s, change }));
        while self.found.len() > entries_max || (self.found_bytes > bytes_max && self.found.len() > 1) {
            let Some((kind, last)) = self.found.pop_last() else { return };
            self.found_bytes -= last.path.as_bytes().len();
            self.left_out = Some((kind, last.path));
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
        let is_too_deep = level > self.bounds.depth_max || path.len() > PATH_BYTES_MAX;
        if !is_too_deep && self.folders.len() < FOLDERS_MAX {
            return self.folders.push(PendingFolder { parent, name: name.to_vec(), level });
        }
        self.unseen = true;
        self.out_of_reach |= !self.is_hidden(path);
        if is_too_deep {
            self.skip(path, SkipKind::TooDeep);
        } else {
            self.listing.truncated = true;
        }
    }

    fn is_hidden(&self, path: &[u8]) -> bool {
        self.hides_packages && is_of_packages(path)
    }

    fn skip(&mut self, path: &[u8], kind: SkipKind) {
        if self.after.is_some() || self.is_hidden(path) {
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

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::*;

    #[test]
    fn a_file_that_is_replaced_meanwhile_is_listed_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("before"), "a").expect("written");
        std::fs::write(at("after"), "bb").expect("written");
        let mut walk = Walk::new(ListBounds { entries_max: 10, bytes_max: 1 << 20, depth_max: 2 });
        for seen in ["before", "after"] {
            let stat = stat_of(CWD, at(seen), StatxFlags::BASIC_STATS).expect("a file");
            walk.entry(0, b"", b"x", &stat);
        }
        std::fs::create_dir(at("empty")).expect("a folder");
        let empty = OwnedFd::from(std::fs::File::open(at("empty")).expect("opened"));
        let listing = walk.page(&empty).expect("a listing");
        let names: Vec<_> = listing.entries.iter().map(|entry| entry.path.display()).collect();
        assert_eq!(names, ["x"]);
    }

    #[test]
    fn a_file_whose_path_is_too_long_leaves_the_number_unknown_also_behind_the_page() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("file"), "a").expect("written");
        let stat = stat_of(CWD, folder.path().join("file"), StatxFlags::BASIC_STATS).expect("a file");
        std::fs::create_dir(folder.path().join("empty")).expect("a folder");
        let empty = OwnedFd::from(std::fs::File::open(folder.path().join("empty")).expect("opened"));
        let name = [b'z'; 200];
        for (levels, total) in [(19, Some(3)), (20, None)] {
            let mut walk = Walk::new(ListBounds { entries_max: 1, bytes_max: 1 << 20, depth_max: 32 });
            walk.entry(0, b"", b"a", &stat);
            walk.entry(0, b"", b"b", &stat);
            walk.entry(0, &vec![name; levels].join(&b'/'), &name, &stat);
            let page = walk.page(&empty).expect("a page");
            assert_eq!((page.entries.len(), page.more, page.total), (1, true, total), "{levels}");
        }
    }
}
