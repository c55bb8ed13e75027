//! Owners share the places of standbys.

use reqwest::Method;
use serde_json::json;

use super::Owner;
use crate::support::{FakeServer, until};

/// A server with so many standbys, all for conversations that exist.
async fn server_with(standbys: &str) -> FakeServer {
    let settings = [
        ("SANDBOX_STANDBY__TOTAL_MAX", standbys),
        ("SANDBOX_STANDBY__NAMELESS_MAX", "0"),
        ("SANDBOX_ADMISSION__SLOTS", "8"),
    ];
    FakeServer::with_kernel(&settings).await
}

async fn run(owner: &Owner<'_>, conversation: &str) {
    let body = json!({"conversationId": conversation, "language": "python", "code": "print x"});
    let (status, run) = owner.call(Method::POST, "/v1/runs", Some(body)).await;
    assert_eq!(status, 200, "{run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn standby_of_the_owner_who_has_the_most_gives_way() {
    let server = server_with("3").await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    for (owner, conversation, count) in
        [(&bob, "b", 1), (&ann, "a1", 2), (&ann, "a2", 3), (&ann, "a3", 3), (&ann, "a4", 3)]
    {
        let begun = server.engine.started().len();
        run(owner, conversation).await;
        until("it has a standby", async || server.engine.started().len() == begun + 2).await;
        server.until_live(count).await;
    }
    let taken = server.shared.standbys.taken();
    run(&bob, "b").await;
    assert_eq!(server.shared.standbys.taken(), taken + 1, "ann's later runs did not take it");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_who_has_the_fewest_standbys_gets_the_next_one() {
    let server = server_with("2").await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    // While a program runs, conversations with a single run get no standby.
    let body = json!({"conversationId": "a", "language": "python", "code": "hang", "wait": 0});
    let (status, busy) = ann.call(Method::POST, "/v1/runs", Some(body)).await;
    assert_eq!(status, 202, "{busy}");
    let busy = format!("/v1/runs/{}", busy["runId"].as_str().expect("an id"));
    until("it runs", async || ann.call(Method::GET, &busy, None).await.1["state"] == "running").await;
    let of_busy = server.engine.live();
    run(&bob, "b").await;
    for conversation in ["a1", "a2", "a3"] {
        run(&ann, conversation).await;
    }
    assert_eq!(ann.call(Method::POST, &format!("{busy}/cancel"), None).await.0, 200);
    // It may be there for a moment after its run, and is none of the two.
    until("its sandbox is gone", async || of_busy.iter().all(|id| !server.engine.live().contains(id))).await;
    server.until_live(2).await;
    let taken = server.shared.standbys.taken();
    run(&bob, "b").await;
    assert_eq!(server.shared.standbys.taken(), taken + 1, "one of two is for bob");
    server.stop().await;
}
