//! The Docker engine: sandboxes as containers, over the engine's HTTP interface (API 1.41 and later).
//!
//! This file owns the vocabulary (options, time limits, the engine value) and the verbs that are one call. It must not
//! know the catalog, conversations or policies. The mechanics are in the children:
//!
//! ```text
//! convert   port values → vendor structs, pure       life     create, attach, start, and how it ended
//! call      one call with its time limit, errors     forks    which sandbox was refused a process
//! images    runner images and their changes          proxy    a socket that allows only these calls
//! about     what the engine is, with warnings        mounts   our paths as the engine sees them
//! runtime   which OCI runtime starts them, and what a sandbox must show from inside
//! ```
//!
//! No task is spawned here or in the children, the proxy's apart: everything runs in the caller's future and ends when
//! that is dropped. The vendor's client drives each connection in a task of its own, which ends with the connection.
//!
//! **Reading the output.** The engine blocks on `kill`, `inspect` and `remove` of a container whose attached reader has
//! stopped reading. So the holder of a [`Sandbox`] reads its output to the end, or drops the value before it kills.

mod about;
mod call;
mod convert;
mod forks;
mod images;
mod life;
mod mounts;
pub mod proxy;
mod runtime;

use std::{collections::HashMap, iter, path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;
use bollard::{
    Docker,
    models::ContainerSummary,
    query_parameters::{KillContainerOptionsBuilder, ListContainersOptionsBuilder, RemoveContainerOptionsBuilder},
};
use futures_util::stream::BoxStream;
use tokio::time::{Instant, sleep_until};

pub use self::{images::AllowedImages, runtime::RuntimeSetting};

use crate::{
    domain::{Limits, RunnerUsers, SandboxId},
    ports::{
        engine::{Engine, EngineError, Expectation, Listed, Probe, PullProgress, Sandbox, SandboxSpec},
        runner::RunnerImage,
    },
};

/// The interval between two tries while the engine removes a container for another caller.
const REMOVAL_PAUSE: Duration = Duration::from_millis(50);

const HOST_DEFAULT: &str = "unix:///var/run/docker.sock";

/// The engine's address and settings.
#[derive(Debug, Clone, Default)]
pub struct DockerOptions {
    /// Its address: `unix://…`, `tcp://…` (with TLS where `DOCKER_TLS_VERIFY` is set, by the files in
    /// `DOCKER_CERT_PATH`), `http://…` or `ssh://…`. `None`: the platform's default socket.
    pub host: Option<String>,
    pub runtime: RuntimeSetting,
    /// The parent of all data folders, as this process sees it.
    pub root: PathBuf,
    /// The engine's host sees none of our folders: files travel.
    pub streamed: bool,
    /// The same folder as the engine's host sees it. `None`: the same path, or, when this process runs in a container
    /// of that engine, what that container's own mounts say.
    pub host_root: Option<PathBuf>,
    /// The parent of all folders of skills, as this process sees it, and as the engine's host does.
    pub skills_root: Option<PathBuf>,
    pub skills_host_root: Option<PathBuf>,
    pub images: AllowedImages,
    /// The mount point of the engine's control groups, if this process can see them.
    pub cgroup_root: PathBuf,
    /// The parent of the control groups of sandboxes: a slice (`a.slice`) or a path (`/a`). `None`: the engine's own.
    pub cgroup_parent: Option<String>,
    pub time: TimeLimits,
}

impl DockerOptions {
    /// The defaults, for data folders in `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), cgroup_root: "/sys/fs/cgroup".into(), ..Self::default() }
    }
}

/// How long each kind of call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// A call that changes nothing, or sends a signal.
    pub answer: Duration,
    /// Creating a container, attaching to it and starting it, each.
    pub start: Duration,
    /// Removing a container, including the wait for a concurrent removal.
    pub remove: Duration,
    /// How long to search for a sandbox after the connection broke, before it counts as lost.
    pub lost: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            // For its version, Podman queries its components each time.
            answer: Duration::from_secs(5),
            start: Duration::from_secs(15),
            remove: Duration::from_secs(10),
            lost: Duration::from_secs(30),
        }
    }
}

