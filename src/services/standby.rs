//! Sandboxes that were started ahead of need.
//!
//! A standby is a sandbox whose runner waits for a program. It serves one and is destroyed, like every other. Some stand
//! by for a conversation that exists and was active lately; others for nobody yet: those have an unassigned folder, which
//! becomes the conversation's when the first program of a new conversation arrives.
//!
//! ```text
//! Standbys::start ── refill: one task; once the engine was seen to isolate it retires, and starts one standby after the
//!                 │  other; ended by `stop`
//!                 └─ watch: a task a standby; owns its streams until it is taken, retired, or dead
//! ```
//!
//! Standbys are only an optimisation: where there is none, the caller starts a sandbox; it never waits for one that was not
//! under way, and never learns of an error here. This room knows nothing of programs.

mod assignment;
mod capacity;
mod entry;
mod refill;
mod watch;

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::debug;

use self::{
    assignment::Assignment,
    entry::{Entry, For, Stage},
};
use super::{
    isolation_check::IsolationState,
    janitor::{Janitor, Lease},
    started::Started,
};
use crate::{
    domain::{
        clock::Clock,
        id::{InstanceId, Language, SandboxId},
        limits::Limits,
        owner::ConversationKey,
    },
    ports::{
        engine::{Engine, ImageId, SandboxSpec, Volume},
        runner::{Catalog, Protocol, Runner},
        store::{Mark, Store},
    },
};

/// How long after its whole life a sandbox is certainly unwanted.
const ABANDONED_AFTER: Duration = Duration::from_mins(1);

/// How many stand by, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyOptions {
    /// All of them together; 0 turns standbys off.
    pub total_max: usize,
    /// What all of them together may hold in memory, in bytes.
    pub memory_bytes_max: u64,
    /// For each language in use: how many stand by for conversations that do not exist yet.
    pub nameless_max: usize,
    /// How long one stands by for a conversation that is not active any more.
    pub idle_max: Duration,
    /// How long a language counts as in use.
    pub used_max: Duration,
    /// How old a standby may become.
    pub age_max: Duration,
}

/// What standbys are made of.
pub struct StandbyParts {
    /// Makes sandboxes.
    pub engine: Arc<dyn Engine>,
    /// The runners known now.
    pub catalog: Arc<Catalog>,
    /// Conversations on disk.
    pub store: Arc<Store>,
    /// Ends what nobody holds.
    pub janitor: Janitor,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
    /// Whose sandboxes these are.
    pub instance: InstanceId,
    /// The user inside.
    pub uid: u32,
    /// What a sandbox may use.
    pub limits: Limits,
    /// Whether the engine was seen to isolate, and by what it starts sandboxes.
    pub isolation: IsolationState,
}

/// The service.
#[derive(Clone)]
pub struct Standbys(Arc<Inner>);

struct Inner {
    parts: StandbyParts,
    options: StandbyOptions,
    state: Mutex<State>,
    assignment: Assignment,
    wake: Notify,
    foreground: AtomicUsize,
    taken: AtomicU64,
    rounds: AtomicU64,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// When a language was last asked for.
    used: HashMap<Language, Instant>,
    /// The last runs of conversations that may come back, oldest first.
    active: Vec<Active>,
    /// When the last run ended.
    quiet_since: Option<Instant>,
    /// The most that one of an image's standbys was seen to hold, in bytes.
    memory: HashMap<ImageId, u64>,
    /// Until when none of an image is started: one of them failed or died.
    resting: HashMap<ImageId, Instant>,
}

impl State {
    fn rests(&self, image: &ImageId) -> bool {
        self.resting.get(image).is_some_and(|until| Instant::now() < *until)
    }
}

struct Active {
    conversation: ConversationKey,
    language: Language,
    runs: u32,
    at: Instant,
}

/// A standby in the hands of a run.
pub(super) struct Taken {
    /// The sandbox.
    pub started: Started,
    /// The right to it.
    pub lease: Arc<Lease>,
    /// The moment before the program, in the file system's time.
    pub mark: Mark,
}

/// While one of these lives, a run is under way and comes first.
pub(super) struct Foreground(Arc<Inner>);

