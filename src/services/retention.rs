//! Deletes conversations: unused ones by age, and the least recently used ones of the owner who has the most bytes
//! while all together exceed the limit. A conversation in use is never deleted.
//!
//! ```text
//! Retention::run ── one task: a round at once, then one a minute; ended by `stop`
//! ```
//!
//! If conversations have disks of their own, those that were not used lately are unmounted.
//!
//! After a step of the clock, which makes everything look old, no conversation is deleted for an hour; after the start
//! none for [`SETTLING`]; and a round deletes at most [`DELETED_MAX`].
//!
//! A conversation is in use while a run is in progress or waits in it, and for a while after a run began, since the
//! runs of another process on the same root are known only by their start. A standby does not use its conversation: a
//! run takes it only when the folder is still the same.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Duration};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{files::Files, runs::Runs};
use crate::{
    domain::{
        Clock, ConversationKey, Failure, Principal, StepWatch,
        clock::{SETTLING, every},
    },
    ports::storage::{LastUse, Storage},
};

const ROUND: Duration = Duration::from_mins(1);
/// Conversations deleted in one round.
pub const DELETED_MAX: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionOptions {
    /// How long an unused conversation is kept; `None`: without limit.
    pub unused_max: Option<Duration>,
    /// The limit on all conversations together; `None`: without limit.
    pub total_bytes_max: Option<u64>,
    /// How long a conversation counts as in use after a run began or a client wrote to it: longer than any run.
    pub in_use: Duration,
    /// Conversations have disks of their own, which are unmounted while unused.
    pub own_disks: bool,
}

/// A conversation and what it takes.
struct Measured {
    last: LastUse,
    bytes: u64,
    /// It is not in use, and its deletion was not tried yet.
    may_go: bool,
}

pub struct Retention {
    files: Arc<Files>,
    runs: Runs,
    clock: Arc<dyn Clock>,
    steps: StepWatch,
    options: RetentionOptions,
}

impl Retention {
    pub fn new(files: Arc<Files>, runs: Runs, clock: Arc<dyn Clock>, options: RetentionOptions) -> Self {
        Self { files, runs, clock, steps: StepWatch::default(), options }
    }

