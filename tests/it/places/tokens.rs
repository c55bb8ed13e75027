//! Places of the listener that one token takes.

use serde_json::json;

use super::{Attack, PLACES, ask, attackers, bearer, get, with_token};
use crate::support::{FakeServer, calls::create, until};

/// The header with a new token of an owner.
async fn new_token(server: &FakeServer, owner: &str) -> String {
    bearer(&create(server, json!({"name": "t", "owner": owner})).await.1)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_one_token_leave_places_to_other_tokens_and_probes() {
    let server = FakeServer::with(&[PLACES]).await;
    let one = new_token(&server, "ann").await;
    let others = [new_token(&server, "ann").await, new_token(&server, "bob").await, with_token(), String::new()];
    for count in [20, 200] {
        let held = attackers(count, &[Attack::Asks(get("/mcp/events", &one))], server.address);
        let is_refused = async || !ask(server.address, "/v1/runners", &one).await.starts_with("HTTP/1.1 200");
        until("its share is used up", is_refused).await;
        for more in others.iter().chain(&others) {
            let path = if more.is_empty() { "/healthz" } else { "/v1/runners" };
            let answer = ask(server.address, path, more).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{count} streams, {path}: {answer:.80}");
        }
        drop(held);
    }
    server.stop().await;
}
