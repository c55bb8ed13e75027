//! One task a standby: starts it, listens until it is warm, notices when it dies, hands it over.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use super::{Inner, Stage};
use crate::{
    domain::{event::StreamKind, id::SandboxId},
    ports::{
        engine::{Output, SandboxSpec},
        runner::Protocol,
    },
    services::{
        frames::RunnerMessage,
        janitor::{Lease, chain},
        started::Started,
    },
};

/// Lives until the standby is taken, retired or dead.
pub(super) async fn watch(
    inner: Arc<Inner>,
    lease: Arc<Lease>,
    spec: SandboxSpec,
    protocol: Protocol,
    mut hand: oneshot::Receiver<oneshot::Sender<Started>>,
) {
    let id = spec.id;
    // Never broken off half way: the janitor could look for the sandbox before it is there.
    let started = inner.parts.engine.start(&spec).await;
    drop(lease);
    let sandbox = match started {
        Ok(sandbox) => sandbox,
        Err(error) => {
            warn!(sandbox = %id, error = %chain(&error), "a standby was not started");
            return inner.forget(id);
        }
    };
    let mut started = Started::new(sandbox, protocol);
    // A plain runner does not say how far it is: it has nothing more to load that we know of.
    inner.reached(id, if protocol == Protocol::Plain { Stage::Warm } else { Stage::Ready }, None);
    loop {
        tokio::select! {
            biased;
            asked = &mut hand => {
                if let Ok(give) = asked {
                    // Whoever asked may be gone; its lease is dropped with it.
                    drop(give.send(started));
                }
                return;
            }
            // One that was begun while the service stopped would wait for ever to be taken.
            () = inner.stop.cancelled() => return,
            chunk = started.sandbox.output.next() => {
                let said = match chunk {
                    Some(Ok(Output { stream: StreamKind::Stdout, bytes })) => listen(&mut started, &bytes),
                    _ => None,
                };
                let Some(ready) = said else {
                    debug!(sandbox = %id, "a standby broke its contract or died");
                    return inner.forget(id);
                };
                for (warm, memory_bytes) in ready {
                    inner.reached(id, if warm { Stage::Warm } else { Stage::Ready }, memory_bytes);
                }
            }
            _ = &mut started.sandbox.exit => {
                debug!(sandbox = %id, "a standby died");
                return inner.forget(id);
            }
        }
    }
}

/// What a standby says of itself. `None` when it says anything else: it has no program that could speak.
fn listen(started: &mut Started, bytes: &[u8]) -> Option<Vec<(bool, Option<u64>)>> {
    let decoder = started.decoder.as_mut()?;
    decoder.push(bytes);
    let mut ready = Vec::new();
    while let Some(said) = decoder.next().ok()? {
        match said {
            RunnerMessage::Ready { warm, memory_bytes } => ready.push((warm, memory_bytes)),
            _ => return None,
        }
    }
    Some(ready)
}

impl Inner {
    /// Takes a dead standby out of the list; its lease is dropped with it. The next of its image waits for a while.
    fn forget(&self, id: SandboxId) {
        let mut state = self.state();
        let found = state.entries.iter().position(|entry| entry.lease.id() == id);
        let dead = found.map(|at| state.entries.swap_remove(at));
        if let Some(dead) = &dead {
            state.rest(dead.image.clone());
        }
        drop(state);
        drop(dead);
        self.wake.notify_one();
    }

    fn reached(&self, id: SandboxId, reached: Stage, memory_bytes: Option<u64>) {
        let mut state = self.state();
        let Some(entry) = state.entries.iter_mut().find(|entry| entry.lease.id() == id) else { return };
        entry.stage = reached;
        if let Some(bytes) = memory_bytes {
            entry.memory_bytes = Some(bytes);
            let image = entry.image.clone();
            let most = state.memory.entry(image).or_default();
            *most = bytes.max(*most);
        }
        drop(state);
        self.wake.notify_one();
    }
}
