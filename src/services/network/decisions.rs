//! The newest connections of each owner, in bounded memory.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
};

use parking_lot::Mutex;

use crate::domain::{
    id::Language,
    network::NetworkUse,
    owner::{ConversationKey, Principal},
};

/// Connections that are kept of one owner, and owners.
const OF_OWNER_MAX: usize = 500;
const OWNERS_MAX: usize = 1000;

/// A connection of a conversation, when it was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub at_unix_ms: i64,
    pub conversation: ConversationKey,
    pub language: Language,
    pub used: NetworkUse,
}

/// The newest connections. None of an owner's is forgotten for another owner's, until there are too many owners.
#[derive(Debug, Default)]
pub struct Decisions(Mutex<HashMap<Principal, VecDeque<Decision>>>);

impl Decisions {
    pub(super) fn add(&self, decision: Decision) {
        let mut all = self.0.lock();
        let owner = decision.conversation.owner.clone();
        if all.len() >= OWNERS_MAX && !all.contains_key(&owner) {
            let newest = |kept: &VecDeque<Decision>| kept.back().map(|decision| decision.at_unix_ms);
            let oldest = all.iter().min_by_key(|(_, kept)| newest(kept)).map(|(owner, _)| owner.clone());
            oldest.map(|owner| all.remove(&owner));
        }
        let kept = all.entry(owner).or_default();
        kept.drain(..(kept.len() + 1).saturating_sub(OF_OWNER_MAX));
        kept.push_back(decision);
    }

    /// Those of all owners, newest first.
    pub fn newest_of_all(&self, limit: usize) -> Vec<Decision> {
        let all = self.0.lock();
        let mut newest: Vec<_> = all.values().flat_map(|kept| kept.iter().rev().take(limit)).collect();
        newest.sort_by_key(|decision| Reverse(decision.at_unix_ms));
        newest.into_iter().take(limit).cloned().collect()
    }

    /// Those of an owner, newest first.
    pub fn newest(&self, who: &Principal, limit: usize) -> Vec<Decision> {
        let all = self.0.lock();
        all.get(who).into_iter().flat_map(|kept| kept.iter().rev()).take(limit).cloned().collect()
    }
}
