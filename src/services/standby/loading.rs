//! How a standby loads: with more CPU than a program gets, where the engine can lower that afterwards. It gets the CPU
//! limit of a program when it is warm, and in any case before a run takes it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tracing::{debug, warn};

use super::Inner;
use crate::{
    domain::text::chain,
    ports::engine::{EngineError, SandboxSpec},
};

/// The CPU of a standby that loads, in thousandths of a core, where a program gets less. Loading is one thread's work.
const LOADING_CPU_MILLIS: u32 = 1000;
/// How long a standby may load with that much CPU; after that it goes on with the CPU of a program.
pub(super) const LOADING_TIME_MAX: Duration = Duration::from_secs(30);

/// Whether the engine lowers the CPU of a sandbox, as far as it was tried.
#[derive(Debug, Default)]
pub(super) struct CpuUpdates {
    work: AtomicBool,
    refused: AtomicBool,
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

    /// Gives a standby the CPU of a program. When this is false it must not be used: its limit is unknown.
    pub(super) async fn limit_cpu(&self, spec: &SandboxSpec) -> bool {
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
}
