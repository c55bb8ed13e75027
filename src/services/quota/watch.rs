//! Watches the files of one running program.
//!
//! The free space of the disk is read every [`TICK`]. The tree is walked after a pause that grows with the duration of
//! a walk, and after a shorter one when the disk lost so much since the last walk that the quota may be used up
//! ([`Schedule`], which `between` follows too). While a walk goes on, and when it has failed, the free space alone is
//! judged. So a tree that is slow to walk delays no verdict.
//!
//! A walk misses unlinked open files and folders that are moved meanwhile. Free space that no conversation's growth
//! explains may be theirs, or another process' on the same disk. It stops a program only when two measurements in a row
//! leave more than its remaining quota and the reserve of free space unexplained, and no other program was watched
//! meanwhile. With several programs, the reserve protects the disk and the measurement at the end finds the one that
//! left files.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinHandle, spawn_blocking},
    time::{Instant, sleep, timeout},
};

use super::{FREE_ENTRIES_MIN, Quota, QuotaOptions, signed};
use crate::{
    domain::{ConversationKey, DiskLimit},
    ports::storage::{FsResult, StorageError, Usage},
};

/// How often the free space is read; the time until the first walk, and the shortest pause between two.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// The longest pause while the disk loses space quickly.
const HASTY_MAX: Duration = Duration::from_secs(2);
/// Walks use at most a twentieth of a core, and a third while the disk loses space quickly.
const PACE: Pace = Pace { factor: 20, pause_min: TICK, pause_max: Duration::from_secs(2), hasty_factor: 2 };

/// The state of the disk and of one conversation on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskState {
    pub usage: Usage,
    pub free: Usage,
    /// The growth of all conversations together that measurements and writes have shown, in bytes.
    pub growth_bytes: i64,
}

impl DiskState {
    /// What the disk lost since `first` beyond the growth that was shown, in bytes.
    pub(super) fn hidden_bytes(&self, first: &Self) -> i64 {
        signed(first.free.bytes) - signed(self.free.bytes) - (self.growth_bytes - first.growth_bytes)
    }
}

pub(super) struct Watch {
    quota: Arc<Quota>,
    id: ConversationKey,
    /// Before the program began; `None` when the disk could not be asked.
    first: Option<DiskState>,
    last: Option<DiskState>,
    /// Looks in a row, at the files or during a walk at the free space, that left too much unexplained.
    unexplained: u32,
    pub(super) number: u64,
    /// No other program was watched when this one began.
    alone: bool,
    pub(super) schedule: Schedule,
}

/// The pauses between two walks.
#[derive(Debug)]
pub(super) struct Pace {
    /// A pause is this many times the duration of the walk, within these bounds.
    pub factor: u32,
    pub pause_min: Duration,
    pub pause_max: Duration,
    /// As `factor`, while the disk loses space quickly.
    pub hasty_factor: u32,
}

/// When the tree of a conversation is walked.
pub(super) struct Schedule {
    pace: &'static Pace,
    /// When the next walk is due.
    pub(super) due: Instant,
    /// When the next walk may begin while the disk loses space quickly.
    pub(super) soonest: Instant,
    /// Walks in a row that met a closed folder.
    closed: u32,
}

impl Schedule {
    pub(super) fn new(pace: &'static Pace, first: Instant) -> Self {
        Self { pace, due: first, soonest: first, closed: 0 }
    }

    pub(super) fn is_due(&self, is_urgent: bool) -> bool {
        Instant::now() >= if is_urgent { self.soonest } else { self.due }
    }

    /// Notes the end of a walk. Without a result to judge, the error says what to stop a program for, if anything.
    pub(super) fn walked(
        &mut self,
        begun: Instant,
        end: &Result<FsResult<DiskState>, JoinError>,
    ) -> Result<DiskState, Option<DiskLimit>> {
        let (now, took) = (Instant::now(), begun.elapsed());
        let Pace { factor, pause_min, pause_max, hasty_factor } = *self.pace;
        self.due = now + (took * factor).clamp(pause_min, pause_max);
        self.soonest = now + (took * hasty_factor).min(HASTY_MAX);
        match end {
            Ok(Ok(state)) => {
                self.closed = 0;
                Ok(*state)
            }
            // A program that is just closing a folder is not yet stopped for it.
            Ok(Err(StorageError::Denied { .. })) => {
                self.closed += 1;
                Err((self.closed >= 2).then_some(DiskLimit::Closed))
            }
            // It shows no growth, so it stops nothing by itself.
            _ => Err(None),
        }
    }
}

impl Quota {
    /// Returns when a program must be stopped for its files. The call itself notes the state before the program.
    pub(in super::super) fn breach(self: Arc<Self>, id: ConversationKey) -> impl Future<Output = DiskLimit> + use<> {
        let mut watch = Watch::begin(self, id);
        async move {
            loop {
                sleep(TICK).await;
                if let Some(limit) = watch.measure_if_due().await {
                    return limit;
                }
            }
        }
    }

    /// The free space is read first, so that growth during the walk is explained and not suspected.
    pub(super) fn sample(&self, id: &ConversationKey, number: u64) -> FsResult<DiskState> {
        let free = self.store.free()?;
        let usage = self.measure(id)?;
        let mut known = self.known.lock();
        // A walk that ends after its program is older than the listing that follows the program.
        let is_current = known.watched.contains_key(&number);
        if is_current {
            known.set(id, usage);
        }
        let state = DiskState { usage, free, growth_bytes: known.growth_bytes };
        if is_current {
            known.entry(id).begun = Some(state);
        }
        Ok(state)
    }

