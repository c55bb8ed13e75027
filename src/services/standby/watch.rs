//! One task for each standby: starts it, records its reports, passes it to the run that takes it, or removes it when it
//! dies.
//!
//! A standby loads with more CPU than a program gets, where the engine can lower that afterwards. It gets the CPU limit
//! of a program when it is warm, and in any case before a run takes it.

use std::{
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use tokio::{
    sync::oneshot::{self, error::TryRecvError},
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use super::{
    Inner,
    pool::{Handover, Phase},
};
use crate::{
    domain::{SandboxId, StreamKind, text::chain},
    ports::engine::{EngineError, Output, SandboxSpec},
    services::{
        frames::{ReadyReport, RunnerMessage},
        janitor::Lease,
        sandbox::Started,
    },
};

/// The CPU of a standby that loads, in thousandths of a core, where a program gets less. Loading is one thread's work.
const LOADING_CPU_MILLIS: u32 = 1000;
/// How long a standby may load with that much CPU; after that it goes on with the CPU of a program.
const LOADING_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a program that needs what is being loaded waits for it. Loading it again in another interpreter takes
/// longer.
const WARM_WAIT_MAX: Duration = Duration::from_secs(1);

/// Whether the engine lowers the CPU of a sandbox, as far as it was tried.
#[derive(Debug, Default)]
pub(super) struct CpuUpdates {
    work: AtomicBool,
    refused: AtomicBool,
}

/// Runs until the standby is taken, retired or dead.
pub(super) async fn watch(
    inner: Arc<Inner>,
    lease: Arc<Lease>,
    spec: SandboxSpec,
    mut handover: oneshot::Receiver<Handover>,
) {
    let id = spec.id;
    let mut started = match inner.parts.sandboxes.start(&spec, lease).await {
        Ok(started) => started,
        Err(error) => {
            // One that was given up meanwhile has no folder any more.
            if matches!(handover.try_recv(), Err(TryRecvError::Closed)) {
                debug!(sandbox = %id, error = %chain(&error), "a standby that was given up was not started");
            } else {
                warn!(sandbox = %id, error = %chain(&error), "a standby was not started");
            }
            return inner.forget(id);
        }
    };
    // A plain runner does not report its phase.
    inner.reached(id, if started.decoder.is_none() { Phase::Warm } else { Phase::Ready }, None);
    let mut is_fast = spec.loading_cpu_millis.is_some();
    let fast_until = Instant::now() + LOADING_TIME_MAX;
    // Whether no program has to wait for more to be loaded.
    let mut is_warm = started.decoder.is_none();
    // The caller that waits until it is warm, and how long.
    let (mut waiting, mut until) = (None, fast_until);
    loop {
        tokio::select! {
            biased;
            requested = &mut handover, if waiting.is_none() => {
                let Ok(Handover { reply, when_warm }) = requested else { return };
                if is_warm || !when_warm {
                    return inner.hand_over(&spec, is_fast, started, reply).await;
                }
                (waiting, until) = (Some(reply), Instant::now() + WARM_WAIT_MAX);
            }
            () = sleep_until(until), if waiting.is_some() => is_warm = true,
            // Nothing takes a standby that was begun while the service stopped.
            () = inner.tasks.stop.cancelled() => return,
            () = sleep_until(fast_until), if is_fast => {
                if !inner.limit_cpu(&spec, &mut is_fast).await {
                    return inner.forget(id);
                }
            }
            chunk = started.sandbox.output.next() => {
                let reports = match chunk {
                    Some(Ok(Output { stream: StreamKind::Stdout, bytes })) => read_reports(&mut started, &bytes),
                    _ => None,
                };
                let Some(reports) = reports else {
                    debug!(sandbox = %id, "a standby violated the protocol or died");
                    return inner.forget(id);
                };
                for (phase, memory_bytes) in reports {
                    if phase == Phase::Warm && !inner.limit_cpu(&spec, &mut is_fast).await {
                        return inner.forget(id);
                    }
                    is_warm |= phase == Phase::Warm;
                    inner.reached(id, phase, memory_bytes);
                }
            }
            _ = &mut started.sandbox.exit => {
                debug!(sandbox = %id, "a standby died");
                return inner.forget(id);
            }
        }
        if is_warm && let Some(reply) = waiting.take() {
            return inner.hand_over(&spec, is_fast, started, reply).await;
        }
    }
}

/// The phases that a standby reports. `None` for any other message: it runs no program yet.
fn read_reports(started: &mut Started, bytes: &[u8]) -> Option<Vec<(Phase, Option<u64>)>> {
    let decoder = started.decoder.as_mut()?;
    decoder.push(bytes);
    let mut reports = Vec::new();
    while let Some(message) = decoder.next().ok()? {
        let RunnerMessage::Ready(ReadyReport { warm, memory_bytes }) = message else { return None };
        reports.push((if warm { Phase::Warm } else { Phase::Ready }, memory_bytes));
    }
    Some(reports)
}

impl Inner {
    /// Whether a standby of this specification loads with more CPU, which the specification then says. A plain runner
    /// does not report when it has loaded, so it has its limit from the start.
    pub(super) fn load_fast(&self, spec: &mut SandboxSpec) -> bool {
        let can = spec.own_init
            && spec.limits.cpu_millis < LOADING_CPU_MILLIS
            && self.parts.sandboxes.engine.can_limit_cpu()
            && !self.cpu_updates.refused.load(Ordering::Relaxed);
        if can {
            spec.loading_cpu_millis = Some(LOADING_CPU_MILLIS);
        }
        can
    }

    /// Gives a standby the CPU of a program, unless it has that already. When this is false it must not be used: its
    /// limit is unknown.
    async fn limit_cpu(&self, spec: &SandboxSpec, is_fast: &mut bool) -> bool {
        if !mem::take(is_fast) {
            return true;
        }
        let limited = self.parts.sandboxes.engine.limit_cpu(spec.id, spec.limits.cpu_millis).await;
        match &limited {
            Ok(()) => {
                self.cpu_updates.work.store(true, Ordering::Relaxed);
                self.pool.lock().record_limited(spec.id);
            }
            // An engine or a runtime that has never done it cannot: later standbys have their limit from the start.
            Err(error @ EngineError::Refused { .. }) if !self.cpu_updates.work.load(Ordering::Relaxed) => {
                if !self.cpu_updates.refused.swap(true, Ordering::Relaxed) {
                    let why = chain(error);
                    warn!(error = %why, "the engine lowers no limit, so standbys load with the CPU of a program");
                }
            }
            Err(error) => debug!(sandbox = %spec.id, error = %chain(error), "a standby did not get its limit"),
        }
        limited.is_ok()
    }

    /// Gives a standby to its requester, with the CPU of a program. Without a reply the requester starts a sandbox.
    async fn hand_over(
        &self,
        spec: &SandboxSpec,
        mut is_fast: bool,
        started: Started,
        reply: oneshot::Sender<Started>,
    ) {
        if self.limit_cpu(spec, &mut is_fast).await {
            // A requester that was cancelled has dropped its lease.
            drop(reply.send(started));
        }
    }

    /// Removes a dead standby; its lease is dropped with it.
    fn forget(&self, id: SandboxId) {
        // In two steps: the lease is not dropped under the lock.
        let dead = self.pool.lock().remove_dead(id);
        drop(dead);
        self.wake.notify_one();
    }

    fn reached(&self, id: SandboxId, phase: Phase, memory_bytes: Option<u64>) {
        self.pool.lock().record_phase(id, phase, memory_bytes);
        self.wake.notify_one();
    }
}
