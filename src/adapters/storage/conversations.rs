//! The storage port on the root folder, and folders that belong to no conversation yet. A listing goes through an
//! owner's folder and keeps only the names of its page.

use std::{collections::BTreeSet, sync::Arc};

use rustix::fs::{AtFlags, Dir, StatxFlags};

use super::{
    DiskStorage, Errno, GONE, failed, fresh_name, ignore, kind_of,
    own::{discard, discard_all, new_file, open_own, read_text, write_text},
    own_disk,
    root::{folder, owner_folder},
    stat_of, touch,
};
use crate::{
    domain::{ConversationId, ConversationKey, InstanceId, Language, Principal},
    ports::storage::{ConversationFolder, DataFolder, FsResult, LastUse, Storage, UnassignedFolder, Usage},
};

/// The file that lists the languages in use.
const LANGUAGES: &str = ".languages";

impl Storage for DiskStorage {
    fn instance(&self) -> InstanceId {
        self.instance
    }

    fn open(&self, key: &ConversationKey) -> FsResult<Option<Box<dyn ConversationFolder>>> {
        let folder = ignore(&[Errno::NOENT], self.enter(key)).map_err(failed("open"))?;
        Ok(folder.map(|folder| -> Box<dyn ConversationFolder> { Box::new(folder) }))
    }

    fn create(&self, key: &ConversationKey) -> FsResult<Box<dyn ConversationFolder>> {
        Ok(Box::new(self.try_create(key).map_err(failed("create"))?))
    }

    fn remove(&self, key: &ConversationKey) -> FsResult<bool> {
        if self.last_mark(key).is_none() {
            return Ok(false);
        }
        let discarded = discard(&self.root, &folder(key), &self.trash, &self.background);
        Ok(ignore(&[Errno::NOENT], discarded).map_err(failed("delete"))?.is_some())
    }

    fn list(&self, owner: &Principal, after: Option<&ConversationId>, limit: usize) -> FsResult<Vec<LastUse>> {
        let (mut listed, mut after) = (Vec::new(), after.cloned());
        loop {
            let mut first = BTreeSet::new();
            for id in self.ids(owner).map_err(failed("list"))? {
                let id = id.map_err(failed("list"))?;
                if after.as_ref().is_none_or(|after| id > *after) {
                    first.insert(id);
                    if first.len() > limit {
                        first.pop_last();
                    }
                }
            }
            let is_last = first.len() < limit;
            after = first.last().cloned();
            // A conversation that was deleted meanwhile, or has no folder for files, is left out, and others take its
            // place: a short page is the last one.
            let keys = first.into_iter().map(|id| ConversationKey::new(owner.clone(), id));
            let used = keys.filter_map(|key| self.last_change(&key).map(|unix_s| LastUse { unix_s, key }));
            listed.extend(used.take(limit - listed.len()));
            if is_last || listed.len() == limit {
                return Ok(listed);
            }
        }
    }

    fn last_uses(&self) -> FsResult<Vec<LastUse>> {
        let mut uses = Vec::new();
        for owner in self.owners().map_err(failed("list"))? {
            for id in self.ids(&owner).map_err(failed("list"))? {
                let key = ConversationKey::new(owner.clone(), id.map_err(failed("list"))?);
                uses.extend(self.last_use(&key));
            }
        }
        Ok(uses)
    }

    fn last_use(&self, key: &ConversationKey) -> Option<LastUse> {
        self.last_mark(key).map(|unix_s| LastUse { unix_s, key: key.clone() })
    }

    fn now_unix_s(&self) -> FsResult<i64> {
        touch(&self.lock).map(|stamp| stamp.tv_sec).map_err(failed("mark"))
    }

    fn free(&self) -> FsResult<Usage> {
        let stat = rustix::fs::fstatvfs(&self.root).map_err(failed("measure"))?;
        let entries = if stat.f_files == 0 { u64::MAX } else { stat.f_favail };
        Ok(Usage { bytes: stat.f_bavail.saturating_mul(stat.f_frsize), entries })
    }

    fn can_hold_file(&self, file_bytes: u64) -> FsResult<bool> {
        // In the trash, so that a crash leaves nothing.
        let name = fresh_name();
        let file = new_file(&self.trash, &name).map_err(failed("measure"))?;
        let _ = rustix::fs::unlinkat(&self.trash, &name, AtFlags::empty());
        match rustix::fs::ftruncate(&file, file_bytes) {
            Ok(()) => Ok(true),
            Err(Errno::FBIG | Errno::INVAL) => Ok(false),
            Err(errno) => Err(failed("measure")(errno)),
        }
    }

