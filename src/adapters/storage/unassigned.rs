//! Folders that standbys mount before they belong to a conversation.
//!
//! A bind mount follows the folder and not its name, so a folder that is renamed to be a conversation's stays `/data`
//! of the sandbox that has it (tried on Docker 20.10 with ext4; this module promises nothing more than the rename).

use std::sync::Arc;

use rustix::io::Errno;

use super::{DiskStorage, failed, fresh_name};
use crate::{
    domain::ConversationKey,
    ports::storage::{ConversationFolder, DataFolder, FsResult, UnassignedFolder},
};

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
        let mut made = Unassigned { storage: self, name: fresh_name(), data: DataFolder::default(), assigned: false };
        let Unassigned { storage, name, .. } = &made;
        if let Some(disks) = &storage.own_disks {
            storage.make_with_disk(disks, name)?;
        }
        let folder = storage.make(&storage.unassigned, name, &storage.unassigned_path().join(name))?;
        made.data = folder.data();
        Ok(made)
    }
}

impl UnassignedFolder for Unassigned {
    fn is_assigned(&self) -> bool {
        self.assigned
    }

    fn data(&self) -> DataFolder {
        self.data.clone()
    }

    fn assign(&mut self, key: &ConversationKey) -> FsResult<Option<Box<dyn ConversationFolder>>> {
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
    use super::{
        super::own::{assign, assign_by_rename},
        *,
    };
    use crate::{domain::RunnerUsers, ports::storage::Storage as _};

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

    #[test]
    fn assign_replaces_nothing_with_either_call() {
        for assign in [assign, assign_by_rename] {
            let root = tempfile::tempdir().expect("a folder");
            let handle = std::os::fd::OwnedFd::from(std::fs::File::open(root.path()).expect("opened"));
            let at = |name: &str| root.path().join(name);
            for made in ["free/files", "other/files", "taken/files"] {
                std::fs::create_dir_all(at(made)).expect("a folder");
            }
            std::fs::write(at("taken/files/x"), "1").expect("written");
            std::fs::write(at("file"), "1").expect("written");
            std::os::unix::fs::symlink("nowhere", at("link")).expect("a link");
            assert_eq!(assign(&handle, "free", &handle, "new"), Ok(true));
            for name in ["taken", "file", "link", "new"] {
                assert_eq!(assign(&handle, "other", &handle, name), Ok(false), "{name}");
            }
            assert!(at("new/files").exists() && at("other/files").exists() && at("taken/files/x").exists());
            assert_eq!(assign(&handle, "absent", &handle, "c"), Err(Errno::NOENT));
        }
    }

    /// As on a file system of a network: the other server's folder is replaced while it is still empty.
    #[test]
    fn two_servers_that_make_one_conversation_without_the_call_both_have_it() {
        let root = tempfile::tempdir().expect("a folder");
        let (one, other) = (storage(root.path()), storage(root.path()));
        for number in 0..300 {
            let key: ConversationKey = format!("c{number}").parse().expect("a key");
            let mut folder = Arc::clone(&other).try_create_unassigned().expect("a folder");
            std::fs::write(folder.data.path.join("x"), "1").expect("written");
            let id = key.id.to_string();
            std::thread::scope(|scope| {
                let made = scope.spawn(|| one.create(&key).map(drop));
                folder.assigned =
                    assign_by_rename(&other.unassigned, &folder.name, &other.root, &id).expect("an answer");
                made.join().expect("it ends").expect("made");
            });
            let files = root.path().join(&id).join("files");
            assert!(files.is_dir() && files.join("x").exists() == folder.assigned, "{id}");
        }
        one.drain();
        other.drain();
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
