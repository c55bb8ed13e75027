//! The kernel of a new session, its sandbox, and its memory, for which unused sessions may end; and kernels that are
//! started ahead of need.
//!
//! Where the interpreter of a standby becomes the kernel (Python), a session begins at once; other kernels take a few
//! hundred milliseconds to start. For each such language one kernel waits, in an unassigned folder that becomes that of
//! the next new conversation.
//!
//! It is only an optimisation: a session with other needs, such as variables or network, starts a new kernel. The
//! memory of a waiting kernel counts as that of a session, and it is ended when any session needs that memory.

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;
use tracing::{debug, error, info, warn};

use super::{
    Inner, Kernel, Runner, SessionEnd, Sessions, Setup, kernel,
    registry::{Reserved, SessionCapacity},
};
use crate::{
    domain::{Clock, Code, ConversationKey, Environment, Failure, Language, Limits, Moment, Principal, text::chain},
    ports::{
        engine::ImageId,
        observer::SessionsLoad,
        storage::{StorageError, UnassignedFolder},
    },
    services::{janitor::Lease, network::Access, sandbox::Started, standby::ClaimedStandby},
};

/// How long one waits for a session. The next session that is opened without one starts another.
pub(super) const WAITS_MAX: Duration = Duration::from_mins(10);
/// The first cell of the session that was just opened comes before the next kernel.
const PAUSE: Duration = Duration::from_secs(1);

/// A kernel that is ready.
struct Waiting {
    kernel: Kernel,
    lease: Arc<Lease>,
    folder: Box<dyn UnassignedFolder>,
    image: ImageId,
    /// Until it is a session's, or is ended for one.
    _reserved: Reserved,
    /// Its sandbox lives as long as a session may, and this longer.
    since: Moment,
}

impl Waiting {
    fn is_old(&self, clock: &dyn Clock) -> bool {
        self.since.elapsed(clock) > WAITS_MAX
    }
}

/// One language.
#[derive(Default)]
struct Slot {
    is_starting: bool,
    waiting: Option<Waiting>,
}

/// The kernels that wait, by language.
#[derive(Default)]
pub(super) struct PrestartedKernels(Mutex<HashMap<Language, Slot>>);

impl PrestartedKernels {
    fn take(&self, language: &Language) -> Option<Waiting> {
        self.0.lock().get_mut(language)?.waiting.take()
    }

    /// Lets one wait for another conversation, unless its folder has just become a conversation's or it has died.
    fn put_back(&self, language: &Language, waiting: Waiting) {
        let mut slots = self.0.lock();
        if !waiting.folder.is_assigned()
            && !waiting.kernel.is_ended()
            && let Some(slot) = slots.get_mut(language).filter(|slot| slot.waiting.is_none())
        {
            slot.waiting = Some(waiting);
        }
    }

    /// Ends those that match; whether there was one. No kernel or lease is dropped under the lock.
    fn end(&self, matches: impl Fn(&Slot) -> bool) -> bool {
        let ended: Vec<_> =
            self.0.lock().values_mut().filter(|slot| matches(slot)).filter_map(|slot| slot.waiting.take()).collect();
        !ended.is_empty()
    }

    /// Ends all of them.
    pub(super) fn end_all(&self) -> bool {
        self.end(|_| true)
    }
}

impl Sessions {
    /// Kernels that wait for a session, in the form of [`Standbys::by_phase`].
    pub fn waiting(&self) -> Vec<(Language, &'static str, usize)> {
        let slots = self.0.prestarted.0.lock();
        let waiting = slots.iter().filter(|(_, slot)| slot.waiting.is_some());
        waiting.map(|(language, _)| (language.clone(), "kernel", 1)).collect()
    }

    /// The sessions that are open.
    pub fn load(&self) -> SessionsLoad {
        let mut of_owners = HashMap::<_, u64>::new();
        let open = self.0.registry.all();
        for session in &open {
            *of_owners.entry(&session.conversation.owner).or_default() += session.memory_bytes_max;
        }
        SessionsLoad {
            open: open.len(),
            memory_bytes: of_owners.values().sum(),
            owner_memory_bytes_max: of_owners.values().copied().max().unwrap_or(0),
        }
    }
}