    fn create_unassigned(self: Arc<Self>) -> FsResult<Box<dyn UnassignedFolder>> {
        Ok(Box::new(self.try_create_unassigned().map_err(failed("create"))?))
    }

    fn remember_languages(&self, languages: &[String]) -> FsResult<()> {
        write_text(&self.root, LANGUAGES, &languages.join("\n")).map_err(failed("write"))
    }

    fn recall_languages(&self) -> Vec<Language> {
        let text = read_text(&self.root, LANGUAGES).unwrap_or_default();
        // A name that a crash broke is ignored.
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    fn recover(&self) -> FsResult<()> {
        let discarded = discard_all(&self.unassigned, &self.trash, &self.background);
        self.background.empty(&self.trash);
        discarded.map_err(failed("delete"))
    }

    fn resting_bytes(&self, key: &ConversationKey) -> Option<u64> {
        let folder = open_own(&self.root, folder(key)).ok()?;
        own_disk::unmounted_bytes(&folder)
    }

    fn unmount(&self, key: &ConversationKey) -> bool {
        open_own(&self.root, folder(key)).is_ok_and(|folder| own_disk::unmount(&folder))
    }

    fn drain(&self) {
        self.background.drain();
    }

    fn close(&self) {
        self.background.stop();
        self.background.drain();
        self.unmount_all();
    }
}

impl DiskStorage {
    /// When a conversation was last marked. One that never was has the age of its folder, in which no program can make
    /// or remove anything. A file with a name like an id is the operator's: a backup, for example.
    pub(super) fn last_mark(&self, key: &ConversationKey) -> Option<i64> {
        let name = folder(key);
        let stat = stat_of(&self.root, name.as_str(), StatxFlags::TYPE | StatxFlags::MTIME).ok()?;
        let is_folder = kind_of(&stat).is_dir();
        is_folder.then(|| self.modified_unix_s(&format!("{name}/.mark")).unwrap_or(stat.stx_mtime.tv_sec))
    }

    /// Every owner that has a folder, the default owner first.
    fn owners(&self) -> Result<Vec<Principal>, Errno> {
        let mut owners = vec![Principal::default()];
        for entry in Dir::read_from(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().and_then(|name| name.strip_prefix('@'));
            owners.extend(name.and_then(|name| name.parse::<Principal>().ok()).filter(|owner| !owner.is_default()));
        }
        Ok(owners)
    }

    /// The ids of an owner's conversations. A name that is no id belongs to this server or the operator.
    fn ids(&self, owner: &Principal) -> Result<impl Iterator<Item = Result<ConversationId, Errno>>, Errno> {
        let entries = match owner_folder(owner) {
            None => Some(Dir::read_from(&self.root)?),
            // Gone meanwhile, or a file of the operator's.
            Some(name) => ignore(&GONE, open_own(&self.root, &name))?.map(Dir::new).transpose()?,
        };
        let entries = entries.into_iter().flatten();
        Ok(entries.filter_map(|entry| match entry {
            Ok(entry) => entry.file_name().to_str().ok().and_then(|name| name.parse().ok()).map(Ok),
            Err(errno) => Some(Err(errno)),
        }))
    }

    fn last_change(&self, key: &ConversationKey) -> Option<i64> {
        let name = folder(key);
        let files = self.modified_unix_s(&format!("{name}/files"))?;
        Some(self.modified_unix_s(&format!("{name}/.mark")).map_or(files, |run| run.max(files)))
    }

    fn modified_unix_s(&self, name: &str) -> Option<i64> {
        stat_of(&self.root, name, StatxFlags::MTIME).map(|stat| stat.stx_mtime.tv_sec).ok()
    }

    fn try_create_unassigned(self: Arc<Self>) -> Result<Unassigned, Errno> {
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

/// A folder that a standby mounts before it belongs to a conversation.
///
/// A bind mount follows the folder and not its name, so a folder that is renamed to be a conversation's stays `/data`
/// of the sandbox that has it (tried on Docker 20.10 with ext4; this module promises nothing more than the rename).
#[derive(Debug)]
struct Unassigned {
    storage: Arc<DiskStorage>,
    name: String,
    data: DataFolder,
    assigned: bool,
}

impl UnassignedFolder for Unassigned {
    fn is_assigned(&self) -> bool {
        self.assigned
    }

    fn data(&self) -> DataFolder {
        self.data.clone()
    }

    fn assign(&mut self, key: &ConversationKey) -> FsResult<Option<Box<dyn ConversationFolder>>> {
        self.assigned = self.storage.assign(&self.name, key).map_err(failed("assign"))?;
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
    use crate::domain::RunnerUsers;

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
