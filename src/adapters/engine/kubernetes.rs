//! The Kubernetes engine: sandboxes as plain pods of one namespace, over the API server.
//!
//! This file owns the vocabulary (options, time limits, the engine value) and the verbs that are one call. It must not
//! know the catalog, conversations or policies. The mechanics are in the children:
//!
//! ```text
//! pod       port values → pods and back, pure            life      create, wait, attach, and how it ended
//! call      one call with its time limit, its errors     attach    the streams over a WebSocket
//! templates runners and their changes                    watch     the states of one pod, one after another
//! isolation what a sandbox must show from inside         client    the connections to the API server, its rights
//! ```
//!
//! No task is spawned here or in the children: everything runs in the caller's future and ends when that is dropped.
//! The vendor's client drives each connection in a task of its own, which ends with the connection.
//!
//! A sandbox has two connections to the API server: the watch of its pod and its streams.

mod attach;
mod call;
mod client;
mod isolation;
mod life;
mod pod;
mod templates;
#[cfg(test)]
mod tests;
mod watch;

use std::{net::SocketAddr, time::Duration};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams},
};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    domain::{Limits, RunnerUsers, SandboxId},
    ports::{
        engine::{Engine, EngineError, Expectation, Listed, Probe, Sandbox, SandboxSpec},
        runner::RunnerImage,
    },
};

/// From this minor version on, the input of an attached container can be closed alone.
const HALF_CLOSE_MINOR: u32 = 30;

/// The grace period of a kill and of any other deletion, in seconds: with one, a pod is there until its kubelet
/// has seen the container end.
const KILL_GRACE_S: u32 = 1;

/// Pods that are listed at once, each of some 10 KB.
const PAGE_PODS: u32 = 500;

/// How long an answer about rights is good: readiness probes every few seconds.
const RIGHTS_FRESH: Duration = Duration::from_mins(1);

/// The cluster's settings.
#[derive(Debug, Clone, Default)]
pub struct KubernetesOptions {
    /// Where sandboxes are. `None`: the namespace of the kubeconfig or of the server's own pod.
    pub namespace: Option<String>,
    /// The runtime class of every sandbox, over that of its pod template. `None`: that of the template.
    pub runtime_class: Option<String>,
    /// Our seccomp profile on the nodes, below the kubelet's folder for profiles. `None`: the runtime's default.
    pub seccomp: Option<String>,
    /// Cores and memory that the cluster has for sandboxes. The API says nothing about nodes to this server.
    pub cpus: u32,
    pub memory_bytes: u64,
    /// Where this server listens, which no sandbox may reach.
    pub own_port: u16,
    /// How long each kind of call may take.
    pub time: TimeLimits,
}

/// How long each kind of call may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimits {
    /// One call.
    pub answer: Duration,
    /// From the creation of a pod until its container runs, with the fetching of its image.
    pub start: Duration,
    /// How long a pod may wait for a node that has room.
    pub unscheduled: Duration,
    /// Removing a pod.
    pub remove: Duration,
    /// How long the API server may be away before a sandbox counts as lost, and how long a connection may be dead
    /// before it is closed.
    pub lost: Duration,
}

impl Default for TimeLimits {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(10),
            start: Duration::from_mins(1),
            unscheduled: Duration::from_secs(10),
            remove: Duration::from_secs(10),
            lost: Duration::from_mins(2),
        }
    }
}

