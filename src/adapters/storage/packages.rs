//! The store of installed packages.
//!
//! ```text
//! {root}/.packages/{owner}/{key}/tree/     what one installation made; ours, changed by nothing
//! {root}/.packages/{owner}/{key}/.used     its usage; touched when it is used
//! ```
//!
//! Installations under way are in `.nameless`, like all folders of sandboxes that belong to no conversation.
//!
//! Everything in a tree was copied out of the sandbox that installed it, so no open file or hard link leads into it.
//! Where this server is root, conversations get hard links: their programs are another user, who can neither write to
//! the files nor change their mode, and the folders are ours too. Elsewhere, and on a disk of its own, they get copies.

use std::{
    fs::File,
    io::{self, Read as _},
    os::fd::OwnedFd,
    sync::Arc,
};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Statx, StatxFlags};

use super::{
    DiskStorage, Errno, Folder, GONE, NOW, errno_of, failed, fresh_name,
    handover::HandoverMethod,
    ignore, kind_of, next_entry, open_beneath,
    own::{discard, exchange, make_folder, names, new_file, open_own, own_folder, read_text, write_text},
    project::share_project,
    stat_of,
    usage::{BLOCK_BYTES, Tally, usage_below},
};
use crate::{
    domain::{
        ConversationKey, Principal,
        packages::{FOLDER, Tool},
    },
    ports::{
        packages::{NOTE, NOTE_BYTES_MAX, PackageStore, Staging, StoreSize, Tree},
        storage::{ConversationFolder as _, DataFolder, FsResult, Usage},
    },
};

const TREE: &str = "tree";
const USED: &str = ".used";
/// The deepest folder of a tree.
const DEPTH_MAX: usize = 64;

/// A folder for one installation.
#[derive(Debug)]
struct Stage {
    storage: Arc<DiskStorage>,
    owner: OwnedFd,
    name: String,
    folder: Folder,
}

impl PackageStore for DiskStorage {
    fn stage(self: Arc<Self>, owner: &Principal) -> FsResult<Box<dyn Staging>> {
        let make = || {
            let (owner, name) = (self.packages_of(owner)?, fresh_name());
            // No conversation's limit is that of an installation.
            make_folder(&own_folder(&self.unassigned, &name)?, "files")?;
            let folder = self.make(&self.unassigned, &name, &self.unassigned_path().join(&name))?;
            Ok(Stage { storage: Arc::clone(&self), owner, name, folder })
        };
        Ok(Box::new(make().map_err(failed("create"))?))
    }

    fn find(&self, owner: &Principal, key: &str, since_unix_s: i64) -> FsResult<Option<Tree>> {
        let found = ignore(&[Errno::NOENT], self.try_find(owner, key, since_unix_s));
        found.map(Option::flatten).map_err(failed("read"))
    }

    fn placed(&self, conversation: &ConversationKey, tool: Tool) -> FsResult<Tree> {
        // A program may have put anything else there.
        let placed = ignore(&GONE, self.try_placed(conversation, tool));
        placed.map(Option::unwrap_or_default).map_err(failed("read"))
    }

    fn put(&self, key: &str, conversation: &ConversationKey, tool: Tool) -> FsResult<()> {
        self.try_put(key, conversation, tool).map_err(failed("write"))
    }

    fn trim(&self, unused_since_unix_s: i64, owner_bytes_max: u64) -> FsResult<StoreSize> {
        self.try_trim(unused_since_unix_s, owner_bytes_max).map_err(failed("delete"))
    }
}

impl Staging for Stage {
    fn data(&self) -> DataFolder {
        self.folder.data()
    }

    fn usage(&self, ceiling: &Usage) -> FsResult<Usage> {
        self.folder.try_usage(ceiling).map_err(failed("measure"))
    }

    fn keep(&self, tool: Tool, key: &str, ceiling: &Usage) -> FsResult<Tree> {
        self.try_keep(tool, key, ceiling).map_err(failed("write"))
    }
}

