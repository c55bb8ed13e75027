//! Which conversations exist, a page at a time: one pass over an owner's folder, keeping no more names than the page holds.

use std::{collections::BTreeSet, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, Dir, StatxFlags},
    io::Errno,
};

use super::{
    Store, StoreError,
    root::{folder, open_own, owner_folder},
};
use crate::domain::{
    id::ConversationId,
    owner::{ConversationKey, Principal},
};

/// A conversation that has a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownConversation {
    /// Its key.
    pub key: ConversationKey,
    /// When a run began in it or the top of its folder changed, in seconds since the Unix epoch. A program may have set
    /// the second to anything.
    pub used_unix_s: i64,
}

/// When a conversation was last used, by what no program can set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastUse {
    /// When a run began or a client wrote something, in seconds since the Unix epoch.
    pub unix_s: i64,
    /// Its key.
    pub key: ConversationKey,
}

impl Store {
    /// Every conversation of every owner and when it was last used, in no order.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the disk fails.
    pub fn last_uses(&self) -> Result<Vec<LastUse>, StoreError> {
        let fail = |errno| StoreError::new("list", errno);
        let mut uses = Vec::new();
        for owner in self.owners().map_err(fail)? {
            for id in self.ids(&owner).map_err(fail)? {
                uses.extend(self.last_use(&ConversationKey::new(owner.clone(), id.map_err(fail)?)));
            }
        }
        Ok(uses)
    }

    /// When a conversation was last used. `None` when there is none. Other processes on this root count too.
    pub fn last_use(&self, key: &ConversationKey) -> Option<LastUse> {
        let name = folder(key);
        // One that was never marked has the age of its folder, in which no program can make or remove anything.
        let unix_s = self.modified(&format!("{name}/.mark")).or_else(|| self.modified(&name));
        unix_s.map(|unix_s| LastUse { unix_s, key: key.clone() })
    }

    /// An owner's conversations behind `after` in the order of their names, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the disk fails.
    pub fn conversations(
        &self,
        owner: &Principal,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<KnownConversation>, StoreError> {
        self.try_conversations(owner, after, limit).map_err(|errno| StoreError::new("list", errno))
    }

    fn try_conversations(
        &self,
        owner: &Principal,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<KnownConversation>, Errno> {
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
        Ok(keys.filter_map(|key| self.used(&key).map(|used_unix_s| KnownConversation { key, used_unix_s })).collect())
    }

    /// Every owner that has a folder, the default owner first.
    fn owners(&self) -> Result<Vec<Principal>, Errno> {
        let mut owners = vec![Principal::default()];
        for entry in Dir::read_from(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok().and_then(|name| name.strip_prefix('@'));
            owners.extend(name.map(Principal::named));
        }
        Ok(owners)
    }

    /// The ids of an owner's conversations. A name that is no id is a file of ours, or the operator's.
    fn ids(&self, owner: &Principal) -> Result<impl Iterator<Item = Result<ConversationId, Errno>>, Errno> {
        let parent: Option<OwnedFd> = match owner_folder(owner) {
            Some(name) => match open_own(&self.root, &name) {
                Ok(parent) => Some(parent),
                Err(Errno::NOENT) => None,
                Err(errno) => return Err(errno),
            },
            None => Some(rustix::io::dup(&self.root)?),
        };
        let entries = parent.map(Dir::read_from).transpose()?.into_iter().flatten();
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
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        rustix::fs::statx(&self.root, name, flags, StatxFlags::MTIME).map(|stat| stat.stx_mtime.tv_sec).ok()
    }
}
