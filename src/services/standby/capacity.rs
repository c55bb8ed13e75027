//! Who gets the places that there are: how many are kept for conversations that do not exist yet, whether one more fits,
//! and who leaves first. It decides on what stands by now, and starts and ends nothing.

use tokio::time::Instant;

use super::{Entry, For, Inner, State};
use crate::ports::engine::ImageId;

/// What a standby is taken to hold until one of its image has said it, in bytes.
const MEMORY_GUESS_BYTES: u64 = 8 << 20;

/// Some of the places and of the memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Share {
    count: usize,
    bytes: u64,
}

impl Share {
    /// What the standbys of one kind take.
    fn of<'a>(state: &State, entries: impl Iterator<Item = &'a Entry>) -> Self {
        entries.fold(Self::default(), |sum, entry| sum.plus(1, held(state, entry)))
    }

    fn plus(self, count: usize, bytes: u64) -> Self {
        Self { count: self.count + count, bytes: self.bytes + bytes }
    }

    fn minus(self, other: Self) -> Self {
        Self { count: self.count.saturating_sub(other.count), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    fn is_within(self, other: Self) -> bool {
        self.count <= other.count && self.bytes <= other.bytes
    }
}

impl Inner {
    /// Whether one more of this image fits beside all others, without another's place.
    pub(super) fn fits(&self, state: &State, image: &ImageId) -> bool {
        all(state).plus(1, expected(state, image)).is_within(self.total())
    }

    /// Whether one more fits for a conversation that was active at this time, if need be in the place of a conversation
    /// that was active before this one. A place that is taken from a later one would be taken back at once, and so on
    /// for ever.
    pub(super) fn fits_known(&self, state: &State, image: &ImageId, at: Instant) -> bool {
        let (room, with) = (self.room_for_known(state), known(state).plus(1, expected(state, image)));
        if with.is_within(room) {
            return true;
        }
        let Some(least) = least_active(state).map(|least| &state.entries[least]) else { return false };
        let earlier = active_at(state, least).is_some_and(|theirs| theirs < at);
        earlier && with.minus(Share { count: 1, bytes: held(state, least) }).is_within(room)
    }

    /// Which one leaves next, while there are more than there may be: of conversations that exist the one that was active
    /// longest ago; when these are within their share, the oldest of the others.
    pub(super) fn too_much(&self, state: &State) -> Option<usize> {
        if !known(state).is_within(self.room_for_known(state)) {
            return least_active(state);
        }
        if all(state).is_within(self.total()) {
            return None;
        }
        let nobodys = (0..state.entries.len()).filter(|&at| matches!(state.entries[at].whose, For::Nobody(_)));
        nobodys.min_by_key(|&at| state.entries[at].since)
    }

    fn total(&self) -> Share {
        Share { count: self.options.total_max, bytes: self.options.memory_bytes_max }
    }

    /// What conversations that exist may take: all but what a new conversation of each language in use will need, and at
    /// least half. Otherwise a dozen of them would take every place, and each new one after them would start cold.
    fn room_for_known(&self, state: &State) -> Share {
        if self.assignment.is_known_to_fail() {
            return self.total();
        }
        let each = self.options.nameless_max;
        let runners = state.used.keys().filter_map(|language| self.parts.catalog.find(language));
        let kept = runners.fold(Share::default(), |sum, runner| {
            sum.plus(each, expected(state, &runner.image).saturating_mul(each as u64))
        });
        let total = self.total();
        total.minus(Share { count: kept.count.min(total.count / 2), bytes: kept.bytes.min(total.bytes / 2) })
    }
}

fn all(state: &State) -> Share {
    Share::of(state, state.entries.iter())
}

fn known(state: &State) -> Share {
    Share::of(state, state.entries.iter().filter(|entry| matches!(entry.whose, For::Known { .. })))
}

/// What one holds, as far as it is known.
fn held(state: &State, entry: &Entry) -> u64 {
    entry.memory_bytes.unwrap_or_else(|| expected(state, &entry.image))
}

/// What one more of this image will hold, in bytes.
fn expected(state: &State, image: &ImageId) -> u64 {
    state.memory.get(image).copied().unwrap_or(MEMORY_GUESS_BYTES)
}

/// When the conversation of a standby was last active.
fn active_at(state: &State, entry: &Entry) -> Option<Instant> {
    let For::Known { conversation, .. } = &entry.whose else { return None };
    state.active.iter().find(|active| active.conversation == *conversation).map(|active| active.at)
}

/// Of those that stand by for a conversation: the one whose conversation was active longest ago.
fn least_active(state: &State) -> Option<usize> {
    let known = (0..state.entries.len()).filter(|&at| matches!(state.entries[at].whose, For::Known { .. }));
    known.min_by_key(|&at| active_at(state, &state.entries[at]))
}
