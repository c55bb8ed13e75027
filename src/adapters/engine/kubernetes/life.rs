//! One sandbox: create the pod, wait until its container runs, attach; and how it ended, from the state of its
//! container, which the kubelet reports before the pod's phase. What a container writes before the server is attached
//! is lost, so process 1 of a framed runner waits for [`ATTACHED`].
//!
//! Spawns nothing. When a step of the start fails or its future is dropped, the pod already has its labels and its
//! name, by which the caller destroys it.
//!
//! A broken watch says nothing about the pod, which runs on while the API server is away; so it is only opened again.
//! What is lost with a broken attachment is reported by the output.

use std::{
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    api::PostParams,
    core::{Request, response::reason, subresource::AttachParams},
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt as _,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, warn};

use super::{
    KILL_GRACE_S, KubernetesEngine, attach, call, pod,
    watch::{self, ContainerExit, PodState, PodWatch, State},
};
use crate::{
    domain::{
        SandboxId,
        clock::{Clock as _, SystemClock},
    },
    ports::{
        engine::{EngineError, Exit, Sandbox, SandboxSpec, Stdin, Volume},
        runner::ATTACHED,
    },
};

/// Attempts to create a pod while others are created: the API servers of a cluster update one `ResourceQuota`.
const CREATE_TRIES: u32 = 5;
/// Before the second attempt; before each further one as much again is added.
const CREATE_PAUSE: Duration = Duration::from_millis(50);
/// The status of a process that was killed.
const KILLED: i32 = 137;
/// How long a kubelet that answers takes to report the end of a container that was killed: 5 s with Kubernetes 1.20.
pub(super) const REPORT_MAX: Duration = Duration::from_secs(8);

pub(super) async fn start(engine: &KubernetesEngine, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
    let until = Instant::now() + engine.options.time.start;
    let version = create(engine, spec).await?;
    let life = engine.lives.of(spec.id);
    let mut watch = engine.watch(spec.id, version);
    let running = until_running(engine, spec, &mut watch, until);
    let late = |_| EngineError::Timeout { act: "start", limit: engine.options.time.start };
    timeout_at(until, running).await.map_err(late)??;
    let connection = attach_to(engine, spec).await?;
    let (mut stdin, output) = attach::streams(connection, spec.id, life.clone(), engine.options.time.lost).await;
    if spec.own_init {
        send_attached(&mut stdin, engine.options.time.answer).await?;
    }
    Ok(Sandbox { id: spec.id, stdin, output, exit: until_ended(spec.id, watch, life).boxed() })
}