    /// Whether a program must be stopped. When the disk is nearly full, a program whose files grew is stopped at once
    /// and any other at the next walk: deleted files that are still open are not measured and may be the cause.
    pub(super) fn check(&self, before: Option<&DiskState>, now: &DiskState) -> Option<DiskLimit> {
        let limit = self.limit(&now.usage);
        if limit.is_some() {
            return limit;
        }
        let full = |state: &DiskState| self.is_full(&state.free);
        let grew =
            |before: &DiskState| now.usage.bytes > before.usage.bytes || now.usage.entries > before.usage.entries;
        let to_blame = before.is_some_and(|before| full(before) || grew(before));
        (full(now) && to_blame).then_some(DiskLimit::Free { min: self.options.free_bytes_min })
    }

    /// Whether the disk has less free space than it must keep.
    pub(super) fn is_full(&self, free: &Usage) -> bool {
        free.bytes < self.options.free_bytes_min || free.entries < FREE_ENTRIES_MIN
    }

    /// Whether the disk is nearly full, or lost half of what the conversation may still take since `before`.
    pub(super) fn is_urgent(&self, before: Option<DiskState>) -> bool {
        let (Some(before), Ok(free)) = (before, self.store.free()) else { return false };
        let room = self.options.bytes_max.saturating_sub(before.usage.bytes);
        before.free.bytes.saturating_sub(free.bytes) > room / 2 || self.is_full(&free)
    }

    /// Whether the disk lost more since `first` than the growth that was shown, the remaining quota of this
    /// conversation and the reserve, which is the operator's allowance for other users of the disk.
    pub(super) fn is_unexplained(&self, first: &DiskState, now: &DiskState) -> bool {
        let QuotaOptions { bytes_max, free_bytes_min, .. } = self.options;
        now.hidden_bytes(first) > signed(bytes_max.saturating_sub(now.usage.bytes).saturating_add(free_bytes_min))
    }
}

impl Watch {
    pub(super) fn begin(quota: Arc<Quota>, id: ConversationKey) -> Self {
        let free = quota.store.free();
        let mut known = quota.known.lock();
        known.newest += 1;
        let (number, alone) = (known.newest, known.watched.is_empty());
        known.watched.insert(number, id.clone());
        let usage = known.usage(&id).unwrap_or_else(|| known.closed_usage(&id));
        let first = free.ok().map(|free| DiskState { usage, free, growth_bytes: known.growth_bytes });
        if let Some(first) = first {
            known.entry(&id).begun = Some(first);
        }
        drop(known);
        let schedule = Schedule::new(&PACE, Instant::now());
        Self { quota, id, first, last: None, unexplained: 0, number, alone, schedule }
    }

    /// Walks the tree if that is due, and judges what was found.
    pub(super) async fn measure_if_due(&mut self) -> Option<DiskLimit> {
        let is_urgent = self.unexplained > 0 || self.quota.is_urgent(self.last.or(self.first));
        if !self.schedule.is_due(is_urgent) {
            return None;
        }
        let (quota, id, number, begun) = (Arc::clone(&self.quota), self.id.clone(), self.number, Instant::now());
        self.follow(begun, spawn_blocking(move || quota.sample(&id, number))).await
    }

    /// Judges by a walk; until it ends, and where it fails, by the free space.
    pub(super) async fn follow(
        &mut self,
        begun: Instant,
        mut walk: JoinHandle<FsResult<DiskState>>,
    ) -> Option<DiskLimit> {
        let mut last = self.last.or(self.first);
        let end = loop {
            if let Ok(end) = timeout(TICK, &mut walk).await {
                break end;
            }
            if let Some(limit) = self.check_free(&mut last) {
                return Some(limit);
            }
        };
        match self.schedule.walked(begun, &end) {
            Ok(now) => {
                let before = self.last.replace(now);
                self.check(before, now)
            }
            Err(limit) => {
                let limit = limit.or_else(|| self.check_free(&mut last));
                self.last = last;
                limit
            }
        }
    }

    /// Judges by the free space, with the usage that the last walk found.
    fn check_free(&mut self, last: &mut Option<DiskState>) -> Option<DiskLimit> {
        let (before, free) = ((*last)?, self.quota.store.free().ok()?);
        let now = DiskState { free, growth_bytes: self.quota.known.lock().growth_bytes, ..before };
        *last = Some(now);
        self.check(Some(before), now)
    }

    fn check(&mut self, before: Option<DiskState>, now: DiskState) -> Option<DiskLimit> {
        let limit = self.quota.check(before.as_ref(), &now);
        let alone = self.alone && self.quota.known.lock().newest == self.number;
        let suspect = alone && self.first.is_some_and(|first| self.quota.is_unexplained(&first, &now));
        self.unexplained = if suspect { self.unexplained + 1 } else { 0 };
        limit.or((self.unexplained >= 2).then_some(DiskLimit::Bytes { max: self.quota.options.bytes_max }))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.quota.known.lock().watched.remove(&self.number);
    }
}
