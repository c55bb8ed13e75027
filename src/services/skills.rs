//! Skills: what an owner finds, reads, uploads and deletes, and which folders of skills a sandbox sees.
//!
//! A skill of the owner's own hides a public one of the same name. Folders that are no valid skills are left out of
//! lists: an operator may have put anything there. Knows nothing of disks, and runs no skill.

mod upload;

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::Mutex;
use tracing::{debug, info};

use crate::{
    domain::{
        Code, Failure, Principal, SafePath,
        skills::{
            FRONT_MATTER_BYTES_MAX, FrontMatter, SKILL_BYTES_MAX, SKILL_FILE, SKILLS_MAX, SkillFolders, SkillName,
            SkillSource,
        },
        text::sha256,
    },
    ports::{skills::SkillStore, storage::StorageError},
};

/// The service. A clone is the same.
#[derive(Debug, Clone, Default)]
pub struct Skills {
    /// `None` where skills are off.
    store: Option<Arc<dyn SkillStore>>,
    /// One change at a time, so that the number of an owner's skills is a bound, and one archive is in memory unpacked:
    /// that may be a thousand times as long as the upload.
    changes: Arc<Mutex<()>>,
}

/// A valid skill.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    pub source: SkillSource,
    pub front: FrontMatter,
}

impl Skill {
    /// Where programs find it.
    pub fn location(&self) -> String {
        format!("/skills/{}/{}", self.source.label(), self.front.name)
    }
}

/// Where a file was found, and its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct SkillContent {
    pub skill: Skill,
    pub bytes: Vec<u8>,
}

impl Skills {
    /// Without a store, skills are off.
    pub fn new(store: Option<Arc<dyn SkillStore>>) -> Self {
        Self { store, changes: Arc::default() }
    }

    pub fn is_on(&self) -> bool {
        self.store.is_some()
    }

    /// The public skills that the owner's own do not hide, and the owner's, each ordered by name.
    ///
    /// # Errors
    /// [`Code::SkillsOff`], and those of the disk.
    pub async fn list(&self, owner: &Principal) -> Result<Vec<Skill>, Failure> {
        let own = SkillSource::of(owner);
        self.on_disk(move |store| {
            let user = own.map(|own| all_of(store, &own)).transpose()?.unwrap_or_default();
            let mut all = all_of(store, &SkillSource::Public)?;
            all.retain(|skill| user.iter().all(|own| own.front.name != skill.front.name));
            all.extend(user);
            Ok(all)
        })
        .await
    }

    /// The files of a skill, and their sizes.
    ///
    /// # Errors
    /// [`Code::SkillNotFound`], [`Code::SkillsOff`], and those of the disk.
    pub async fn files(&self, owner: &Principal, name: &SkillName) -> Result<(Skill, Vec<(SafePath, u64)>), Failure> {
        self.in_skill(owner, name, |store, skill| {
            let (files, _) = store.files(&skill.source, &skill.front.name)?;
            Ok((skill, files))
        })
        .await
    }

    /// All files of a skill with their SHA-256, in hexadecimal, and their lengths.
    ///
    /// # Errors
    /// As [`Skills::file`].
    pub async fn digests(
        &self,
        owner: &Principal,
        name: &SkillName,
    ) -> Result<(Skill, Vec<(SafePath, String, u64)>), Failure> {
        self.in_skill(owner, name, |store, skill| {
            let (mut digests, mut left) = (Vec::new(), SKILL_BYTES_MAX);
            let (files, is_all) = store.files(&skill.source, &skill.front.name)?;
            if !is_all {
                let why = "The skill has more files than can be listed: see them in a program, below /skills.";
                return Err(Failure::new(Code::TooLarge, why));
            }
            for (path, _) in files {
                let read = store.read(&skill.source, &skill.front.name, &path, left)?;
                let bytes = whole(read, SKILL_BYTES_MAX)?;
                let size = bytes.len() as u64;
                left = left.saturating_sub(size);
                digests.push((path, sha256(&bytes), size));
            }
            Ok((skill, digests))
        })
        .await
    }

    /// A file of a skill, which is always whole.
    ///
    /// # Errors
    /// As [`Skills::files`], and [`Code::FileNotFound`], [`Code::NotAFile`], [`Code::TooLarge`].
    pub async fn file(
        &self,
        owner: &Principal,
        name: &SkillName,
        path: &SafePath,
        bytes_max: u64,
    ) -> Result<SkillContent, Failure> {
        let (path, bytes_max) = (path.clone(), bytes_max.min(SKILL_BYTES_MAX));
        self.in_skill(owner, name, move |store, skill| {
            let read = store.read(&skill.source, &skill.front.name, &path, bytes_max);
            let read = read.map_err(|error| match error {
                StorageError::NotFound | StorageError::FolderBlocked => {
                    Failure::new(Code::FileNotFound, "The skill has no such file: list its files to see what is there.")
                }
                other => other.failure(),
            })?;
            Ok(SkillContent { skill, bytes: whole(read, bytes_max)? })
        })
        .await
    }