/// Creates the pod and returns its version; `None` when an attempt made it whose answer was lost.
async fn create(engine: &KubernetesEngine, spec: &SandboxSpec) -> Result<Option<String>, EngineError> {
    if matches!(spec.data, Volume::HostFolder(_)) {
        let why = "a pod cannot see a folder of the server: set SANDBOX_ENGINE__CLAIM";
        return Err(EngineError::refused("create", why));
    }
    if !spec.folders.is_empty() {
        let why = "pods see no folders of a host: unset SANDBOX_MOUNTS, or mount a volume in the pod template";
        return Err(EngineError::refused("create", why));
    }
    let template = engine.templates.get(engine, &spec.image).await?;
    pod::check_claim(&template, &spec.data)
        .map_err(|why| EngineError::refused("create", format!("the pod template cannot be used: {why}")))?;
    // The kubelet counts from before it fetches the image.
    let start_s = i64::try_from(engine.options.time.start.as_secs()).unwrap_or_default();
    let life_s = spec.deadline_unix_s.saturating_sub(SystemClock.unix_s()).saturating_add(start_s);
    let body = pod::body(&engine.options, &template, spec, life_s).to_string().into_bytes();
    let mut tries = 1;
    loop {
        let request = Request::new(engine.url("pods")).create(&PostParams::default(), body.clone());
        let request = request.map_err(|error| EngineError::refused("create", error))?;
        match call::within::<Pod>("create", engine.options.time.answer, engine.client.request(request)).await {
            Ok(created) => return Ok(created.metadata.resource_version),
            // The name is this sandbox's alone. The client repeats a call that a proxy or the API server gave up.
            Err(error) if call::is_for(&error, reason::ALREADY_EXISTS) => return Ok(None),
            Err(error) if tries < CREATE_TRIES && call::is_for(&error, reason::CONFLICT) => {
                sleep(CREATE_PAUSE * tries).await;
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Waits until the container runs. A pod that no node has room for is given up earlier than one that is being made.
async fn until_running(
    engine: &KubernetesEngine,
    spec: &SandboxSpec,
    watch: &mut PodWatch,
    until: Instant,
) -> Result<(), EngineError> {
    let mut place_until = None;
    let mut unplaced = String::new();
    loop {
        let seen = match place_until {
            Some(place_until) => timeout_at(place_until, watch.next())
                .await
                .unwrap_or_else(|_| Err(EngineError::refused("start", no_place(&unplaced)))),
            None => watch.next().await,
        };
        let PodState::Pod(pod) = seen? else { return Err(EngineError::Lost { id: spec.id }) };
        match watch::read(&pod) {
            State::Running => return Ok(()),
            State::Coming => place_until = None,
            State::Unschedulable(why) => {
                unplaced = why;
                place_until.get_or_insert((Instant::now() + engine.options.time.unscheduled).min(until));
            }
            State::Failing(why) | State::Evicted(why) => return Err(EngineError::refused("start", why)),
            State::Ended(end) => {
                let why = end.unknown.unwrap_or_else(|| format!("it exited with {} at once", end.status));
                return Err(EngineError::refused("start", format!("the container of the runner did not start: {why}")));
            }
        }
    }
}

fn no_place(why: &str) -> String {
    format!(
        "no node has room for the pod ({why}): add nodes, lower SANDBOX_LIMITS__MEMORY_BYTES or \
         SANDBOX_ADMISSION__SLOTS, correct the node selector and tolerations of the pod template, or make the claim \
         that is not found in the namespace of the sandboxes"
    )
}

async fn attach_to(engine: &KubernetesEngine, spec: &SandboxSpec) -> Result<kube::client::Connection, EngineError> {
    let params = AttachParams::default().container(pod::CONTAINER).stdin(true).stdout(true).stderr(true).tty(false);
    let request = || Request::new(engine.url("pods")).attach(&spec.id.to_string(), &params);
    let request = request().map_err(|error| EngineError::refused("attach", error))?;
    let connection = call::within("attach", engine.options.time.answer, engine.client.connect(request)).await?;
    debug!(sandbox = %spec.id, half_close = connection.supports_stream_close(), "attached");
    Ok(connection)
}

/// Tells process 1 that the server is attached.
pub(super) async fn send_attached(stdin: &mut Stdin, limit: Duration) -> Result<(), EngineError> {
    let greeted = async {
        stdin.write_all(&ATTACHED[..]).await?;
        stdin.flush().await
    };
    let greeted = timeout(limit, greeted).await.map_err(|_| EngineError::Timeout { act: "attach", limit })?;
    greeted.map_err(|error| EngineError::unavailable("attach", error))
}

/// What this process did to each sandbox that it has not destroyed. A pod that was deleted leaves no state behind.
#[derive(Debug, Default)]
pub(super) struct OwnEndings(Mutex<HashMap<SandboxId, Arc<Life>>>);

#[derive(Debug, Default)]
pub(super) struct Life {
    ended: AtomicBool,
    killed: OnceLock<Instant>,
}

impl Life {
    pub(super) fn is_ended_by_us(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

impl OwnEndings {
    pub(super) fn of(&self, id: SandboxId) -> Arc<Life> {
        Arc::clone(self.0.lock().entry(id).or_default())
    }

    /// Called before the pod is deleted.
    pub(super) fn ending(&self, id: SandboxId) {
        if let Some(life) = self.0.lock().get(&id) {
            life.ended.store(true, Ordering::Release);
        }
    }

    /// Called before a sandbox is killed.
    pub(super) fn killing(&self, id: SandboxId) {
        self.of(id).killed.get_or_init(Instant::now);
    }

    pub(super) fn killed_at(&self, id: SandboxId) -> Option<Instant> {
        self.0.lock().get(&id)?.killed.get().copied()
    }

    /// Called when a sandbox is destroyed, after which nothing more is done to it.
    pub(super) fn forget(&self, id: SandboxId) {
        self.0.lock().remove(&id);
    }
}

/// Follows a started sandbox to its end.
pub(super) async fn until_ended(id: SandboxId, mut watch: PodWatch, life: Arc<Life>) -> Result<Exit, EngineError> {
    loop {
        let (pod, is_gone) = match watch.next().await {
            Ok(PodState::Pod(pod)) => (Some(pod), false),
            Ok(PodState::Gone(pod)) => (pod, true),
            Err(error) => {
                warn!(sandbox = %id, %error, "the end of a sandbox cannot be observed");
                return Err(EngineError::Lost { id });
            }
        };
        let by_us = life.is_ended_by_us();
        // By the cluster or an operator: how the container ends then is not how the program ended.
        let is_deleted = is_gone || pod.as_ref().is_some_and(|pod| pod.metadata.deletion_timestamp.is_some());
        let state = pod.as_deref().map(watch::read);
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
        warn!(sandbox = %id, why, "a sandbox was taken away");
        return Err(EngineError::Lost { id });
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
    matches!(watch::read(pod), State::Ended(_) | State::Evicted(_))
}

fn exit(status: i32, oom_killed: bool) -> Exit {
    Exit { status, oom_killed, process_limit_hit: false, broke_off: false }
}
