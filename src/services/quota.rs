//! The quota of a conversation on disk, and the free space that the disk must keep: checked before a run and before
//! each write, and measured while a program runs.
//!
//! The usage of a conversation is cached: from the listing after each run, plus later writes. So a run does not wait
//! for a measurement, and a refusal always follows a measurement. `watch` measures while a program runs. When it has
//! ended, its usage is checked once more, since a program can name large files as its last act. `between` measures
//! between the cells of a session.
//!
//! An owner may have a quota for all conversations together. It is checked at the same points, from the measurements of
//! its conversations, but stops no program: a running one can exceed it by at most its own conversation's quota. In it
//! an entry counts as a block at least, since empty files use up the inodes of all owners.
//!
//! What clients write is reserved first, and uploads in progress as they arrive (`writing`). What is cached is in
//! `known`.

mod between;
mod known;
mod watch;
mod writing;

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;
use tracing::{debug, warn};

pub(super) use self::writing::Writer;
use self::{
    known::{Known, owned_bytes},
    watch::DiskState,
};
use crate::{
    domain::{Code, ConversationKey, DiskLimit, Failure, outcome::mib},
    ports::storage::{FsResult, Storage, StorageError, Usage},
    services::shares::WeakMap,
};

/// Free entries (inodes) that the disk must keep.
const FREE_ENTRIES_MIN: u64 = 1000;
/// What an entry counts as at least, in bytes: empty files take no block, but inodes, which all owners share.
const ENTRY_BYTES: u64 = 4096;
/// Conversations that are known at most where no limit is on all of them together: about 20 MiB.
const KNOWN_MAX: usize = 65_536;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaOptions {
    /// Bytes on disk of one conversation's files.
    pub bytes_max: u64,
    /// Entries of one conversation: files, folders, links.
    pub entries_max: u64,
    /// Free bytes that the disk must keep.
    pub free_bytes_min: u64,
    /// Bytes on disk of all files of one owner; `None`: without limit.
    pub owner_bytes_max: Option<u64>,
}

/// The quotas of all conversations.
#[derive(Debug)]
pub struct Quota {
    store: Arc<dyn Storage>,
    options: QuotaOptions,
    known: Mutex<Known>,
    /// One writer at a time for each conversation.
    writing: WeakMap<ConversationKey, AsyncMutex<()>>,
}

impl Quota {
    pub fn new(store: Arc<dyn Storage>, options: QuotaOptions) -> Self {
        Self { store, options, known: Mutex::default(), writing: WeakMap::default() }
    }

    pub(super) fn ceiling(&self) -> Usage {
        Usage { bytes: self.options.bytes_max, entries: self.options.entries_max }
    }

    /// Whether the cached usage shows that `more` fits. Reads no folder: the kernel keeps the free space.
    pub(super) fn fits_surely(&self, id: &ConversationKey, more: &Usage) -> bool {
        self.disk_has_room(more).is_ok() && self.known_room(id, more).is_some()
    }

    /// The cached usage, if `more` fits beside it, beside uploads in progress and beside what else the owner has.
    fn known_room(&self, id: &ConversationKey, more: &Usage) -> Option<Usage> {
        let known = self.known.lock();
        let beside = known.arrivals.of(id).plus(more);
        let there = known.usage(id).filter(|there| there.plus(&beside).fits(&self.ceiling()))?;
        self.owner_has_room(&known, id, more).then_some(there)
    }

    /// Whether the owner's quota has room for `more`, by what was last found of each conversation.
    fn owner_has_room(&self, known: &Known, id: &ConversationKey, more: &Usage) -> bool {
        let fits = |max| known.owner_bytes(&id.owner).saturating_add(owned_bytes(more)) <= max;
        self.options.owner_bytes_max.is_none_or(fits)
    }

    /// As [`Self::owner_has_room`].
    fn check_owner_room(&self, known: &Known, id: &ConversationKey, more: &Usage) -> Result<(), Failure> {
        if self.owner_has_room(known, id, more) {
            return Ok(());
        }
        let (total, max) = (known.owner_bytes(&id.owner), self.options.owner_bytes_max.unwrap_or(u64::MAX));
        let why = format!(
            "The files of all your conversations take {} MiB on disk and may take {} MiB, so nothing was run or \
             written: delete files or conversations that are no longer needed, then try again.",
            mib(total),
            mib(max)
        );
        Err(Failure::new(Code::QuotaExceeded, why))
    }

    /// Whether the disk has room for `more` and keeps its minimum of free space.
    pub(super) fn disk_has_room(&self, more: &Usage) -> Result<(), Failure> {
        let free = self.store.free()?;
        let min = self.options.free_bytes_min;
        if free.bytes >= more.bytes.saturating_add(min) && free.entries >= FREE_ENTRIES_MIN {
            return Ok(());
        }
        warn!(free_bytes = free.bytes, free_entries = free.entries, min, "the disk of SANDBOX_ROOT is nearly full");
        Err(Failure::new(
            Code::NoSpace,
            "The server's disk is nearly full, so nothing is run or written: the operator must free space on it, or \
             lower SANDBOX_QUOTA__FREE_BYTES_MIN.",
        ))
    }

    fn measure(&self, id: &ConversationKey) -> FsResult<Usage> {
        self.store.open(id)?.map_or(Ok(Usage::default()), |there| there.usage(&self.ceiling()))
    }

