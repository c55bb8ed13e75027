//! Decides which standby is wanted next and which is not wanted any more. Runs come first: while one is under way, only
//! a conversation that keeps coming back gets a new standby, and one that was used once waits for a pause, since it may
//! never be used again.

use std::{
    cmp::Reverse,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tracing::debug;

use super::{Active, Entry, For, Inner, Stage, State, watch};
use crate::{
    domain::{id::SandboxId, owner::ConversationKey},
    ports::{engine::ImageId, runner::Runner},
};

/// Standbys that the engine works on at once.
const STARTING_MAX: usize = 2;
/// How often idle and old ones are looked for.
const ROUND: Duration = Duration::from_secs(5);
/// How long none of an image is started after one failed or died: an engine that is away, or an image that is broken, is not
/// asked without end.
const REST: Duration = ROUND;
/// How long nothing has to run before a conversation that was used once gets a standby. Whoever begins one conversation
/// after the other would otherwise wait for two sandboxes each time.
const PAUSE: Duration = Duration::from_millis(250);
/// Runs after which a conversation counts as one that comes back.
const RUNS_OF_A_REGULAR: u32 = 2;

/// What is to be started.
enum Wanted {
    Known(ConversationKey, Runner),
    UnassignedFolder(Runner),
}

/// Lives until the service stops.
pub(super) async fn refill(inner: Arc<Inner>) {
    inner.recall().await;
    // Until then nothing is run for anybody, and the self-test may start sandboxes in another way than they will be in the end.
    if inner.stop.run_until_cancelled(inner.parts.isolation.verified()).await.is_none() {
        return;
    }
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = inner.wake.notified() => {}
            () = inner.pause() => {}
            _ = rounds.tick() => {
                inner.rounds.fetch_add(1, Ordering::Relaxed);
            }
        }
        inner.retire();
        while let Some(wanted) = inner.wanted().await {
            if inner.stop.is_cancelled() || !inner.begin(wanted).await {
                break;
            }
        }
    }
}

impl Inner {
    /// Languages that were in use before this process are in use.
    async fn recall(self: &Arc<Self>) {
        let store = Arc::clone(&self.parts.store);
        let recalled = tokio::task::spawn_blocking(move || store.recall_languages()).await.unwrap_or_default();
        let mut state = self.state();
        for language in recalled {
            state.used.entry(language).or_insert_with(Instant::now);
        }
    }

    /// Drops what is idle, old, stale, or too much.
    fn retire(&self) {
        let mut retired = Vec::new();
        let mut state = self.state();
        let (idle_max, used_max, age_max) = (self.options.idle_max, self.options.used_max, self.options.age_max);
        state.active.retain(|active| active.at.elapsed() < idle_max);
        state.used.retain(|_, at| at.elapsed() < used_max);
        state.resting.retain(|_, until| Instant::now() < *until);
        let mut at = 0;
        while at < state.entries.len() {
            let entry = &state.entries[at];
            let unwanted = match &entry.whose {
                For::Nobody(_) => !state.used.contains_key(&entry.language),
                For::Known { conversation, .. } => {
                    !state.active.iter().any(|a| a.conversation == *conversation && a.language == entry.language)
                }
            };
            if unwanted || entry.since.elapsed() > age_max || self.is_stale(entry) {
                retired.push(state.entries.swap_remove(at));
            } else {
                at += 1;
            }
        }
        while let Some(next) = self.too_much(&state) {
            retired.push(state.entries.swap_remove(next));
        }
        drop(state);
        if !retired.is_empty() {
            debug!(count = retired.len(), "standbys are retired");
        }
    }

    /// Returns when the pause begins that a conversation which was used once waits for; never, where none is coming.
    async fn pause(&self) {
        let begins = self.state().quiet_since.map(|since| since + PAUSE);
        match begins.filter(|begins| Instant::now() < *begins) {
            Some(begins) => sleep_until(begins).await,
            None => std::future::pending().await,
        }
    }

