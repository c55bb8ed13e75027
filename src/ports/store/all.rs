//! Which conversations there are, a page at a time: one pass over the root, keeping no more names than the page holds.

use std::collections::BTreeSet;

use rustix::{
    fs::{AtFlags, Dir, StatxFlags},
    io::Errno,
};

use super::{Store, StoreError};
use crate::domain::id::ConversationId;

/// A conversation that has a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownConversation {
    /// Which.
    pub id: ConversationId,
    /// When a run began in it or something came or went at the top of its folder, in seconds since the Unix epoch. A
    /// program may have set the second to anything.
    pub used_unix_s: i64,
}

/// When a conversation was last used, by what no program can set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LastUse {
    /// When a run began or something was written by a client, in seconds since the Unix epoch.
    pub unix_s: i64,
    /// Which.
    pub id: ConversationId,
}

impl Store {
    /// Every conversation and when it was last used, in no order.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the disk fails.
    pub fn last_uses(&self) -> Result<Vec<LastUse>, StoreError> {
        let fail = |errno| StoreError::new("list", errno);
        let mut uses = Vec::new();
        for entry in Dir::read_from(&self.root).map_err(fail)? {
            let name = entry.map_err(fail)?.file_name().to_owned();
            let id = name.to_str().ok().and_then(|name| name.parse::<ConversationId>().ok());
            uses.extend(id.and_then(|id| self.last_use(&id)));
        }
        Ok(uses)
    }

    /// When a conversation was last used. `None` when there is none. Other processes on this root count too.
    pub fn last_use(&self, id: &ConversationId) -> Option<LastUse> {
        // One that was never marked has the age of its folder, in which no program can make or remove anything.
        let unix_s = self.modified(&format!("{id}/.mark")).or_else(|| self.modified(id.as_str()));
        unix_s.map(|unix_s| LastUse { unix_s, id: id.clone() })
    }

    /// The conversations behind `after` in the order of their names, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError::Io`] when the disk fails.
    pub fn conversations(
        &self,
        after: Option<&ConversationId>,
        limit: usize,
    ) -> Result<Vec<KnownConversation>, StoreError> {
        self.try_conversations(after, limit).map_err(|errno| StoreError::new("list", errno))
    }

    fn try_conversations(&self, after: Option<&ConversationId>, limit: usize) -> Result<Vec<KnownConversation>, Errno> {
        let mut first = BTreeSet::new();
        for entry in Dir::read_from(&self.root)? {
            let entry = entry?;
            // What is no id is a file of ours, or the operator's.
            let Some(id) = entry.file_name().to_str().ok().and_then(|name| name.parse::<ConversationId>().ok()) else {
                continue;
            };
            if after.is_none_or(|after| id > *after) {
                first.insert(id);
                if first.len() > limit {
                    first.pop_last();
                }
            }
        }
        // One that was deleted meanwhile, or has no folder for files, is none.
        Ok(first
            .into_iter()
            .filter_map(|id| self.used(&id).map(|used_unix_s| KnownConversation { id, used_unix_s }))
            .collect())
    }

    fn used(&self, id: &ConversationId) -> Option<i64> {
        let files = self.modified(&format!("{id}/files"))?;
        Some(self.modified(&format!("{id}/.mark")).map_or(files, |run| run.max(files)))
    }

    fn modified(&self, name: &str) -> Option<i64> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        rustix::fs::statx(&self.root, name, flags, StatxFlags::MTIME).map(|stat| stat.stx_mtime.tv_sec).ok()
    }
}
