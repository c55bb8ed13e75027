//! Forgets what is known of conversations, so that memory does not grow with each one that was ever used.

use std::collections::HashSet;

use super::{Conversation, Known, Quota, uncount};
use crate::domain::ConversationKey;

/// Conversations that are known at most where no limit is on all of them together: about 20 MiB.
const KNOWN_MAX: usize = 65_536;

impl Known {
    fn retain(&mut self, is_kept: impl Fn(&ConversationKey, &Conversation) -> bool) {
        let Self { conversations, totals, .. } = self;
        for (id, gone) in conversations.extract_if(|id, one| !is_kept(id, one)) {
            uncount(totals, &id, &gone);
        }
    }
}

impl Quota {
    /// Forgets deleted conversations: other processes on the same root delete some too.
    pub(in super::super) fn keep(&self, still: &HashSet<&ConversationKey>) {
        self.known.lock().retain(|id, _| still.contains(id));
    }

    /// Forgets measurements where there are too many: the next use of a conversation repeats its own. What no
    /// measurement shows is kept, as is what a client is writing and may not be on the disk yet.
    pub(in super::super) fn trim(&self) {
        let mut known = self.known.lock();
        if known.conversations.len() > KNOWN_MAX {
            known.retain(|id, one| one.begun.is_some() || one.closed_bytes > 0 || self.writing.has(id));
        }
    }
}

#[cfg(test)]
mod tests;
