//! The janitor on an engine that cannot remove some sandboxes.

use std::{sync::Arc, time::Duration};

use mcp_sandbox_server::{
    adapters::engine::fake::FakeEngine,
    domain::{
        clock::ManualClock,
        id::{InstanceId, SandboxId},
    },
    ports::engine::{Engine as _, Listed},
    services::janitor::Janitor,
};
use tokio::time::{Instant, timeout};

/// More than the janitor destroys at once.
const STUCK: usize = 5;

#[tokio::test(start_paused = true)]
async fn janitor_destroys_a_sandbox_while_others_cannot_be_removed() {
    let (engine, instance) = (FakeEngine::default(), InstanceId::new());
    let janitor = Janitor::new(Arc::new(engine.clone()), instance, Arc::new(ManualClock::at(1000)));
    janitor.start();
    let release = || {
        let id = SandboxId::new();
        engine.plant(Listed { id, instance, created_unix_s: 0, deadline_unix_s: 2000, running: true });
        drop(janitor.lease(id));
        id
    };
    let stuck: Vec<_> = (0..STUCK).map(|_| release()).collect();
    for &id in &stuck {
        engine.set_indestructible(id, true);
    }
    // Long enough for the first tries of all of them and several more.
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(engine.live().len(), STUCK);

    let begun = Instant::now();
    let other = release();
    let gone = async {
        while engine.live().contains(&other) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(5), gone).await.expect("it is destroyed at once");
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(janitor.unwanted(), STUCK);

    for id in stuck {
        engine.set_indestructible(id, false);
    }
    timeout(Duration::from_secs(30), janitor.idle()).await.expect("the others are destroyed when they can be");
    assert_eq!(engine.list().await.expect("a list").len(), 0);
    janitor.drain(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn drain_ends_while_a_sandbox_cannot_be_removed() {
    let (engine, instance) = (FakeEngine::default(), InstanceId::new());
    let janitor = Janitor::new(Arc::new(engine.clone()), instance, Arc::new(ManualClock::at(1000)));
    janitor.start();
    let id = SandboxId::new();
    engine.plant(Listed { id, instance, created_unix_s: 0, deadline_unix_s: 2000, running: true });
    engine.set_indestructible(id, true);
    drop(janitor.lease(id));
    let begun = Instant::now();
    janitor.drain(Duration::from_secs(3)).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(engine.live(), [id], "the next start finds it by its label");
}
