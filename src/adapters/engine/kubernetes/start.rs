//! Starting a sandbox: create the pod, wait until its container runs, attach. What a container writes before the server
//! is attached is lost, so process 1 of a framed runner waits for [`ATTACHED`].
//!
//! Spawns nothing. When a step fails or the future is dropped, the pod already has its labels and its name, by which
//! the caller destroys it.

use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    api::PostParams,
    core::{Request, response::reason, subresource::AttachParams},
};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::{
    KubernetesEngine, attach, call,
    ending::ExitWatch,
    pod,
    state::{self, State},
    watch::{PodState, PodWatch},
};
use crate::{
    domain::clock::{Clock as _, SystemClock},
    ports::{
        engine::{EngineError, Sandbox, SandboxSpec, Volume},
        runner::ATTACHED,
    },
};

/// Attempts to create a pod while others are created: the API servers of a cluster update one `ResourceQuota`.
const CREATE_TRIES: u32 = 5;
/// Before the second attempt; before each further one as much again is added.
const CREATE_PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn start(engine: &KubernetesEngine, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
    let until = Instant::now() + engine.options.time.start;
    let version = create(engine, spec).await?;
    let life = engine.lives.begin(spec.id);
    let mut watch = engine.watch(spec.id, version);
    let running = until_running(engine, spec, &mut watch, until);
    let late = || EngineError::Timeout { act: "start", limit: engine.options.time.start };
    timeout_at(until, running).await.map_err(|_| late())??;
    let connection = attach_to(engine, spec).await?;
    let greeting = if spec.own_init { &ATTACHED[..] } else { &[] };
    let (mut stdin, output) =
        attach::streams(connection, spec.id, greeting, life.clone(), engine.options.time.lost).await;
    let greeted = timeout_at(Instant::now() + engine.options.time.answer, stdin.flush()).await.map_err(|_| late())?;
    greeted.map_err(|error| EngineError::unavailable("attach", error))?;
    let exit = ExitWatch { id: spec.id, watch, life }.exit();
    Ok(Sandbox { id: spec.id, stdin, output, exit: exit.boxed() })
}

/// Creates the pod and returns its version; `None` when an attempt made it whose answer was lost.
async fn create(engine: &KubernetesEngine, spec: &SandboxSpec) -> Result<Option<String>, EngineError> {
    if matches!(spec.data, Volume::HostFolder(_)) {
        return Err(EngineError::refused(
            "create",
            "a pod cannot see a folder of the server: set SANDBOX_ENGINE__CLAIM",
        ));
    }
    if !spec.folders.is_empty() {
        let why = "pods see no folders of a host: unset SANDBOX_MOUNTS, or mount a volume in the pod template";
        return Err(EngineError::refused("create", why));
    }
    let template = engine.templates.get(engine, &spec.image).await?;
    pod::check_claim(&template, &spec.data)
        .map_err(|error| EngineError::refused("create", format!("the pod template cannot be used: {error}")))?;
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

/// Waits until the container runs. A pod without a place is given up earlier than one that is being made.
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
        match state::read(&pod) {
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
        "no node has a place for the pod ({why}): add nodes, lower SANDBOX_LIMITS__MEMORY_BYTES or \
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
