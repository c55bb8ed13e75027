//! The storage port on the root folder. A listing is one pass over an owner's folder that keeps only the names of its
//! page.

use std::{collections::BTreeSet, sync::Arc};

use rustix::fs::{AtFlags, Dir, FileType, StatxFlags};

use super::{
    DiskStorage, Errno, GONE, failed, fresh_name, look,
    own::{discard, move_all, new_file, open_own, read_text, write_text},
    own_disk,
    root::{folder, owner_folder},
    touch, unless,
};
use crate::{
    domain::{ConversationId, ConversationKey, InstanceId, Language, Principal},
    ports::storage::{ConversationFolder, FsResult, LastUse, Storage, UnassignedFolder, Usage},
};

/// The file that lists the languages in use.
const LANGUAGES: &str = ".languages";

impl Storage for DiskStorage {
    fn instance(&self) -> InstanceId {
        self.instance
    }

    fn open(&self, key: &ConversationKey) -> FsResult<Option<Box<dyn ConversationFolder>>> {
        let folder = unless(&[Errno::NOENT], self.enter(key)).map_err(failed("open"))?;
        Ok(folder.map(|folder| -> Box<dyn ConversationFolder> { Box::new(folder) }))
    }

    fn create(&self, key: &ConversationKey) -> FsResult<Box<dyn ConversationFolder>> {
        Ok(Box::new(self.try_create(key).map_err(failed("create"))?))
    }

    fn remove(&self, key: &ConversationKey) -> FsResult<bool> {
        if self.marked(key).is_none() {
            return Ok(false);
        }
        let discarded = discard(&self.root, &folder(key), &self.trash, &self.background);
        Ok(unless(&[Errno::NOENT], discarded).map_err(failed("delete"))?.is_some())
    }

    fn list(&self, owner: &Principal, after: Option<&ConversationId>, limit: usize) -> FsResult<Vec<LastUse>> {
        let mut first = BTreeSet::new();
        for id in self.ids(owner).map_err(failed("list"))? {
            let id = id.map_err(failed("list"))?;
            if after.is_none_or(|after| id > *after) {
                first.insert(id);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        }
        // A conversation that was deleted meanwhile, or has no folder for files, is left out.
        let keys = first.into_iter().map(|id| ConversationKey::new(owner.clone(), id));
        Ok(keys.filter_map(|key| self.used(&key).map(|unix_s| LastUse { unix_s, key })).collect())
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
        self.marked(key).map(|unix_s| LastUse { unix_s, key: key.clone() })
    }

    fn now_unix_s(&self) -> FsResult<i64> {
        touch(&self.lock).map(|stamp| stamp.tv_sec).map_err(failed("mark"))
    }

    fn free(&self) -> FsResult<Usage> {
        let stat = rustix::fs::fstatvfs(&self.root).map_err(failed("measure"))?;
        let entries = if stat.f_files == 0 { u64::MAX } else { stat.f_favail };
        Ok(Usage { bytes: stat.f_bavail.saturating_mul(stat.f_frsize), entries })
    }

    fn holds(&self, file_bytes: u64) -> FsResult<bool> {
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
        let moved = move_all(&self.unassigned, &self.trash);
        self.background.empty(&self.trash);
        moved.and_then(|()| self.clear_packages()).map_err(failed("delete"))
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
    pub(super) fn marked(&self, key: &ConversationKey) -> Option<i64> {
        let name = folder(key);
        let stat = look(&self.root, name.as_str(), StatxFlags::TYPE | StatxFlags::MTIME).ok()?;
        let is_folder = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        is_folder.then(|| self.modified(&format!("{name}/.mark")).unwrap_or(stat.stx_mtime.tv_sec))
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
            Some(name) => unless(&GONE, open_own(&self.root, &name))?.map(Dir::new).transpose()?,
        };
        let entries = entries.into_iter().flatten();
        Ok(entries.filter_map(|entry| match entry {
            Ok(entry) => entry.file_name().to_str().ok().and_then(|name| name.parse().ok()).map(Ok),
            Err(errno) => Some(Err(errno)),
        }))
    }

    fn used(&self, key: &ConversationKey) -> Option<i64> {
        let name = folder(key);
        let files = self.modified(&format!("{name}/files"))?;
        Some(self.modified(&format!("{name}/.mark")).map_or(files, |run| run.max(files)))
    }

    fn modified(&self, name: &str) -> Option<i64> {
        look(&self.root, name, StatxFlags::MTIME).map(|stat| stat.stx_mtime.tv_sec).ok()
    }
}
