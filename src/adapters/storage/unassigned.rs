//! Folders that are mounted before it is known whose they are.
//!
//! A bind mount follows the folder and not its name, so a folder that is renamed to be a conversation's stays `/data` of
//! the sandbox that has it (tried on Docker 20.10 with ext4; [`Store::create_unassigned`] promises nothing more than the
//! rename).

use std::{path::Path, path::PathBuf, sync::Arc};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags},
    io::Errno,
};

use super::{Conversation, Store, StoreError, fresh_name};
use crate::domain::id::Language;
use crate::domain::owner::ConversationKey;

/// Where the languages in use are written down.
const LANGUAGES: &str = ".languages";

/// A folder that belongs to no conversation. Dropping it takes the empty folder away.
#[derive(Debug)]
pub struct UnassignedFolder {
    store: Arc<Store>,
    name: String,
    data_dir: PathBuf,
    assigned: bool,
}

impl Store {
    /// A new, empty folder.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] on a full disk, [`StoreError::Io`] otherwise.
    pub fn create_unassigned(self: &Arc<Self>) -> Result<UnassignedFolder, StoreError> {
        let name = fresh_name();
        // From here on it is taken away where it is not made.
        let mut folder = UnassignedFolder { store: Arc::clone(self), name, data_dir: PathBuf::new(), assigned: false };
        folder.data_dir = self.try_create_unassigned(&folder.name).map_err(|errno| StoreError::new("create", errno))?;
        Ok(folder)
    }

    fn try_create_unassigned(&self, name: &str) -> Result<PathBuf, Errno> {
        if let Some(disks) = &self.own_disks {
            self.make_with_disk(disks, name)?;
        }
        Ok(self.make(&self.unassigned, name, &self.unassigned_path().join(name))?.data_dir)
    }

    /// Takes away what an earlier process with this identity left: at once nothing is there any more, and
    /// [`Store::empty_trash`] deletes it. To be called before the first folder is made.
    ///
    /// # Errors
    /// [`StoreError`] with the first folder that could not be taken away.
    pub fn clear_unassigned(&self) -> Result<(), StoreError> {
        self.try_clear_unassigned().map_err(|errno| StoreError::new("delete", errno))
    }

    fn try_clear_unassigned(&self) -> Result<(), Errno> {
        for entry in Dir::read_from(&self.unassigned)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_bytes() == b"." || name.to_bytes() == b".." {
                continue;
            }
            rustix::fs::renameat(&self.unassigned, name, &self.trash, fresh_name())?;
        }
        Ok(())
    }
}

impl Store {
    /// Writes down which languages are in use, for the next start.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn remember_languages(&self, languages: &[String]) -> Result<(), StoreError> {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, LANGUAGES, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| StoreError::new("write", errno))?;
        // Torn by a crash it holds fewer names, or one that is none: neither does harm.
        let text = languages.join("\n");
        rustix::io::write(&file, text.as_bytes()).map(drop).map_err(|errno| StoreError::new("write", errno))
    }

    /// The languages that were in use; none where that is not known.
    pub fn recall_languages(&self) -> Vec<Language> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut text = [0; 4096];
        let read = rustix::fs::openat(&self.root, LANGUAGES, flags, Mode::empty())
            .and_then(|file| rustix::io::read(&file, &mut text))
            .unwrap_or(0);
        let text = String::from_utf8_lossy(&text[..read]).into_owned();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl UnassignedFolder {
    /// Whether it is a conversation's by now.
    pub fn is_assigned(&self) -> bool {
        self.assigned
    }

    /// The folder that becomes `/data`.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// Makes the folder a conversation's. `None`, and the folder stays unassigned, when the conversation has one already.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the system refuses.
    pub fn assign(&mut self, id: &ConversationKey) -> Result<Option<Conversation>, StoreError> {
        let store = &self.store;
        self.assigned = store.name(&self.name, id).map_err(|errno| StoreError::new("assign", errno))?;
        if !self.assigned {
            return Ok(None);
        }
        let conversation = store.enter(id);
        conversation.map(Some).map_err(|errno| StoreError::new("assign", errno))
    }
}

impl Drop for UnassignedFolder {
    fn drop(&mut self) {
        if self.assigned {
            return;
        }
        if self.store.own_disks.is_some() {
            return self.store.discard(&self.name);
        }
        // Two quick calls on a folder that nothing was written to. What a program did write, the next start takes away.
        if let Ok(dir) = super::root::own_folder(&self.store.unassigned, &self.name) {
            let emptied = rustix::fs::unlinkat(&dir, "files", AtFlags::REMOVEDIR);
            if emptied
                .and_then(|()| rustix::fs::unlinkat(&self.store.unassigned, &self.name, AtFlags::REMOVEDIR))
                .is_err()
            {
                tracing::debug!("an unassigned folder is left to the next start");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::storage::Owner;

    fn store(root: &Path) -> Arc<Store> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Arc::new(Store::open(root, Owner { uid, gid }).expect("a store"))
    }

    #[test]
    fn a_folder_is_adopted_once_and_never_over_another() {
        let root = tempfile::tempdir().expect("a folder");
        let store = store(root.path());
        let id: ConversationKey = "new".parse().expect("an id");
        let mut folder = store.create_unassigned().expect("a folder");
        std::fs::write(folder.data_dir().join("x"), "1").expect("written");
        let assigned = folder.assign(&id).expect("renamed").expect("nobody was there");
        assert_eq!(std::fs::read_to_string(assigned.data_dir().join("x")).expect("the file"), "1");
        drop(folder);
        let mut other = store.create_unassigned().expect("a folder");
        assert!(other.assign(&id).expect("answered").is_none());
        assert_eq!(std::fs::read_to_string(root.path().join("new/files/x")).expect("the file"), "1");
        let unassigned = other.data_dir().to_owned();
        drop(other);
        assert!(!unassigned.exists() && root.path().join("new/files/x").exists());
    }

    #[test]
    fn what_an_earlier_process_left_is_cleared() {
        let root = tempfile::tempdir().expect("a folder");
        let store = store(root.path());
        let folder = store.create_unassigned().expect("a folder");
        let left = folder.data_dir().to_owned();
        std::fs::write(left.join("x"), "1").expect("written");
        drop(folder);
        assert!(left.exists(), "a folder with files in it is not taken away by a drop");
        store.clear_unassigned().expect("cleared");
        assert!(!left.exists());
    }
}
