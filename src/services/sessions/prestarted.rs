//! Kernels that are started ahead of need. Where the interpreter of a standby becomes the kernel (Python), a session
//! begins at once; other kernels take a few hundred milliseconds to start. For each such language one kernel waits, in
//! an unassigned folder that becomes that of the next new conversation.
//!
//! It is only an optimisation: a session with other needs, such as variables or network, starts a new kernel. The
//! memory of a waiting kernel counts as that of a session, and it is ended when any session needs that memory.

#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::sleep;
use tokio_util::sync::DropGuard;
use tracing::{debug, info};

use super::{Inner, Kernel, Runner, Setup};
use crate::{
    domain::{
        clock::{Clock, Moment},
        environment::Environment,
        id::Language,
        owner::ConversationKey,
    },
    ports::{engine::ImageId, storage::UnassignedFolder},
    services::janitor::Lease,
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
    memory_bytes: u64,
    /// Its sandbox lives as long as a session may, and this longer.
    since: Moment,
    /// Ends the kernel, unless it is taken.
    end: DropGuard,
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
    /// What those that wait may use, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.0.lock().values().filter_map(|slot| slot.waiting.as_ref()).map(|waiting| waiting.memory_bytes).sum()
    }

    pub(super) fn waiting(&self) -> Vec<(Language, &'static str, usize)> {
        let slots = self.0.lock();
        let waiting = slots.iter().filter(|(_, slot)| slot.waiting.is_some());
        waiting.map(|(language, _)| (language.clone(), "kernel", 1)).collect()
    }

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

impl Inner {
    /// A kernel that waits, whose folder is now that of a new conversation.
    pub(super) async fn take_ahead(
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
            let Waiting { kernel, lease, end, .. } = waiting;
            end.disarm();
            return Some((kernel, lease));
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
            if slot.is_starting || slot.waiting.is_some() {
                return;
            }
            slot.is_starting = true;
        }
        let (inner, runner) = (Arc::clone(self), runner.clone());
        self.tasks.spawn(async move {
            let waiting = inner.stop.run_until_cancelled(inner.prepare(&runner)).await.flatten();
            let mut slots = inner.prestarted.0.lock();
            let Some(slot) = slots.get_mut(&runner.language) else { return };
            slot.is_starting = false;
            let unwanted =
                if inner.stop.is_cancelled() { waiting } else { std::mem::replace(&mut slot.waiting, waiting) };
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
        let room = self.options.memory_bytes_max.saturating_sub(self.prestarted.memory_bytes());
        // It takes no memory that a session would have to be ended for.
        let _reserved = self.registry.reserve_ahead(limits.memory_bytes, room)?;
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
        let (image, end) = (runner.image.clone(), kernel.close.clone().drop_guard());
        let (memory_bytes, since) = (limits.memory_bytes, Moment::now(self.parts.sandboxes.clock.as_ref()));
        let waiting = Waiting { kernel, lease, folder, image, memory_bytes, since, end };
        waiting.kernel.ready().await.ok()?;
        info!(language = %runner.language, "a kernel waits for the next session");
        Some(waiting)
    }

    /// Ends those that are no longer needed.
    pub(super) fn end_ahead(&self) {
        let images: Vec<_> = self.parts.catalog.all().iter().map(|runner| runner.image.clone()).collect();
        let clock = self.parts.sandboxes.clock.as_ref();
        let unwanted = |one: &Waiting| one.is_old(clock) || one.kernel.is_ended() || !images.contains(&one.image);
        self.prestarted.end(|slot| slot.waiting.as_ref().is_some_and(unwanted));
    }
}
