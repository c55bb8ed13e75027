//! Sandboxes that were started ahead of need.
//!
//! A standby is a sandbox whose runner waits for a program. It serves one and is destroyed, like every other. Some are
//! for a conversation that ran lately; others are unassigned: their folder becomes the conversation's when the first
//! program of a new conversation arrives.
//!
//! ```text
//! Standbys::start ── refill: one task; retires standbys and starts new ones, once isolation is verified; ended by
//! `stop`
//!                 └─ watch: one task for each standby; owns its streams until it is taken, retired or dead
//! ```
//!
//! Standbys are only an optimisation: without one the caller starts a sandbox. It waits only for one that is starting,
//! and never sees an error of this module, which knows nothing of programs.

mod assignment;
mod capacity;
mod pool;
mod refill;
mod watch;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, OnceCell, oneshot};
use tracing::debug;

#[cfg(test)]
pub(super) use self::pool::tests::NoFolder;
use self::{
    pool::{Assignee, Handover, Phase, Pool, Standby},
    watch::CpuUpdates,
};
use super::{
    isolation_check::IsolationState,
    janitor::Lease,
    sandbox::{ExtraMounts, Sandboxes, Started},
    tasks::Tasks,
    waits::WAITS_MAX,
};
use crate::{
    domain::{ConversationKey, Language, Limits, SandboxId},
    ports::{
        engine::{ImageId, SandboxSpec},
        runner::{Catalog, Runner},
        storage::{DataFolder, Mark, Storage},
    },
};

/// How many standbys there are, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandbyOptions {
    /// All of them together; 0 turns standbys off.
    pub total_max: usize,
    /// What all of them together may hold in memory, in bytes.
    pub memory_bytes_max: u64,
    /// Unassigned ones for each language in use.
    pub unassigned_max: usize,
    /// How long one stays after the last run of its conversation.
    pub idle_max: Duration,
    /// How long a language counts as in use after its last run.
    pub used_max: Duration,
    /// How old a standby may become.
    pub age_max: Duration,
    /// How old a session may become, which a standby can serve as well as a program.
    pub session_age_max: Duration,
    /// How many load at once with more CPU than a program gets.
    pub loading_max: usize,
}

pub struct StandbyParts {
    pub sandboxes: Sandboxes,
    pub catalog: Arc<Catalog>,
    pub store: Arc<dyn Storage>,
    /// No standby starts before isolation is verified.
    pub isolation: IsolationState,
}

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Standbys(Arc<Inner>);

struct Inner {
    parts: StandbyParts,
    options: StandbyOptions,
    pool: Mutex<Pool>,
    /// Whether a renamed folder stays with its sandbox, once that was probed.
    assignment_works: OnceCell<bool>,
    cpu_updates: CpuUpdates,
    wake: Notify,
    taken: AtomicU64,
    rounds: AtomicU64,
    tasks: Tasks,
}

/// A standby that was taken by a run.
pub(super) struct ClaimedStandby {
    pub started: Started,
    /// The right to the sandbox.
    pub lease: Arc<Lease>,
    /// The moment before the program, in the file system's time.
    pub mark: Mark,
}

/// While one of these lives, a run is in progress and comes first, and no standby is started for its conversation.
pub(super) struct ForegroundGuard(Arc<Inner>, ConversationKey);

impl Drop for ForegroundGuard {
    fn drop(&mut self) {
        self.0.pool.lock().end_use(&self.1);
        self.0.wake.notify_one();
    }
}

impl Standbys {
    /// Whether there are any.
    pub(super) fn is_on(&self) -> bool {
        self.0.options.total_max > 0
    }

    /// No sandbox is started before [`Self::start`].
    pub fn new(parts: StandbyParts, options: StandbyOptions) -> Self {
        Self(Arc::new(Inner {
            parts,
            options,
            pool: Mutex::default(),
            assignment_works: OnceCell::new(),
            cpu_updates: CpuUpdates::default(),
            wake: Notify::new(),
            taken: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            tasks: Tasks::default(),
        }))
    }

