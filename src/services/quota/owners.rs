//! The disk usage of each owner's conversations together, as far as it was measured. A conversation counts with its
//! last measurement until it is measured again or deleted.

use std::collections::{HashMap, HashSet};

use crate::{
    domain::owner::{ConversationKey, Principal},
    ports::storage::Usage,
};

/// What an entry counts as at least, in bytes: empty files take no block, but inodes, which all owners share.
pub(super) const ENTRY_BYTES: u64 = 4096;

/// What a usage counts as among the bytes of its owner.
pub(super) fn owned_bytes(usage: &Usage) -> u64 {
    usage.bytes.max(usage.entries.saturating_mul(ENTRY_BYTES))
}

#[derive(Debug, Default)]
pub(super) struct Owners {
    found: HashMap<ConversationKey, u64>,
    totals: HashMap<Principal, u64>,
}

impl Owners {
    /// A conversation was found to take so many bytes.
    pub(super) fn set(&mut self, id: &ConversationKey, bytes: u64) {
        let before = self.found.insert(id.clone(), bytes).unwrap_or_default();
        let total = self.totals.entry(id.owner.clone()).or_default();
        *total = total.saturating_sub(before).saturating_add(bytes);
    }

    /// A conversation is gone.
    pub(super) fn forget(&mut self, id: &ConversationKey) {
        let Some(bytes) = self.found.remove(id) else { return };
        let Some(total) = self.totals.get_mut(&id.owner) else { return };
        *total = total.saturating_sub(bytes);
        if *total == 0 {
            self.totals.remove(&id.owner);
        }
    }

    /// Forgets all others.
    pub(super) fn keep(&mut self, still: &HashSet<&ConversationKey>) {
        let gone: Vec<_> = self.found.keys().filter(|id| !still.contains(id)).cloned().collect();
        for id in &gone {
            self.forget(id);
        }
    }

    /// What a conversation was last found to take.
    pub(super) fn bytes(&self, id: &ConversationKey) -> u64 {
        self.found.get(id).copied().unwrap_or_default()
    }

    pub(super) fn total(&self, owner: &Principal) -> u64 {
        self.totals.get(owner).copied().unwrap_or_default()
    }

    /// The conversations of an owner that were found to take something.
    pub(super) fn of<'a>(&'a self, owner: &'a Principal) -> impl Iterator<Item = &'a ConversationKey> {
        self.found.iter().filter(move |(id, bytes)| id.owner == *owner && **bytes > 0).map(|(id, _)| id)
    }
}
