//! Skills as folders of this machine.
//!
//! ```text
//! {root}/public/{skill}/    the operator's
//! {root}/{owner}/{skill}/   uploaded by an owner
//! {root}/.incoming/         skills being written and skills being deleted, each in a folder of its own
//! ```
//!
//! The folders of owners and skills are readable for every user, since programs read them through read-only mounts.
//! Links are not followed: every file is opened from a directory handle, as in conversations. A folder of the root may
//! be a mount of its own, as an operator may mount the public skills.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use rustix::fs::{Dir, FileType, Mode, OFlags};
use tracing::warn;

use super::{
    Errno, RootError, errno_of, failed, fresh_name, ignore,
    list::Walk,
    next_entry, open_beneath,
    own::{exchange, make_folder, new_file, open_own, own_folder},
    root::open_root,
};
use crate::{
    domain::{
        SafePath,
        skills::{SKILL_DEPTH_MAX, SKILL_ENTRIES_MAX, SKILLS_MAX, SkillName, SkillSource},
    },
    ports::{
        skills::{NewFile, SkillStore},
        storage::{FsResult, ListBounds, StorageError},
    },
};

/// No owner has this name, and no skill.
const INCOMING: &str = ".incoming";
/// Entries of a folder of skills that are looked at.
const NAMES_SEEN_MAX: usize = 10_000;
/// Age at which what is in `.incoming` was left by a killed process.
const ABANDONED_AFTER: Duration = Duration::from_hours(1);
/// Folders, and files that can be run.
const OPEN_MODE: u32 = 0o755;

/// The folder of all skills.
#[derive(Debug)]
pub struct DiskSkills {
    root: OwnedFd,
    path: PathBuf,
}

impl DiskSkills {
    /// Opens the folder, and makes what is missing in it as far as it can be written.
    ///
    /// # Errors
    /// When it cannot be opened or made, or every user of the machine could change it.
    pub fn at(path: &Path, now_unix_s: i64) -> Result<Self, RootError> {
        let skills = Self { root: open_root(path, 0o777)?, path: path.to_owned() };
        skills.folder(&SkillSource::Public);
        skills.clear_incoming(now_unix_s);
        Ok(skills)
    }

    /// Removes what a killed process left. Another process may use the folder now, so what is new stays.
    fn clear_incoming(&self, now_unix_s: i64) {
        let now = UNIX_EPOCH + Duration::from_secs(now_unix_s.try_into().unwrap_or(0));
        for entry in std::fs::read_dir(self.path.join(INCOMING)).into_iter().flatten().flatten() {
            let modified = entry.metadata().and_then(|there| there.modified());
            let age = modified.ok().and_then(|at| now.duration_since(at).ok());
            if age.is_some_and(|age| age > ABANDONED_AFTER) {
                self.discard(&entry.file_name().to_string_lossy());
            }
        }
    }

    fn open_source(&self, source: &SkillSource) -> Result<OwnedFd, Errno> {
        open_own(&self.root, source.folder())
    }