/// Why the engine cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is invalid, or nothing listens there.
    #[error("cannot use the engine at {host}")]
    Host { host: String, source: Box<bollard::errors::Error> },
    /// The engine did not answer the first calls.
    #[error("the engine at {host} does not answer properly")]
    Engine { host: String, source: EngineError },
    /// The engine has no such OCI runtime.
    #[error(
        "the engine has no runtime `{runtime}` (it has {known}): register it with the engine (`runtimes` in \
         /etc/docker/daemon.json), or change SANDBOX_ENGINE__RUNTIME"
    )]
    Runtime { runtime: String, known: String },
    /// The seccomp profile cannot be written where Podman reads it.
    #[error(
        "{path} cannot be written, and Podman reads there which system calls a program may make: make it writable for \
         the server's user"
    )]
    SeccompFile { path: PathBuf, source: std::io::Error },
    /// This process runs in a container and its root is on none of that container's mounts.
    #[error(
        "{root} is inside this container only: mount a folder of the host there, or set SANDBOX_ENGINE__HOST_ROOT (for \
         skills SANDBOX_SKILLS__HOST_ROOT) to its path on the host"
    )]
    RootNotMounted { root: PathBuf },
}

/// Docker, or what speaks its interface.
#[derive(Debug)]
pub struct DockerEngine {
    docker: Docker,
    profile: convert::Profile,
    /// Overrides the profile's runtime.
    runtime: runtime::Selection,
    images: images::Images,
    mounts: mounts::HostPaths,
    forks: Arc<forks::Forks>,
    time: TimeLimits,
}

impl DockerEngine {
    /// Connects, negotiates the API version and finds the host's path of our root.
    ///
    /// # Errors
    /// When nothing usable answers, or the engine's host cannot see our root.
    pub async fn connect(options: DockerOptions) -> Result<Self, ConnectError> {
        let host = options.host.clone().unwrap_or_else(|| HOST_DEFAULT.to_owned());
        // For TLS. The first one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let docker = Docker::connect_with_host(&host)
            .map_err(|source| ConnectError::Host { host: host.clone(), source: Box::new(source) })?;
        let refused = |source| ConnectError::Engine { host: host.clone(), source };
        let limit = options.time.answer;
        let docker = call::within("ping", limit, docker.negotiate_version()).await.map_err(refused)?;
        let info = call::within("ping", options.time.answer, docker.info()).await.map_err(refused)?;
        options.runtime.check(&info)?;
        let version = call::within("ping", limit, docker.version()).await.map_err(refused)?;
        let root = options.root.clone();
        let skills = options.skills_root.map(|skills| (skills, options.skills_host_root));
        let folders = iter::once((options.root, options.host_root)).chain(skills).filter(|_| !options.streamed);
        let folders = folders.collect();
        let mounts = mounts::HostPaths::find(&docker, folders, options.time.answer).await?;
        let profile = convert::Profile {
            runtime: None,
            cgroup_v1: about::is_cgroup_v1(&info),
            podman: about::is_podman(&version).then(|| mounts.write_seccomp(&root)).transpose()?,
            cgroup_parent: options.cgroup_parent,
        };
        let forks = Arc::new(forks::Forks::new(options.cgroup_root, profile.cgroup_parent.as_deref()));
        let runtime = runtime::Selection::new(options.runtime, &info);
        let images = images::Images::new(options.images);
        Ok(Self { docker, profile, runtime, images, mounts, forks, time: options.time })
    }
}

#[async_trait]
impl Engine for DockerEngine {
    async fn probe(&self) -> Result<Probe, EngineError> {
        let (docker, limit) = (&self.docker, self.time.answer);
        let version = call::within("probe", limit, docker.version()).await?;
        let info = call::within("probe", limit, docker.info()).await?;
        Ok(about::probe(&version, &info, &docker.client_version(), &self.runtime.setting, &self.runtime.now()))
    }

