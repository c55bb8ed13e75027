//! Standbys load with more CPU than a program gets, and no program runs before it has its limit.

use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;

use crate::support::{FakeServer, server::TOKEN, until};

/// Standbys for conversations alone, so that a test can count them.
const SETTINGS: [(&str, &str); 2] = [("SANDBOX_STANDBY__TOTAL_MAX", "2"), ("SANDBOX_STANDBY__NAMELESS_MAX", "0")];

async fn cpu_of(server: &FakeServer, conversation: &str) -> String {
    let result = server.run(conversation, "cpu").await;
    assert_eq!(result["isError"], false, "{result}");
    result["structuredContent"]["stdout"].as_str().expect("text").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn program_has_its_limit_in_a_standby_that_has_loaded_or_loads() {
    for for_ever in [false, true] {
        let server = FakeServer::with_kernel(&SETTINGS).await;
        server.engine.faults().loading.send_replace(for_ever);
        assert_eq!(cpu_of(&server, "c").await, "500");
        server.until_live(1).await;
        let standby = server.engine.live();
        assert_eq!(cpu_of(&server, "c").await, "500");
        until("the standby was used", async || standby.iter().all(|id| !server.engine.live().contains(id))).await;
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn program_waits_for_what_it_names_and_no_longer_than_a_second() {
    const PATIENCE: Duration = Duration::from_millis(300);
    for is_loaded in [true, false] {
        let server = FakeServer::with_kernel(&SETTINGS).await;
        server.engine.faults().loading.send_replace(true);
        server.run("c", "print 1").await;
        server.until_live(1).await;
        let standby = server.engine.live();
        let mut run = Box::pin(server.run("c", "print heavy"));
        assert!(timeout(PATIENCE, &mut run).await.is_err(), "the program began before its libraries were there");
        server.engine.faults().loading.send_replace(!is_loaded);
        let result = run.await;
        assert_eq!(result["structuredContent"]["stdout"], "heavy\n", "{result}");
        until("the standby was used", async || standby.iter().all(|id| !server.engine.live().contains(id))).await;
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_without_its_limit_is_not_used() {
    let server = FakeServer::with_kernel(&SETTINGS).await;
    server.engine.faults().loading.send_replace(true);
    server.engine.faults().refuse_limits = true;
    assert_eq!(cpu_of(&server, "c").await, "500");
    server.until_live(1).await;
    let (standby, begun) = (server.engine.live(), server.engine.started().len());
    assert_eq!(cpu_of(&server, "c").await, "500", "in a sandbox of its own");
    assert!(server.engine.started().len() > begun, "it was started for the program");
    until("the standby is gone", async || standby.iter().all(|id| !server.engine.live().contains(id))).await;
    // The engine has never lowered a limit, so later standbys have theirs from the start and are used.
    server.until_live(1).await;
    let standby = server.engine.live();
    assert_eq!(cpu_of(&server, "c").await, "500");
    until("the standby was used", async || standby.iter().all(|id| !server.engine.live().contains(id))).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_in_a_tight_loop_has_more_than_one() {
    let server = FakeServer::with_kernel(&SETTINGS).await;
    server.run("loop", "print 1").await;
    server.until_live(1).await;
    server.run("loop", "print 1").await;
    server.until_live(2).await;
    // Two is what there may be. A further one gives way to another conversation's first one.
    let begun = server.engine.started().len();
    server.run("other", "print 1").await;
    until("the other one has its own", async || server.engine.started().len() == begun + 2).await;
    server.until_live(2).await;
    let before = server.engine.live();
    for conversation in ["loop", "other"] {
        server.run(conversation, "print 1").await;
    }
    until("each has used its own", async || before.iter().all(|id| !server.engine.live().contains(id))).await;
    server.stop().await;
}

/// Waits until so many standbys have reported that they are warm, and with it what they use.
async fn warm(server: &FakeServer, count: u64) {
    let url = format!("http://{}/readyz", server.address);
    until("standbys are warm", async || {
        let ready = server.http.get(&url).bearer_auth(TOKEN).send().await.expect("an answer");
        let ready: Value = ready.json().await.expect("JSON");
        ready["standbys"]["python"]["warm"] == count
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn probe_of_folders_that_takes_too_long_aborts_no_start() {
    let server = FakeServer::start().await;
    server.engine.faults().start_delay = Duration::from_mins(1);
    assert!(!server.shared.standbys.assignment_is_supported().await);
    server.janitor.idle().await;
    assert_eq!(server.engine.live().len(), 1, "its sandbox is still starting");
    server.until_live(0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_counts_with_the_most_that_one_of_its_image_has_reported() {
    let settings = [
        ("SANDBOX_STANDBY__TOTAL_MAX", "3"),
        ("SANDBOX_STANDBY__NAMELESS_MAX", "0"),
        ("SANDBOX_STANDBY__MEMORY_BYTES_MAX", "25000000"),
    ];
    let server = FakeServer::with_kernel(&settings).await;
    server.engine.faults().memory_bytes = Some(10_000_000);
    server.run("first", "print 1").await;
    warm(&server, 1).await;
    // As one that is going to load more.
    server.engine.faults().memory_bytes = Some(1_000_000);
    server.run("second", "print 1").await;
    warm(&server, 2).await;
    let begun = server.engine.started().len();
    server.run("third", "print 1").await;
    until("the third has its own", async || server.engine.started().len() == begun + 2).await;
    server.until_live(2).await;
    server.stop().await;
}