impl Stage {
    fn try_keep(&self, tool: Tool, key: &str, ceiling: &Usage) -> Result<Tree, Errno> {
        let made = open_beneath(&self.folder.files, place_of(tool).as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
        // Beside `files`, where no program reaches, until it is whole.
        let (name, own) = (fresh_name(), &self.folder.dir);
        let whole = own_folder(own, &name)?;
        let mut copy = Copying { links: false, ceiling: *ceiling, tally: Tally::default() };
        copy.folder(&made, &own_folder(&whole, TREE)?, DEPTH_MAX)?;
        let usage = copy.tally.usage;
        write_usage(&whole, &usage)?;
        exchange(own, &name, &self.owner, key)?;
        Ok(Tree { note: note(&open_own(&whole, TREE)?)?, usage })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.storage.discard_later(&self.storage.unassigned, std::mem::take(&mut self.name));
    }
}

/// Where the packages of a tool are in `/data`.
fn place_of(tool: Tool) -> String {
    format!("{FOLDER}/{}", tool.folder())
}

impl DiskStorage {
    fn packages_of(&self, owner: &Principal) -> Result<OwnedFd, Errno> {
        own_folder(&own_folder(&self.root, FOLDER)?, owner.name())
    }

    fn try_find(&self, owner: &Principal, key: &str, since_unix_s: i64) -> Result<Option<Tree>, Errno> {
        let kept = open_own(&self.packages_of(owner)?, key)?;
        let tree = open_own(&kept, TREE)?;
        if rustix::fs::fstat(&tree)?.st_mtime < since_unix_s {
            return Ok(None);
        }
        let usage = read_usage(&kept)?;
        // Not written again: a full disk would leave it empty, and the tree unusable.
        rustix::fs::utimensat(&kept, USED, &NOW, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Some(Tree { note: note(&tree)?, usage }))
    }

    fn try_placed(&self, conversation: &ConversationKey, tool: Tool) -> Result<Tree, Errno> {
        let there = self.enter(conversation)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let tree = open_beneath(&there.files, place_of(tool).as_bytes(), flags)?;
        let ceiling = Usage { bytes: u64::MAX, entries: 1 << 20 };
        Ok(Tree { note: note(&tree)?, usage: usage_below(&tree, &ceiling)? })
    }

    fn try_put(&self, key: &str, conversation: &ConversationKey, tool: Tool) -> Result<(), Errno> {
        let tree = open_own(&open_own(&self.packages_of(&conversation.owner)?, key)?, TREE)?;
        let there = self.try_create(conversation)?;
        there.try_mark()?;
        let name = fresh_name();
        let made = own_folder(there.to_write_in()?, &name)?;
        let links = self.method == HandoverMethod::Chown && !there.on_own_disk;
        let mut copy =
            Copying { links, ceiling: Usage { bytes: u64::MAX, entries: u64::MAX }, tally: Tally::default() };
        // Copies may be the programs' own, so they count. Links count for no conversation.
        let counted = if links { Ok(()) } else { share_project(&made, &there.files) };
        let copied = counted.and_then(|()| copy.folder(&tree, &made, DEPTH_MAX));
        let placed = copied.and_then(|()| share_project(&made, &there.files)).and_then(|()| {
            let parent = there.folder(FOLDER.as_bytes())?;
            exchange(&there.incoming, &name, &parent, tool.folder()).map(drop)
        });
        // What was there before, or what is not whole.
        ignore(&[Errno::NOENT], discard(&there.incoming, &name, &there.trash, &there.background))?;
        placed
    }

