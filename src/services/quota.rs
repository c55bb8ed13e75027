//! The quota of a conversation on disk, and the free space that the disk must keep: checked before a run and before
//! each write, and measured while a program runs.
//!
//! The usage of a conversation is cached: from the listing after each run, plus later writes. So a run does not wait
//! for a measurement, and a refusal always follows a measurement. A measurement walks at most a folder of the allowed
//! size, and the pause after it grows with its duration.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::{
    domain::{
        error::{Code, Failure},
        outcome::{DiskLimit, mib},
        owner::ConversationKey,
    },
    ports::storage::{Storage, StorageError, Usage},
};

/// The time until the first measurement of a running program, and the shortest pause between two.
const MEASURE_EVERY: Duration = Duration::from_millis(250);
/// The longest pause between two measurements, however long they take.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The pause is this many times the duration of the measurement, which so uses at most a twentieth of a core.
const PAUSE_FACTOR: u32 = 20;
/// Free entries (inodes) that the disk must keep.
const FREE_ENTRIES_MIN: u64 = 1000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaOptions {
    /// Bytes on disk of one conversation's files.
    pub bytes_max: u64,
    /// Entries of one conversation: files, folders, links.
    pub entries_max: u64,
    /// Free bytes that the disk must keep.
    pub free_bytes_min: u64,
}

impl Default for QuotaOptions {
    fn default() -> Self {
        Self { bytes_max: 1 << 30, entries_max: 50_000, free_bytes_min: 512 << 20 }
    }
}

/// The quotas of all conversations.
#[derive(Debug)]
pub struct Quota {
    store: Arc<dyn Storage>,
    options: QuotaOptions,
    /// The cached usage of conversations: measured once, plus later writes. No refusal relies on it.
    known: Mutex<HashMap<ConversationKey, Usage>>,
    /// One writer at a time for each conversation. The next writer of any conversation removes unused entries.
    writing: Mutex<HashMap<ConversationKey, Arc<AsyncMutex<()>>>>,
}

/// The right to write to a conversation. Writers take turns, so the bytes of one reservation are on disk before the
/// next measurement.
#[derive(Debug)]
pub(super) struct Writer {
    quota: Arc<Quota>,
    conversation: ConversationKey,
    _turn: OwnedMutexGuard<()>,
}

/// One measurement while a program runs.
#[derive(Debug, Clone, Copy)]
struct Sample {
    usage: Usage,
    free: Usage,
}

impl Quota {
    pub fn new(store: Arc<dyn Storage>, options: QuotaOptions) -> Self {
        Self { store, options, known: Mutex::default(), writing: Mutex::default() }
    }

    /// Waits for the other writers of this conversation.
    pub(super) async fn writer(self: &Arc<Self>, conversation: &ConversationKey) -> Writer {
        let lock = {
            let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
            writing.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(writing.entry(conversation.clone()).or_default())
        };
        let (quota, conversation) = (Arc::clone(self), conversation.clone());
        Writer { quota, conversation, _turn: lock.lock_owned().await }
    }