/// Why the cluster cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error(
        "there is no cluster to connect to: set KUBECONFIG, or run the server in a pod with a service account (its \
         token mounted)"
    )]
    Config(#[source] Box<kube::config::InferConfigError>),
    #[error("the client for the API server cannot be made")]
    Client(#[source] Box<kube::Error>),
    #[error("the API server at {host} does not answer")]
    Api { host: String, source: EngineError },
}

/// One namespace of a cluster.
pub struct KubernetesEngine {
    client: Client,
    namespace: String,
    options: KubernetesOptions,
    templates: templates::Templates,
    lives: life::OwnEndings,
    /// The rights that are missing, and since when that is known.
    missing_rights: Mutex<Option<(Instant, Option<String>)>>,
    /// Where a sandbox must not get to.
    forbidden: Vec<SocketAddr>,
}

impl KubernetesEngine {
    /// Connects by `KUBECONFIG`, `~/.kube/config` or the service account of this process's pod.
    ///
    /// # Errors
    /// When there is no such configuration, or nothing answers.
    pub async fn connect(options: KubernetesOptions) -> Result<Self, ConnectError> {
        let config = Config::infer().await.map_err(|error| ConnectError::Config(Box::new(error)))?;
        let host = config.cluster_url.to_string();
        let limit = options.time.answer;
        let forbidden = isolation::forbidden(&config.cluster_url, options.own_port, limit).await;
        let forbidden = forbidden.map_err(|source| ConnectError::Api { host: host.clone(), source })?;
        let namespace = config.default_namespace.clone();
        let client = client::client(config, options.time.lost);
        let client = client.map_err(|error| ConnectError::Client(Box::new(error)))?;
        let answered = call::within("ping", limit, client.apiserver_version()).await;
        answered.map_err(|source| ConnectError::Api { host, source })?;
        let namespace = options.namespace.clone().unwrap_or(namespace);
        Ok(Self::with(client, namespace, forbidden, options))
    }

    fn with(client: Client, namespace: String, forbidden: Vec<SocketAddr>, options: KubernetesOptions) -> Self {
        let (templates, lives) = (templates::Templates::default(), life::OwnEndings::default());
        Self { client, namespace, options, templates, lives, missing_rights: Mutex::default(), forbidden }
    }
}

#[async_trait]
impl Engine for KubernetesEngine {
    async fn probe(&self) -> Result<Probe, EngineError> {
        let options = &self.options;
        let version = call::within("probe", options.time.answer, self.client.apiserver_version()).await?;
        let mut warnings: Vec<_> = self.missing_rights().await.into_iter().collect();
        if minor(&version.minor) < HALF_CLOSE_MINOR {
            warnings.push(
                "Runners without the label sandbox.protocol do not work before Kubernetes 1.30, which cannot close \
                 the input of a container: use runners that speak protocol 1 or 2."
                    .to_owned(),
            );
        }
        let (runtime, reason) = match &options.runtime_class {
            Some(class) => (format!("runtime class {class}"), "as SANDBOX_ENGINE__RUNTIME says"),
            None => ("the nodes' runtime".to_owned(), "as the pod templates say"),
        };
        Ok(Probe {
            engine: format!("Kubernetes {}", version.git_version.trim_start_matches('v')),
            api_version: "v1".to_owned(),
            runtime,
            runtime_reason: reason.to_owned(),
            platform: version.platform,
            cpus: options.cpus,
            memory_bytes: options.memory_bytes,
            details: vec![format!("namespace {}", self.namespace)],
            warnings,
        })
    }

    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        isolation::expectations(&self.options, limits, users)
    }

    fn forbidden_addresses(&self) -> Vec<SocketAddr> {
        self.forbidden.clone()
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.templates.runners(self).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        templates::changes(self)
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        life::start(self, spec).await
    }

    /// The pod API changes limits only from 1.33 on, and by a right of its own.
    fn can_limit_cpu(&self) -> bool {
        false
    }

    async fn limit_cpu(&self, _id: SandboxId, _cpu_millis: u32) -> Result<(), EngineError> {
        Err(EngineError::refused("limit", "the CPU of a pod that runs cannot be limited"))
    }

    /// Deletes the pod: it is the only way to end everything in it without a right to execute in pods.
    async fn kill(&self, id: SandboxId) -> Result<(), EngineError> {
        self.lives.killing(id);
        self.delete("kill", id, KILL_GRACE_S).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        let is_left = match self.lives.killed_at(id) {
            Some(killed) => life::is_left(self, id, killed).await?,
            None => true,
        };
        if is_left {
            self.delete("remove", id, 0).await?;
        }
        self.lives.forget(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        let mut params = ListParams::default().labels(super::labels::SELECTOR).limit(PAGE_PODS);
        let mut all = Vec::new();
        loop {
            let page = call::within("list", self.options.time.answer, self.pods().list(&params)).await?;
            all.extend(page.items.iter().filter_map(pod::listed));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(all),
            }
        }
    }
}

impl KubernetesEngine {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A sentence that names the missing rights. When a question had no answer, all are asked again the next time.
    async fn missing_rights(&self) -> Option<String> {
        let fresh = self.missing_rights.lock().clone().filter(|(asked, _)| asked.elapsed() < RIGHTS_FRESH);
        if let Some((_, missing)) = fresh {
            return missing;
        }
        let (missing, is_whole) = client::missing_rights(self).await;
        if is_whole {
            *self.missing_rights.lock() = Some((Instant::now(), missing.clone()));
        }
        missing
    }

    /// The states of a pod from a version on; `None`: as it is now.
    fn watch(&self, id: SandboxId, version: Option<String>) -> watch::PodWatch {
        watch::PodWatch::new(self.pods(), id, version, self.options.time)
    }

    fn url(&self, resource: &str) -> String {
        format!("/api/v1/namespaces/{}/{resource}", self.namespace)
    }

    /// Deletes a pod. The kubelet kills the container when it learns of that. Without a grace period the pod is not
    /// listed any more from now on, whether its container has ended or not.
    async fn delete(&self, act: &'static str, id: SandboxId, grace_s: u32) -> Result<(), EngineError> {
        self.lives.ending(id);
        let params = DeleteParams::default().grace_period(grace_s);
        let (name, pods) = (id.to_string(), self.pods());
        match call::within(act, self.options.time.remove, pods.delete(&name, &params)).await {
            Err(error) if call::status(&error) != Some(404) => Err(error),
            _ => Ok(()),
        }
    }
}

/// The digits of a minor version such as `20+`.
fn minor(text: &str) -> u32 {
    text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(u32::MAX)
}
