//! The janitor on an engine that cannot remove some sandboxes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use mcp_sandbox_server::{
    domain::{
        clock::{Clock as _, ManualClock},
        id::{InstanceId, SandboxId},
    },
    ports::engine::{Engine as _, Listed},
    services::janitor::Janitor,
};
use tokio::time::{Instant, timeout};

use crate::{fake::FakeEngine, support::stepping::SteppingClock};

/// More than the janitor destroys at once.
const STUCK: usize = 5;

#[tokio::test(start_paused = true)]
async fn janitor_destroys_a_sandbox_while_others_cannot_be_removed() {
    let (engine, instance) = (FakeEngine::default(), InstanceId::new());
    let janitor = Janitor::new(Arc::new(engine.clone()), instance, Arc::new(ManualClock::at(1000)));
    janitor.start();
    let release = || {
        let id = SandboxId::new();
        engine.add_leftover(Listed { id, instance, deadline_unix_s: 2000, running: true });
        drop(janitor.lease(id));
        id
    };
    let stuck: Vec<_> = (0..STUCK).map(|_| release()).collect();
    for &id in &stuck {
        engine.faults().indestructible.insert(id);
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
        engine.faults().indestructible.remove(&id);
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
    engine.add_leftover(Listed { id, instance, deadline_unix_s: 2000, running: true });
    engine.faults().indestructible.insert(id);
    drop(janitor.lease(id));
    let begun = Instant::now();
    janitor.drain(Duration::from_secs(3)).await;
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!(engine.live(), [id], "the next start finds it by its label");
}

#[tokio::test(start_paused = true)]
async fn exited_sandboxes_of_another_server_are_destroyed_when_it_does_not() {
    let (engine, now) = (FakeEngine::default(), 1_000_000);
    let (ours, other) = (InstanceId::new(), InstanceId::new());
    let janitor = Janitor::new(Arc::new(engine.clone()), ours, Arc::new(ManualClock::at(now)));
    let plant = |running| {
        let (id, deadline_unix_s) = (SandboxId::new(), now + 1800);
        engine.add_leftover(Listed { id, instance: other, deadline_unix_s, running });
        id
    };
    // One has exited, or is being created; one runs.
    let (exited, runs) = (plant(false), plant(true));
    assert_eq!(janitor.reconcile().await.expect("a list"), 0, "its server may be about to remove it");
    tokio::time::advance(Duration::from_secs(40)).await;
    let late = plant(false);
    assert_eq!(janitor.reconcile().await.expect("a list"), 0, "it may take long until it runs");
    tokio::time::advance(Duration::from_secs(21)).await;
    janitor.start();
    assert_eq!(janitor.reconcile().await.expect("a list"), 1);
    janitor.idle().await;
    let left: HashSet<_> = engine.live().into_iter().collect();
    assert_eq!(left, HashSet::from([runs, late]), "not {exited}");
    // A later round finds the one that exited later.
    tokio::time::sleep(Duration::from_secs(61)).await;
    janitor.idle().await;
    assert!(!engine.live().contains(&late) && engine.live().contains(&runs));
    janitor.drain(Duration::from_secs(1)).await;
}

/// Every combination of what a list tells of a sandbox without a lease.
#[tokio::test(start_paused = true)]
async fn a_sandbox_is_destroyed_exactly_when_its_server_must_be_gone() {
    const NOW: i64 = 1_000_000;
    let all = [true, false].into_iter().flat_map(|ours| [(ours, true), (ours, false)]);
    for ((ours, running), left_s) in all.flat_map(|known| [-100_000, 60, 61, 1800].map(|left_s| (known, left_s))) {
        let (engine, instance) = (FakeEngine::default(), InstanceId::new());
        let clock = Arc::new(ManualClock::at(NOW));
        let janitor = Janitor::new(Arc::new(engine.clone()), instance, clock.clone());
        engine.add_leftover(Listed {
            id: SandboxId::new(),
            instance: if ours { instance } else { InstanceId::new() },
            deadline_unix_s: NOW + left_s,
            running,
        });
        let mut released = vec![janitor.reconcile().await.expect("a list")];
        for later_s in [60, 1, 600] {
            clock.set(clock.unix_s() + later_s);
            tokio::time::advance(Duration::from_secs(later_s.unsigned_abs())).await;
            released.push(janitor.reconcile().await.expect("a list"));
        }
        // One that does not run has to be seen so for more than a minute; deadlines count at the last round.
        let first = match (ours, running) {
            (true, _) => Some(0),
            (false, false) => Some(2),
            (false, true) => Some(3).filter(|_| left_s <= 60),
        };
        let expected: Vec<_> = (0..4).map(|round| usize::from(Some(round) == first)).collect();
        assert_eq!(released, expected, "ours: {ours}, running: {running}, left: {left_s}");
    }
}

#[tokio::test(start_paused = true)]
async fn janitor_leaves_sandboxes_of_other_servers_alone_after_a_step_of_the_clock() {
    const AT_ONCE: usize = 16;
    let (engine, clock, now) = (FakeEngine::default(), Arc::new(ManualClock::at(1000)), 1000);
    let janitor = Janitor::new(Arc::new(engine.clone()), InstanceId::new(), clock.clone());
    for _ in 0..AT_ONCE + 4 {
        let (id, instance) = (SandboxId::new(), InstanceId::new());
        engine.add_leftover(Listed { id, instance, deadline_unix_s: now + 60, running: true });
    }
    let within = Janitor::new(Arc::new(engine.clone()), InstanceId::new(), Arc::new(SteppingClock::at(now)));
    assert_eq!(within.reconcile().await.expect("a list"), 0, "a step within the round");
    assert_eq!(janitor.reconcile().await.expect("a list"), 0);
    clock.set(now + 365 * 24 * 3600);
    assert_eq!(janitor.reconcile().await.expect("a list"), 0);
    clock.set(clock.unix_s() + 3600);
    tokio::time::advance(Duration::from_hours(1)).await;
    assert_eq!(janitor.reconcile().await.expect("a list"), AT_ONCE, "few at once");
    assert_eq!(janitor.reconcile().await.expect("a list"), 4);
    janitor.drain(Duration::ZERO).await;
}
