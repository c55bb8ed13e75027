//! Holds the world against the leases: whatever carries our label and is leased by nobody is destroyed.
//!
//! ```text
//! Janitor::start ── sweep: receives posted ids, one `destroy` task each (bounded), retried until done
//!                └─ rounds: every 30 s lists the engine's sandboxes and posts the unwanted ones
//! Janitor::drain ends both, after the posted ids are gone or the time is up.
//! ```
//!
//! The labels are the truth: after a crash the first round destroys what the dead process left, from the labels alone. A
//! sandbox of another server is none of ours, unless it is long past the deadline on its label: then its server is gone.
//! The janitor knows nothing of programs, conversations or files.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, info, warn};

use crate::{
    domain::{
        clock::Clock,
        id::{InstanceId, SandboxId},
    },
    ports::engine::{Engine, EngineError, Listed},
};

/// Destructions at once: they take the engine's time from the runs.
const DESTROY_AT_ONCE: usize = 4;
/// How long past its deadline a sandbox of another server is taken to be abandoned, in seconds: clocks may differ.
const ABANDONED_S: i64 = 600;
const ROUND: Duration = Duration::from_secs(30);
/// How long a sandbox is left alone once nobody holds it. One whose program has ended ends by itself meanwhile, and the engine
/// need not start a process to kill it; and the answer goes out before the work on it begins.
const LEAVES_WITHIN: Duration = Duration::from_millis(100);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(10);

/// Destroys sandboxes that nobody holds.
#[derive(Clone)]
pub struct Janitor(Arc<Inner>);

struct Inner {
    engine: Arc<dyn Engine>,
    instance: InstanceId,
    clock: Arc<dyn Clock>,
    post: mpsc::UnboundedSender<(SandboxId, Instant)>,
    /// Taken by the sweep when it starts.
    posted: Mutex<Option<mpsc::UnboundedReceiver<(SandboxId, Instant)>>>,
    known: Mutex<Known>,
    /// How many posted ids are not gone yet.
    unwanted: watch::Sender<usize>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Known {
    leased: HashSet<SandboxId>,
    posted: HashSet<SandboxId>,
}

/// The once-only right to a sandbox. Dropping it posts the id: nobody waits, nothing blocks, nothing is forgotten.
pub struct Lease {
    id: SandboxId,
    janitor: Arc<Inner>,
}

impl Lease {
    /// Whose right this is.
    pub fn id(&self) -> SandboxId {
        self.id
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In one step: a sandbox that is nobody's any more is unwanted at the same moment.
        let mut known = self.janitor.known();
        known.leased.remove(&self.id);
        self.janitor.post(&mut known, self.id);
    }
}

impl Inner {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, known: &mut Known, id: SandboxId) {
        if known.posted.insert(id) {
            self.unwanted.send_modify(|count| *count += 1);
            if self.post.send((id, Instant::now() + LEAVES_WITHIN)).is_err() {
                debug!(sandbox = %id, "posted after the end: the next start finds it by its label");
            }
        }
    }

    async fn destroy(&self, id: SandboxId) {
        let mut pause = RETRY_MIN;
        loop {
            match self.engine.destroy(id).await {
                Ok(()) => break,
                Err(error) => {
                    warn!(sandbox = %id, error = %chain(&error), "a sandbox was not destroyed; it is tried again");
                }
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                () = self.stop.cancelled() => break,
            }
        }
        let mut known = self.known();
        known.posted.remove(&id);
        self.unwanted.send_modify(|count| *count -= 1);
        drop(known);
        debug!(sandbox = %id, "destroyed");
    }
}

impl Janitor {
    /// A janitor that destroys nothing before [`Self::start`].
    pub fn new(engine: Arc<dyn Engine>, instance: InstanceId, clock: Arc<dyn Clock>) -> Self {
        let (post, posted) = mpsc::unbounded_channel();
        Self(Arc::new(Inner {
            engine,
            instance,
            clock,
            post,
            posted: Mutex::new(Some(posted)),
            known: Mutex::default(),
            unwanted: watch::Sender::new(0),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }))
    }

    /// Starts the sweep and the rounds. A second call does nothing.
    pub fn start(&self) {
        let Some(posted) = self.0.posted.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        self.0.tasks.spawn(sweep(Arc::clone(&self.0), posted));
        self.0.tasks.spawn(rounds(self.clone()));
    }

    /// A lease for a sandbox that is about to be started: taken before it exists, so that no round mistakes it.
    pub fn lease(&self, id: SandboxId) -> Lease {
        self.0.known().leased.insert(id);
        Lease { id, janitor: Arc::clone(&self.0) }
    }

    /// One round: what carries our instance's label and is leased by nobody is posted. Answers how many.
    ///
    /// # Errors
    /// When the engine does not list.
    pub async fn reconcile(&self) -> Result<usize, EngineError> {
        let listed = self.0.engine.list().await?;
        let unwanted: Vec<_> = {
            let mut known = self.0.known();
            let abandoned_s = self.0.clock.unix_s() - ABANDONED_S;
            let ours = |sandbox: &&Listed| sandbox.instance == self.0.instance || sandbox.deadline_unix_s < abandoned_s;
            let unwanted: Vec<_> = listed
                .iter()
                .filter(ours)
                .map(|sandbox| sandbox.id)
                .filter(|id| !known.leased.contains(id) && !known.posted.contains(id))
                .collect();
            for &id in &unwanted {
                self.0.post(&mut known, id);
            }
            unwanted
        };
        if !unwanted.is_empty() {
            info!(count = unwanted.len(), "sandboxes that nobody holds are destroyed");
        }
        Ok(unwanted.len())
    }

    /// Sandboxes that are leased now.
    pub fn leased(&self) -> usize {
        self.0.known().leased.len()
    }

    /// Sandboxes that nobody wants and that are not gone yet.
    pub fn unwanted(&self) -> usize {
        *self.0.unwanted.borrow()
    }

    /// Returns when every posted sandbox is gone.
    pub async fn idle(&self) {
        let mut unwanted = self.0.unwanted.subscribe();
        // The sender lives in `self`, so this cannot fail.
        drop(unwanted.wait_for(|count| *count == 0).await);
    }

    /// Waits until every posted sandbox is gone, at most so long, then ends the janitor's tasks.
    pub async fn drain(&self, wait_max: Duration) {
        if timeout(wait_max, self.idle()).await.is_err() {
            warn!("sandboxes are left: the next start destroys them");
        }
        self.0.stop.cancel();
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }
}

async fn sweep(inner: Arc<Inner>, mut posted: mpsc::UnboundedReceiver<(SandboxId, Instant)>) {
    let at_once = Arc::new(Semaphore::new(DESTROY_AT_ONCE));
    loop {
        let id = tokio::select! {
            id = posted.recv() => id,
            () = inner.stop.cancelled() => None,
        };
        let Some((id, begins)) = id else { return };
        sleep_until(begins).await;
        let Ok(turn) = Arc::clone(&at_once).acquire_owned().await else { return };
        let task = Arc::clone(&inner);
        inner.tasks.spawn(async move {
            task.destroy(id).await;
            drop(turn);
        });
    }
}

async fn rounds(janitor: Janitor) {
    let mut ticks = interval(ROUND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = janitor.0.stop.cancelled() => return,
        }
        if let Err(error) = janitor.reconcile().await {
            warn!(error = %chain(&error), "the engine did not list its sandboxes");
        }
    }
}

/// An error with its causes, for a log line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
