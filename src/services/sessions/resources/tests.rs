//! What waits, on a sandbox that does nothing.

use std::future::pending;

use futures_util::stream;
use serde_json::json;
use tokio::time::timeout;

use super::{
    super::registry::{Registry, Session},
    *,
};
use crate::{
    adapters::engine::fake::FakeEngine,
    domain::{InstanceId, SandboxId, SessionId, clock::ManualClock},
    ports::engine::Sandbox,
    services::{janitor::Janitor, standby::NoFolder, tasks::Tasks},
};

fn waiting(clock: &Arc<ManualClock>, registry: &Arc<Registry>) -> Waiting {
    let janitor = Janitor::new(Arc::new(FakeEngine::default()), InstanceId::new(), Arc::clone(clock) as _);
    let lease = Arc::new(janitor.lease(SandboxId::new()));
    let sandbox = Sandbox {
        id: lease.id(),
        stdin: Box::pin(tokio::io::sink()),
        output: Box::pin(stream::pending()),
        exit: Box::pin(pending()),
    };
    let started = Started { sandbox, decoder: None };
    let kernel = Kernel::begin(started, "fake", &Environment::default(), WAITS_MAX, None, &Tasks::default());
    let (folder, image) = (Box::new(NoFolder), ImageId("a".to_owned()));
    let reserved = registry.reserve_prestarted(1, 1).expect("there is memory for one");
    Waiting { kernel, lease, folder, image, _reserved: reserved, since: Moment::now(clock.as_ref()) }
}

fn session(clock: &Arc<ManualClock>) -> Arc<Session> {
    let Waiting { kernel, lease, .. } = waiting(clock, &Arc::default());
    let key = ConversationKey::new(Principal::default(), "c".parse().expect("an id"));
    let of = (key, "python".parse().expect("a language"));
    Arc::new(Session::new(SessionId::new(), of, (Setup::default(), None), kernel, lease, clock.as_ref(), 1))
}

#[tokio::test]
async fn session_whose_cell_has_begun_does_not_end_as_unused() {
    let (session, registry) = (session(&Arc::new(ManualClock::at(1000))), Registry::default());
    registry.add(&session);
    let busy = session.occupy();
    assert!(!registry.remove(&session, SessionEnd::Memory) && !registry.ended_unused(&session));
    drop(busy);
    assert!(registry.remove(&session, SessionEnd::Memory));
    let _late = session.occupy();
    assert!(registry.ended_unused(&session), "its cell opens another one");
    registry.add(&session);
    assert!(!registry.ended_unused(&session) && registry.remove(&session, SessionEnd::Closed));
    assert!(!registry.ended_unused(&session));
}

#[tokio::test]
async fn cell_whose_use_is_not_known_is_not_part_of_the_next_ones() {
    let session = session(&Arc::new(ManualClock::at(1000)));
    let of_cell = |total_ms: Option<u64>, wall_ms: u64| {
        let figures = session.figures(&json!({"cpuMs": total_ms}), Duration::from_millis(wall_ms), 500);
        figures.cpu.map(|cpu| cpu.as_millis())
    };
    assert_eq!(of_cell(Some(100), 300), Some(100));
    assert_eq!(of_cell(None, 400), None);
    assert_eq!(of_cell(Some(350), 200), Some(50), "200 ms counted before");
    assert_eq!(of_cell(None, 400), None);
    assert_eq!(of_cell(Some(360), 200), Some(0), "it can have used 200 ms, and used less");
    assert_eq!(of_cell(Some(400), 200), Some(40));
}

#[tokio::test(start_paused = true)]
async fn what_is_open_ages_while_the_machine_is_suspended() {
    let clock = Arc::new(ManualClock::at(1000));
    let (waits, age) = (waiting(&clock, &Arc::default()), Duration::from_hours(1));
    let session = session(&clock);
    let is_old = || (waits.is_old(clock.as_ref()), session.is_older(age, clock.as_ref()));
    assert_eq!(is_old(), (false, false));
    clock.suspend(30 * 60);
    assert_eq!(is_old(), (true, false));
    clock.suspend(30 * 60);
    assert_eq!(is_old(), (true, true));
}

#[tokio::test(start_paused = true)]
async fn kernel_that_no_session_keeps_ends_also_where_its_sandbox_does_not() {
    let Waiting { kernel, lease: _leased, .. } = waiting(&Arc::new(ManualClock::at(1000)), &Arc::default());
    let mut subscription = kernel.subscribers.add();
    drop(kernel);
    let next = timeout(WAITS_MAX, subscription.next()).await.expect("it ends");
    assert!(next.is_none());
}

#[tokio::test]
async fn kernel_that_died_does_not_wait_again() {
    let (clock, language) = (Arc::new(ManualClock::at(1000)), "python".parse::<Language>().expect("a language"));
    let kernels = PrestartedKernels::default();
    kernels.0.lock().insert(language.clone(), Slot::default());
    let registry = Arc::default();
    let dead = waiting(&clock, &registry);
    dead.kernel.close.cancel();
    dead.kernel.ended().await;
    kernels.put_back(&language, dead);
    kernels.put_back(&language, waiting(&clock, &registry));
    assert!(registry.reserve_prestarted(1, 1).is_none(), "the memory of one that waits is in use");
    assert!(kernels.end_all() && registry.reserve_prestarted(1, 1).is_some());
}