impl Drop for Foreground {
    fn drop(&mut self) {
        if self.0.foreground.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.state().quiet_since = Some(Instant::now());
        }
        self.0.wake.notify_one();
    }
}

impl Standbys {
    /// Standbys at work. Languages that were in use when an earlier process ended are so still.
    pub fn start(parts: StandbyParts, options: StandbyOptions) -> Self {
        let inner = Arc::new(Inner {
            parts,
            options,
            state: Mutex::default(),
            assignment: Assignment::default(),
            wake: Notify::new(),
            foreground: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        if options.total_max > 0 {
            inner.tasks.spawn(refill::refill(Arc::clone(&inner)));
        }
        Self(inner)
    }

    /// Says that a run is under way for as long as the answer lives.
    pub(super) fn foreground(&self) -> Foreground {
        self.0.foreground.fetch_add(1, Ordering::SeqCst);
        Foreground(Arc::clone(&self.0))
    }

    /// A standby for this conversation, if there is one, or one is under way.
    pub(super) async fn take(&self, id: &ConversationKey, runner: &Runner, limits: &Limits) -> Option<Taken> {
        // What a sandbox may use was fixed when it was made; the rest of the limits are ours to keep.
        let Limits { wall_ms, output_bytes_max, output_kept_bytes, .. } = *limits;
        if self.0.options.total_max == 0
            || *limits != (Limits { wall_ms, output_bytes_max, output_kept_bytes, ..self.0.parts.limits })
        {
            return None;
        }
        let (entry, mark) = match self.0.known(id, &runner.image) {
            Some(entry) => self.0.still_its_folder(entry, id).await?,
            None => self.0.assigned(id, &runner.image).await?,
        };
        let Entry { lease, hand, .. } = entry;
        let (give, given) = oneshot::channel();
        hand.send(give).ok()?;
        let started = given.await.ok()?;
        self.0.taken.fetch_add(1, Ordering::Relaxed);
        debug!(sandbox = %lease.id(), "a standby was taken");
        Some(Taken { started, lease, mark })
    }

    /// Notes that a run of this conversation is over: its next one may follow.
    pub(super) fn used(&self, id: &ConversationKey, language: &Language) {
        if self.0.options.total_max == 0 {
            return;
        }
        let newly = {
            let mut state = self.0.state();
            let runs = state.active.iter().find(|active| active.conversation == *id).map_or(0, |active| active.runs);
            state.active.retain(|active| active.conversation != *id);
            let (conversation, language) = (id.clone(), language.clone());
            state.active.push(Active { conversation, language: language.clone(), runs: runs + 1, at: Instant::now() });
            if state.active.len() > self.0.options.total_max * 4 {
                state.active.remove(0);
            }
            state.used.insert(language, Instant::now()).is_none()
        };
        if newly {
            self.0.remember();
        }
        self.0.wake.notify_one();
    }

    /// How many of an image's sandboxes wait for a program now.
    pub fn standing_by(&self, image: &ImageId) -> usize {
        let ready = |entry: &&Entry| entry.image == *image && entry.stage != Stage::Starting;
        self.0.state().entries.iter().filter(ready).count()
    }

    /// How many have not loaded everything they load.
    pub fn loading(&self) -> usize {
        self.0.state().entries.iter().filter(|entry| entry.stage != Stage::Warm).count()
    }

    /// Whether a renamed folder stays with its sandbox here. Tries it the first time, with a sandbox.
    pub async fn assignment_holds(&self) -> bool {
        self.0.assignment.holds(&self.0).await
    }

    /// How many there are of each language and stage, in that order.
    pub fn by_stage(&self) -> Vec<(Language, &'static str, usize)> {
        let mut counts = BTreeMap::new();
        for entry in &self.0.state().entries {
            *counts.entry((entry.language.clone(), entry.stage)).or_insert(0) += 1;
        }
        counts.into_iter().map(|((language, stage), count)| (language, stage.word(), count)).collect()
    }

    /// How many served a program so far.
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// How often idle and old ones were looked for so far.
    pub fn rounds(&self) -> u64 {
        self.0.rounds.load(Ordering::Relaxed)
    }

    /// Whether this sandbox stands by.
    pub fn holds(&self, id: SandboxId) -> bool {
        self.0.state().entries.iter().any(|entry| entry.lease.id() == id)
    }

    /// Ends the tasks and gives every standby to the janitor.
    pub async fn stop(&self) {
        self.0.stop.cancel();
        self.0.tasks.close();
        // Taken out first: an entry's drop ends its watcher.
        let entries = std::mem::take(&mut self.0.state().entries);
        drop(entries);
        self.0.tasks.wait().await;
        // What was begun meanwhile.
        let entries = std::mem::take(&mut self.0.state().entries);
        drop(entries);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The one that stands by for this conversation. One of another image is stale, or of another language.
    fn known(&self, id: &ConversationKey, image: &ImageId) -> Option<Entry> {
        let mut state = self.state();
        let found = state.entries.iter().position(|entry| {
            entry.image == *image && matches!(&entry.whose, For::Known { conversation, .. } if conversation == id)
        })?;
        Some(state.entries.swap_remove(found))
    }

    /// A conversation may have been deleted and made anew: a sandbox that has the old folder is of no use.
    async fn still_its_folder(&self, entry: Entry, id: &ConversationKey) -> Option<(Entry, Mark)> {
        let (store, id) = (Arc::clone(&self.parts.store), id.clone());
        let asked = tokio::task::spawn_blocking(move || {
            let conversation = store.open_conversation(&id).ok()??;
            Some((conversation.identity().ok()?, conversation.mark().ok()?))
        });
        let (folder, mark) = asked.await.ok()??;
        matches!(&entry.whose, For::Known { folder: own, .. } if *own == folder).then_some((entry, mark))
    }

    /// One that stands by for nobody, if the conversation is new.
    async fn assigned(&self, id: &ConversationKey, image: &ImageId) -> Option<(Entry, Mark)> {
        let mut entry = {
            let mut state = self.state();
            let ready = |at: &usize| state.entries[*at].stage;
            let unassigned = (0..state.entries.len())
                .filter(|&at| state.entries[at].image == *image && matches!(state.entries[at].whose, For::Nobody(_)));
            let best = unassigned.max_by_key(ready)?;
            state.entries.swap_remove(best)
        };
        let id = id.clone();
        let assigning = tokio::task::spawn_blocking(move || {
            let For::Nobody(folder) = &mut entry.whose else { return (entry, None) };
            let mark = folder.assign(&id).ok().flatten().and_then(|conversation| conversation.mark().ok());
            (entry, mark)
        });
        let (entry, mark) = assigning.await.ok()?;
        let Some(mark) = mark else {
            // The conversation is not new: the standby waits on, unless its folder has just become a conversation's.
            if !entry.is_assigned() {
                self.state().entries.push(entry);
            }
            return None;
        };
        Some((entry, mark))
    }

    /// Writes down which languages are in use, for the next start.
    fn remember(self: &Arc<Self>) {
        let languages: Vec<String> = self.state().used.keys().map(Language::to_string).collect();
        let store = Arc::clone(&self.parts.store);
        self.tasks.spawn_blocking(move || {
            if let Err(error) = store.remember_languages(&languages) {
                debug!(%error, "the languages in use were not written down");
            }
        });
    }

    fn is_stale(&self, entry: &Entry) -> bool {
        let all = self.parts.catalog.all();
        !all.iter().any(|runner| runner.image == entry.image)
    }

    /// What a standby is started with.
    fn spec(&self, id: SandboxId, runner: &Runner, data: PathBuf) -> SandboxSpec {
        let life_s = (self.options.age_max + self.parts.limits.wall() + ABANDONED_AFTER).as_secs();
        SandboxSpec {
            id,
            instance: self.parts.instance,
            image: runner.image.clone(),
            data: Volume::HostFolder(data),
            limits: self.parts.limits,
            uid: self.parts.uid,
            own_init: runner.protocol == Protocol::Framed,
            deadline_unix_s: self.parts.clock.unix_s() + i64::try_from(life_s).unwrap_or(i64::MAX / 2),
        }
    }
}
