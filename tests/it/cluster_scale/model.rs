//! An engine that takes the time of a cluster: the fake engine behind a control plane and nodes of so many cores.
//!
//! The costs are those that `scripts/bench-kubernetes.py` measured. The tests run on a paused clock, so results do not
//! depend on the machine, and what servers compute takes no time.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use mcp_sandbox_server::{
    domain::{Limits, id::SandboxId, users::RunnerUsers},
    ports::{
        engine::{Engine, EngineError, Expectation, Listed, Probe, Sandbox, SandboxSpec},
        runner::RunnerImage,
    },
};
use tokio::{sync::Semaphore, time::sleep};

use crate::fake::FakeEngine;

/// Processor time of the API server, etcd, the controller manager and the scheduler for a pod, while many start.
const CONTROL_CREATE: Duration = Duration::from_millis(60);
const CONTROL_DELETE: Duration = Duration::from_millis(19);
/// A container's start on a node that does nothing else; counted as work of one core.
const NODE_START: Duration = Duration::from_millis(470);
const ATTACH: Duration = Duration::from_millis(10);

/// The size of a cluster.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub nodes: usize,
    pub node_cores: usize,
    pub control_cores: usize,
}

impl Size {
    /// The most pods that can be started and deleted in a second.
    pub fn pods_per_s(&self) -> f64 {
        let by = |cores: usize, time: Duration| f64::from(u32::try_from(cores).expect("a size")) / time.as_secs_f64();
        by(self.control_cores, CONTROL_CREATE + CONTROL_DELETE).min(by(self.nodes * self.node_cores, NODE_START))
    }
}

struct Node {
    cores: Semaphore,
    pods: AtomicUsize,
}

pub struct Cluster {
    pub fake: FakeEngine,
    control: Semaphore,
    nodes: Vec<Node>,
    placed: Mutex<HashMap<SandboxId, usize>>,
    peak: AtomicUsize,
}

impl Cluster {
    pub fn new(size: Size) -> Arc<Self> {
        let node = || Node { cores: Semaphore::new(size.node_cores), pods: AtomicUsize::new(0) };
        Arc::new(Self {
            fake: FakeEngine::default(),
            control: Semaphore::new(size.control_cores),
            nodes: (0..size.nodes).map(|_| node()).collect(),
            placed: Mutex::default(),
            peak: AtomicUsize::new(0),
        })
    }

    /// The most pods that there were at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    async fn control(&self, time: Duration) {
        let _core = self.control.acquire().await.expect("never closed");
        sleep(time).await;
    }

    /// The node with the fewest pods.
    fn place(&self, id: SandboxId) -> &Node {
        let fewest = self.nodes.iter().enumerate().min_by_key(|(_, node)| node.pods.load(Ordering::Relaxed));
        let (at, node) = fewest.expect("a node");
        node.pods.fetch_add(1, Ordering::Relaxed);
        let mut placed = self.placed.lock().expect("not poisoned");
        placed.insert(id, at);
        self.peak.fetch_max(placed.len(), Ordering::Relaxed);
        node
    }
}

#[async_trait]
impl Engine for Cluster {
    async fn probe(&self) -> Result<Probe, EngineError> {
        self.fake.probe().await
    }

    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        self.fake.isolation_expectations(limits, users)
    }

    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError> {
        self.fake.runners().await
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        self.fake.changes()
    }

    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
        self.control(CONTROL_CREATE).await;
        let node = self.place(spec.id);
        {
            let _core = node.cores.acquire().await.expect("never closed");
            sleep(NODE_START).await;
        }
        sleep(ATTACH).await;
        self.fake.start(spec).await
    }

    /// A pod's limits are fixed when it is made.
    fn can_limit_cpu(&self) -> bool {
        false
    }

    async fn limit_cpu(&self, id: SandboxId, _: u32) -> Result<(), EngineError> {
        Err(EngineError::Lost { id })
    }

    async fn kill(&self, id: SandboxId) -> Result<(), EngineError> {
        self.fake.kill(id).await
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError> {
        self.control(CONTROL_DELETE).await;
        if let Some(at) = self.placed.lock().expect("not poisoned").remove(&id) {
            self.nodes[at].pods.fetch_sub(1, Ordering::Relaxed);
        }
        self.fake.destroy(id).await
    }

    async fn list(&self) -> Result<Vec<Listed>, EngineError> {
        self.fake.list().await
    }
}
