//! What is known of conversations without a measurement: usages that were measured before, what was written since, and
//! which programs are being watched.

use std::{collections::HashMap, mem};

use super::{ENTRY_BYTES, signed, watch::DiskState, writing::ArrivingBytes};
use crate::{
    domain::{ConversationKey, Principal},
    ports::storage::Usage,
};

#[derive(Debug, Default)]
pub(super) struct Known {
    pub conversations: HashMap<ConversationKey, Conversation>,
    /// The disk usage of each owner's conversations together, as far as it was measured. A conversation counts with its
    /// last measurement until it is measured again or deleted.
    pub totals: HashMap<Principal, u64>,
    /// The growth of all conversations together that the cache has shown so far, in bytes.
    pub growth_bytes: i64,
    /// Uploads in progress, which no usage includes.
    pub arrivals: ArrivingBytes,
    /// Programs that are being watched, by number, and the conversation of each.
    pub watched: HashMap<u64, ConversationKey>,
    /// The number of the program that began last.
    pub newest: u64,
}

/// What is known of a conversation.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    /// The cached usage: measured once, plus later writes. No refusal by the conversation's own quota relies on it.
    pub usage: Option<Usage>,
    /// That usage may be too high: a file that a client wrote may have replaced another.
    pub is_estimate: bool,
    /// What it was last found to take, as it counts for its owner.
    pub found_bytes: u64,
    /// The disk and the conversation when its last program began, or at the last walk during it; until it is measured
    /// without a program.
    pub begun: Option<DiskState>,
    /// What it is assumed to take where the server may not measure it: what its programs took of the free space, and
    /// what clients wrote.
    pub closed_bytes: u64,
}

impl Known {
    pub(super) fn get(&self, id: &ConversationKey) -> Option<&Conversation> {
        self.conversations.get(id)
    }

    pub(super) fn entry(&mut self, id: &ConversationKey) -> &mut Conversation {
        self.conversations.entry(id.clone()).or_default()
    }

    /// The cached usage.
    pub(super) fn usage(&self, id: &ConversationKey) -> Option<Usage> {
        self.get(id)?.usage
    }

    pub(super) fn set(&mut self, id: &ConversationKey, usage: Usage) {
        self.set_found(id, owned_bytes(&usage));
        let is_watched = self.is_watched(id);
        let known = self.entry(id);
        (known.is_estimate, known.closed_bytes) = (false, 0);
        known.begun = known.begun.filter(|_| is_watched);
        if let Some(before) = known.usage.replace(usage) {
            self.growth_bytes = self.growth_bytes.saturating_add(signed(usage.bytes) - signed(before.bytes));
        }
    }

    /// A conversation was found to take so many bytes, as they count for its owner.
    pub(super) fn set_found(&mut self, id: &ConversationKey, bytes: u64) {
        let before = mem::replace(&mut self.entry(id).found_bytes, bytes);
        let total = self.totals.entry(id.owner.clone()).or_default();
        *total = total.saturating_sub(before).saturating_add(bytes);
    }

    /// The next use of the usage measures it.
    pub(super) fn unset(&mut self, id: &ConversationKey) {
        if let Some(known) = self.conversations.get_mut(id) {
            (known.usage, known.is_estimate) = (None, false);
        }
    }

    /// A conversation is gone.
    pub(super) fn forget(&mut self, id: &ConversationKey) {
        if let Some(gone) = self.conversations.remove(id) {
            uncount(&mut self.totals, id, &gone);
        }
    }

    /// Whether a measurement is to replace what is cached: not while a program may write beside it.
    pub(super) fn is_estimate(&self, id: &ConversationKey) -> bool {
        self.get(id).is_some_and(|known| known.is_estimate) && !self.is_watched(id)
    }

    /// What an owner has, with uploads in progress.
    pub(super) fn owner_bytes(&self, owner: &Principal) -> u64 {
        let total = self.totals.get(owner).copied().unwrap_or_default();
        total.saturating_add(self.arrivals.owner_bytes(owner))
    }

    /// What a conversation that the server may not measure is assumed to take.
    pub(super) fn closed_usage(&self, id: &ConversationKey) -> Usage {
        Usage { bytes: self.get(id).map_or(0, |known| known.closed_bytes), entries: 0 }
    }

    /// A client is about to write to such a conversation.
    pub(super) fn add_closed(&mut self, id: &ConversationKey, more: &Usage) {
        let known = self.entry(id);
        known.closed_bytes = known.closed_bytes.saturating_add(more.bytes);
        let found_bytes = known.found_bytes.saturating_add(owned_bytes(more));
        self.set_found(id, found_bytes);
    }

    /// Whether a program of the conversation is being watched.
    pub(super) fn is_watched(&self, id: &ConversationKey) -> bool {
        self.watched.values().any(|watched| watched == id)
    }

    /// A client writes so much beside what is there; `None` where the server may not measure that.
    pub(super) fn set_written(&mut self, id: &ConversationKey, there: Option<Usage>, more: &Usage) {
        let Some(there) = there else { return self.add_closed(id, more) };
        self.set(id, there.plus(more));
        self.entry(id).is_estimate = true;
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&ConversationKey, &Conversation) -> bool) {
        let Self { conversations, totals, .. } = self;
        for (id, gone) in conversations.extract_if(|id, one| !is_kept(id, one)) {
            uncount(totals, &id, &gone);
        }
    }
}

/// What was found of a conversation counts for its owner no more.
fn uncount(totals: &mut HashMap<Principal, u64>, id: &ConversationKey, gone: &Conversation) {
    let Some(total) = totals.get_mut(&id.owner) else { return };
    *total = total.saturating_sub(gone.found_bytes);
    if *total == 0 {
        totals.remove(&id.owner);
    }
}

/// What a usage counts as among the bytes of its owner.
pub(super) fn owned_bytes(usage: &Usage) -> u64 {
    usage.bytes.max(usage.entries.saturating_mul(ENTRY_BYTES))
}

#[cfg(test)]
mod tests;
