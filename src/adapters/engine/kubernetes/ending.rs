//! How a sandbox ended: from the state of its container, which the kubelet reports before the pod's phase. Spawns
//! nothing.
//!
//! A broken watch says nothing about the pod, which runs on while the API server is away; so it is only opened again.
//! What is lost with a broken attachment is reported by the output.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::{
    KILL_GRACE_S, KubernetesEngine, call, pod,
    state::{self, ContainerExit, State},
    watch::{PodState, PodWatch},
};
use crate::{
    domain::{
        clock::{Clock as _, SystemClock},
        id::SandboxId,
    },
    ports::engine::{EngineError, Exit},
};

/// The status of a process that was killed.
const KILLED: i32 = 137;
/// How long a kubelet that answers takes to report the end of a container that was killed: 5 s with Kubernetes 1.20.
pub(super) const REPORT_MAX: Duration = Duration::from_secs(8);

/// Which sandboxes this process ended itself. A pod that was deleted leaves no state behind.
#[derive(Debug, Default)]
pub(super) struct OwnEndings {
    lives: Mutex<HashMap<SandboxId, Weak<Life>>>,
    /// When those were killed that are not destroyed yet.
    killed: Mutex<HashMap<SandboxId, Instant>>,
}

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
        let mut all = self.lives.lock();
        // Those of dropped sandboxes go when the map would grow.
        if all.len() == all.capacity() {
            all.retain(|_, life| life.strong_count() > 0);
        }
        all.insert(id, Arc::downgrade(&life));
        life
    }

    /// Called before the pod is deleted.
    pub(super) fn ending(&self, id: SandboxId) {
        let all = self.lives.lock();
        if let Some(life) = all.get(&id).and_then(Weak::upgrade) {
            life.0.store(true, Ordering::Release);
        }
    }

    /// Called before a sandbox is killed.
    pub(super) fn killing(&self, id: SandboxId) {
        self.killed.lock().entry(id).or_insert_with(Instant::now);
    }

    pub(super) fn killed_at(&self, id: SandboxId) -> Option<Instant> {
        self.killed.lock().get(&id).copied()
    }

    /// Called when a sandbox is destroyed.
    pub(super) fn forget(&self, id: SandboxId) {
        self.killed.lock().remove(&id);
    }
}

/// Follows a started sandbox to its end.
pub(super) struct ExitWatch {
    pub id: SandboxId,
    pub watch: PodWatch,
    pub life: Arc<Life>,
}

impl ExitWatch {
    pub(super) async fn exit(mut self) -> Result<Exit, EngineError> {
        loop {
            let (pod, is_gone) = match self.watch.next().await {
                Ok(PodState::Pod(pod)) => (Some(pod), false),
                Ok(PodState::Gone(pod)) => (pod, true),
                Err(error) => {
                    warn!(sandbox = %self.id, %error, "the end of a sandbox cannot be observed");
                    return Err(EngineError::Lost { id: self.id });
                }
            };
            let by_us = self.life.is_ended_by_us();
            // By the cluster or an operator: how the container ends then is not how the program ended.
            let is_deleted = is_gone || pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
            let state = pod.as_deref().map(state::read);
            let is_over = is_gone || matches!(state, Some(State::Ended(_)));
            let why = match state {
                Some(State::Ended(ContainerExit { status, oom_killed, unknown: None })) if by_us || !is_deleted => {
                    return Ok(exit(status, oom_killed));
                }
                _ if by_us && is_over => return Ok(exit(KILLED, false)),
                _ if by_us => continue,
                Some(State::Ended(ContainerExit { unknown: Some(why), .. }) | State::Evicted(why)) => why,
                _ if is_deleted => "its pod was deleted".to_owned(),
                _ => continue,
            };
            warn!(sandbox = %self.id, why, "a sandbox was taken away");
            return Err(EngineError::Lost { id: self.id });
        }
    }
}

/// Whether a killed sandbox has left a pod. Until this is known its conversation is not used again: a node that is cut
/// off goes on with its programs, and deleting their pods at once would only hide them. Waits for the kubelet only soon
/// after the kill, so that many such pods do not hold up the deletion of others.
///
/// # Errors
/// While its program may go on: neither has the kubelet reported the end of the container, nor is the time past after
/// which process 1 and the kubelet end it without the server.
pub(super) async fn is_left(engine: &KubernetesEngine, id: SandboxId, killed: Instant) -> Result<bool, EngineError> {
    let pod = match call::within("read", engine.options.time.answer, engine.pods().get(&id.to_string())).await {
        Err(error) if call::status(&error) == Some(404) => return Ok(false),
        answer => answer?,
    };
    let late_s = i64::try_from(engine.options.time.start.as_secs()).unwrap_or_default() * 2;
    let is_past =
        pod::listed(&pod).is_some_and(|one| one.deadline_unix_s.saturating_add(late_s) < SystemClock.unix_s());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let Some(node) = node.filter(|_| !is_past && !is_over(&pod)) else { return Ok(true) };
    if pod.metadata.deletion_timestamp.is_none() {
        engine.delete("kill", id, KILL_GRACE_S).await?;
    }
    let version = pod.metadata.resource_version.clone();
    let mut watch = engine.watch(id, version);
    while let Ok(Ok(state)) = timeout_at(killed + REPORT_MAX, watch.next()).await {
        match state {
            PodState::Gone(_) => return Ok(false),
            PodState::Pod(pod) if is_over(&pod) => return Ok(true),
            PodState::Pod(_) => {}
        }
    }
    let why = format!(
        "the node {node} has not reported the end of its container, so its program may go on: make the node ready, or \
         delete the Node when its machine is off"
    );
    Err(EngineError::refused("remove", why))
}

/// Whether the kubelet, or the cluster in its place, has reported the end of the container.
fn is_over(pod: &Pod) -> bool {
    matches!(state::read(pod), State::Ended(_) | State::Evicted(_))
}

fn exit(status: i32, oom_killed: bool) -> Exit {
    Exit { status, oom_killed, process_limit_hit: false, broke_off: false }
}
