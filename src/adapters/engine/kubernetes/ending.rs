//! How a sandbox ended: from the state of its container, which the kubelet reports before the pod's phase. Spawns
//! nothing.
//!
//! A broken watch says nothing about the pod, which runs on while the API server is away; so it is only opened again.
//! What is lost with a broken attachment is reported by the output.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use tracing::warn;

use super::{
    state::{self, End, State},
    watch::{PodState, PodWatch},
};
use crate::{
    domain::id::SandboxId,
    ports::engine::{EngineError, Exit},
};

/// The status of a process that was killed.
const KILLED: i32 = 137;

/// Which sandboxes this process ended itself. A pod that was deleted leaves no state behind.
#[derive(Debug, Default)]
pub(super) struct OwnEndings(Mutex<HashMap<SandboxId, Weak<Life>>>);

#[derive(Debug, Default)]
pub(super) struct Life(AtomicBool);

impl Life {
    pub(super) fn is_ended_by_us(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl OwnEndings {
    pub(super) fn begin(&self, id: SandboxId) -> Arc<Life> {
        let life = Arc::new(Life::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of dropped sandboxes go when the map would grow.
        if all.len() == all.capacity() {
            all.retain(|_, life| life.strong_count() > 0);
        }
        all.insert(id, Arc::downgrade(&life));
        life
    }

    /// Called before the pod is deleted.
    pub(super) fn ending(&self, id: SandboxId) {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(life) = all.get(&id).and_then(Weak::upgrade) {
            life.0.store(true, Ordering::Release);
        }
    }
}

/// What is needed to follow a started sandbox to its end.
pub(super) struct Ending {
    pub id: SandboxId,
    pub watch: PodWatch,
    pub life: Arc<Life>,
}

impl Ending {
    pub(super) async fn ended(mut self) -> Result<Exit, EngineError> {
        loop {
            let (pod, is_gone) = match self.watch.next().await {
                Ok(PodState::Pod(pod)) => (Some(pod), false),
                Ok(PodState::Gone(pod)) => (pod, true),
                Err(error) => {
                    warn!(sandbox = %self.id, %error, "the end of a sandbox cannot be observed");
                    return Err(EngineError::Lost { id: self.id });
                }
            };
            match pod.as_deref().map(state::read) {
                Some(State::Ended(End { status, oom_killed, .. })) => return Ok(exit(status, oom_killed)),
                Some(State::Evicted(why)) if !self.life.is_ended_by_us() => {
                    warn!(sandbox = %self.id, why, "a sandbox was taken away");
                    return Err(EngineError::Lost { id: self.id });
                }
                _ if is_gone && self.life.is_ended_by_us() => return Ok(exit(KILLED, false)),
                _ if is_gone => return Err(EngineError::Lost { id: self.id }),
                _ => {}
            }
        }
    }
}

fn exit(status: i32, oom_killed: bool) -> Exit {
    Exit { status, oom_killed, process_limit_hit: false, broke_off: false }
}
