//! What waits, on a sandbox that does nothing.

use std::future::pending;

use futures_util::stream;
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    adapters::engine::fake::FakeEngine,
    domain::{
        clock::ManualClock,
        id::{InstanceId, SandboxId},
    },
    ports::engine::Sandbox,
    services::{janitor::Janitor, sandbox::Started, standby::NoFolder},
};

#[tokio::test]
async fn kernel_that_died_does_not_wait_again() {
    let engine = Arc::new(FakeEngine::default());
    let janitor = Janitor::new(engine, InstanceId::new(), Arc::new(ManualClock::at(1000)));
    let (tasks, language) = (TaskTracker::new(), "python".parse::<Language>().expect("a language"));
    let waiting = || {
        let lease = Arc::new(janitor.lease(SandboxId::new()));
        let sandbox = Sandbox {
            id: lease.id(),
            stdin: Box::pin(tokio::io::sink()),
            output: Box::pin(stream::pending()),
            exit: Box::pin(pending()),
        };
        let started = Started { sandbox, decoder: None };
        let kernel = Kernel::begin(started, "fake", &Environment::default(), WAITS_MAX, None, &tasks);
        let (folder, image) = (Box::new(NoFolder), ImageId("a".to_owned()));
        let (end, since) = (kernel.close.clone().drop_guard(), Instant::now());
        Waiting { kernel, lease, folder, image, memory_bytes: 1, since, end }
    };
    let kernels = PrestartedKernels::default();
    kernels.0.lock().insert(language.clone(), Slot::default());
    let dead = waiting();
    dead.kernel.close.cancel();
    dead.kernel.ended().await;
    kernels.put_back(&language, dead);
    assert_eq!(kernels.memory_bytes(), 0);
    kernels.put_back(&language, waiting());
    assert_eq!(kernels.memory_bytes(), 1);
}