    /// Runs rounds until `stop`. Without a limit they only bound what is known of conversations.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let RetentionOptions { unused_max, total_bytes_max, own_disks, .. } = self.options;
        let measures_all = total_bytes_max.is_some() || self.files.quota().is_by_owner();
        let has_work = measures_all || unused_max.is_some() || own_disks;
        let begun = Instant::now();
        let mut rounds = every(ROUND);
        while stop.run_until_cancelled(rounds.tick()).await.is_some() {
            if !measures_all {
                self.files.quota().trim();
            }
            if has_work && let Some(Err(failure)) = stop.run_until_cancelled(self.round_after(begun.elapsed())).await {
                warn!(%failure, "a round of retention failed");
            }
        }
    }

    /// One round long after the start; returns the number of deleted conversations.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::Internal`] when the conversations cannot be listed. The log reports each one that
    /// cannot be deleted.
    pub async fn round(&self) -> Result<usize, Failure> {
        self.round_after(Duration::MAX).await
    }

    /// As [`Self::round`], of a server that runs for this long.
    ///
    /// # Errors
    /// As [`Self::round`].
    pub async fn round_after(&self, running: Duration) -> Result<usize, Failure> {
        let steady_ms = self.steps.steady_ms(self.clock.as_ref());
        let steady = steady_ms.is_some() && running >= SETTLING;
        // Read once: after a step within the round everything would look old. So it would where the clock of a file
        // server, which the times of use are of, is behind.
        let here = steady_ms.map_or_else(|| self.clock.unix_s(), |now| now / 1000);
        let (there, mut uses) = self.files.blocking(|store| Ok((store.now_unix_s()?, store.last_uses()?))).await?;
        let now = here.min(there);
        let in_use = ago(now, self.options.in_use);
        self.files.quota().keep(&uses.iter().map(|last| &last.key).collect());
        uses.sort();
        let mut deleted = 0;
        if let Some(unused_max) = self.options.unused_max.filter(|_| steady) {
            let before = ago(now, unused_max).min(in_use);
            let others = uses.split_off(uses.partition_point(|last| last.unix_s < before));
            // Those that are in use, or cannot be deleted, take space as the others do.
            let mut left = Vec::new();
            for last in uses {
                if deleted < DELETED_MAX && self.expire(&last.key, before, "unused for longer than the limit").await {
                    deleted += 1;
                } else {
                    left.push(last);
                }
            }
            uses = left;
            uses.extend(others);
        }
        if self.files.quota().is_by_owner() {
            for last in &uses {
                self.bytes(&last.key).await?;
            }
        }
        if let Some(bytes_max) = self.options.total_bytes_max.filter(|_| steady) {
            deleted += self.shrink(&uses, in_use, bytes_max, DELETED_MAX - deleted).await?;
        }
        if self.options.own_disks {
            self.unmount_unused(&uses, in_use).await?;
        }
        Ok(deleted)
    }

    /// Unmounts the disks of conversations that were last used before `before`.
    async fn unmount_unused(&self, uses: &[LastUse], before: i64) -> Result<(), Failure> {
        for last in uses.iter().take_while(|last| last.unix_s < before) {
            let Some(lock) = self.runs.lock_beside_sessions(&last.key) else { continue };
            // The files of an open session are looked at between its cells, and the sandbox of one that is being opened
            // gets them. A disk of its own is mounted at one server, so nothing has to be asked of the others.
            if !self.runs.sessions().any_in(&last.key) {
                let id = last.key.clone();
                self.files.blocking(move |store| Ok(store.unmount(&id))).await?;
            }
            drop(lock);
        }
        Ok(())
    }

    /// Deletes the least recently used one of the owner who has the most bytes until the rest is within the limit.
    /// Where all of that owner are in use, one of the owner who has the next most. Those that were not used since
    /// `before` are not in use.
    async fn shrink(
        &self,
        uses: &[LastUse],
        before: i64,
        bytes_max: u64,
        deleted_max: usize,
    ) -> Result<usize, Failure> {
        let mut all = Vec::new();
        for last in uses {
            let bytes = self.bytes(&last.key).await?;
            all.push(Measured { last: last.clone(), bytes, may_go: last.unix_s < before });
        }
        let sum = |all: &[Measured]| all.iter().fold(0_u64, |total, one| total.saturating_add(one.bytes));
        let (mut total, mut deleted) = (sum(&all), 0);
        while total > bytes_max {
            // What was deleted since it was measured, by a client too, takes nothing any more.
            let left = move |store: &dyn Storage| {
                all.retain(|one| store.last_use(&one.last.key).is_some());
                Ok(all)
            };
            all = self.files.blocking(left).await?;
            total = sum(&all);
            if total <= bytes_max || deleted == deleted_max {
                break;
            }
            let Some(at) = next_to_go(&all) else { break };
            if !self.is_here(&all[at].last.key).await {
                // The server that has it may be deleting it for the same reason.
                all.swap_remove(at);
                continue;
            }
            let next = &mut all[at];
            next.may_go = false;
            let why = "all conversations together exceed the limit";
            deleted += usize::from(self.expire(&next.last.key, before, why).await);
        }
        if total > bytes_max {
            warn!(total, bytes_max, deleted, "all conversations together still exceed the limit");
        }
        Ok(deleted)
    }

    /// What a conversation takes, with uploads in progress.
    async fn bytes(&self, id: &ConversationKey) -> Result<u64, Failure> {
        let (id, quota) = (id.clone(), Arc::clone(self.files.quota()));
        self.files.blocking(move |_| Ok(quota.counted_bytes(&id))).await
    }

    /// Deletes a conversation that is idle and was last used before `before`.
    async fn expire(&self, id: &ConversationKey, before: i64, why: &'static str) -> bool {
        if !self.is_here(id).await {
            return false;
        }
        let Some(lock) = self.runs.lock_beside_sessions(id) else { return false };
        let removed = self.remove(id, before).await;
        drop(lock);
        match &removed {
            Ok(true) => info!(conversation = %id, why, "a conversation was deleted"),
            Ok(false) => {}
            Err(failure) => warn!(conversation = %id, %failure, "a conversation was not deleted"),
        }
        removed.unwrap_or(false)
    }

    /// Whether no other server has a conversation; then this one has it from now on.
    async fn is_here(&self, id: &ConversationKey) -> bool {
        matches!(self.runs.peers().take(id).await, Ok(None))
    }

    /// Deletes a conversation that was last used before `before`, which is read again, now that no run can begin in it.
    async fn remove(&self, id: &ConversationKey, before: i64) -> Result<bool, Failure> {
        let key = id.clone();
        let last = self.files.blocking(move |store| Ok(store.last_use(&key))).await?;
        if last.is_none_or(|last| last.unix_s >= before) {
            return Ok(false);
        }
        self.runs.sessions().close_all(id);
        let removed = self.files.remove(id).await?;
        self.runs.sessions().forget(id).await;
        Ok(removed)
    }
}

/// The least recently used one that may go, of the owner who has the most bytes.
fn next_to_go(all: &[Measured]) -> Option<usize> {
    let mut owners: HashMap<&Principal, u64> = HashMap::new();
    for Measured { last, bytes, .. } in all {
        let total = owners.entry(&last.key.owner).or_default();
        *total = total.saturating_add(*bytes);
    }
    let may_go = (0..all.len()).filter(|&at| all[at].may_go);
    may_go.max_by_key(|&at| (owners.get(&all[at].last.key.owner), Reverse(&all[at].last)))
}

fn ago(unix_s: i64, time: Duration) -> i64 {
    unix_s.saturating_sub(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
}
