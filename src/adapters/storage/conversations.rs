//! The existing conversations, a page at a time: one pass over an owner's folder, keeping only the names of the page.

use std::collections::BTreeSet;

use rustix::{
    fs::{Dir, FileType, StatxFlags},
    io::Errno,
};

use super::{
    DiskStorage, look,
    own::open_own,
    root::{folder, owner_folder},
};
use crate::{
    domain::{
        id::ConversationId,
        owner::{ConversationKey, Principal},
    },
    ports::storage::LastUse,
};

impl DiskStorage {
    pub(super) fn try_last_uses(&self) -> Result<Vec<LastUse>, Errno> {
        let mut uses = Vec::new();
        for owner in self.owners()? {
            for id in self.ids(&owner)? {
                let key = ConversationKey::new(owner.clone(), id?);
                uses.extend(self.marked(&key).map(|unix_s| LastUse { unix_s, key }));
            }
        }
        Ok(uses)
    }

    /// When a conversation was last marked. One that never was has the age of its folder, in which no program can make
    /// or remove anything. A file with a name like an id is the operator's: a backup, for example.
    pub(super) fn marked(&self, key: &ConversationKey) -> Option<i64> {
        let name = folder(key);
        let stat = look(&self.root, name.as_str(), StatxFlags::TYPE | StatxFlags::MTIME).ok()?;
        let is_folder = FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory;
        is_folder.then(|| self.modified(&format!("{name}/.mark")).unwrap_or(stat.stx_mtime.tv_sec))
    }

    pub(super) fn try_list(
        &self,
        owner: &Principal,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<LastUse>, Errno> {
        let mut first = BTreeSet::new();
        for id in self.ids(owner)? {
            let id = id?;
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
            Some(name) => match open_own(&self.root, &name) {
                Ok(parent) => Some(Dir::new(parent)?),
                // Gone meanwhile, or a file of the operator's.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
                Err(errno) => return Err(errno),
            },
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