    /// Starts refilling, for the languages that were in use when an earlier process ended too.
    pub fn start(&self) {
        if self.is_on() {
            self.0.tasks.spawn(refill::refill(Arc::clone(&self.0)));
        }
    }

    /// Marks a run of a conversation, or the opening of a session, as in progress until the guard is dropped.
    pub(super) fn foreground(&self, conversation: &ConversationKey) -> ForegroundGuard {
        self.0.pool.lock().begin_use(conversation);
        ForegroundGuard(Arc::clone(&self.0), conversation.clone())
    }

    /// A standby for this conversation, if one is ready or starting.
    /// With `when_warm` it waits, for a short time, until everything is loaded.
    pub(super) async fn take(
        &self,
        id: &ConversationKey,
        runner: &Runner,
        limits: &Limits,
        when_warm: bool,
    ) -> Option<ClaimedStandby> {
        // The engine fixed these limits when it created the sandbox; the server enforces the others.
        let Limits { wall_ms, output_bytes_max, output_kept_bytes, .. } = *limits;
        let fixed = Limits { wall_ms, output_bytes_max, output_kept_bytes, ..self.0.parts.sandboxes.limits_of(runner) };
        let usable = self.is_on() && *limits == fixed;
        let (own, starting) = {
            let mut pool = self.0.pool.lock();
            // One of another image is stale, or of another language.
            let own = pool.take_best(
                |standby| usable && standby.image == runner.image && standby.is_for(id),
                |standby| standby.phase,
            );
            let is_starting = |standby: &mut Standby| standby.is_for(id) && standby.phase == Phase::Starting;
            (own, pool.standbys.extract_if(.., is_starting).collect::<Vec<_>>())
        };
        // None starts on the files of a conversation in use. Their leases are not dropped under the lock.
        drop(starting);
        if !usable {
            return None;
        }
        let (standby, mark) = match own {
            Some(standby) => self.0.verify_folder(standby, id).await?,
            None => self.0.assign(id, &runner.image).await?,
        };
        let Standby { lease, handover, .. } = standby;
        let (reply, replied) = oneshot::channel();
        handover.send(Handover { reply, when_warm }).ok()?;
        let started = replied.await.ok()?;
        self.0.taken.fetch_add(1, Ordering::Relaxed);
        debug!(sandbox = %lease.id(), "a standby was taken");
        Some(ClaimedStandby { started, lease, mark })
    }

    /// Notes that a run of this conversation has ended: its next one may follow.
    pub(super) fn used(&self, id: &ConversationKey, language: &Language) {
        self.note(|pool| pool.record_run(id, language, self.0.options.total_max * 4));
    }

    /// Notes that a session of a language was opened: another conversation may open one. Its own conversation gets no
    /// standby for it, since its kernel lives.
    pub(super) fn used_by_session(&self, language: &Language) {
        self.note(|pool| pool.record_language(language));
    }

    /// Records what a language was used for, unless standbys are off.
    fn note(&self, is_new: impl FnOnce(&mut Pool) -> bool) {
        if !self.is_on() {
            return;
        }
        if is_new(&mut self.0.pool.lock()) {
            self.0.remember();
        }
        self.0.wake.notify_one();
    }

    /// How many of an image's sandboxes wait for a program now.
    pub fn standing_by(&self, image: &ImageId) -> usize {
        let ready = |standby: &&Standby| standby.image == *image && standby.phase != Phase::Starting;
        self.0.pool.lock().standbys.iter().filter(ready).count()
    }

    /// How many are not warm.
    pub fn loading(&self) -> usize {
        self.0.pool.lock().standbys.iter().filter(|standby| standby.phase != Phase::Warm).count()
    }

    /// Whether a renamed folder stays with its sandbox here. Probed with a sandbox the first time.
    pub async fn assignment_is_supported(&self) -> bool {
        self.0.assignment_is_supported().await
    }

    /// How many there are of each language and phase, in that order.
    pub fn by_phase(&self) -> Vec<(Language, &'static str, usize)> {
        let mut counts = BTreeMap::new();
        for standby in &self.0.pool.lock().standbys {
            *counts.entry((standby.language.clone(), standby.phase)).or_insert(0) += 1;
        }
        counts.into_iter().map(|((language, phase), count)| (language, phase.label(), count)).collect()
    }