impl Inner {
    /// A kernel for a session that is ready: one that waits, or a new one.
    pub(super) async fn kernel(
        self: &Arc<Self>,
        conversation: &ConversationKey,
        runner: &Runner,
        limits: &Limits,
        setup: &Setup,
        access: Option<Access>,
        reserved: &Arc<Reserved>,
    ) -> Result<(Kernel, Arc<Lease>), Failure> {
        if access.is_none()
            && let Some(waiting) = self.take_prestarted(conversation, runner, setup).await
        {
            self.opened(runner);
            return Ok(waiting);
        }
        let (inner, of, with, limits) = (Arc::clone(self), conversation.clone(), runner.clone(), self.lasting(*limits));
        let reserved = Arc::clone(reserved);
        // It goes on when the caller has gone, and so its memory is no other session's.
        let starting = self.tasks.spawn(async move { (inner.sandbox(&of, &with, &limits).await, reserved) });
        let (started, lease) = starting.await.map_err(|_| kernel::internal())?.0?;
        let name = runner.kernel.as_deref().unwrap_or_default();
        let channels = access.map(|access| self.parts.network.open(access, conversation, &runner.language));
        let kernel = Kernel::begin(started, name, &setup.env, self.options.age_max, channels, &self.tasks);
        let ready = kernel.ready().await.inspect_err(|_| {
            warn!(image = %runner.image.0, language = %runner.language, "the kernel of a session did not start");
        })?;
        if ready.is_cold {
            self.opened(runner);
        }
        Ok((kernel, lease))
    }

    /// The limits of a sandbox that lasts as long as a session.
    pub(super) fn lasting(&self, limits: Limits) -> Limits {
        Limits { wall_ms: u64::try_from(self.options.age_max.as_millis()).unwrap_or(u64::MAX), ..limits }
    }

    /// A sandbox for a session: one that stands by, or a new one. To be called in a task that is never aborted: the
    /// engine could finish a start after the janitor looked for the sandbox.
    async fn sandbox(
        &self,
        conversation: &ConversationKey,
        runner: &Runner,
        limits: &Limits,
    ) -> Result<(Started, Arc<Lease>), Failure> {
        let parts = &self.parts;
        let _foreground = parts.standbys.foreground(conversation);
        if let Some(ClaimedStandby { started, lease, .. }) =
            parts.standbys.take(conversation, runner, limits, false).await
        {
            return Ok((started, lease));
        }
        let (store, key) = (Arc::clone(&parts.store), conversation.clone());
        let data = tokio::task::spawn_blocking(move || Ok::<_, StorageError>(store.create(&key)?.data()));
        let data = data.await.map_err(|_| kernel::internal())?.map_err(|error| {
            error!(error = %chain(&error), "the conversation's folder was not prepared");
            error.failure()
        })?;
        let mounts = parts.sandboxes.mounts_of(Some(&conversation.owner)).await;
        let (lease, spec) = parts.sandboxes.lease(runner, (data, mounts), *limits, self.options.age_max);
        let started = parts.sandboxes.start(&spec, Arc::clone(&lease)).await.map_err(|error| {
            error!(error = %chain(&error), image = %runner.image.0, "the sandbox of a session was not started");
            error.failure()
        })?;
        Ok((started, lease))
    }

    /// Memory for one more session of an owner. Kernels that wait make room, then sessions that run no cell: see
    /// [`share`](super::share).
    pub(super) fn reserve_memory(&self, who: &Principal, bytes: u64) -> Result<Reserved, Failure> {
        loop {
            match self.registry.capacity_for(who, bytes, self.options.memory_bytes_max) {
                SessionCapacity::Reserved(reserved) => return Ok(reserved),
                _ if self.prestarted.end_all() => {}
                SessionCapacity::Ends(ends) => ends.iter().for_each(|session| self.end(session, SessionEnd::Memory)),
                SessionCapacity::Full(full) => return Err(Failure::new(Code::SessionsFull, full.to_string())),
            }
        }
    }