    /// Whether a conversation has room for `more` beside what is there.
    fn check_room(&self, there: &Usage, more: &Usage) -> Result<(), Failure> {
        let (after, QuotaOptions { bytes_max, entries_max, .. }) = (there.plus(more), self.options);
        if after.fits(&self.ceiling()) {
            return Ok(());
        }
        let (taken, limit) = if after.bytes > bytes_max {
            (format!("take {} MiB on disk", mib(there.bytes)), format!("{} MiB", mib(bytes_max)))
        } else {
            (format!("are {} files and folders", there.entries), entries_max.to_string())
        };
        let why = format!(
            "The conversation's files {taken} and may take {limit}, so nothing was run or written: delete files that \
             are no longer needed, then try again."
        );
        Err(Failure::new(Code::QuotaExceeded, why))
    }

    /// Caches a measured usage; `None` when the measurement was incomplete.
    pub(super) fn measured(&self, id: &ConversationKey, usage: Option<Usage>) {
        let mut known = self.known.lock();
        match usage {
            Some(usage) => known.set(id, usage),
            None => known.unset(id),
        }
    }

    /// A client has deleted something. It is measured only where it may count for other conversations.
    pub(super) fn shrunk(&self, id: &ConversationKey) {
        if self.is_by_owner() {
            self.measured(id, None);
        }
    }

    /// A conversation was deleted.
    pub(super) fn forget(&self, id: &ConversationKey) {
        self.known.lock().forget(id);
    }

    /// Forgets deleted conversations: other processes on the same root delete some too.
    pub(super) fn keep(&self, still: &HashSet<&ConversationKey>) {
        self.known.lock().retain(|id, _| still.contains(id));
    }

    /// Forgets measurements where there are too many: the next use of a conversation repeats its own. What no
    /// measurement shows is kept, as is what a client is writing and may not be on the disk yet.
    pub(super) fn trim(&self) {
        let mut known = self.known.lock();
        if known.conversations.len() > KNOWN_MAX {
            known.retain(|id, one| one.begun.is_some() || one.closed_bytes > 0 || self.writing.has(id));
        }
    }

    /// The usage of a conversation as far as it is known without a measurement.
    pub(super) fn cached(&self, id: &ConversationKey) -> Option<Usage> {
        self.known.lock().usage(id)
    }

    /// The usage of a conversation, measured if what is cached may be too high. Blocks.
    pub(super) fn usage(&self, id: &ConversationKey) -> FsResult<Usage> {
        // What a client is writing now may not be on the disk yet.
        let turn = self.writing.of(id, AsyncMutex::default).try_lock_owned();
        let is_estimate = turn.is_ok() && self.known.lock().is_estimate(id);
        if let Some(usage) = self.cached(id).filter(|_| !is_estimate) {
            return Ok(usage);
        }
        // A disk is not mounted only to measure it.
        if let Some(bytes) = self.store.resting_bytes(id) {
            self.known.lock().set_found(id, bytes);
            return Ok(Usage { bytes, entries: 0 });
        }
        let usage = self.measure(id)?;
        let mut known = self.known.lock();
        // A program that ran meanwhile was listed since.
        if !is_estimate || known.is_estimate(id) {
            known.set(id, usage);
        }
        Ok(usage)
    }

    /// The bytes of a conversation, with uploads in progress. What cannot be measured counts as it was last found, so
    /// that it does not keep the others from being counted. Blocks.
    pub(super) fn counted_bytes(&self, id: &ConversationKey) -> u64 {
        let measured = self.usage(id).map(|usage| usage.bytes);
        let bytes = measured.unwrap_or_else(|error| {
            debug!(conversation = %id, ?error, "a conversation's files were not measured");
            self.known.lock().get(id).map_or(0, |known| known.found_bytes)
        });
        bytes.saturating_add(self.arriving_bytes(id))
    }

    /// The limit that a conversation's files exceed now that its program has ended. Measures unless the usage is
    /// cached, as it is after a complete listing.
    pub(super) async fn exceeded(self: &Arc<Self>, id: &ConversationKey) -> Option<DiskLimit> {
        if let Some(usage) = self.cached(id) {
            return self.limit(&usage);
        }
        let (quota, key) = (Arc::clone(self), id.clone());
        match tokio::task::spawn_blocking(move || quota.usage(&key)).await.ok()? {
            Ok(usage) => self.limit(&usage),
            Err(StorageError::Denied { .. }) => {
                self.assume(id);
                Some(DiskLimit::Closed)
            }
            Err(error) => {
                warn!(conversation = %id, ?error, "a conversation's files were not measured");
                None
            }
        }
    }

    /// The server may not measure a conversation whose program has ended: what that took of the free space counts as
    /// its files, so that it cannot repeat this without end.
    fn assume(&self, id: &ConversationKey) {
        let Ok(free) = self.store.free() else { return };
        let mut known = self.known.lock();
        let Some(first) = known.entry(id).begun.take() else { return };
        let now = DiskState { free, growth_bytes: known.growth_bytes, ..first };
        let bytes = signed(first.usage.bytes).saturating_add(now.hidden_bytes(&first));
        let bytes = u64::try_from(bytes).unwrap_or_default();
        known.entry(id).closed_bytes = bytes;
        known.set_found(id, bytes);
    }

    /// As [`Self::exceeded`], measured in any case.
    pub(super) async fn exceeds_now(self: &Arc<Self>, id: &ConversationKey) -> Option<DiskLimit> {
        self.measured(id, None);
        self.exceeded(id).await
    }

    /// Whether owners have a quota, so that each conversation has to be measured.
    pub(super) fn is_by_owner(&self) -> bool {
        self.options.owner_bytes_max.is_some()
    }

    /// The limit that a usage exceeds.
    fn limit(&self, usage: &Usage) -> Option<DiskLimit> {
        let QuotaOptions { bytes_max, entries_max, .. } = self.options;
        if usage.bytes > bytes_max {
            return Some(DiskLimit::Bytes { max: bytes_max });
        }
        (usage.entries > entries_max).then_some(DiskLimit::Entries { max: entries_max })
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests;
