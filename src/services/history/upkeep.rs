//! Maintenance beside recording: this server updates its heartbeat, runs of dead servers are recorded as lost, and old
//! lines are removed, a bounded number in a round.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;
use tracing::info;

use super::{History, LOST, UNRECORDED};
use crate::{
    domain::{
        Heartbeats, InstanceId, StepWatch,
        clock::DAY_MS,
        text::{ms, whole},
    },
    ports::database::DbResult,
};

/// A server is dead when its beat has not changed for this time.
pub const DEAD_AFTER: Duration = Duration::from_mins(1);
/// How long keys of requests are kept, and beats of servers that left no open line, in milliseconds.
const KEPT_MS: i64 = DAY_MS;
/// Lines that one statement removes, and statements of a round.
const REMOVED_MAX: u64 = 1000;
const REMOVALS_MAX: u64 = 20;
/// The lines are counted again after this time, and when their number may exceed its limit by this part of it.
const COUNTED_FOR: Duration = Duration::from_mins(10);
const EXCESS_PART: u64 = 1000;
/// Lines whose bytes one statement adds up, and statements of a round: a million lines take an hour.
const SUMMED_MAX: u64 = 1000;
const SUMS_MAX: u64 = 4;
/// The bytes are added up again this time after that was begun.
const SUMMED_FOR: Duration = Duration::from_mins(10);

/// What is known from earlier rounds.
#[derive(Default)]
pub(super) struct Upkeep {
    /// The beats of other servers.
    beats: Heartbeats<Option<i64>>,
    steps: StepWatch,
    counted: Option<Counted>,
    summed: Option<Summed>,
    /// When the first line began that is kept for its bytes, if lines before it are too many.
    first_kept: Option<i64>,
}

/// What is known of the number of lines.
#[derive(Clone, Copy)]
struct Counted {
    at: Instant,
    /// Lines that this server had written before.
    written: u64,
    /// Lines that it may write until they are counted again.
    room: u64,
}

/// How far the bytes of the lines are added up, from the newest to the oldest.
#[derive(Clone, Copy)]
struct Summed {
    since: Instant,
    bytes: u64,
    /// The oldest of those that were added.
    oldest: i64,
    /// All were added, or as many as are kept.
    is_done: bool,
}

impl History {
    /// Ends the lines that an earlier process of this server left open. To be called before the first is stored.
    pub(super) async fn recover(&self) -> DbResult<()> {
        self.store.beat(self.instance, self.clock.unix_ms()).await?;
        self.close(self.instance).await?;
        self.is_recovered.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) async fn upkeep(&self, known: &mut Upkeep) -> DbResult<()> {
        self.store.beat(self.instance, self.clock.unix_ms()).await?;
        self.end_unrecorded().await?;
        let open = self.store.open().await?.into_iter();
        known.beats.note(open.filter(|(instance, _)| *instance != self.instance), DEAD_AFTER / 2);
        // All are noted before the first call that may fail, or the dead servers that remain would count as alive
        // again.
        for (instance, _) in known.beats.unchanged_for(DEAD_AFTER) {
            self.close(instance).await?;
        }
        self.remove_old(known).await
    }

    async fn close(&self, instance: InstanceId) -> DbResult<()> {
        let lost = self.store.close_lost(instance, i64::MAX, self.clock.unix_ms(), LOST).await?;
        if lost > 0 {
            info!(lost, %instance, "runs that a dead server left are recorded as lost");
        }
        Ok(())
    }

    /// Ends lines of this server whose ends did not fit into the queue. One that began later than a run whose end may
    /// still come waits for another round.
    async fn end_unrecorded(&self) -> DbResult<()> {
        let Some((newest, before)) = self.unrecorded() else { return Ok(()) };
        let ended = self.store.close_lost(self.instance, before, self.clock.unix_ms(), UNRECORDED).await?;
        if ended > 0 {
            info!(ended, "runs whose ends were not stored are recorded as lost");
        }
        let mut queue = self.queue.lock();
        if newest < before && queue.unrecorded == Some(newest) {
            queue.unrecorded = None;
        }
        Ok(())
    }

    /// Nothing is removed for its age soon after the start, or when the clock was set.
    async fn remove_old(&self, known: &mut Upkeep) -> DbResult<()> {
        let settled_ms = known.steps.settled_ms(self.clock.as_ref());
        let by_age = settled_ms.zip(self.options.kept).map(|(now, kept)| now.saturating_sub(whole(ms(kept))));
        self.sum(known).await?;
        let (by_count, counted) = self.count(known.counted.take()).await?;
        if let Some(before) = by_age.max(by_count).max(known.first_kept) {
            let mut rounds = 0..REMOVALS_MAX;
            while rounds.next().is_some() && self.store.remove_before(before, REMOVED_MAX).await? == REMOVED_MAX {}
        }
        known.counted = Some(counted);
        if let Some(now) = settled_ms {
            let before = now.saturating_sub(KEPT_MS);
            self.store.forget(before, REMOVED_MAX).await?;
            // A server that lives, and whose clock is behind, beats again.
            self.store.forget_beats(before).await?;
        }
        Ok(())
    }

    /// Adds up the bytes of some more lines. A million lines are not read at once, and where lines are long, few are.
    async fn sum(&self, known: &mut Upkeep) -> DbResult<()> {
        let is_of_use = |summed: &Summed| !summed.is_done || summed.since.elapsed() < SUMMED_FOR;
        let begun = Summed { since: Instant::now(), bytes: 0, oldest: i64::MAX, is_done: false };
        let mut summed = known.summed.filter(is_of_use).unwrap_or(begun);
        let mut rounds = 0..SUMS_MAX;
        while !summed.is_done && rounds.next().is_some() {
            let Some((oldest, bytes)) = self.store.newest_bytes(summed.oldest, SUMMED_MAX).await? else {
                summed.is_done = true;
                break;
            };
            summed.oldest = oldest;
            summed.bytes = summed.bytes.saturating_add(bytes);
            if summed.bytes > self.options.kept_bytes {
                summed.is_done = true;
                known.first_kept = Some(oldest);
            }
        }
        known.summed = Some(summed);
        Ok(())
    }

    /// When the first line began that this round leaves by their number; `None` where there are not too many, or not so
    /// many were written since they were counted.
    async fn count(&self, counted: Option<Counted>) -> DbResult<(Option<i64>, Counted)> {
        let (written, most) = (self.counts().written, self.options.kept_max);
        let is_known = |counted: &Counted| {
            written.saturating_sub(counted.written) < counted.room && counted.at.elapsed() < COUNTED_FOR
        };
        if let Some(counted) = counted.filter(is_known) {
            return Ok((None, counted));
        }
        let (at, lines) = (Instant::now(), self.store.count().await?);
        let excess = lines.saturating_sub(most);
        let removed = excess.min(REMOVALS_MAX * REMOVED_MAX);
        let room = if removed < excess { 0 } else { most.saturating_sub(lines).max(most / EXCESS_PART) };
        let before = if removed > 0 { self.store.begun_after_oldest(removed).await? } else { None };
        Ok((before, Counted { at, written, room }))
    }
}