    /// A kernel that waits, whose folder is now that of a new conversation.
    pub(super) async fn take_prestarted(
        &self,
        conversation: &ConversationKey,
        runner: &Runner,
        setup: &Setup,
    ) -> Option<(Kernel, Arc<Lease>)> {
        // Its mounts show public skills and folders only.
        if !setup.env.is_empty() || self.parts.sandboxes.has_own(&conversation.owner).await {
            return None;
        }
        let mut waiting = self.prestarted.take(&runner.language)?;
        let is_old = waiting.is_old(self.parts.sandboxes.clock.as_ref());
        if waiting.image != runner.image || waiting.kernel.is_ended() || is_old {
            return None;
        }
        let key = conversation.clone();
        let assigned = tokio::task::spawn_blocking(move || {
            let is_new = waiting.folder.assign(&key).is_ok_and(|folder| folder.is_some());
            (waiting, is_new)
        });
        let (waiting, is_new) = assigned.await.ok()?;
        if is_new {
            return Some((waiting.kernel, waiting.lease));
        }
        // The conversation exists.
        self.prestarted.put_back(&runner.language, waiting);
        None
    }

    /// Notes that a session was opened whose kernel did not stand by.
    pub(super) fn opened(self: &Arc<Self>, runner: &Runner) {
        if !self.parts.standbys.is_on() {
            return;
        }
        {
            let mut slots = self.prestarted.0.lock();
            let slot = slots.entry(runner.language.clone()).or_default();
            if slot.waiting.is_some() || std::mem::replace(&mut slot.is_starting, true) {
                return;
            }
        }
        let (inner, runner) = (Arc::clone(self), runner.clone());
        self.tasks.spawn(async move {
            let waiting = inner.tasks.stop.run_until_cancelled(inner.prepare(&runner)).await.flatten();
            let mut slots = inner.prestarted.0.lock();
            let Some(slot) = slots.get_mut(&runner.language) else { return };
            slot.is_starting = false;
            let unwanted =
                if inner.tasks.stop.is_cancelled() { waiting } else { std::mem::replace(&mut slot.waiting, waiting) };
            drop(slots);
            drop(unwanted);
        });
    }

    async fn prepare(&self, runner: &Runner) -> Option<Waiting> {
        sleep(PAUSE).await;
        if !self.parts.standbys.assignment_is_supported().await {
            return None;
        }
        let limits = self.parts.sandboxes.limits_of(runner);
        // It takes no memory that a session would have to be ended for.
        let reserved = self.registry.reserve_prestarted(limits.memory_bytes, self.options.memory_bytes_max)?;
        let store = Arc::clone(&self.parts.store);
        let folder = tokio::task::spawn_blocking(move || store.create_unassigned()).await.ok()?.ok()?;
        let mounts = self.parts.sandboxes.mounts_of(None).await;
        let life = self.options.age_max + WAITS_MAX;
        let (lease, spec) = self.parts.sandboxes.lease(runner, (folder.data(), mounts), self.lasting(limits), life);
        let (sandboxes, leased) = (self.parts.sandboxes.clone(), Arc::clone(&lease));
        let starting = self.tasks.spawn(async move { sandboxes.start(&spec, leased).await });
        let started = starting.await.ok()?.inspect_err(|error| debug!(%error, "no kernel was started ahead")).ok()?;
        let name = runner.kernel.as_deref().unwrap_or_default();
        let kernel = Kernel::begin(started, name, &Environment::default(), life, None, &self.tasks);
        let (image, since) = (runner.image.clone(), Moment::now(self.parts.sandboxes.clock.as_ref()));
        let waiting = Waiting { kernel, lease, folder, image, _reserved: reserved, since };
        waiting.kernel.ready().await.ok()?;
        info!(language = %runner.language, "a kernel waits for the next session");
        Some(waiting)
    }

    /// Ends those that are no longer needed.
    pub(super) fn end_old_prestarted(&self) {
        let images: Vec<_> = self.parts.catalog.all().iter().map(|runner| runner.image.clone()).collect();
        let clock = self.parts.sandboxes.clock.as_ref();
        let unwanted = |one: &Waiting| one.is_old(clock) || one.kernel.is_ended() || !images.contains(&one.image);
        self.prestarted.end(|slot| slot.waiting.as_ref().is_some_and(unwanted));
    }
}
