//! MCP sessions: beyond the limit, an owner closes those of one who has more, or its own.

use reqwest::Response;
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
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
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
