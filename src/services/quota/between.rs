//! Watches the files of a session between its cells: threads and processes that a cell left behind may continue to
//! write.
//!
//! A measurement does not show who wrote. So only growth beyond a limit counts, at a time when clients cannot write and
//! no run or cell begins, and only while no other program of the conversation is watched. Files that stay as a cell
//! left them end no session, nor does a disk that other users fill, so a loss of free space alone ends none. No walk
//! finds files without a name: below the minimum of free space no cell begins, and a session that holds such files ends
//! when it is idle. A walk holds the names of folders, so it ends [`ENTRIES_BEYOND_MAX`] entries beyond the quota; so
//! many end the session, as no walk would show whether they grow.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    ENTRY_BYTES, Quota, signed,
    watch::{DiskState, Pace, Schedule},
};
use crate::{
    domain::{ConversationKey, DiskLimit},
    ports::storage::{FsResult, Usage},
};

/// How often the free space is read.
const TICK: Duration = Duration::from_millis(500);
/// How long after a program of the conversation the first walk comes: one that was stopped may take that long to end.
const SETTLE: Duration = Duration::from_secs(3);
/// Walks use at most a hundredth of a core, and a twentieth beyond a limit and while the disk loses space quickly.
const PACE: Pace =
    Pace { factor: 100, pause_min: Duration::from_secs(2), pause_max: Duration::from_secs(30), hasty_factor: 20 };
/// Growth beyond a limit that ends a session. Less may be the file system's own, which writes its records late.
const GROWTH_MAX: i64 = 1 << 20;
/// How far beyond the quota a walk goes on, to show growth there. Folders are up to 300 bytes each in memory.
pub(super) const ENTRIES_BEYOND_MAX: u64 = 10_000;

/// The files of a conversation since its last program.
pub(super) struct BetweenPrograms {
    quota: Arc<Quota>,
    id: ConversationKey,
    last: Option<DiskState>,
    /// The growth since the first walk that found a limit exceeded, in bytes.
    grown: Option<i64>,
    schedule: Schedule,
}

impl Quota {
    /// Returns when a session must end for what it writes while it is not busy.
    pub(in super::super) async fn outgrown(
        self: Arc<Self>,
        id: ConversationKey,
        is_busy: impl Fn() -> bool,
    ) -> DiskLimit {
        let is_over = move |files: &BetweenPrograms| is_busy() || files.quota.known.lock().is_watched(&files.id);
        let mut files = BetweenPrograms::begin(self, id);
        loop {
            sleep(TICK).await;
            let limit = if is_over(&files) { None } else { files.measure_if_due().await };
            // A program that began meanwhile has a watch of its own.
            if is_over(&files) {
                files = BetweenPrograms::begin(files.quota, files.id);
            } else if let Some(limit) = limit {
                return limit;
            }
        }
    }

    /// Where a walk ends. Bytes of files take no memory of this server.
    fn walked_max(&self) -> Usage {
        Usage { bytes: u64::MAX, entries: self.options.entries_max.saturating_add(ENTRIES_BEYOND_MAX) }
    }

    /// Measures all files of a conversation, up to that many. Blocks.
    pub(super) fn measure_all(&self, id: &ConversationKey) -> FsResult<DiskState> {
        let (free, before) = (self.store.free()?, self.cached(id));
        let usage = self.store.open(id)?.map_or(Ok(Usage::default()), |there| there.usage(&self.walked_max()))?;
        let mut known = self.known.lock();
        // What a client or a program has written meanwhile may not be in it.
        if known.usage(id) == before && !known.is_watched(id) {
            known.set(id, usage);
        }
        Ok(DiskState { usage, free, growth_bytes: known.growth_bytes })
    }
}

impl BetweenPrograms {
    pub(super) fn begin(quota: Arc<Quota>, id: ConversationKey) -> Self {
        Self { quota, id, last: None, grown: None, schedule: Schedule::new(&PACE, Instant::now() + SETTLE) }
    }

    /// Walks the tree if that is due, and judges what was found.
    async fn measure_if_due(&mut self) -> Option<DiskLimit> {
        if !self.schedule.is_due(self.quota.is_urgent(self.last)) {
            return None;
        }
        let (quota, id, begun) = (Arc::clone(&self.quota), self.id.clone(), Instant::now());
        let walk = tokio::task::spawn_blocking(move || quota.measure_all(&id)).await;
        self.schedule.walked(begun, &walk).map_or_else(|limit| limit, |state| self.check(state))
    }

    pub(super) fn check(&mut self, now: DiskState) -> Option<DiskLimit> {
        let last = self.last.replace(now);
        let free = DiskLimit::Free { min: self.quota.options.free_bytes_min };
        let limit = self.quota.limit(&now.usage).or_else(|| self.quota.is_full(&now.free).then_some(free));
        let Some(limit) = limit else {
            self.grown = None;
            return None;
        };
        let growth = last.map_or(0, |last| weight(&now.usage).saturating_sub(weight(&last.usage)));
        let grown = self.grown.map_or(0, |grown| grown.saturating_add(growth).max(0));
        self.grown = Some(grown);
        self.schedule.due = self.schedule.soonest;
        (grown >= GROWTH_MAX || !now.usage.fits(&self.quota.walked_max())).then_some(limit)
    }
}

fn weight(usage: &Usage) -> i64 {
    signed(usage.bytes.saturating_add(usage.entries.saturating_mul(ENTRY_BYTES)))
}
