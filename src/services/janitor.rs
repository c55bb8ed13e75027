//! Destroys labelled sandboxes that no lease covers.
//!
//! ```text
//! Janitor::start ── receive: one task for each released id, which destroys the sandbox and retries until it is done;
//!                │           at most four calls of the engine at once
//!                └─ rounds: every 30 s lists the engine's sandboxes and releases those without a lease
//! Janitor::drain ends both, when every released sandbox is gone or the time is up.
//! ```
//!
//! The labels are the truth: after a crash the first round destroys what the dead process left. A sandbox of another
//! server is left alone unless its server must be gone: it is long past the deadline on its label by a clock that was
//! right for a while, or this janitor has seen for longer than any start takes that it does not run. The janitor knows
//! nothing of programs, conversations or files.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use super::tasks::Tasks;
use crate::{
    domain::{Clock, InstanceId, SandboxId, StepWatch, clock::every, text::chain},
    ports::engine::{Engine, EngineError, is_abandoned},
};

/// Calls of `destroy` at once: they compete with the runs for the engine.
const DESTROY_AT_ONCE: usize = 4;
/// Longer than a sandbox may take from its creation until it runs, and than a living server takes to remove one.
const START_MAX: Duration = Duration::from_mins(1);
/// Sandboxes of other servers that one round releases.
const ABANDONED_MAX: usize = 16;
const ROUND: Duration = Duration::from_secs(30);
/// How long a released sandbox is left alone. Most exit by themselves in that time, which saves the engine the process
/// that kills them, and the answer to the client is sent before that work begins.
const EXIT_GRACE: Duration = Duration::from_millis(100);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// The service. A clone is the same janitor.
#[derive(Clone)]
pub struct Janitor(Arc<Inner>);

struct Inner {
    engine: Arc<dyn Engine>,
    instance: InstanceId,
    clock: Arc<dyn Clock>,
    steps: StepWatch,
    registry: Mutex<Registry>,
    /// Taken by the receiver when it starts.
    released: Mutex<Option<mpsc::UnboundedReceiver<SandboxId>>>,
    /// How many released sandboxes are left.
    unwanted: watch::Sender<usize>,
    destroy_permits: Semaphore,
    tasks: Tasks,
}

struct Registry {
    leased: HashSet<SandboxId>,
    released: HashSet<SandboxId>,
    /// Sandboxes of other servers that did not run at the last round, and since when that is known.
    idle: HashMap<SandboxId, Instant>,
    to_destroy: mpsc::UnboundedSender<SandboxId>,
}

/// The once-only right to a sandbox. Dropping it releases the sandbox to the janitor without blocking.
pub struct Lease {
    id: SandboxId,
    janitor: Arc<Inner>,
}

impl Lease {
    pub fn id(&self) -> SandboxId {
        self.id
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Under one lock, so that no observer sees the sandbox neither leased nor released.
        let mut registry = self.janitor.registry.lock();
        registry.leased.remove(&self.id);
        self.janitor.release(&mut registry, self.id);
    }
}

impl Inner {
    fn release(&self, registry: &mut Registry, id: SandboxId) {
        if registry.released.insert(id) {
            self.unwanted.send_modify(|count| *count += 1);
            if registry.to_destroy.send(id).is_err() {
                debug!(sandbox = %id, "released after the end: the next start finds it by its label");
            }
        }
    }

    /// Holds a permit only during each call, so that sandboxes that cannot be removed do not keep others waiting.
    async fn destroy(&self, id: SandboxId) {
        let mut pause = EXIT_GRACE;
        let mut next_pause = RETRY_MIN;
        while self.tasks.stop.run_until_cancelled(sleep(pause)).await.is_some() {
            let Some(Ok(permit)) = self.tasks.stop.run_until_cancelled(self.destroy_permits.acquire()).await else {
                break;
            };
            let result = self.engine.destroy(id).await;
            drop(permit);
            match result {
                Ok(()) => {
                    debug!(sandbox = %id, "destroyed");
                    break;
                }
                Err(error) => warn!(sandbox = %id, error = %chain(&error), "a sandbox was not destroyed; retrying"),
            }
            pause = next_pause;
            next_pause = (next_pause * 2).min(RETRY_MAX);
        }
        self.registry.lock().released.remove(&id);
        self.unwanted.send_modify(|count| *count -= 1);
    }
}

