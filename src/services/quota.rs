//! What a conversation may take on disk, and what the disk must have left: checked before a run and before each write, and
//! measured while a run goes on.
//!
//! What a conversation takes is remembered: from the listing after each run, plus what was written since. So a run pays
//! nothing for it, and a refusal is always preceded by a measurement. A look at a running program costs at most what a
//! folder of the allowed size costs, and the pause after it grows with that.

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

/// How long a program runs before its files are looked at, and the shortest pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The longest pause between two looks, however much each of them costs.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How many times as long as a look the pause after it is: looking takes at most a twentieth of one core.
const PAUSE_FACTOR: u32 = 20;
/// Entries that the disk must have left.
const FREE_ENTRIES_MIN: u64 = 1000;

/// The ceilings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaOptions {
    /// What one conversation's files may take on disk, in bytes.
    pub bytes_max: u64,
    /// Names in one conversation: files, folders, links.
    pub entries_max: u64,
    /// What the disk must have left, in bytes.
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
    /// What conversations take: measured once, plus what was written since. No refusal relies on it.
    known: Mutex<HashMap<ConversationKey, Usage>>,
    /// One writer at a time for each conversation. An entry is removed by the next writer of any conversation.
    writing: Mutex<HashMap<ConversationKey, Arc<AsyncMutex<()>>>>,
}

/// The right to write to a conversation: while it lives, no other client's write is measured or done there. So what one
/// reservation allowed is on disk before the next one measures.
#[derive(Debug)]
pub(super) struct Writer {
    quota: Arc<Quota>,
    conversation: ConversationKey,
    _turn: OwnedMutexGuard<()>,
}

/// What one look at a running program's files saw.
#[derive(Debug, Clone, Copy)]
struct Look {
    usage: Usage,
    free: Usage,
}

impl Quota {
    pub fn new(store: Arc<dyn Storage>, options: QuotaOptions) -> Self {
        Self { store, options, known: Mutex::default(), writing: Mutex::default() }
    }

    /// Waits for other writers to this conversation.
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

    /// Reserves so much more where it is known to fit. Does not touch the disk: what it has left the kernel knows.
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

    /// Whether the disk has room for so much more, and what it must have left besides.
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
        let (held, limit) = if after.bytes > bytes_max {
            (format!("take {} MiB on disk", mib(there.bytes)), format!("{} MiB", mib(bytes_max)))
        } else {
            (format!("are {} files and folders", there.entries), entries_max.to_string())
        };
        let why = format!(
            "The conversation's files {held} and may take {limit}, so nothing was run or written: delete files that \
             are no longer needed, then try again."
        );
        Failure::new(Code::QuotaExceeded, why)
    }

    /// What a conversation takes, where all of it was seen.
    pub(super) fn measured(&self, id: &ConversationKey, usage: Option<Usage>) {
        let mut known = self.known();
        match usage {
            Some(usage) => known.insert(id.clone(), usage),
            None => known.remove(id),
        };
    }

    /// Forgets what is known of conversations that are no more: other processes on the same root delete some too.
    pub(super) fn keep(&self, still: &HashSet<&ConversationKey>) {
        self.known().retain(|id, _| still.contains(id));
    }

    /// What a conversation takes; measured where it is not known. Blocks.
    pub(super) fn usage(&self, id: &ConversationKey) -> Result<Usage, StorageError> {
        if let Some(usage) = self.known().get(id) {
            return Ok(*usage);
        }
        // A disk is not mounted only to know how much is on it.
        if let Some(bytes) = self.store.resting_bytes(id) {
            return Ok(Usage { bytes, entries: 0 });
        }
        let usage = self.measure(id)?;
        self.known().insert(id.clone(), usage);
        Ok(usage)
    }

    /// Looks at a conversation's files again and again while a program runs in it; returns when it must be stopped.
    pub(super) async fn breach(self: Arc<Self>, id: ConversationKey) -> DiskLimit {
        let mut before = None;
        let mut pause = LOOK_EVERY;
        loop {
            sleep(pause).await;
            let (quota, conversation) = (Arc::clone(&self), id.clone());
            let began = Instant::now();
            let looked = tokio::task::spawn_blocking(move || quota.look(&conversation)).await;
            pause = (began.elapsed() * PAUSE_FACTOR).clamp(LOOK_EVERY, PAUSE_MAX);
            // A disk that does not say is no reason to stop a program.
            let Ok(Ok(look)) = looked else { continue };
            if let Some(limit) = self.judge(before.as_ref(), &look) {
                return limit;
            }
            before = Some(look);
        }
    }

    fn look(&self, id: &ConversationKey) -> Result<Look, StorageError> {
        let look = Look { usage: self.measure(id)?, free: self.store.free()? };
        self.measured(id, Some(look.usage));
        Ok(look)
    }

    /// Whether a program must be stopped. A disk that is nearly full stops a program whose files were seen to grow at once
    /// and the others at the next look: files without a name are not seen, and one of them may be why.
    fn judge(&self, before: Option<&Look>, now: &Look) -> Option<DiskLimit> {
        let QuotaOptions { bytes_max, entries_max, free_bytes_min } = self.options;
        if now.usage.bytes > bytes_max {
            return Some(DiskLimit::Bytes { max: bytes_max });
        }
        if now.usage.entries > entries_max {
            return Some(DiskLimit::Entries { max: entries_max });
        }
        let full = |look: &Look| look.free.bytes < free_bytes_min || look.free.entries < FREE_ENTRIES_MIN;
        let grew = |before: &Look| now.usage.bytes > before.usage.bytes || now.usage.entries > before.usage.entries;
        let to_blame = before.is_some_and(|before| full(before) || grew(before));
        (full(now) && to_blame).then_some(DiskLimit::Free { min: free_bytes_min })
    }
}

impl Writer {
    /// Reserves so much more, or refuses. Measures where it is not known to fit. Blocks.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::NoSpace`] when the disk itself has too little left.
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
