//! An engine whose calls are told to an observer: which, about which sandbox, with what result, how long. It changes nothing else.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::time::Instant;

use crate::{
    domain::id::SandboxId,
    ports::{
        engine::{Engine, EngineError, Listed, Probe, Sandbox, SandboxSpec, Signal},
        observer::{CallFacts, Observer},
        runner::RunnerImage,
    },
};

/// Any engine, observed.
pub struct Observed {
    engine: Arc<dyn Engine>,
    observer: Arc<dyn Observer>,
}

impl Observed {
    /// The same engine, told of.
    pub fn new(engine: Arc<dyn Engine>, observer: Arc<dyn Observer>) -> Self {
        Self { engine, observer }
    }

    async fn told<T>(
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
        self.told("probe", None, self.engine.probe()).await
    }

    async fn quicker(&self) -> Result<Option<String>, EngineError> {
        self.told("probe", None, self.engine.quicker()).await
    }

    fn choose(&self, runtime: Option<&str>) {
        self.engine.choose(runtime);
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.told("runners", None, self.engine.runners()).await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.engine.changes()
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        self.told("start", Some(spec.id), self.engine.start(spec)).await
    }

    async fn signal(&self, id: SandboxId, signal: Signal) -> Result<(), EngineError> {
        self.told("signal", Some(id), self.engine.signal(id, signal)).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        self.told("destroy", Some(id), self.engine.destroy(id)).await
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        self.told("list", None, self.engine.list()).await
    }
}
