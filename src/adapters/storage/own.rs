//! Files and folders of ours: no program reaches the folders that hold them.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::{
    fs::{Dir, Mode, OFlags, RenameFlags},
    io::Errno,
    path::Arg,
};
use tracing::debug;

use super::{Background, DiskStorage, TAKEN, delete::purge_or_post, fresh_name, ignore, next_entry, open_beneath};

/// Opens a folder whose parent only we can change. It may be a mount of its own.
pub(super) fn open_own(parent: &OwnedFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::empty())
}

/// Makes a folder for its owner alone, unless there is one.
pub(super) fn make_folder(parent: &OwnedFd, name: impl Arg) -> Result<(), Errno> {
    ignore(&[Errno::EXIST], rustix::fs::mkdirat(parent, name, Mode::RWXU)).map(drop)
}

/// Opens a folder of ours, made when it is missing.
pub(super) fn own_folder(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    make_folder(parent, name)?;
    open_own(parent, name)
}

/// The names in a folder, without those that are no text.
pub(super) fn names(folder: &OwnedFd) -> Result<Vec<String>, Errno> {
    let mut entries = Dir::read_from(folder)?;
    let mut names = Vec::new();
    while let Some(entry) = next_entry(&mut entries) {
        names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

/// An empty file with a name that was free.
pub(super) fn new_file(parent: &OwnedFd, name: impl Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)
}

/// Replaces the text of a small file. After a crash it may hold less of it.
pub(super) fn write_text(parent: &OwnedFd, name: &str, text: &str) -> Result<(), Errno> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::io::write(&file, text.as_bytes()).map(drop)
}

/// The text of a small file.
pub(super) fn read_text(parent: &OwnedFd, name: &str) -> Result<String, Errno> {
    let file = open_beneath(parent, name.as_bytes(), OFlags::RDONLY)?;
    let mut text = [0; 4096];
    let read = rustix::io::read(&file, &mut text)?;
    Ok(String::from_utf8_lossy(&text[..read]).into_owned())
}

/// Moves a folder to a name, and says whether something had the name, which then gets the folder's old one.
pub(super) fn exchange(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> Result<bool, Errno> {
    let renamed = match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => rustix::fs::renameat_with(from, old, to, new, RenameFlags::EXCHANGE).map(|()| true),
        other => other.map(|()| false),
    };
    match renamed {
        // File systems on a network have neither call, such as NFS, or the first one alone, such as SMB.
        Err(Errno::INVAL) => exchange_in_steps(from, old, to, new),
        other => other,
    }
}

fn exchange_in_steps(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> Result<bool, Errno> {
    let aside = fresh_name();
    if ignore(&[Errno::NOENT], rustix::fs::renameat(to, new, from, &aside))?.is_none() {
        return rustix::fs::renameat(from, old, to, new).map(|()| false);
    }
    let Err(errno) = rustix::fs::renameat(from, old, to, new) else {
        return rustix::fs::renameat(from, &aside, from, old).map(|()| true);
    };
    if rustix::fs::renameat(from, &aside, to, new).is_err() {
        // A program was faster. The caller discards the folder, with what had the name in it.
        rustix::fs::renameat(from, &aside, open_own(from, old)?, &aside)?;
    }
    Err(errno)
}

/// Gives a folder of ours a name; `false` when something has it.
pub(super) fn assign(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> Result<bool, Errno> {
    match rustix::fs::renameat_with(from, old, to, new, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL) => assign_by_rename(from, old, to, new),
        renamed => was_free(renamed),
    }
}

/// As [`assign`] on a file system without that call. A rename replaces an empty folder and nothing else; a
/// conversation's is empty only until the server that makes it has made `files`, and then it is made again.
pub(super) fn assign_by_rename(from: &OwnedFd, old: &str, to: &OwnedFd, new: &str) -> Result<bool, Errno> {
    was_free(rustix::fs::renameat(from, old, to, new))
}

fn was_free(renamed: Result<(), Errno>) -> Result<bool, Errno> {
    Ok(ignore(&TAKEN, renamed)?.is_some())
}

/// Removes a folder, with its content and its disk. Its name is free at once.
pub(super) fn discard(parent: &OwnedFd, name: &str, trash: &Arc<OwnedFd>, later: &Background) -> Result<(), Errno> {
    let in_trash = fresh_name();
    rustix::fs::renameat(parent, name, &**trash, &in_trash)?;
    purge_or_post(trash, &in_trash, later);
    Ok(())
}

/// As [`discard`], of everything in a folder. Each in turn: on a full disk the trash has no room for many names.
pub(super) fn discard_all(parent: &OwnedFd, trash: &Arc<OwnedFd>, later: &Background) -> Result<(), Errno> {
    names(parent)?.iter().try_for_each(|name| discard(parent, name, trash, later))
}

impl DiskStorage {
    /// As [`discard`], without waiting for it.
    pub(super) fn discard_later(&self, parent: &Arc<OwnedFd>, name: String) {
        let (parent, trash, background) = (Arc::clone(parent), Arc::clone(&self.trash), self.background.clone());
        self.background.post(move || {
            if let Err(errno) = discard(&parent, &name, &trash, &background) {
                debug!(%errno, name, "a folder is left to the next start");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    type Exchange = fn(&OwnedFd, &str, &OwnedFd, &str) -> Result<bool, Errno>;

    #[test]
    fn exchange_is_the_same_in_one_step_and_in_several() {
        let ways: [Exchange; 2] = [exchange, exchange_in_steps];
        for way in ways {
            let root = tempfile::tempdir().expect("a folder");
            let text = |name: &str| fs::read_to_string(root.path().join(name)).ok();
            let folder = |name: &str| {
                let path = root.path().join(name);
                fs::create_dir_all(&path).expect("a folder");
                OwnedFd::from(fs::File::open(path).expect("opened"))
            };
            let (from, to) = (folder("from"), folder("to"));
            let make = |text: &str| {
                drop(folder("from/old"));
                fs::write(root.path().join("from/old/x"), text).expect("written");
            };
            make("one");
            assert_eq!(way(&from, "old", &to, "new"), Ok(false));
            assert_eq!((text("to/new/x").as_deref(), text("from/old/x")), (Some("one"), None));
            make("two");
            assert_eq!(way(&from, "old", &to, "new"), Ok(true));
            assert_eq!((text("to/new/x").as_deref(), text("from/old/x").as_deref()), (Some("two"), Some("one")));
            assert_eq!(fs::read_dir(root.path().join("from")).expect("a folder").count(), 1);
            for name in ["other", "new"] {
                assert_eq!(way(&from, "absent", &to, name), Err(Errno::NOENT));
            }
            assert_eq!(text("to/new/x").as_deref(), Some("two"), "what had the name keeps it");
        }
    }
}
