//! The janitor on an engine that cannot remove some sandboxes.

use std::{collections::HashSet, sync::Arc, time::Duration};

use mcp_sandbox_server::{
    adapters::engine::fake::FakeEngine,
    domain::{
        clock::{Clock as _, ManualClock, SETTLING},
        id::{InstanceId, SandboxId},
    },
    ports::engine::{Engine as _, Listed},
    services::janitor::Janitor,
};
use tokio::time::{Instant, timeout};

use crate::support::stepping::SteppingClock;

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
    engine.plant(Listed { id, instance, created_unix_s: 0, deadline_unix_s: 2000, running: true });
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
    let plant = |created_unix_s, running| {
        let (id, deadline_unix_s) = (SandboxId::new(), now + 1800);
        engine.plant(Listed { id, instance: other, created_unix_s, deadline_unix_s, running });
        id
    };
    // One has exited, one runs, and one is being created and does not run yet.
    let (exited, runs, begins) = (plant(now - 100, false), plant(now - 100, true), plant(now - 5, false));
    assert_eq!(janitor.reconcile().await.expect("a list"), 0, "its server may be about to remove it");
    let late = plant(now - 100, false);
    janitor.start();
    assert_eq!(janitor.reconcile().await.expect("a list"), 1);
    janitor.idle().await;
    let left: HashSet<_> = engine.live().into_iter().collect();
    assert_eq!(left, HashSet::from([runs, begins, late]), "not {exited}");
    // The next round finds the one that exited later.
    tokio::time::sleep(Duration::from_secs(31)).await;
    janitor.idle().await;
    assert!(!engine.live().contains(&late) && engine.live().contains(&runs));
    janitor.drain(Duration::from_secs(1)).await;
}

/// Every combination of what a list tells of a sandbox without a lease.
#[tokio::test(start_paused = true)]
async fn a_sandbox_is_destroyed_exactly_when_its_server_must_be_gone() {
    const NOW: i64 = 1_000_000;
    let all = [true, false].into_iter().flat_map(|ours| [(ours, true), (ours, false)]);
    let all = all.flat_map(|known| [-1000, 0, 60, 61, 100_000].map(|age_s| (known, age_s)));
    for (((ours, running), age_s), left_s) in
        all.flat_map(|known| [-100_000, -1, 0, 1800].map(|left_s| (known, left_s)))
    {
        let (engine, instance) = (FakeEngine::default(), InstanceId::new());
        let clock = Arc::new(ManualClock::at(NOW));
        let janitor = Janitor::new(Arc::new(engine.clone()), instance, clock.clone());
        engine.plant(Listed {
            id: SandboxId::new(),
            instance: if ours { instance } else { InstanceId::new() },
            created_unix_s: NOW - age_s,
            deadline_unix_s: NOW + left_s,
            running,
        });
        let mut released = Vec::new();
        for round in 0..4 {
            // Deadlines count from the third round on.
            if round == 2 {
                clock.set(NOW + 600);
                tokio::time::advance(SETTLING).await;
            }
            released.push(janitor.reconcile().await.expect("a list"));
        }
        // An exited one has to be seen so by two rounds, a minute or more after it was made.
        let exited = if age_s > 60 { Some(1) } else { Some(3).filter(|_| age_s >= 0) };
        let exited = exited.filter(|_| !running);
        let abandoned = Some(2).filter(|_| left_s < 0);
        let first = if ours { Some(0) } else { exited.into_iter().chain(abandoned).min() };
        let expected: Vec<_> = (0..4).map(|round| usize::from(Some(round) == first)).collect();
        assert_eq!(released, expected, "ours: {ours}, running: {running}, age: {age_s}, left: {left_s}");
    }
}

#[tokio::test(start_paused = true)]
async fn janitor_leaves_sandboxes_of_other_servers_alone_after_a_step_of_the_clock() {
    const AT_ONCE: usize = 16;
    let (engine, clock, now) = (FakeEngine::default(), Arc::new(ManualClock::at(1000)), 1000);
    let janitor = Janitor::new(Arc::new(engine.clone()), InstanceId::new(), clock.clone());
    for _ in 0..AT_ONCE + 4 {
        let (id, instance) = (SandboxId::new(), InstanceId::new());
        engine.plant(Listed { id, instance, created_unix_s: 0, deadline_unix_s: now + 60, running: true });
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
