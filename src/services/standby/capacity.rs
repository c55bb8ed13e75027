//! The budget of standbys: how much is reserved for conversations that do not exist yet, whether one more fits, and
//! which one is retired first. Starts and ends nothing.

use std::collections::HashSet;

use super::{
    Inner,
    pool::{Pool, RecentConversation, Standby},
};
use crate::{domain::Principal, ports::engine::ImageId};

/// A number of standbys and their memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Budget {
    count: usize,
    bytes: u64,
}

impl Budget {
    fn used_by(pool: &Pool, matches: impl Fn(&Standby) -> bool) -> Self {
        let matching = pool.standbys.iter().filter(|standby| matches(standby));
        matching.fold(Self::default(), |sum, standby| sum.plus(1, pool.expected_bytes(&standby.image)))
    }

    fn plus(self, count: usize, bytes: u64) -> Self {
        Self { count: self.count + count, bytes: self.bytes + bytes }
    }

    fn minus(self, count: usize, bytes: u64) -> Self {
        Self { count: self.count.saturating_sub(count), bytes: self.bytes.saturating_sub(bytes) }
    }

    fn is_within(self, other: Self) -> bool {
        self.count <= other.count && self.bytes <= other.bytes
    }
}

impl Inner {
    /// Whether one more of this image fits without evicting another.
    pub(super) fn fits(&self, pool: &Pool, image: &ImageId) -> bool {
        Budget::used_by(pool, |_| true).plus(1, pool.expected_bytes(image)).is_within(self.total())
    }

    /// Whether one more fits for a conversation, evicting one if necessary: of an owner who has more than this one
    /// would have then, or of an earlier run. Evicting one of a later run would else be reversed at once, without end.
    pub(super) fn fits_conversation(&self, pool: &Pool, image: &ImageId, recent: &RecentConversation) -> bool {
        let budget = self.budget_for_conversations(pool);
        let needed = for_conversations(pool).plus(1, pool.expected_bytes(image));
        if needed.is_within(budget) {
            return true;
        }
        let owner = &recent.key.owner;
        let owners = pool.largest_owners(Some(owner));
        let Some(at) = next_to_leave(pool, &owners) else { return false };
        let evicted = &pool.standbys[at];
        let gives_way = !owners.contains(owner)
            || further(pool, &owners) == Some(at)
            || pool.last_run(evicted).is_some_and(|theirs| theirs < recent.at);
        gives_way && needed.minus(1, pool.expected_bytes(&evicted.image)).is_within(budget)
    }

    /// Whether a further one fits for a conversation without evicting another.
    pub(super) fn fits_besides(&self, pool: &Pool, image: &ImageId) -> bool {
        for_conversations(pool).plus(1, pool.expected_bytes(image)).is_within(self.budget_for_conversations(pool))
            && self.fits(pool, image)
    }

    /// The standby to evict next while the budget is exceeded: of the owner who has the most a further one of a
    /// conversation, then the one whose last run is longest ago; when those for conversations are within their budget,
    /// the oldest unassigned one.
    pub(super) fn next_evicted(&self, pool: &Pool) -> Option<usize> {
        if !for_conversations(pool).is_within(self.budget_for_conversations(pool)) {
            return next_to_leave(pool, &pool.largest_owners(None));
        }
        if Budget::used_by(pool, |_| true).is_within(self.total()) {
            return None;
        }
        let unassigned = (0..pool.standbys.len()).filter(|&at| pool.standbys[at].is_unassigned());
        unassigned.min_by_key(|&at| pool.standbys[at].since)
    }

    fn total(&self) -> Budget {
        Budget { count: self.options.total_max, bytes: self.options.memory_bytes_max }
    }

    /// The total without the reserve for a new conversation of each language in use, and at least half of the total.
    /// Without a reserve a dozen conversations take the whole budget, and each new one starts cold.
    fn budget_for_conversations(&self, pool: &Pool) -> Budget {
        let total = self.total();
        if self.assignment_works.get() == Some(&false) {
            return total;
        }
        let each = self.options.unassigned_max;
        let runners = pool.languages.keys().filter_map(|language| self.parts.catalog.find(language));
        let reserve = runners.fold(Budget::default(), |sum, runner| {
            sum.plus(each, pool.expected_bytes(&runner.image).saturating_mul(each as u64))
        });
        total.minus(reserve.count.min(total.count / 2), reserve.bytes.min(total.bytes / 2))
    }
}

fn for_conversations(pool: &Pool) -> Budget {
    Budget::used_by(pool, |standby| !standby.is_unassigned())
}

/// One of a conversation of these owners that has others.
fn further(pool: &Pool, owners: &HashSet<&Principal>) -> Option<usize> {
    pool.surplus(|recent| if owners.contains(&recent.key.owner) { 1 } else { usize::MAX })
}

fn next_to_leave(pool: &Pool, owners: &HashSet<&Principal>) -> Option<usize> {
    further(pool, owners).or_else(|| least_recent(pool, owners))
}

/// The standby for a conversation of these owners whose last run ended longest ago.
fn least_recent(pool: &Pool, owners: &HashSet<&Principal>) -> Option<usize> {
    let is_theirs = |standby: &Standby| standby.owner().is_some_and(|owner| owners.contains(owner));
    let theirs = (0..pool.standbys.len()).filter(|&at| is_theirs(&pool.standbys[at]));
    theirs.min_by_key(|&at| pool.last_run(&pool.standbys[at]))
}
