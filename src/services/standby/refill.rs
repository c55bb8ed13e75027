//! Chooses the next standby to start and the ones to retire. Runs come first: while one is in progress, only a
//! conversation with several runs gets a new standby. One with a single run waits for a pause, since it may never run
//! again.

use std::{
    cmp::Reverse,
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{
    Inner,
    pool::{Assignee, Phase, Pool, RecentConversation, STANDBYS_MAX, Standby},
    watch,
};
use crate::{
    domain::{ConversationKey, Moment, clock::every},
    ports::runner::Runner,
};

/// Standbys that the engine starts at once; [`super::StandbyOptions::loading_max`] bounds how many load.
const STARTING_MAX: usize = 2;
/// How often idle and old standbys are retired.
const ROUND: Duration = Duration::from_secs(5);
/// How long no run may be in progress before a conversation with a single run gets a standby. A client that begins one
/// conversation after the other would otherwise wait for two sandboxes each time.
const PAUSE: Duration = Duration::from_millis(100);
/// Runs after which a conversation counts as a regular one.
const REGULAR_RUNS_MIN: u32 = 2;

/// The standby to start next: for a conversation, or unassigned.
struct Demand {
    conversation: Option<ConversationKey>,
    runner: Runner,
}

/// Runs until the service stops.
pub(super) async fn refill(inner: Arc<Inner>) {
    inner.recall().await;
    // No program runs before then, and the check may select another configuration of the engine.
    if inner.tasks.stop.run_until_cancelled(inner.parts.isolation.verified()).await.is_none() {
        return;
    }
    let mut rounds = every(ROUND);
    loop {
        tokio::select! {
            () = inner.tasks.stop.cancelled() => return,
            () = inner.wake.notified() => {}
            () = inner.pause() => {}
            _ = rounds.tick() => {
                inner.rounds.fetch_add(1, Ordering::Relaxed);
            }
        }
        inner.retire();
        while let Some(demand) = inner.demand().await {
            if inner.tasks.stop.is_cancelled() || !inner.begin(demand).await {
                break;
            }
        }
    }
}

impl Inner {
    /// Languages that were in use when the last process ended are in use.
    async fn recall(self: &Arc<Self>) {
        let store = Arc::clone(&self.parts.store);
        let recalled = tokio::task::spawn_blocking(move || store.recall_languages()).await.unwrap_or_default();
        let mut pool = self.pool.lock();
        for language in recalled {
            pool.languages.entry(language).or_insert_with(Instant::now);
        }
    }

    /// Drops what is idle, old, of a removed image, or over the budget.
    fn retire(&self) {
        let images: Vec<_> = self.parts.catalog.all().iter().map(|runner| runner.image.clone()).collect();
        let clock = self.parts.sandboxes.clock.as_ref();
        let mut pool = self.pool.lock();
        pool.expire(self.options.idle_max, self.options.used_max, &images);
        let kept = |standby: &Standby| {
            let wanted = match &standby.assignee {
                Assignee::Unassigned(_) => pool.languages.contains_key(&standby.language),
                Assignee::Conversation { key, .. } => {
                    pool.recent.iter().any(|recent| recent.key == *key && recent.language == standby.language)
                }
            };
            wanted && standby.since.elapsed(clock) <= self.options.age_max && images.contains(&standby.image)
        };
        let unwanted: Vec<_> = (0..pool.standbys.len()).rev().filter(|&at| !kept(&pool.standbys[at])).collect();
        let mut retired: Vec<_> = unwanted.into_iter().map(|at| pool.standbys.swap_remove(at)).collect();
        while let Some(surplus) = pool.surplus(RecentConversation::standbys_wanted) {
            retired.push(pool.standbys.swap_remove(surplus));
        }
        while let Some(evicted) = self.next_evicted(&pool) {
            retired.push(pool.standbys.swap_remove(evicted));
        }
        drop(pool);
        if !retired.is_empty() {
            debug!(count = retired.len(), "standbys are retired");
        }
    }

    /// Returns when no run has been in progress for [`PAUSE`]; never, when that was so already.
    async fn pause(&self) {
        let begins = self.pool.lock().quiet_since.map(|since| since + PAUSE);
        match begins.filter(|begins| Instant::now() < *begins) {
            Some(begins) => sleep_until(begins).await,
            None => std::future::pending().await,
        }
    }

    /// The next standby to start, if the budget and the runs in progress allow one.
    async fn demand(self: &Arc<Self>) -> Option<Demand> {
        if let Some(regular) = self.conversation_demand(REGULAR_RUNS_MIN, 1) {
            return Some(regular);
        }
        let is_quiet = self.pool.lock().in_use.is_empty();
        // Support is probed once, with a sandbox, so only when the answer matters.
        if is_quiet
            && let Some(unassigned) = self.unassigned_demand()
            && self.assignment_is_supported().await
        {
            return Some(unassigned);
        }
        let further = (2..=STANDBYS_MAX).find_map(|number| self.conversation_demand(REGULAR_RUNS_MIN, number));
        if further.is_some() {
            return further;
        }
        let paused = is_quiet && self.pool.lock().quiet_since.is_none_or(|since| since.elapsed() >= PAUSE);
        if paused { self.conversation_demand(1, 1) } else { None }
    }

    /// Whether the engine and the processors have room to start `starting` at once.
    fn can_begin(&self, pool: &Pool, starting: usize) -> bool {
        let begun = pool.standbys.iter().filter(|standby| standby.phase == Phase::Starting).count();
        begun < starting && pool.loading() < self.options.loading_max
    }

    /// The standby of this number, from 1, of a conversation with so many runs.
    fn conversation_demand(&self, runs_min: u32, number: usize) -> Option<Demand> {
        let pool = self.pool.lock();
        if !self.can_begin(&pool, STARTING_MAX) {
            return None;
        }
        let mut by_owner = HashMap::new();
        // Newest first, and of each owner no more than can stand by, so that none is started only to be evicted next.
        let candidates = pool.recent.iter().rev().filter(|recent| recent.runs >= runs_min).filter(|recent| {
            let count = by_owner.entry(&recent.key.owner).or_insert(0_usize);
            *count += 1;
            *count <= self.options.total_max
        });
        let mut candidates: Vec<_> = candidates.collect();
        // The owner who has the fewest comes first. The sort is stable.
        let standbys = pool.by_owner();
        candidates.sort_by_key(|recent| standbys.get(&recent.key.owner).copied());
        candidates.into_iter().find_map(|recent| {
            let RecentConversation { key, language, .. } = recent;
            let runner = self.parts.catalog.find(language)?;
            let has_room = match number {
                1 => self.fits_conversation(&pool, &runner.image, recent),
                _ => self.fits_besides(&pool, &runner.image),
            };
            // A program that runs could change what a sandbox reads as it starts.
            let wanted = pool.count_for(key, &runner.image) + 1 == number
                && number <= recent.standbys_wanted()
                && !pool.in_use.contains_key(key)
                && !pool.is_backing_off(&runner.image)
                && self.parts.isolation.permits(&runner.image)
                && has_room;
            wanted.then(|| Demand { conversation: Some(key.clone()), runner })
        })
    }

    fn unassigned_demand(&self) -> Option<Demand> {
        let pool = self.pool.lock();
        if !self.can_begin(&pool, 1) {
            return None;
        }
        let candidates = pool.languages.iter().filter_map(|(language, at)| {
            let runner = self.parts.catalog.find(language)?;
            let mine = |standby: &&Standby| standby.is_unassigned() && standby.image == runner.image;
            let count = pool.standbys.iter().filter(mine).count();
            let wanted = count < self.options.unassigned_max && !pool.is_backing_off(&runner.image);
            let wanted = wanted && self.parts.isolation.permits(&runner.image);
            (wanted && self.fits(&pool, &runner.image)).then_some((count, *at, runner))
        });
        // Every language gets its first before any gets its second; among equals the one that was used last.
        let (.., runner) = candidates.min_by_key(|(count, at, _)| (*count, Reverse(*at)))?;
        Some(Demand { conversation: None, runner })
    }

    /// Begins to start one. False when it cannot be done now.
    async fn begin(self: &Arc<Self>, Demand { conversation, runner }: Demand) -> bool {
        let (store, wanted) = (Arc::clone(&self.parts.store), conversation.clone());
        let made = tokio::task::spawn_blocking(move || {
            if let Some(key) = wanted {
                let conversation = store.open(&key).ok()??;
                let folder = conversation.identity().ok()?;
                return Some((conversation.data(), Assignee::Conversation { key, folder }));
            }
            let folder = store.create_unassigned().ok()?;
            Some((folder.data(), Assignee::Unassigned(Some(folder))))
        });
        let Ok(Some((data, assignee))) = made.await else {
            // A deleted conversation gets no standby again.
            self.pool.lock().recent.retain(|recent| Some(&recent.key) != conversation.as_ref());
            return false;
        };
        let mounts = self.parts.sandboxes.mounts_of(conversation.as_ref().map(|key| &key.owner)).await;
        let (lease, mut spec) = self.lease(&runner, data, mounts);
        let loads_fast = self.load_fast(&mut spec);
        let (handover, requested) = oneshot::channel();
        let standby = Standby {
            lease: Arc::clone(&lease),
            image: runner.image.clone(),
            language: runner.language.clone(),
            assignee,
            phase: Phase::Starting,
            since: Moment::now(self.parts.sandboxes.clock.as_ref()),
            loads_fast,
            handover,
        };
        let mut pool = self.pool.lock();
        if pool.in_use.keys().any(|key| standby.is_for(key)) {
            drop(pool);
            return false;
        }
        pool.standbys.push(standby);
        drop(pool);
        self.tasks.spawn(watch::watch(Arc::clone(self), lease, spec, requested));
        self.retire();
        true
    }
}