impl Janitor {
    /// A janitor that destroys nothing before [`Self::start`].
    pub fn new(engine: Arc<dyn Engine>, instance: InstanceId, clock: Arc<dyn Clock>) -> Self {
        let (to_destroy, released) = mpsc::unbounded_channel();
        let registry = Registry { leased: HashSet::new(), released: HashSet::new(), idle: HashMap::new(), to_destroy };
        Self(Arc::new(Inner {
            engine,
            instance,
            clock,
            steps: StepWatch::default(),
            registry: Mutex::new(registry),
            released: Mutex::new(Some(released)),
            unwanted: watch::Sender::new(0),
            destroy_permits: Semaphore::new(DESTROY_AT_ONCE),
            tasks: Tasks::default(),
        }))
    }

    /// Starts to destroy what is released, and the rounds. A second call does nothing.
    pub fn start(&self) {
        let Some(released) = self.0.released.lock().take() else { return };
        self.0.tasks.spawn(receive(Arc::clone(&self.0), released));
        self.0.tasks.spawn(rounds(self.clone()));
    }

    /// A lease for a sandbox that is about to be started: taken before it exists, so that no round destroys it.
    pub fn lease(&self, id: SandboxId) -> Lease {
        self.0.registry.lock().leased.insert(id);
        Lease { id, janitor: Arc::clone(&self.0) }
    }

    /// One round: releases the sandboxes of this instance that have no lease, and what other servers left behind.
    /// Returns how many.
    ///
    /// # Errors
    /// When the engine does not list.
    pub async fn reconcile(&self) -> Result<usize, EngineError> {
        let listed = self.0.engine.list().await?;
        // After a step of the clock, and by one that is far ahead when the machine starts, no label shows whether a
        // sandbox is past its deadline.
        let settled_unix_s = self.0.steps.settled_ms(self.0.clock.as_ref()).map_or(i64::MIN, |now| now / 1000);
        let mut registry = self.0.registry.lock();
        let (now, idle_before) = (Instant::now(), mem::take(&mut registry.idle));
        let (mut count, mut abandoned) = (0, 0);
        for one in &listed {
            let ours = one.instance == self.0.instance;
            let mut is_left = is_abandoned(one.deadline_unix_s, settled_unix_s);
            if !ours && !one.running {
                let since = idle_before.get(&one.id).copied().unwrap_or(now);
                registry.idle.insert(one.id, since);
                is_left |= now - since > START_MAX;
            }
            let is_known = registry.leased.contains(&one.id) || registry.released.contains(&one.id);
            if !is_known && (ours || (is_left && abandoned < ABANDONED_MAX)) {
                self.0.release(&mut registry, one.id);
                count += 1;
                abandoned += usize::from(!ours);
            }
        }
        if count > 0 {
            info!(count, "sandboxes without a lease are destroyed");
        }
        Ok(count)
    }

    /// Returns when a sandbox is neither leased nor waits to be destroyed.
    pub async fn destroyed(&self, id: SandboxId) {
        let mut changes = self.0.unwanted.subscribe();
        let is_held = || {
            let registry = self.0.registry.lock();
            registry.leased.contains(&id) || registry.released.contains(&id)
        };
        // The sender lives in `self`, so a change always comes.
        while is_held() && changes.changed().await.is_ok() {}
    }

    pub fn leased(&self) -> usize {
        self.0.registry.lock().leased.len()
    }

    /// Released sandboxes that are not gone yet.
    pub fn unwanted(&self) -> usize {
        *self.0.unwanted.borrow()
    }

    /// Returns when every released sandbox is gone.
    pub async fn idle(&self) {
        let mut unwanted = self.0.unwanted.subscribe();
        // The sender lives in `self`, so this cannot fail.
        drop(unwanted.wait_for(|count| *count == 0).await);
    }

    /// Waits at most `wait_max` until every released sandbox is gone, then ends the janitor's tasks.
    pub async fn drain(&self, wait_max: Duration) {
        if timeout(wait_max, self.idle()).await.is_err() {
            warn!("sandboxes are left: the next start destroys them");
        }
        self.0.tasks.end().await;
    }
}

async fn receive(inner: Arc<Inner>, mut released: mpsc::UnboundedReceiver<SandboxId>) {
    while let Some(Some(id)) = inner.tasks.stop.run_until_cancelled(released.recv()).await {
        let task = Arc::clone(&inner);
        inner.tasks.spawn(async move { task.destroy(id).await });
    }
}

async fn rounds(janitor: Janitor) {
    let mut ticks = every(ROUND);
    ticks.tick().await;
    while janitor.0.tasks.stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = janitor.reconcile().await {
            warn!(error = %chain(&error), "the engine did not list its sandboxes");
        }
    }
}