    /// Puts an uploaded skill in place of the owner's one of that name; whether there was one. The whole archive is
    /// checked before anything is written.
    ///
    /// # Errors
    /// [`Code::BadArchive`], [`Code::BadSkill`], [`Code::Forbidden`], [`Code::QuotaExceeded`], [`Code::SkillsOff`], and
    /// those of the disk.
    pub async fn upload(&self, owner: &Principal, name: &SkillName, zip: Bytes) -> Result<(Skill, bool), Failure> {
        self.store()?;
        let source = own(owner)?;
        // It stays with the steps, which go on when the client goes away.
        let turn = Arc::clone(&self.changes).lock_owned().await;
        let checked = {
            let name = name.clone();
            tokio::task::spawn_blocking(move || (upload::check(&zip, &name), turn))
        };
        let unreadable = |_| upload::bad("The archive cannot be read: send a plain zip.");
        let (checked, turn) = checked.await.map_err(unreadable)?;
        let (files, front) = checked?;
        let (name, target) = (name.clone(), source.clone());
        let replaced = self.on_disk(move |store| {
            let _turn = turn;
            let names = store.names(&target)?;
            if names.len() >= SKILLS_MAX && !names.contains(&name) {
                let why = format!("There are {SKILLS_MAX} skills already: delete one first.");
                return Err(Failure::new(Code::QuotaExceeded, why));
            }
            store.replace(&target, &name, &files).map_err(not_changed)
        });
        let replaced = replaced.await?;
        info!(owner = owner.name(), skill = %front.name, replaced, "a skill was uploaded");
        Ok((Skill { source, front }, replaced))
    }

    /// Deletes a skill of the owner's own, valid or not.
    ///
    /// # Errors
    /// [`Code::SkillNotFound`], [`Code::Forbidden`], [`Code::SkillsOff`], and those of the disk.
    pub async fn remove(&self, owner: &Principal, name: &SkillName) -> Result<(), Failure> {
        self.store()?;
        let (source, wanted) = (own(owner)?, name.clone());
        let _turn = self.changes.lock().await;
        if !self.on_disk(move |store| store.remove(&source, &wanted).map_err(not_changed)).await? {
            let why = "There is no skill of your own with this name: list the skills to see what is there.";
            return Err(Failure::new(Code::SkillNotFound, why));
        }
        info!(owner = owner.name(), skill = %name, "a skill was deleted");
        Ok(())
    }

    /// The folders that a sandbox of an owner sees, or of no owner yet. The owner's is made when it is missing, so that
    /// a skill that is uploaded later appears in it.
    pub(super) async fn folders(&self, owner: Option<&Principal>) -> SkillFolders {
        let owner = owner.cloned();
        let folders = self.on_disk(move |store| {
            let user = owner.as_ref().and_then(SkillSource::of);
            Ok(SkillFolders {
                public: store.folder(&SkillSource::Public),
                user: user.and_then(|source| store.folder(&source)),
            })
        });
        // Off, or a failed thread: a sandbox is of use without skills.
        folders.await.unwrap_or_default()
    }

    /// Whether an owner has skills that a sandbox that was started for no owner cannot show.
    pub(super) async fn has_own(&self, owner: &Principal) -> bool {
        let Some(source) = SkillSource::of(owner).filter(|_| self.is_on()) else { return false };
        self.on_disk(move |store| Ok(!store.names(&source)?.is_empty())).await.unwrap_or(false)
    }

    /// Finds a skill, the owner's own first, and makes a step on it.
    async fn in_skill<T: Send + 'static>(
        &self,
        owner: &Principal,
        name: &SkillName,
        step: impl FnOnce(&dyn SkillStore, Skill) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (own, name) = (SkillSource::of(owner), name.clone());
        self.on_disk(move |store| {
            let mut sources = own.into_iter().chain([SkillSource::Public]);
            let found = sources.find_map(|source| skill(store, source, &name));
            let why = "There is no such skill: list the skills to see what is there.";
            step(store, found.ok_or_else(|| Failure::new(Code::SkillNotFound, why))?)
        })
        .await
    }

    fn store(&self) -> Result<&Arc<dyn SkillStore>, Failure> {
        let why = "There are no skills here: the operator has set no folder for them.";
        self.store.as_ref().ok_or_else(|| Failure::new(Code::SkillsOff, why))
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        step: impl FnOnce(&dyn SkillStore) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let store = Arc::clone(self.store()?);
        let done = tokio::task::spawn_blocking(move || step(store.as_ref()));
        let internal = |_| Failure::new(Code::Internal, "The server could not read the skills: its log says why.");
        done.await.map_err(internal)?
    }
}

/// The source that an owner may change.
fn own(owner: &Principal) -> Result<SkillSource, Failure> {
    let why = "The owner of this token has a reserved name and can have no skills of its own.";
    SkillSource::of(owner).ok_or_else(|| Failure::new(Code::Forbidden, why))
}

/// A folder that an operator made read-only is no fault of ours.
fn not_changed(error: StorageError) -> Failure {
    match error {
        StorageError::Denied { .. } => {
            let why = "The server may not write the folder of skills: the operator keeps it as it is.";
            Failure::new(Code::Forbidden, why)
        }
        other => other.into(),
    }
}

fn all_of(store: &dyn SkillStore, source: &SkillSource) -> Result<Vec<Skill>, Failure> {
    Ok(store.names(source)?.iter().filter_map(|name| skill(store, source.clone(), name)).collect())
}

/// The skill of a folder; `None` where it is not valid.
fn skill(store: &dyn SkillStore, source: SkillSource, name: &SkillName) -> Option<Skill> {
    let path = SafePath::from_components([SKILL_FILE]).ok()?;
    // One byte more shows that a front matter without an end is too long.
    let (text, _) = store.read(&source, name, &path, FRONT_MATTER_BYTES_MAX as u64 + 1).ok()?;
    match FrontMatter::parse(&text, Some(name)) {
        Ok(front) => Some(Skill { source, front }),
        Err(error) => {
            debug!(skill = %name, source = source.folder(), %error, "a folder is no valid skill");
            None
        }
    }
}

/// What was read of a file, if that is all of it.
fn whole((bytes, size): (Vec<u8>, u64), bytes_max: u64) -> Result<Vec<u8>, Failure> {
    if size > bytes.len() as u64 {
        let why = format!("The file is longer than {bytes_max} bytes: read it in a program, below /skills.");
        return Err(Failure::new(Code::TooLarge, why));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
