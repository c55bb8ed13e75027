//! Decides which standby is wanted next and which is not wanted any more. Runs come first: while one is under way, only
//! a conversation that keeps coming back gets a new standby.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::debug;

use super::{Active, Entry, For, Inner, Stage, State, watch};
use crate::{
    nouns::id::{ConversationId, Language, SandboxId},
    ports::runner::Runner,
};

/// Standbys that the engine works on at once.
const STARTING_MAX: usize = 2;
/// How often idle and old ones are looked for.
const ROUND: Duration = Duration::from_secs(5);
/// What a standby is taken to hold until one of its image has said it, in bytes.
const MEMORY_GUESS_BYTES: u64 = 8 << 20;
/// Runs after which a conversation counts as one that comes back.
const RUNS_OF_A_REGULAR: u32 = 2;

/// What is to be started.
enum Wanted {
    Known(ConversationId, Runner),
    Nameless(Runner),
}

/// Lives until the service stops.
pub(super) async fn refill(inner: Arc<Inner>) {
    inner.recall().await;
    let mut rounds = interval(ROUND);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => return,
            () = inner.wake.notified() => {}
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
        while self.over_budget(&state) {
            let Some(least) = least_recent(&state) else { break };
            retired.push(state.entries.swap_remove(least));
        }
        drop(state);
        if !retired.is_empty() {
            debug!(count = retired.len(), "standbys are retired");
        }
    }

    fn over_budget(&self, state: &State) -> bool {
        state.entries.len() > self.options.total_max || memory(state) > self.options.memory_bytes_max
    }

    /// The next one to start, if there is room for it and it would disturb nobody.
    async fn wanted(self: &Arc<Self>) -> Option<Wanted> {
        let quiet = self.foreground.load(Ordering::SeqCst) == 0;
        let known = self.wanted_known(quiet);
        if known.is_some() {
            return known;
        }
        let nameless = if quiet { self.wanted_nameless() } else { None }?;
        // Asked only when the answer matters, once.
        self.adoption.holds(self).await.then_some(nameless)
    }

    fn wanted_known(&self, quiet: bool) -> Option<Wanted> {
        let state = self.state();
        if state.entries.iter().filter(|entry| entry.stage == Stage::Starting).count() >= STARTING_MAX {
            return None;
        }
        // Newest first; as many as there are places, so that none is started only to be the next to leave.
        let regulars = state.active.iter().rev().filter(|active| quiet || active.runs >= RUNS_OF_A_REGULAR);
        for Active { conversation, language, at, .. } in regulars.take(self.options.total_max) {
            let Some(runner) = self.parts.catalog.find(language) else { continue };
            let mine = |entry: &Entry| {
                entry.image == runner.image
                    && matches!(&entry.whose, For::Known { conversation: own, .. } if own == conversation)
            };
            if !state.entries.iter().any(mine) && self.makes_room(&state, &runner, *at) {
                return Some(Wanted::Known(conversation.clone(), runner));
            }
        }
        None
    }

    /// Whether one more fits, if need be in the place of one whose conversation was active before this one. A place that
    /// is taken from a later one would be taken back at once, and so on for ever.
    fn makes_room(&self, state: &State, runner: &Runner, at: Instant) -> bool {
        let bytes = state.memory.get(&runner.image).copied().unwrap_or(MEMORY_GUESS_BYTES);
        let (full, held) = (state.entries.len() >= self.options.total_max, memory(state));
        if !full && held + bytes <= self.options.memory_bytes_max {
            return true;
        }
        let Some(least) = least_recent(state) else { return false };
        let freed = state.memory.get(&state.entries[least].image).copied().unwrap_or(MEMORY_GUESS_BYTES);
        let earlier = active_at(state, &state.entries[least]).is_some_and(|theirs| theirs < at);
        earlier && (held + bytes).saturating_sub(freed) <= self.options.memory_bytes_max
    }

    fn wanted_nameless(&self) -> Option<Wanted> {
        let state = self.state();
        if state.entries.iter().any(|entry| entry.stage == Stage::Starting) {
            return None;
        }
        let mut languages: Vec<(&Language, &Instant)> = state.used.iter().collect();
        languages.sort_by_key(|(_, at)| std::cmp::Reverse(**at));
        for (language, _) in languages {
            let Some(runner) = self.parts.catalog.find(language) else { continue };
            let have = state
                .entries
                .iter()
                .filter(|entry| entry.image == runner.image && matches!(entry.whose, For::Nobody(_)))
                .count();
            let bytes = state.memory.get(&runner.image).copied().unwrap_or(MEMORY_GUESS_BYTES);
            let fits =
                state.entries.len() < self.options.total_max && memory(&state) + bytes <= self.options.memory_bytes_max;
            if have < self.options.nameless_max && fits {
                return Some(Wanted::Nameless(runner));
            }
        }
        None
    }

    /// Begins to start one. False when it cannot be done now.
    async fn begin(self: &Arc<Self>, wanted: Wanted) -> bool {
        let store = Arc::clone(&self.parts.store);
        let known = match &wanted {
            Wanted::Known(conversation, _) => Some(conversation.clone()),
            Wanted::Nameless(_) => None,
        };
        let made = tokio::task::spawn_blocking(move || {
            if let Some(conversation) = known {
                let there = store.open_conversation(&conversation).ok()??;
                let folder = there.identity().ok()?;
                return Some((there.data_dir(), For::Known { conversation, folder }));
            }
            let folder = store.create_nameless().ok()?;
            Some((folder.data_dir().to_owned(), For::Nobody(folder)))
        });
        let Ok(Some((data, whose))) = made.await else {
            // A conversation that was deleted does not come back.
            if let Wanted::Known(conversation, _) = &wanted {
                self.state().active.retain(|active| active.conversation != *conversation);
            }
            return false;
        };
        let (Wanted::Known(_, runner) | Wanted::Nameless(runner)) = wanted;
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

/// What all of them hold, as far as it is known.
fn memory(state: &State) -> u64 {
    let of = |entry: &Entry| {
        entry.memory_bytes.or_else(|| state.memory.get(&entry.image).copied()).unwrap_or(MEMORY_GUESS_BYTES)
    };
    state.entries.iter().map(of).sum()
}

/// When the conversation of a standby was last active.
fn active_at(state: &State, entry: &Entry) -> Option<Instant> {
    let For::Known { conversation, .. } = &entry.whose else { return None };
    state.active.iter().find(|active| active.conversation == *conversation).map(|active| active.at)
}

/// The one that leaves first: of a conversation the one that was active longest ago, otherwise the oldest.
fn least_recent(state: &State) -> Option<usize> {
    let known = (0..state.entries.len()).filter(|&at| matches!(state.entries[at].whose, For::Known { .. }));
    known
        .min_by_key(|&at| active_at(state, &state.entries[at]))
        .or_else(|| (0..state.entries.len()).min_by_key(|&at| state.entries[at].since))
}