    async fn candidates(&self) -> Result<Vec<String>, EngineError> {
        let info = call::within("probe", self.time.answer, self.docker.info()).await?;
        Ok(self.runtime.setting.candidate(&info).into_iter().collect())
    }

    fn select(&self, candidate: Option<&str>) {
        self.runtime.set(candidate);
    }

    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        runtime::expectations(&self.runtime.now(), limits, users)
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.images.runners(&self.docker, self.time.answer).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        images::changes(self.docker.clone())
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        life::start(self, spec).await
    }

    fn can_limit_cpu(&self) -> bool {
        self.profile.podman.is_none()
    }

    async fn limit_cpu(&self, id: SandboxId, cpu_millis: u32) -> Result<(), EngineError> {
        if !self.can_limit_cpu() {
            return Err(EngineError::refused("limit", "Podman's interface has no update of a container"));
        }
        let name = id.to_string();
        let updated = self.docker.update_container(&name, convert::update_body(cpu_millis));
        match call::within("limit", self.time.answer, updated).await {
            Err(error) if call::status(&error) == Some(404) => Err(EngineError::Lost { id }),
            other => other,
        }
    }

    async fn kill(&self, id: SandboxId) -> Result<(), EngineError> {
        self.forks.killing(id);
        let options = KillContainerOptionsBuilder::new().signal("KILL").build();
        let name = id.to_string();
        match call::within("kill", self.time.answer, self.docker.kill_container(&name, Some(options))).await {
            // Not there, or not running any more.
            Err(error) if call::status(&error).is_some_and(|status| matches!(status, 404 | 409)) => Ok(()),
            // Podman answers 500 for one that is not running any more.
            Err(error) if call::status(&error) == Some(500) => {
                let listed = self.containers(convert::id_filter(id)).await?;
                let runs = listed.iter().filter_map(convert::listed).any(|listed| listed.running);
                if runs { Err(error) } else { Ok(()) }
            }
            other => other,
        }
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        let until = Instant::now() + self.time.remove;
        let name = id.to_string();
        loop {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let left = until.saturating_duration_since(Instant::now());
            let removed = call::within("remove", left, self.docker.remove_container(&name, Some(options))).await;
            let refusal = match removed {
                Err(error) if matches!(call::status(&error), Some(404 | 409)) => error,
                other => return other,
            };
            // Not found: while a container is being created, the engine lists it before it finds it. A conflict: a
            // concurrent removal, which has not ended before this call reports it.
            if call::status(&refusal) == Some(404) {
                let listed = self.containers(convert::id_filter(id)).await?;
                if !listed.iter().any(|container| convert::listed(container).is_some()) {
                    return Ok(());
                }
            }
            let next = Instant::now() + REMOVAL_PAUSE;
            if next >= until {
                return Err(refusal);
            }
            sleep_until(next).await;
        }
    }

    fn pull(&self, reference: &str) -> BoxStream<'static, Result<PullProgress, EngineError>> {
        images::pull(&self.docker, reference)
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        let all = self.containers(super::labels::SELECTOR.to_owned()).await?;
        Ok(all.iter().filter_map(convert::listed).collect())
    }
}

impl DockerEngine {
    /// Every container, dead or alive, with a label.
    async fn containers(&self, label: String) -> Result<Vec<ContainerSummary>, EngineError> {
        let filters = HashMap::from([("label", vec![label])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let until = Instant::now() + self.time.answer;
        loop {
            let listed = self.docker.list_containers(Some(options.clone()));
            let listed = call::within("list", until.saturating_duration_since(Instant::now()), listed).await;
            let next = Instant::now() + REMOVAL_PAUSE;
            // While a container ends, Podman lists it in a state that the vendor's client cannot parse.
            if !listed.as_ref().is_err_and(call::is_unreadable) || next >= until {
                return listed;
            }
            sleep_until(next).await;
        }
    }
}
