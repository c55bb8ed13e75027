//! What is done beside recording: this server shows that it lives, runs of dead servers are told as lost, and old lines
//! are removed, a bounded number in a round.

use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;
use tracing::info;

use super::{History, Store, line};
use crate::{
    domain::{clock::StepWatch, id::InstanceId},
    ports::database::DatabaseError,
};

/// A server is dead when its beat has not changed for this time.
pub const DEAD_AFTER: Duration = Duration::from_mins(1);
/// How long keys of requests are kept, in milliseconds.
const KEYS_KEPT_MS: i64 = 24 * 3600 * 1000;
/// Lines that one statement removes, and statements of a round.
const REMOVED_MAX: u64 = 1000;
const REMOVALS_MAX: usize = 20;

/// What is known from earlier rounds.
#[derive(Default)]
pub(super) struct Upkeep {
    /// The last beat of other servers, and since when it is the same. Their clocks do not matter.
    beats: HashMap<InstanceId, (Option<i64>, Instant)>,
    steps: StepWatch,
}

impl History {
    /// Ends the lines that an earlier process of this server left open. To be called before the first is stored.
    pub(super) async fn recover(&self, store: &dyn Store) -> Result<(), DatabaseError> {
        store.beat(self.instance, self.now()).await?;
        self.close(store, self.instance).await?;
        self.is_recovered.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) async fn upkeep(&self, store: &dyn Store, known: &mut Upkeep) -> Result<(), DatabaseError> {
        store.beat(self.instance, self.now()).await?;
        let mut beats = HashMap::new();
        for (instance, beat) in store.open().await?.into_iter().filter(|(instance, _)| *instance != self.instance) {
            let seen = known.beats.remove(&instance).filter(|(last, _)| *last == beat);
            let (_, since) = *beats.entry(instance).or_insert(seen.unwrap_or((beat, Instant::now())));
            if since.elapsed() >= DEAD_AFTER {
                self.close(store, instance).await?;
            }
        }
        known.beats = beats;
        self.remove_old(store, known.steps.is_steady(self.clock.as_ref())).await
    }

    async fn close(&self, store: &dyn Store, instance: InstanceId) -> Result<(), DatabaseError> {
        let lost = store.close_lost(instance, &line::lost(self.now())).await?;
        if lost > 0 {
            info!(lost, %instance, "runs that a server left are told as lost");
        }
        Ok(())
    }

    /// Nothing is removed for its age when the clock was set.
    async fn remove_old(&self, store: &dyn Store, is_steady: bool) -> Result<(), DatabaseError> {
        let ms = |age: Duration| i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let by_age = self.options.kept.filter(|_| is_steady).map(|kept| self.now().saturating_sub(ms(kept)));
        let by_count = store.nth_newest(self.options.kept_max).await?;
        if let Some(before) = by_age.max(by_count) {
            let mut rounds = 0..REMOVALS_MAX;
            while rounds.next().is_some() && store.remove_before(before, REMOVED_MAX).await? == REMOVED_MAX {}
        }
        if is_steady {
            store.forget(self.now().saturating_sub(KEYS_KEPT_MS), REMOVED_MAX).await?;
        }
        Ok(())
    }
}