    /// How many have served a program.
    pub fn taken(&self) -> u64 {
        self.0.taken.load(Ordering::Relaxed)
    }

    /// How many rounds have retired idle and old ones.
    pub fn rounds(&self) -> u64 {
        self.0.rounds.load(Ordering::Relaxed)
    }

    /// Whether this sandbox is a standby.
    pub fn holds(&self, id: SandboxId) -> bool {
        self.0.pool.lock().standbys.iter().any(|standby| standby.id() == id)
    }

    /// Ends the tasks and releases every standby to the janitor.
    pub async fn stop(&self) {
        self.0.tasks.stop.cancel();
        // Dropping a standby ends its watcher; the lease is not dropped under the lock.
        let standbys = std::mem::take(&mut self.0.pool.lock().standbys);
        drop(standbys);
        self.0.tasks.end().await;
        // Those that were begun meanwhile.
        let standbys = std::mem::take(&mut self.0.pool.lock().standbys);
        drop(standbys);
    }
}

impl Inner {
    /// A conversation may have been deleted and created again; a sandbox with the old folder is of no use then.
    async fn verify_folder(&self, standby: Standby, id: &ConversationKey) -> Option<(Standby, Mark)> {
        let (store, id) = (Arc::clone(&self.parts.store), id.clone());
        let opened = tokio::task::spawn_blocking(move || {
            let conversation = store.open(&id).ok()??;
            Some((conversation.identity().ok()?, conversation.mark().ok()?))
        });
        let (current, mark) = opened.await.ok()??;
        matches!(&standby.assignee, Assignee::Conversation { folder, .. } if *folder == current)
            .then_some((standby, mark))
    }

    /// An unassigned one, if the conversation is new. Its mounts were made when it had no owner, so it shows public
    /// skills and folders only: an owner with others gets a sandbox that was started for it.
    async fn assign(self: &Arc<Self>, id: &ConversationKey, image: &ImageId) -> Option<(Standby, Mark)> {
        if self.parts.sandboxes.has_own(&id.owner).await {
            return None;
        }
        let (sandbox, mut folder) = self.pool.lock().take_folder(image)?;
        let (inner, id) = (Arc::clone(self), id.clone());
        // It goes on when this future is dropped, so that the folder is given back.
        let assigning = tokio::task::spawn_blocking(move || {
            let conversation = folder.assign(&id).ok().flatten();
            if !folder.is_assigned() {
                // The conversation exists, and the standby waits for another. No folder is dropped under the lock.
                let unused = inner.pool.lock().return_folder(sandbox, folder);
                drop(unused);
                return None;
            }
            let standby = inner.pool.lock().take_best(|standby| standby.id() == sandbox, |_| ());
            standby.zip(conversation?.mark().ok())
        });
        assigning.await.ok()?
    }

    /// Stores which languages are in use, for the next start.
    fn remember(self: &Arc<Self>) {
        let languages: Vec<String> = self.pool.lock().languages.keys().map(Language::to_string).collect();
        let store = Arc::clone(&self.parts.store);
        let storing = tokio::task::spawn_blocking(move || {
            if let Err(error) = store.remember_languages(&languages) {
                debug!(%error, "the languages in use were not stored");
            }
        });
        self.tasks.spawn(storing);
    }

    fn lease(&self, runner: &Runner, data: DataFolder, mounts: ExtraMounts) -> (Arc<Lease>, SandboxSpec) {
        let limits = self.parts.sandboxes.limits_of(runner);
        let session = if runner.kernel.is_some() { self.options.session_age_max } else { Duration::ZERO };
        // Whose program it will be, and so whether that may wait for a person, is not known yet.
        let waits = if runner.channels { WAITS_MAX } else { Duration::ZERO };
        let life = self.options.age_max + (limits.wall() + waits).max(session);
        self.parts.sandboxes.lease(runner, (data, mounts), limits, life)
    }
}
