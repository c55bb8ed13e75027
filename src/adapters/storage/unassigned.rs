//! Folders that standbys mount before they belong to a conversation.
//!
//! A bind mount follows the folder and not its name, so a folder that is renamed to be a conversation's stays `/data`
//! of the sandbox that has it (tried on Docker 20.10 with ext4; this module promises nothing more than the rename).

use std::{path::PathBuf, sync::Arc};

use rustix::{fs::Dir, io::Errno};

use super::{ConversationFolder, DiskStorage, StorageError, UnassignedFolder, failed, fresh_name, next_entry};
use crate::{domain::owner::ConversationKey, ports::storage::DataFolder};

#[derive(Debug)]
pub(super) struct Unassigned {
    storage: Arc<DiskStorage>,
    name: String,
    data: DataFolder,
    assigned: bool,
}

impl DiskStorage {
    pub(super) fn try_create_unassigned(self: Arc<Self>) -> Result<Unassigned, Errno> {
        // From here on a failure removes it.
        let mut made = Unassigned {
            storage: self,
            name: fresh_name(),
            data: DataFolder { path: PathBuf::new(), uid: 0 },
            assigned: false,
        };
        let Unassigned { storage, name, .. } = &made;
        if let Some(disks) = &storage.own_disks {
            storage.make_with_disk(disks, name)?;
        }
        let folder = storage.make(&storage.unassigned, name, &storage.unassigned_path().join(name))?;
        made.data = folder.data();
        Ok(made)
    }

    /// The folder is empty at once; its earlier content is deleted in the background.
    pub(super) fn clear_unassigned(&self) -> Result<(), Errno> {
        let mut entries = Dir::read_from(&*self.unassigned)?;
        while let Some(entry) = next_entry(&mut entries) {
            rustix::fs::renameat(&*self.unassigned, entry?.file_name(), &*self.trash, fresh_name())?;
        }
        self.background.empty(&self.trash);
        Ok(())
    }
}

impl UnassignedFolder for Unassigned {
    fn is_assigned(&self) -> bool {
        self.assigned
    }

    fn data(&self) -> DataFolder {
        self.data.clone()
    }

    fn assign(&mut self, key: &ConversationKey) -> Result<Option<Box<dyn ConversationFolder>>, StorageError> {
        self.assigned = self.storage.name(&self.name, key).map_err(failed("assign"))?;
        if !self.assigned {
            return Ok(None);
        }
        Ok(Some(Box::new(self.storage.enter(key).map_err(failed("assign"))?)))
    }
}

impl Drop for Unassigned {
    fn drop(&mut self) {
        if !self.assigned {
            self.storage.discard_later(&self.storage.unassigned, std::mem::take(&mut self.name));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{domain::users::RunnerUsers, ports::storage::Storage as _};

    fn storage(root: &std::path::Path) -> Arc<DiskStorage> {
        let uid = rustix::process::geteuid().as_raw();
        Arc::new(DiskStorage::at(root, RunnerUsers::one(uid)).expect("a root"))
    }

    #[test]
    fn assign_moves_a_folder_once_and_never_over_another() {
        let root = tempfile::tempdir().expect("a folder");
        let storage = storage(root.path());
        let key: ConversationKey = "new".parse().expect("a key");
        let mut folder = Arc::clone(&storage).create_unassigned().expect("a folder");
        std::fs::write(folder.data().path.join("x"), "1").expect("written");
        let assigned = folder.assign(&key).expect("renamed").expect("the conversation is new");
        assert_eq!(std::fs::read_to_string(assigned.data().path.join("x")).expect("the file"), "1");
        drop(folder);
        let mut other = Arc::clone(&storage).create_unassigned().expect("a folder");
        assert!(other.assign(&key).expect("answered").is_none());
        assert_eq!(std::fs::read_to_string(root.path().join("new/files/x")).expect("the file"), "1");
        let unassigned = other.data().path;
        std::fs::write(unassigned.join("x"), "1").expect("written");
        drop(other);
        storage.drain();
        assert!(!unassigned.exists() && root.path().join("new/files/x").exists());
        assert_eq!(std::fs::read_dir(root.path().join(".trash")).expect("a folder").count(), 0);
    }

    /// What is in the way of the removal must not be in the way of the thread that drops the folder.
    #[test]
    fn drop_posts_the_removal_and_does_not_wait() {
        let root = tempfile::tempdir().expect("a folder");
        let storage = storage(root.path());
        let folder = Arc::clone(&storage).create_unassigned().expect("a folder");
        let left = folder.data().path;
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        storage.background.post(move || blocked.recv().unwrap_or_default());
        drop(folder);
        assert!(left.exists(), "the removal waits for its turn");
        drop(go_on);
        storage.drain();
        assert!(!left.exists());
    }

    #[test]
    fn recover_removes_what_an_earlier_process_left() {
        let root = tempfile::tempdir().expect("a folder");
        let storage = storage(root.path());
        let left = Arc::clone(&storage).create_unassigned().expect("a folder");
        std::fs::write(left.data().path.join("x"), "1").expect("written");
        let data_dir = left.data().path;
        std::mem::forget(left);
        storage.recover().expect("cleared");
        assert!(!data_dir.exists());
    }
}