    fn try_trim(&self, unused_since_unix_s: i64, owner_bytes_max: u64) -> Result<StoreSize, Errno> {
        let all = own_folder(&self.root, FOLDER)?;
        let mut left = StoreSize::default();
        for owner in names(&all)? {
            let Ok(owner) = open_own(&all, &owner) else { continue };
            let mut trees: Vec<(i64, String, u64)> = Vec::new();
            for key in names(&owner)? {
                let Ok(kept) = open_own(&owner, &key) else { continue };
                let used = rustix::fs::statat(&kept, USED, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| stat.st_mtime);
                trees.push((used, key, read_usage(&kept).unwrap_or_default().bytes));
            }
            // Those that were used last come first.
            trees.sort_by(|a, b| b.cmp(a));
            let mut bytes = 0_u64;
            for (used, key, size) in trees {
                if used >= unused_since_unix_s && bytes.saturating_add(size) <= owner_bytes_max {
                    bytes += size;
                    left.trees += 1;
                } else {
                    rustix::fs::renameat(&owner, &key, &*self.trash, fresh_name())?;
                    self.background.empty(&self.trash);
                }
            }
            left.bytes = left.bytes.saturating_add(bytes);
        }
        Ok(left)
    }
}

/// The note in a tree, cut at its longest length.
fn note(tree: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let file = open_beneath(tree, NOTE.as_bytes(), OFlags::RDONLY);
    let Some(file) = ignore(&[Errno::NOENT, Errno::LOOP, Errno::NXIO], file)? else { return Ok(Vec::new()) };
    let is_file = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode).is_file();
    let mut note = Vec::new();
    if is_file {
        File::from(file).take(NOTE_BYTES_MAX as u64).read_to_end(&mut note).map_err(|error| errno_of(&error))?;
    }
    Ok(note)
}

fn write_usage(kept: &OwnedFd, usage: &Usage) -> Result<(), Errno> {
    write_text(kept, USED, &format!("{} {}", usage.bytes, usage.entries))
}

/// An unreadable one, as a crash leaves it, means a tree that is not used.
fn read_usage(kept: &OwnedFd) -> Result<Usage, Errno> {
    let text = read_text(kept, USED)?;
    let numbers = text.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    numbers.map(|(bytes, entries)| Usage { bytes, entries }).ok_or(Errno::NOENT)
}

/// Makes a folder of ours like another, up to a ceiling.
struct Copying {
    /// Files are linked where that is possible.
    links: bool,
    ceiling: Usage,
    tally: Tally,
}

impl Copying {
    /// `from` may be of a program that has ended, so each name is resolved once, beneath it, through no link.
    fn folder(&mut self, from: &OwnedFd, to: &OwnedFd, depth: usize) -> Result<(), Errno> {
        let deeper = depth.checked_sub(1).ok_or(Errno::NAMETOOLONG)?;
        let mut entries = Dir::read_from(from)?;
        while let Some(entry) = next_entry(&mut entries) {
            let entry = entry?;
            let name = entry.file_name();
            let mut stat = stat_of(from, name, StatxFlags::BASIC_STATS)?;
            // A copy has no holes, and each name is a file of its own.
            stat.stx_blocks = stat.stx_blocks.max(stat.stx_size.div_ceil(BLOCK_BYTES));
            stat.stx_nlink = 1;
            self.tally.add(&stat);
            if !self.tally.usage.fits(&self.ceiling) {
                return Err(Errno::DQUOT);
            }
            match kind_of(&stat) {
                FileType::Directory => {
                    let inside = open_beneath(from, name.to_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
                    rustix::fs::mkdirat(to, name, Mode::RWXU)?;
                    self.folder(&inside, &open_own(to, name)?, deeper)?;
                }
                FileType::RegularFile => self.file(from, name, &stat, to)?,
                FileType::Symlink => {
                    rustix::fs::symlinkat(rustix::fs::readlinkat(from, name, Vec::new())?, to, name)?;
                }
                // Nothing of a package is a pipe, a socket or a device.
                _ => {}
            }
        }
        rustix::fs::fchmod(to, Mode::from_raw_mode(0o755))
    }

    fn file(&self, from: &OwnedFd, name: &std::ffi::CStr, stat: &Statx, to: &OwnedFd) -> Result<(), Errno> {
        if self.links && rustix::fs::linkat(from, name, to, name, AtFlags::empty()).is_ok() {
            return Ok(());
        }
        let source: File = open_beneath(from, name.to_bytes(), OFlags::RDONLY)?.into();
        let mut made: File = new_file(to, name)?.into();
        io::copy(&mut source.take(stat.stx_size), &mut made).map_err(|error| errno_of(&error))?;
        let rights = if stat.stx_mode & 0o111 == 0 { 0o644 } else { 0o755 };
        rustix::fs::fchmod(&made, Mode::from_raw_mode(rights))
    }
}

/// Whether a path is in the folder of packages, which listings leave out.
pub(super) fn is_of_packages(path: &[u8]) -> bool {
    path.strip_prefix(FOLDER.as_bytes()).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
