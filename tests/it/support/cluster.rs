//! A real cluster to test on: the one of `KUBECONFIG`, with a claim that this machine sees as a folder. Without
//! `KUBECONFIG` the tests that need it fail; only `./test.sh --kubernetes` runs them. `scripts/kubernetes-cluster.sh
//! env` prints the variables.

use std::{path::PathBuf, pin::Pin, sync::Arc};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PodTemplate, ResourceQuota};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, PostParams},
};
use mcp_sandbox_server::{
    adapters::engine::kubernetes::{KubernetesEngine, KubernetesOptions, TimeLimits},
    domain::{Limits, id::SandboxId, users::RunnerUsers},
    ports::{
        engine::{Engine, EngineError, Expectation, ImageId, Listed, Probe, Sandbox, SandboxSpec},
        runner::RunnerImage,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncWrite, AsyncWriteExt, copy, duplex};

use super::until;

/// Whether the servers of the tests have their sandboxes on the cluster: the second step of
/// `scripts/check-kubernetes.sh`.
pub fn has_servers() -> bool {
    std::env::var("TEST_ENGINE").is_ok_and(|engine| engine == "kubernetes")
}

/// The settings of such a server, except its claim.
pub fn of_servers() -> Vec<(String, String)> {
    if !has_servers() {
        return Vec::new();
    }
    let of = |name| std::env::var(name).unwrap_or_default();
    [
        ("SANDBOX_ENGINE__KIND", "kubernetes".to_owned()),
        ("SANDBOX_ENGINE__NAMESPACE", of("CLUSTER_NAMESPACE")),
        ("SANDBOX_ENGINE__RUNTIME", of("CLUSTER_CLOSED_CLASS")),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// A claim whose volume is a server's own folder below that of the cluster's claim, so that several servers can run at
/// once. One of a test that failed stays in the cluster.
pub struct OwnClaim {
    pub name: String,
    pub folder: TempDir,
    volumes: Api<PersistentVolume>,
    claims: Api<PersistentVolumeClaim>,
}

impl OwnClaim {
    /// One where a server of the tests needs it.
    pub async fn of_server() -> Option<Self> {
        let is_streamed = std::env::var("TEST_FILES").is_ok_and(|files| files == "streamed");
        if !has_servers() || is_streamed {
            return None;
        }
        let cluster = Cluster::get().await;
        let folder = tempfile::tempdir_in(&cluster.mount).expect("a folder of the claim");
        let name = SandboxId::new().to_string();
        let (modes, size) = (json!(["ReadWriteMany"]), json!({"storage": "1Gi"}));
        let volume = json!({"metadata": {"name": name}, "spec": {
            "accessModes": modes, "capacity": size, "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
            "claimRef": {"namespace": cluster.namespace, "name": name},
            "hostPath": {"path": folder.path(), "type": "Directory"}}});
        let claim = json!({"metadata": {"name": name}, "spec": {"accessModes": modes, "storageClassName": "",
            "resources": {"requests": size}, "volumeName": name}});
        let volumes = Api::all(cluster.client.clone());
        let claims = Api::namespaced(cluster.client, &cluster.namespace);
        let made = Self { name, folder, volumes, claims };
        let volume = serde_json::from_value(volume).expect("a volume");
        made.volumes.create(&PostParams::default(), &volume).await.expect("a volume");
        let claim = serde_json::from_value(claim).expect("a claim");
        made.claims.create(&PostParams::default(), &claim).await.expect("a claim");
        until("the claim has its volume", async || {
            let claim = made.claims.get(&made.name).await.expect("the claim");
            claim.status.is_some_and(|status| status.phase.as_deref() == Some("Bound"))
        })
        .await;
        Some(made)
    }

    pub async fn remove(self) {
        let now = DeleteParams::default();
        self.claims.delete(&self.name, &now).await.expect("removed");
        self.volumes.delete(&self.name, &now).await.expect("removed");
    }
}

/// What the cluster has for the tests.
pub struct Cluster {
    pub client: Client,
    pub namespace: String,
    pub claim: String,
    /// This machine's folder of the claim.
    pub mount: PathBuf,
    /// A runtime class without a network.
    pub closed_class: Option<String>,
}

impl Cluster {
    /// The cluster of the environment.
    pub async fn get() -> Self {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        assert!(variable("KUBECONFIG").is_some(), "KUBECONFIG names no cluster: ./test.sh --kubernetes makes one");
        let config = Config::infer().await.expect("KUBECONFIG is valid");
        let namespace = variable("CLUSTER_NAMESPACE").unwrap_or_else(|| config.default_namespace.clone());
        let mount = variable("CLUSTER_CLAIM_FOLDER").expect("CLUSTER_CLAIM_FOLDER: this machine's folder of the claim");
        let claim = variable("CLUSTER_CLAIM").expect("CLUSTER_CLAIM: a ReadWriteMany claim");
        Self {
            client: Client::try_from(config).expect("a client"),
            namespace,
            claim,
            mount: PathBuf::from(mount),
            closed_class: variable("CLUSTER_CLOSED_CLASS"),
        }
    }

    pub async fn engine(&self) -> Arc<dyn Engine> {
        let time = TimeLimits { unscheduled: std::time::Duration::from_secs(2), ..TimeLimits::default() };
        let options = KubernetesOptions {
            namespace: Some(self.namespace.clone()),
            runtime_class: self.closed_class.clone(),
            cpus: 4,
            memory_bytes: 8 << 30,
            own_port: 8080,
            time,
            ..KubernetesOptions::default()
        };
        Arc::new(KubernetesEngine::connect(options).await.expect("a cluster"))
    }

    /// A pod template, made where there is none of that name. It is a runner to no server, which does not know its
    /// protocol. It stays in the cluster for the next test process.
    pub async fn template(&self, name: &str, spec: Value) -> ImageId {
        self.made(name, "99", "none", spec).await
    }

    /// A runner of a language, which has channels.
    pub async fn runner(&self, name: &str, language: &str, spec: Value) -> ImageId {
        self.made(name, "2", language, spec).await
    }

    async fn made(&self, name: &str, protocol: &str, language: &str, spec: Value) -> ImageId {
        let templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), &self.namespace);
        let template = json!({
            "metadata": {"name": name, "labels": {"sandbox.runner": "true", "sandbox.language": language},
                "annotations": {"sandbox.protocol": protocol}},
            "template": {"spec": spec},
        });
        let template = serde_json::from_value(template).expect("a pod template");
        let made = match templates.create(&PostParams::default(), &template).await {
            Err(kube::Error::Api(status)) if status.code == 409 => templates.get(name).await,
            made => made,
        };
        let version = made.expect("a pod template").metadata.resource_version;
        ImageId(format!("{name}@{}", version.expect("a version")))
    }

    /// A runner that runs each line of its input.
    pub async fn lines_template(&self) -> ImageId {
        let container = json!({"name": "any", "image": super::engines::base_image(), "command": ["bash"]});
        self.template("contract-lines", json!({"containers": [container]})).await
    }

    pub async fn remove_template(&self, name: &str) {
        let templates: Api<PodTemplate> = Api::namespaced(self.client.clone(), &self.namespace);
        match templates.delete(name, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            removed => drop(removed.expect("removed")),
        }
    }

    pub fn quotas(&self) -> Api<ResourceQuota> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// An engine whose sandboxes run each line of their input as it comes. Before Kubernetes 1.30 the input of a container
/// cannot be closed, so its end is a line here.
pub struct ByLines(pub Arc<dyn Engine>);

fn by_lines(mut stdin: Pin<Box<dyn AsyncWrite + Send>>) -> Pin<Box<dyn AsyncWrite + Send>> {
    let (near, mut far) = duplex(64 << 10);
    tokio::spawn(async move {
        let _ = copy(&mut far, &mut stdin).await;
        let _ = stdin.write_all(b"\nexit\n").await;
        let _ = stdin.shutdown().await;
    });
    Box::pin(near)
}

#[async_trait]
impl Engine for ByLines {
    async fn probe(&self) -> Result<Probe, EngineError> {
        self.0.probe().await
    }

    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        self.0.isolation_expectations(limits, users)
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.0.runners().await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.0.changes()
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        let sandbox = self.0.start(spec).await?;
        Ok(Sandbox { stdin: by_lines(sandbox.stdin), ..sandbox })
    }

    fn can_limit_cpu(&self) -> bool {
        self.0.can_limit_cpu()
    }

    async fn limit_cpu(&self, id: SandboxId, cpu_millis: u32) -> Result<(), EngineError> {
        self.0.limit_cpu(id, cpu_millis).await
    }

    async fn kill(&self, id: SandboxId) -> Result<(), EngineError> {
        self.0.kill(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        self.0.destroy(id).await
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        self.0.list().await
    }
}