    fn ceiling(&self) -> Usage {
        Usage { bytes: self.options.bytes_max, entries: self.options.entries_max }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ConversationKey, Usage>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves `more` if the cached usage shows that it fits. Reads no folder: the kernel keeps the free space.
    pub(super) fn fits_surely(&self, id: &ConversationKey, more: &Usage) -> bool {
        self.disk_has_room(more).is_ok() && self.reserve_known(id, more)
    }

    fn reserve_known(&self, id: &ConversationKey, more: &Usage) -> bool {
        let mut known = self.known();
        let Some(there) = known.get_mut(id) else { return false };
        let after = there.plus(more);
        let fits = after.fits(&self.ceiling());
        if fits {
            *there = after;
        }
        fits
    }

    /// Whether the disk has room for `more` and keeps its minimum of free space.
    fn disk_has_room(&self, more: &Usage) -> Result<(), Failure> {
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

    fn measure(&self, id: &ConversationKey) -> Result<Usage, StorageError> {
        self.store.open(id)?.map_or(Ok(Usage::default()), |there| there.usage(&self.ceiling()))
    }

    fn refusal(&self, there: &Usage, after: &Usage) -> Failure {
        let QuotaOptions { bytes_max, entries_max, .. } = self.options;
        let (taken, limit) = if after.bytes > bytes_max {
            (format!("take {} MiB on disk", mib(there.bytes)), format!("{} MiB", mib(bytes_max)))
        } else {
            (format!("are {} files and folders", there.entries), entries_max.to_string())
        };
        let why = format!(
            "The conversation's files {taken} and may take {limit}, so nothing was run or written: delete files that \
             are no longer needed, then try again."
        );
        Failure::new(Code::QuotaExceeded, why)
    }

    /// Caches a measured usage; `None` when the measurement was incomplete.
    pub(super) fn measured(&self, id: &ConversationKey, usage: Option<Usage>) {
        let mut known = self.known();
        match usage {
            Some(usage) => known.insert(id.clone(), usage),
            None => known.remove(id),
        };
    }

    /// Drops the cached usage of deleted conversations: other processes on the same root delete some too.
    pub(super) fn keep(&self, still: &HashSet<&ConversationKey>) {
        self.known().retain(|id, _| still.contains(id));
    }

    /// The usage of a conversation, measured if it is not cached. Blocks.
    pub(super) fn usage(&self, id: &ConversationKey) -> Result<Usage, StorageError> {
        if let Some(usage) = self.known().get(id) {
            return Ok(*usage);
        }
        // A disk is not mounted only to measure it.
        if let Some(bytes) = self.store.resting_bytes(id) {
            return Ok(Usage { bytes, entries: 0 });
        }
        let usage = self.measure(id)?;
        self.known().insert(id.clone(), usage);
        Ok(usage)
    }

    /// Measures a conversation's files periodically while a program runs; returns when the program must be stopped.
    pub(super) async fn breach(self: Arc<Self>, id: ConversationKey) -> DiskLimit {
        let mut before = None;
        let mut pause = MEASURE_EVERY;
        loop {
            sleep(pause).await;
            let (quota, conversation) = (Arc::clone(&self), id.clone());
            let began = Instant::now();
            let sampled = tokio::task::spawn_blocking(move || quota.sample(&conversation)).await;
            pause = (began.elapsed() * PAUSE_FACTOR).clamp(MEASURE_EVERY, PAUSE_MAX);
            // A failed measurement does not stop a program.
            let Ok(Ok(sample)) = sampled else { continue };
            if let Some(limit) = self.judge(before.as_ref(), &sample) {
                return limit;
            }
            before = Some(sample);
        }
    }

    fn sample(&self, id: &ConversationKey) -> Result<Sample, StorageError> {
        let sample = Sample { usage: self.measure(id)?, free: self.store.free()? };
        self.measured(id, Some(sample.usage));
        Ok(sample)
    }

    /// Whether a program must be stopped. When the disk is nearly full, a program whose files grew is stopped at once
    /// and any other at the next sample: deleted files that are still open are not measured and may be the cause.
    fn judge(&self, before: Option<&Sample>, now: &Sample) -> Option<DiskLimit> {
        let QuotaOptions { bytes_max, entries_max, free_bytes_min } = self.options;
        if now.usage.bytes > bytes_max {
            return Some(DiskLimit::Bytes { max: bytes_max });
        }
        if now.usage.entries > entries_max {
            return Some(DiskLimit::Entries { max: entries_max });
        }
        let full = |sample: &Sample| sample.free.bytes < free_bytes_min || sample.free.entries < FREE_ENTRIES_MIN;
        let grew = |before: &Sample| now.usage.bytes > before.usage.bytes || now.usage.entries > before.usage.entries;
        let to_blame = before.is_some_and(|before| full(before) || grew(before));
        (full(now) && to_blame).then_some(DiskLimit::Free { min: free_bytes_min })
    }
}

impl Writer {
    /// Reserves `more` or refuses. Measures unless the cached usage shows that it fits. Blocks.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::NoSpace`] when the disk has too little free space.
    pub(super) fn reserve(&self, more: &Usage) -> Result<(), Failure> {
        let Self { quota, conversation, .. } = self;
        quota.disk_has_room(more)?;
        if quota.reserve_known(conversation, more) {
            return Ok(());
        }
        let there = quota.measure(conversation)?;
        let after = there.plus(more);
        if !after.fits(&quota.ceiling()) {
            return Err(quota.refusal(&there, &after));
        }
        quota.known().insert(conversation.clone(), after);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
