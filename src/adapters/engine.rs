//! Engines: what makes sandboxes. [`connect`] and `connect_cluster` are the only ways in for a server, so that nothing
//! above names a vendor. [`Observed`] reports the calls of any of them: operation, sandbox, result, duration.

mod changes;
pub mod docker;
/// The scripted engine of the tests, which is no part of a server.
#[cfg(test)]
#[path = "../../tests/fake_engine/fake.rs"]
pub mod fake;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod labels;

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use tokio::time::Instant;

pub use self::docker::{ConnectError, DockerOptions as EngineOptions, proxy};
#[cfg(feature = "kubernetes")]
pub use self::kubernetes::{ConnectError as ClusterError, KubernetesOptions as ClusterOptions};
use crate::{
    domain::{Limits, RunnerUsers, SandboxId},
    ports::{
        engine::{Engine, EngineError, Expectation, Listed, Probe, PullProgress, Sandbox, SandboxSpec},
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

/// The same items. Once they have ended, `report` gets the result; an error ends them.
fn reported<T: Send + 'static>(
    items: BoxStream<'static, Result<T, EngineError>>,
    report: impl FnOnce(&'static str) + Send + 'static,
) -> BoxStream<'static, Result<T, EngineError>> {
    let following = stream::unfold(Some((items, report)), |state| async move {
        let (mut items, report) = state?;
        match items.next().await {
            Some(Ok(item)) => Some((Ok(item), Some((items, report)))),
            Some(Err(error)) => {
                report(error.word());
                Some((Err(error), None))
            }
            None => {
                report("ok");
                None
            }
        }
    });
    following.boxed()
}

#[async_trait]
impl Engine for Observed {
    async fn probe(&self) -> Result<Probe, EngineError> {
        self.observe("probe", None, self.engine.probe()).await
    }

    async fn candidates(&self) -> Result<Vec<String>, EngineError> {
        self.observe("candidates", None, self.engine.candidates()).await
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
        let (observer, begun) = (Arc::clone(&self.observer), Instant::now());
        reported(self.engine.pull(reference), move |result| {
            observer.engine_called(&CallFacts { operation: "pull", sandbox: None, result, took: begun.elapsed() });
        })
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

    /// Reported as `signal`, the operation's name in metrics and traces.
    async fn kill(&self, id: SandboxId) -> Result<(), EngineError> {
        self.observe("signal", Some(id), self.engine.kill(id)).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        self.observe("destroy", Some(id), self.engine.destroy(id)).await
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        self.observe("list", None, self.engine.list()).await
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::{fake::FakeEngine, *};

    /// Operations and their results.
    #[derive(Default)]
    struct Calls(Mutex<Vec<(&'static str, &'static str)>>);

    impl Observer for Calls {
        fn engine_called(&self, call: &CallFacts) {
            self.0.lock().push((call.operation, call.result));
        }
    }

    #[tokio::test]
    async fn calls_are_reported_by_their_verbs() {
        let calls = Arc::new(Calls::default());
        let engine = Observed::new(Arc::new(FakeEngine::default()), calls.clone());
        engine.probe().await.expect("a probe");
        engine.candidates().await.expect("candidates");
        engine.list().await.expect("sandboxes");
        let pulled: Vec<_> = engine.pull("runner-python").collect().await;
        assert!(matches!(&pulled[..], [Err(EngineError::Refused { .. })]), "{pulled:?}");
        assert_eq!(*calls.0.lock(), [("probe", "ok"), ("candidates", "ok"), ("list", "ok"), ("pull", "refused")]);
    }

    #[tokio::test]
    async fn a_stream_is_reported_once_it_has_ended() {
        let results = Arc::new(Mutex::new(Vec::<&str>::new()));
        let report = || {
            let results = Arc::clone(&results);
            move |result: &'static str| results.lock().push(result)
        };
        let mut well = reported(stream::iter([Ok(1), Ok(2)]).boxed(), report());
        assert!(matches!((well.next().await, well.next().await), (Some(Ok(1)), Some(Ok(2)))));
        assert!(results.lock().is_empty(), "it may go on");
        assert!(well.next().await.is_none());
        assert_eq!(*results.lock(), ["ok"]);

        let refused = stream::iter([Ok(1), Err(EngineError::refused("pull", "no such image")), Ok(3)]).boxed();
        assert_eq!(reported(refused, report()).count().await, 2, "an error is the last item");
        assert_eq!(*results.lock(), ["ok", "refused"]);
    }
}
