//! MCP sessions: beyond the limit, an owner closes those of one who has more, or its own. Calls without an answer, and
//! answers that wait for their clients, are bounded for each owner.

use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::Owner;
use crate::support::{FakeServer, fake_server::BOTH, until};

impl Owner<'_> {
    async fn message(&self, session: Option<&str>, message: Value) -> Response {
        let request = self.server.http.post(format!("http://{}/mcp", self.server.address)).bearer_auth(&self.token);
        let request = request.header("accept", BOTH).json(&message);
        let request = session.into_iter().fold(request, |request, id| request.header("mcp-session-id", id));
        request.send().await.expect("an answer")
    }

    /// Opens an MCP session; its id.
    async fn initialize(&self) -> String {
        self.initialize_as("2025-06-18").await
    }

    async fn initialize_as(&self, version: &str) -> String {
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let mut id = String::new();
        // The last message of a session may still be handled when it is answered.
        until("there is room", async || {
            let answer = self.message(None, initialize.clone()).await;
            let given = answer.headers().get("mcp-session-id").map(|id| id.to_str().expect("an id").to_owned());
            drop(answer.text().await);
            id = given.unwrap_or_default();
            !id.is_empty()
        })
        .await;
        self.message(Some(&id), json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        id
    }

    async fn lives(&self, session: &str) -> bool {
        let answer = self.message(Some(session), json!({"jsonrpc": "2.0", "id": 2, "method": "ping"})).await;
        let lives = answer.status() == 200;
        drop(answer.text().await);
        lives
    }
}

fn call(id: u64, tool: &str, arguments: &Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": id}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_a_session_share_a_conversation_with_those_of_their_token() {
    let server = FakeServer::with_kernel(&[]).await;
    let (one, two) = (Owner::new(&server, "ann").await, Owner::new(&server, "ann").await);
    let cell = async |owner: &Owner<'_>, code: &str| {
        let answer = owner.message(None, call(1, "execute_ipython_cell", &json!({"code": code}))).await;
        answer.text().await.expect("an answer")
    };
    cell(&one, "set x 41").await;
    let (of_two, of_one) = (cell(&two, "get x").await, cell(&one, "get x").await);
    assert!(of_two.contains("NameError") && !of_two.contains("41\\n"), "{of_two}");
    assert!(of_one.contains("41\\n"), "{of_one}");
    server.stop().await;
}

/// Each call waits for a program that goes on, and its client goes when it has the head of the answer.
#[tokio::test(flavor = "multi_thread")]
async fn calls_without_an_answer_are_bounded_for_each_session_and_each_owner() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let program = json!({"conversationId": "c", "language": "python", "code": "hang", "wait": 0});
    let (status, run) = ann.call(Method::POST, "/v1/runs", Some(program)).await;
    assert_eq!(status, 202, "{run}");
    let waits = json!({"runId": run["runId"], "waitSeconds": 3600});
    let (mut left, mut sessions) = (500_u64, Vec::new());
    while left > 0 {
        let session = ann.initialize().await;
        let room = left.min(64);
        // None of them has the id of a ping.
        for id in 101..=100 + room {
            let answer = ann.message(Some(&session), call(id, "sandbox_get_run", &waits)).await;
            assert_eq!(answer.status(), 200, "{id} of {left}");
        }
        let refused = ann.message(Some(&session), call(65, "sandbox_get_run", &waits)).await;
        assert_eq!(refused.status(), 503, "{left}");
        let refused: Value = refused.json().await.expect("JSON");
        let code = &refused["error"]["data"]["code"];
        assert_eq!((&refused["id"], code), (&json!(65), &json!("queue_full")), "{refused}");
        left -= room;
        sessions.push(session);
    }
    assert!(bob.lives(&bob.initialize().await).await);
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 101}});
    assert_eq!(ann.message(Some(&sessions[0]), cancel).await.status(), 202);
    until("there is room for a call", async || ann.lives(&sessions[0]).await).await;
    let path = format!("/v1/runs/{}/cancel", run["runId"].as_str().expect("an id"));
    assert_eq!(ann.call(Method::POST, &path, None).await.0, 200);
    server.stop().await;
}

/// More streams end than are kept of all owners together.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_owner_erase_no_answer_that_waits_for_a_client_of_another() {
    let server = FakeServer::start().await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let (hers, his) = (ann.initialize_as("2025-11-25").await, bob.initialize().await);
    let code = json!({"conversationId": "c", "language": "python", "code": "print here"});
    // Her client goes when it has the head of the answer.
    drop(ann.message(Some(&hers), call(1, "sandbox_run_code", &code)).await);
    until("its run is over", async || {
        ann.call(Method::GET, "/v1/runs?conversationId=c", None).await.1["runs"][0]["state"] == "finished"
    })
    .await;
    for _ in 0..4200 {
        assert!(bob.lives(&his).await);
    }
    let url = format!("http://{}/mcp", server.address);
    let request = server.http.get(url).bearer_auth(&ann.token).header("accept", "text/event-stream");
    // The event that each stream begins with.
    let request = request.header("mcp-session-id", &hers).header("last-event-id", "0/1");
    let resumed = request.send().await.expect("an answer").text().await.expect("a stream that ends");
    assert!(resumed.contains("\"result\"") && resumed.contains("here\\n"), "{resumed}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_closes_no_mcp_session_of_one_who_has_fewer() {
    let server = FakeServer::with(&[("SANDBOX_SERVER__SESSIONS_MAX", "3")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let of_ann = [ann.initialize().await, ann.initialize().await, ann.initialize().await];
    let his = bob.initialize().await;
    assert!(!ann.lives(&of_ann[0]).await, "the least recently used one of hers, who had all");
    assert!(ann.lives(&of_ann[1]).await && ann.lives(&of_ann[2]).await);
    // His was used before both of hers.
    let fourth = ann.initialize().await;
    assert!(bob.lives(&his).await);
    assert!(!ann.lives(&of_ann[1]).await && ann.lives(&of_ann[2]).await && ann.lives(&fourth).await);
    // She has two, and he would have as many.
    let second = bob.initialize().await;
    assert!(ann.lives(&of_ann[2]).await && ann.lives(&fourth).await);
    assert!(!bob.lives(&his).await && bob.lives(&second).await);
    server.stop().await;

    let server = FakeServer::with(&[("SANDBOX_SERVER__SESSIONS_MAX", "1")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let hers = ann.initialize().await;
    let his = bob.initialize().await;
    assert!(!ann.lives(&hers).await && bob.lives(&his).await, "he had none");
    server.stop().await;
}