    fn open_skill(&self, source: &SkillSource, name: &SkillName) -> Result<OwnedFd, Errno> {
        open_beneath(self.open_source(source)?, name.as_str().as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The opened folder of a source, made where it is missing.
    fn made_source(&self, source: &SkillSource) -> Result<OwnedFd, Errno> {
        if let Some(folder) = ignore(&[Errno::NOENT], self.open_source(source))? {
            return Ok(folder);
        }
        make_open_folder(&self.root, source.folder())?;
        self.open_source(source)
    }

    fn try_names(&self, source: &SkillSource) -> Result<Vec<SkillName>, Errno> {
        let Some(folder) = ignore(&[Errno::NOENT], self.open_source(source))? else { return Ok(Vec::new()) };
        let (mut entries, mut names) = (Dir::read_from(&folder)?, Vec::new());
        for _ in 0..NAMES_SEEN_MAX {
            let Some(entry) = next_entry(&mut entries) else { break };
            let Ok(Ok(name)) = entry?.file_name().to_str().map(str::parse::<SkillName>) else { continue };
            if open_beneath(&folder, name.as_str().as_bytes(), OFlags::PATH | OFlags::DIRECTORY).is_ok() {
                names.push(name);
            }
        }
        names.sort();
        names.truncate(SKILLS_MAX);
        Ok(names)
    }

    /// Writes a skill into a folder of `.incoming`. No reader sees it there.
    fn stage(&self, incoming: &OwnedFd, files: &[NewFile]) -> Result<String, Errno> {
        let staged = fresh_name();
        make_open_folder(incoming, &staged)?;
        let written = open_beneath(incoming, staged.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)
            .and_then(|folder| files.iter().try_for_each(|file| write(&folder, file)));
        written.inspect_err(|_| self.discard(&staged))?;
        Ok(staged)
    }

    fn try_replace(&self, source: &SkillSource, name: &SkillName, files: &[NewFile]) -> Result<bool, Errno> {
        let folder = self.made_source(source)?;
        let incoming = own_folder(&self.root, INCOMING)?;
        let staged = self.stage(&incoming, files)?;
        let placed = exchange(&incoming, &staged, &folder, name.as_str());
        if placed != Ok(false) {
            self.discard(&staged);
        }
        placed
    }

    fn try_remove(&self, source: &SkillSource, name: &SkillName) -> Result<bool, Errno> {
        let Some(folder) = ignore(&[Errno::NOENT], self.open_source(source))? else { return Ok(false) };
        let (incoming, trash) = (own_folder(&self.root, INCOMING)?, fresh_name());
        let moved = ignore(&[Errno::NOENT], rustix::fs::renameat(&folder, name.as_str(), &incoming, &trash))?;
        if moved.is_some() {
            self.discard(&trash);
        }
        Ok(moved.is_some())
    }

    /// Deletes a folder of `.incoming`. What stays is deleted by a later start.
    fn discard(&self, name: &str) {
        if let Err(error) = std::fs::remove_dir_all(self.path.join(INCOMING).join(name)) {
            warn!(%error, "a skill that was replaced or deleted still takes space");
        }
    }
}

impl SkillStore for DiskSkills {
    fn folder(&self, source: &SkillSource) -> Option<PathBuf> {
        self.made_source(source).ok()?;
        Some(self.path.join(source.folder()))
    }

    fn names(&self, source: &SkillSource) -> FsResult<Vec<SkillName>> {
        self.try_names(source).map_err(failed("list"))
    }

    fn read(
        &self,
        source: &SkillSource,
        name: &SkillName,
        path: &SafePath,
        bytes_max: u64,
    ) -> FsResult<(Vec<u8>, u64)> {
        let skill = self.open_skill(source, name).map_err(failed("open"))?;
        let handle = open_beneath(&skill, path.as_bytes(), OFlags::RDONLY).map_err(failed("open"))?;
        let stat = rustix::fs::fstat(&handle).map_err(failed("open"))?;
        if !FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(StorageError::NotAFile);
        }
        let mut bytes = Vec::new();
        let read = File::from(handle).take(bytes_max).read_to_end(&mut bytes);
        read.map_err(|source| StorageError::Io { act: "read", source })?;
        Ok((bytes, u64::try_from(stat.st_size).unwrap_or(0)))
    }

    fn files(&self, source: &SkillSource, name: &SkillName) -> FsResult<(Vec<(SafePath, u64)>, bool)> {
        let folder = self.open_skill(source, name).map_err(failed("open"))?;
        let bounds = ListBounds { entries_max: SKILL_ENTRIES_MAX, bytes_max: usize::MAX, depth_max: SKILL_DEPTH_MAX };
        let listing = Walk::new(bounds).page(&folder).map_err(failed("list"))?;
        let is_all = listing.total == Some(listing.entries.len() as u64);
        Ok((listing.entries.into_iter().map(|entry| (entry.path, entry.size)).collect(), is_all))
    }

    fn replace(&self, source: &SkillSource, name: &SkillName, files: &[NewFile]) -> FsResult<bool> {
        self.try_replace(source, name, files).map_err(failed("write"))
    }

    fn remove(&self, source: &SkillSource, name: &SkillName) -> FsResult<bool> {
        self.try_remove(source, name).map_err(failed("delete"))
    }
}

/// Makes a folder that every user can read, whatever the umask.
fn make_open_folder(parent: &OwnedFd, name: &str) -> Result<(), Errno> {
    if ignore(&[Errno::EXIST], rustix::fs::mkdirat(parent, name, Mode::RWXU))?.is_none() {
        // Another thread or process made it, and opens it to all.
        return Ok(());
    }
    let made = open_beneath(parent, name.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY)?;
    rustix::fs::fchmod(made, Mode::from_raw_mode(OPEN_MODE))
}

/// Writes a file of a staged skill, with its folders.
fn write(skill: &OwnedFd, file: &NewFile) -> Result<(), Errno> {
    let mut folder = open_beneath(skill, b"", OFlags::RDONLY | OFlags::DIRECTORY)?;
    let (above, name) = file.path.split_last();
    for part in above.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        make_folder(&folder, part)?;
        folder = open_beneath(&folder, part, OFlags::RDONLY | OFlags::DIRECTORY)?;
        rustix::fs::fchmod(&folder, Mode::from_raw_mode(OPEN_MODE))?;
    }
    let handle = new_file(&folder, name)?;
    rustix::fs::fchmod(&handle, Mode::from_raw_mode(if file.is_executable { OPEN_MODE } else { 0o644 }))?;
    File::from(handle).write_all(&file.bytes).map_err(|error| errno_of(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_a_skill_are_listed_whatever_folders_they_are_in() {
        let root = tempfile::tempdir().expect("a folder");
        let skills = DiskSkills::at(root.path(), 0).expect("a store");
        let (source, name): (_, SkillName) = (SkillSource::Public, "a".parse().expect("a name"));
        let in_a_folder = |number: usize| NewFile {
            path: SafePath::from_text(&format!("{number}/x")).expect("a path"),
            bytes: Vec::new(),
            is_executable: false,
        };
        let files: Vec<_> = (0..SKILL_ENTRIES_MAX).map(in_a_folder).collect();
        skills.replace(&source, &name, &files).expect("placed");
        let (files, is_all) = skills.files(&source, &name).expect("files");
        assert_eq!((files.len(), is_all), (SKILL_ENTRIES_MAX, true));
    }
}
