//! Whether a folder for `/data` or of skills is a real one below its root: no symbolic link on the way.
//!
//! The engine resolves the path again when it mounts it. A process that can write the root could replace it by a link
//! in between (`SECURITY.md`).

use std::{
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};

use super::rules::Denied;

/// The folder that all data folders are in, or all folders of skills.
#[derive(Debug)]
pub(super) struct Root {
    pub path: PathBuf,
    handle: OwnedFd,
    resolve: ResolveFlags,
}

impl Root {
    /// That of data folders: there is no mount on the way to one.
    pub(super) fn of_data(path: &Path) -> Result<Self, Errno> {
        Self::open(path, ResolveFlags::NO_XDEV)
    }

    /// That of skills, in which the operator may have mounted the public ones.
    pub(super) fn of_skills(path: &Path) -> Result<Self, Errno> {
        Self::open(path, ResolveFlags::empty())
    }

    fn open(path: &Path, more: ResolveFlags) -> Result<Self, Errno> {
        let handle = openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | more;
        Ok(Self { path: path.to_owned(), handle, resolve })
    }

    /// Whether it is a folder below the root, with a normalized path.
    pub(super) fn check(&self, folder: &Path) -> Result<(), Denied> {
        let denied = |why: &str| Denied::new(format!("{}: {why}", folder.display()));
        let below = folder.strip_prefix(&self.path).map_err(|_| denied("it is not below the root"))?;
        let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        // `Path` skips doubled slashes and dots; the engine receives the text.
        let rebuilt: PathBuf = self.path.components().chain(below.components()).collect();
        if !plain || below.as_os_str().is_empty() || rebuilt.as_os_str() != folder.as_os_str() {
            return Err(denied("its path is not normalized"));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat2(&self.handle, below, flags, Mode::empty(), self.resolve) {
            Ok(_) => Ok(()),
            Err(error) => Err(denied(&format!("it is no folder that can be reached without links ({error})"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn check_accepts_only_real_folders_below_the_root() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("c/files")).expect("a folder");
        fs::write(root.join("c/file"), "").expect("a file");
        symlink("/", root.join("host")).expect("a link");
        symlink("c", root.join("near")).expect("a link");
        let roots = [Root::of_data(&root), Root::of_skills(&root)].map(|opened| opened.expect("a root"));
        let text = root.display();
        assert!(roots.iter().all(|opened| opened.check(&root.join("c/files")).is_ok()));
        for bad in [
            "/etc".to_owned(),
            format!("{text}"),
            format!("{text}/"),
            format!("{text}/c/../c/files"),
            format!("{text}/c/./files"),
            format!("{text}//c/files"),
            format!("{text}/c/files/"),
            format!("{text}/c/file"),
            format!("{text}/nowhere"),
            format!("{text}/host"),
            format!("{text}/host/etc"),
            format!("{text}/near/files"),
            format!("{text}x/c/files"),
        ] {
            assert!(roots.iter().all(|opened| opened.check(Path::new(&bad)).is_err()), "{bad}");
        }
    }
    #[test]
    fn only_skills_may_be_mounts() {
        let (folder, root) = (Path::new("/proc"), Path::new("/"));
        assert!(Root::of_skills(root).expect("a root").check(folder).is_ok());
        assert!(Root::of_data(root).expect("a root").check(folder).is_err());
    }
}
