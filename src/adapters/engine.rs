//! Engines: what makes sandboxes. [`connect`] and `connect_cluster` are the only ways in for a server, so that nothing
//! above names a vendor. [`Observed`] reports the calls of any of them: operation, sandbox, result, duration.

mod changes;
pub mod docker;
pub mod fake;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod labels;

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::time::Instant;

pub use self::docker::{ConnectError, DockerOptions as EngineOptions, proxy};
#[cfg(feature = "kubernetes")]
pub use self::kubernetes::{ConnectError as ClusterError, KubernetesOptions as ClusterOptions};
use crate::{
    domain::{Limits, RunnerUsers, SandboxId},
    ports::{
        engine::{Engine, EngineError, Expectation, Listed, Probe, PullProgress, Sandbox, SandboxSpec, Signal},
        observer::{CallFacts, Observer},
        runner::RunnerImage,
    },
};

/// The engine that the options name.
///
/// # Errors
/// When nothing usable answers.
pub async fn connect(options: EngineOptions) -> Result<Arc<dyn Engine>, ConnectError> {
    Ok(Arc::new(docker::DockerEngine::connect(options).await?))
}

/// The engine of a cluster.
///
/// # Errors
/// When nothing usable answers.
#[cfg(feature = "kubernetes")]
pub async fn connect_cluster(options: ClusterOptions) -> Result<Arc<dyn Engine>, ClusterError> {
    Ok(Arc::new(kubernetes::KubernetesEngine::connect(options).await?))
}

/// Any engine, observed.
pub struct Observed {
    engine: Arc<dyn Engine>,
    observer: Arc<dyn Observer>,
}

impl Observed {
    /// The same engine, with its calls reported to `observer`.
    pub fn new(engine: Arc<dyn Engine>, observer: Arc<dyn Observer>) -> Self {
        Self { engine, observer }
    }

    async fn observe<T>(
        &self,
        operation: &'static str,
        sandbox: Option<SandboxId>,
        call: impl Future<Output = Result<T, EngineError>> + Send,
    ) -> Result<T, EngineError> {
        let begun = Instant::now();
        let answer = call.await;
        let result = answer.as_ref().map_or_else(EngineError::word, |_| "ok");
        self.observer.engine_called(&CallFacts { operation, sandbox, result, took: begun.elapsed() });
        answer
    }
}

#[async_trait]
impl Engine for Observed {
    async fn probe(&self) -> Result<Probe, EngineError> {
        self.observe("probe", None, self.engine.probe()).await
    }

    async fn candidates(&self) -> Result<Vec<String>, EngineError> {
        self.observe("probe", None, self.engine.candidates()).await
    }

    fn select(&self, candidate: Option<&str>) {
        self.engine.select(candidate);
    }

    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        self.engine.isolation_expectations(limits, users)
    }

    fn forbidden_addresses(&self) -> Vec<SocketAddr> {
        self.engine.forbidden_addresses()
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.observe("runners", None, self.engine.runners()).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.engine.changes()
    }

    fn pull(&self, reference: &str) -> BoxStream<'static, Result<PullProgress, EngineError>> {
        self.engine.pull(reference)
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        self.observe("start", Some(spec.id), self.engine.start(spec)).await
    }

    fn can_limit_cpu(&self) -> bool {
        self.engine.can_limit_cpu()
    }

    async fn limit_cpu(&self, id: SandboxId, cpu_millis: u32) -> Result<(), EngineError> {
        self.observe("limit_cpu", Some(id), self.engine.limit_cpu(id, cpu_millis)).await
    }

    async fn signal(&self, id: SandboxId, signal: Signal) -> Result<(), EngineError> {
        self.observe("signal", Some(id), self.engine.signal(id, signal)).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        self.observe("destroy", Some(id), self.engine.destroy(id)).await
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        self.observe("list", None, self.engine.list()).await
    }
}
