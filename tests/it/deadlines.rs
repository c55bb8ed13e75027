//! What ends a sandbox: the server's deadline; process 1 once the server is dead (at its closed streams or at its own
//! deadline, whichever is first); process 1 at its own deadline while the server is frozen; and the deadline on the
//! label when the server never comes back.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use mcp_sandbox_server::{
    domain::{
        clock::{ManualClock, SETTLING},
        id::{InstanceId, SandboxId},
    },
    ports::engine::{Engine as _, Listed},
    services::janitor::Janitor,
};
use serde_json::{Value, json};

use crate::{
    fake::FakeEngine,
    support::{
        FakeServer,
        engines::{World, docker},
        process::Process,
        server::TOKEN,
        until,
    },
};

/// The fake engine never ends a program by itself.
#[tokio::test(flavor = "multi_thread")]
async fn server_deadline_ends_a_program() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "3000")]).await;
    let run = server.run("a", "print before\nhang").await;
    let content = &run["structuredContent"];
    assert_eq!((&content["outcome"]["ended"], &content["stdout"]), (&json!("timed_out"), &json!("before\n")), "{run}");
    server.stop().await;
}

/// The server is killed and not restarted, and the program ignores every signal that can be ignored.
#[tokio::test(flavor = "multi_thread")]
async fn process_1_ends_a_program_whose_server_was_killed() {
    let test = async |world: &World| {
        let wall = Duration::from_secs(10);
        let settings = [("SANDBOX_LIMITS__WALL_MS", "10000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
        let mut server = Process::start(&settings).await;
        let instance = server.instance();
        begin(&server).await;
        let from = Instant::now();
        server.crash();
        let running = async || {
            let listed = world.engine.list().await.expect("a list");
            listed.iter().filter(|one| one.instance.to_string() == instance && one.running).count()
        };
        assert_eq!(running().await, 1, "it goes on without its server");
        until("process 1 has ended it", async || running().await == 0).await;
        let took = from.elapsed();
        println!("ended {took:?} after its server was killed; its limit was {wall:?}");
        server.start_again();
        server.ready().await;
        server.stop().await;
    };
    World::docker().await.hold(test).await;
}

/// The server is frozen: its streams stay open and its deadline does not fire.
#[tokio::test(flavor = "multi_thread")]
async fn process_1_ends_a_program_whose_server_is_frozen() {
    let test = async |world: &World| {
        let deadline = Duration::from_secs(10 + 2);
        let settings = [("SANDBOX_LIMITS__WALL_MS", "10000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
        let server = Process::start(&settings).await;
        let instance = server.instance();
        let from = Instant::now();
        let run = begin(&server).await;
        server.freeze().await;
        let state = async || {
            let listed = world.engine.list().await.expect("a list");
            let mut ours = listed.iter().filter(|one| one.instance.to_string() == instance);
            let id = ours.next().expect("it was not removed").id.to_string();
            docker().await.inspect_container(&id, None).await.expect("a container").state.expect("its state")
        };
        assert_eq!(state().await.running, Some(true), "it runs while its server is frozen");
        until("it has ended", async || state().await.running == Some(false)).await;
        let took = from.elapsed();
        assert!(server.is_frozen(), "the server had no part in it");
        // One that was killed from outside would have another status.
        assert_eq!(state().await.exit_code, Some(0), "process 1 has ended the program and then itself");
        println!("ended {took:?} after it was asked for; process 1's deadline was {deadline:?}");
        assert!(took >= deadline, "{took:?}");
        server.thaw();
        let ended = async || {
            let run = server.http.get(&run).bearer_auth(TOKEN).send().await.expect("an answer");
            run.json::<Value>().await.expect("JSON")["outcome"]["ended"].clone()
        };
        until("the server reports the end", async || ended().await.is_string()).await;
        assert_eq!(ended().await, "timed_out");
        server.stop().await;
    };
    World::docker().await.hold(test).await;
}

/// Begins a program that ignores every signal it can and never ends; the run's URL once it runs.
async fn begin(server: &Process) -> String {
    let code = "trap '' TERM INT HUP QUIT PIPE USR1 USR2; while :; do sleep 0.1; done";
    let body = json!({"language": "bash", "code": code, "wait": 0});
    let url = server.url("/v1/runs");
    let begun = server.http.post(&url).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
    let begun: Value = begun.json().await.expect("JSON");
    let run = format!("{url}/{}", begun["runId"].as_str().expect("an id"));
    until("the program runs", async || {
        let run = server.http.get(&run).bearer_auth(TOKEN).send().await.expect("an answer");
        run.json::<Value>().await.expect("JSON")["state"] == "running"
    })
    .await;
    run
}

#[tokio::test(start_paused = true)]
async fn label_deadline_ends_sandboxes_of_a_lost_server() {
    let (engine, now) = (FakeEngine::default(), 1_000_000);
    let (ours, other) = (InstanceId::new(), InstanceId::new());
    let clock = Arc::new(ManualClock::at(now - 600));
    let janitor = Janitor::new(Arc::new(engine.clone()), ours, clock.clone());
    let plant = |instance, deadline_unix_s| {
        let id = SandboxId::new();
        engine.add_leftover(Listed { id, instance, deadline_unix_s, running: true });
        id
    };
    let abandoned = [now - 601, now - 365 * 24 * 3600].map(|deadline| plant(other, deadline));
    let (late, alive) = (plant(other, now - 599), plant(other, now + 60));
    let unwanted = plant(ours, now + 60);
    assert_eq!(janitor.reconcile().await.expect("a list"), 1, "ours: a clock may be far ahead at the start");
    clock.set(now);
    tokio::time::advance(SETTLING).await;
    assert_eq!(janitor.reconcile().await.expect("a list"), 2);
    janitor.start();
    janitor.idle().await;
    let mut left: Vec<_> = engine.list().await.expect("a list").into_iter().map(|one| one.id).collect();
    left.sort();
    let mut expected = vec![late, alive];
    expected.sort();
    assert_eq!(left, expected, "neither {abandoned:?} nor {unwanted}");
    janitor.drain(Duration::from_secs(1)).await;
}