    /// The next one to start, if there is room for it and it would disturb nobody.
    async fn wanted(self: &Arc<Self>) -> Option<Wanted> {
        if let Some(known) = self.wanted_known(RUNS_OF_A_REGULAR) {
            return Some(known);
        }
        if self.foreground.load(Ordering::SeqCst) > 0 {
            return None;
        }
        // Asked only when the answer matters, once.
        if let Some(unassigned) = self.wanted_unassigned()
            && self.assignment.holds(self).await
        {
            return Some(unassigned);
        }
        let paused = self.state().quiet_since.is_none_or(|since| since.elapsed() >= PAUSE);
        if paused { self.wanted_known(1) } else { None }
    }

    fn wanted_known(&self, runs_min: u32) -> Option<Wanted> {
        let state = self.state();
        if state.entries.iter().filter(|entry| entry.stage == Stage::Starting).count() >= STARTING_MAX {
            return None;
        }
        // Newest first; as many as there are places, so that none is started only to be the next to leave.
        let candidates = state.active.iter().rev().filter(|active| active.runs >= runs_min);
        for Active { conversation, language, at, .. } in candidates.take(self.options.total_max) {
            let Some(runner) = self.parts.catalog.find(language) else { continue };
            let mine = |entry: &Entry| {
                entry.image == runner.image
                    && matches!(&entry.whose, For::Known { conversation: own, .. } if own == conversation)
            };
            if !state.entries.iter().any(mine)
                && !state.rests(&runner.image)
                && self.fits_known(&state, &runner.image, *at)
            {
                return Some(Wanted::Known(conversation.clone(), runner));
            }
        }
        None
    }

    fn wanted_unassigned(&self) -> Option<Wanted> {
        let state = self.state();
        if state.entries.iter().any(|entry| entry.stage == Stage::Starting) {
            return None;
        }
        let have = |image: &ImageId| {
            let nobodys = state.entries.iter().filter(|entry| matches!(entry.whose, For::Nobody(_)));
            nobodys.filter(|entry| entry.image == *image).count()
        };
        let candidates = state.used.iter().filter_map(|(language, at)| {
            let runner = self.parts.catalog.find(language)?;
            let have = have(&runner.image);
            let wanted = have < self.options.nameless_max && !state.rests(&runner.image);
            (wanted && self.fits(&state, &runner.image)).then_some((have, *at, runner))
        });
        // Every language has its first one before any has its second; of those the one that was used last.
        let next = candidates.min_by_key(|(have, at, _)| (*have, Reverse(*at)));
        next.map(|(.., runner)| Wanted::UnassignedFolder(runner))
    }

    /// Begins to start one. False when it cannot be done now.
    async fn begin(self: &Arc<Self>, wanted: Wanted) -> bool {
        let store = Arc::clone(&self.parts.store);
        let known = match &wanted {
            Wanted::Known(conversation, _) => Some(conversation.clone()),
            Wanted::UnassignedFolder(_) => None,
        };
        let made = tokio::task::spawn_blocking(move || {
            if let Some(conversation) = known {
                let there = store.open_conversation(&conversation).ok()??;
                let folder = there.identity().ok()?;
                return Some((there.data_dir(), For::Known { conversation, folder }));
            }
            let folder = store.create_unassigned().ok()?;
            Some((folder.data_dir().to_owned(), For::Nobody(folder)))
        });
        let Ok(Some((data, whose))) = made.await else {
            // A conversation that was deleted does not come back.
            if let Wanted::Known(conversation, _) = &wanted {
                self.state().active.retain(|active| active.conversation != *conversation);
            }
            return false;
        };
        let (Wanted::Known(_, runner) | Wanted::UnassignedFolder(runner)) = wanted;
        let lease = Arc::new(self.parts.janitor.lease(SandboxId::new()));
        let spec = self.spec(lease.id(), &runner, data);
        let (hand, asked) = oneshot::channel();
        let entry = Entry {
            lease: Arc::clone(&lease),
            image: runner.image.clone(),
            language: runner.language.clone(),
            whose,
            stage: Stage::Starting,
            since: Instant::now(),
            memory_bytes: None,
            hand,
        };
        self.state().entries.push(entry);
        self.tasks.spawn(watch::watch(Arc::clone(self), lease, spec, runner.protocol, asked));
        self.retire();
        true
    }
}

impl State {
    pub(super) fn rest(&mut self, image: ImageId) {
        self.resting.insert(image, Instant::now() + REST);
    }
}
