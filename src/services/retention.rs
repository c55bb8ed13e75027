//! How long conversations are kept: unused ones are deleted by age, and the least recently used ones while all together
//! take too much. One that is in use is never deleted.
//!
//! ```text
//! Retention::start ── one task: a round at once, then one a minute; ended by `stop`
//! ```
//!
//! Where conversations have disks of their own, those that were not used lately are unmounted.
//!
//! A conversation is in use while a run goes on, waits or began lately in it: another process on the same root is seen only
//! by that. A standby does not use its conversation; it notices that the folder went.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{files::Files, runs::Runs};
use crate::{
    domain::{
        clock::Clock,
        error::{Code, Failure},
        owner::ConversationKey,
    },
    ports::storage::LastUse,
};

const ROUND: Duration = Duration::from_mins(1);

/// What is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionOptions {
    /// How long an unused conversation is kept; `None`: for ever.
    pub unused_max: Option<Duration>,
    /// What all of them may take on disk; `None`: no limit.
    pub total_bytes_max: Option<u64>,
    /// How long one counts as in use after a run began in it or a client wrote to it: longer than any run.
    pub in_use: Duration,
    /// Conversations may have disks of their own, which are unmounted while unused.
    pub own_disks: bool,
}

/// The service.
pub struct Retention {
    files: Arc<Files>,
    runs: Runs,
    clock: Arc<dyn Clock>,
    options: RetentionOptions,
}

impl Retention {
    /// The service over the files and the runs of all conversations.
    pub fn new(files: Arc<Files>, runs: Runs, clock: Arc<dyn Clock>, options: RetentionOptions) -> Self {
        Self { files, runs, clock, options }
    }

    /// Goes round until `stop`. Where everything is kept for ever there is nothing to do.
    pub fn start(self: Arc<Self>, stop: CancellationToken) -> JoinHandle<()> {
        tokio::spawn(async move {
            let kept = self.options.unused_max.is_none() && self.options.total_bytes_max.is_none();
            if kept && !self.options.own_disks {
                return;
            }
            let mut rounds = interval(ROUND);
            rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while stop.run_until_cancelled(rounds.tick()).await.is_some() {
                if let Some(Err(failure)) = stop.run_until_cancelled(self.round()).await {
                    warn!(%failure, "a round of retention failed");
                }
            }
        })
    }

    /// One round; the number of conversations that were deleted.
    ///
    /// # Errors
    /// [`Code::Internal`] when the disk fails.
    pub async fn round(&self) -> Result<usize, Failure> {
        let mut uses = self.files.blocking(|store| Ok(store.last_uses()?)).await?;
        self.files.quota().keep(&uses.iter().map(|last| &last.key).collect());
        uses.sort();
        let mut left = 0;
        if let Some(unused_max) = self.options.unused_max {
            let before = self.ago(unused_max.max(self.options.in_use));
            let old = uses.partition_point(|last| last.unix_s < before);
            for last in uses.drain(..old) {
                left += usize::from(self.expire(&last.key, before, "it was not used for long").await?);
            }
        }
        if let Some(bytes_max) = self.options.total_bytes_max {
            left += self.fit(&uses, bytes_max).await?;
        }
        if self.options.own_disks {
            self.rest(&uses).await?;
        }
        Ok(left)
    }

    /// Unmounts the disks of conversations that were not used lately.
    async fn rest(&self, uses: &[LastUse]) -> Result<(), Failure> {
        let before = self.ago(self.options.in_use);
        for last in uses.iter().take_while(|last| last.unix_s < before) {
            if let Some(turn) = self.runs.lock_if_idle(&last.key) {
                let id = last.key.clone();
                self.files.blocking(move |store| Ok(store.unmount(&id))).await?;
                drop(turn);
            }
        }
        Ok(())
    }

    /// Deletes the ones used longest ago until the rest takes no more than the ceiling.
    async fn fit(&self, uses: &[LastUse], bytes_max: u64) -> Result<usize, Failure> {
        let mut sizes = Vec::with_capacity(uses.len());
        for last in uses {
            sizes.push(self.bytes(&last.key).await?);
        }
        let mut total = sizes.iter().fold(0_u64, |total, size| total.saturating_add(*size));
        let before = self.ago(self.options.in_use);
        let mut left = 0;
        for (last, size) in uses.iter().zip(sizes) {
            if total <= bytes_max || last.unix_s >= before {
                break;
            }
            if self.expire(&last.key, before, "all conversations together take too much").await? {
                total -= size;
                left += 1;
            }
        }
        if total > bytes_max {
            warn!(total, bytes_max, "conversations take more than they may together, and the rest is in use");
        }
        Ok(left)
    }

    async fn bytes(&self, id: &ConversationKey) -> Result<u64, Failure> {
        let (id, quota) = (id.clone(), Arc::clone(self.files.quota()));
        self.files.blocking(move |_| Ok(quota.usage(&id)?)).await.map(|usage| usage.bytes)
    }

    /// Deletes one that was last used before then and is idle.
    async fn expire(&self, id: &ConversationKey, before: i64, why: &'static str) -> Result<bool, Failure> {
        let Some(turn) = self.runs.lock_if_idle(id) else { return Ok(false) };
        // Asked again now that nothing can begin in it.
        let asked = id.clone();
        let last = self.files.blocking(move |store| Ok(store.last_use(&asked))).await?;
        if last.is_none_or(|last| last.unix_s >= before) {
            return Ok(false);
        }
        let removed = self.files.remove(id).await;
        drop(turn);
        match removed {
            Ok(removed) => {
                if removed {
                    info!(conversation = %id, why, "a conversation was deleted");
                }
                Ok(removed)
            }
            // Something of it cannot be deleted; the others must not stay for it.
            Err(failure) if failure.code != Code::Internal => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    fn ago(&self, time: Duration) -> i64 {
        self.clock.unix_s().saturating_sub(i64::try_from(time.as_secs()).unwrap_or(i64::MAX))
    }
}
