//! Files that a client follows at one server, while they change through another one.

use std::sync::{Arc, Mutex};

use mcp_sandbox_server::domain::SafePath;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::{Pair, run};
use crate::support::{
    FakeServer,
    calls::{ask, call, request},
    fake_server::BOTH,
    server::TOKEN,
    until,
};

/// The file whose changes show that a server hears the other one. It is none of those that are counted.
const SYNC: &str = "sync";

/// A client with a session of MCP at a server, and all that its own stream has told.
struct Follower<'a> {
    server: &'a FakeServer,
    token: String,
    session: String,
    told: Arc<Mutex<String>>,
    reading: JoinHandle<()>,
}

impl<'a> Follower<'a> {
    /// One that hears of what changes at `other`.
    async fn at(server: &'a FakeServer, other: &FakeServer, token: &str) -> Self {
        let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let opened = request(server, token, Method::POST, "/mcp").header("accept", BOTH).json(&hello).send().await;
        let session = opened.expect("an answer").headers()["mcp-session-id"].to_str().expect("an id").to_owned();
        let stream = request(server, token, Method::GET, "/mcp").header("accept", "text/event-stream");
        let told = Arc::new(Mutex::new(String::new()));
        let mut this = Self { server, token: token.to_owned(), session, told, reading: tokio::spawn(async {}) };
        assert_eq!(this.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await, 202);
        let mut stream = stream.header("mcp-session-id", &this.session).send().await.expect("a stream");
        let told = Arc::clone(&this.told);
        this.reading = tokio::spawn(async move {
            while let Ok(Some(piece)) = stream.chunk().await {
                told.lock().expect("a text").push_str(&String::from_utf8_lossy(&piece));
            }
        });
        this.follow(SYNC).await;
        until("it hears of the other server", async || {
            put(other, token, SYNC).await;
            this.count(SYNC) > 0
        })
        .await;
        this
    }

    async fn send(&self, message: Value) -> u16 {
        let sent = request(self.server, &self.token, Method::POST, "/mcp").header("accept", BOTH);
        let sent = sent.header("mcp-session-id", &self.session).json(&message).send().await.expect("an answer");
        let status = sent.status().as_u16();
        let text = sent.text().await.expect("text");
        assert!(!text.contains("\"error\""), "{text}");
        status
    }

    async fn follow(&self, path: &str) {
        let uri = format!("sandbox://files/s/{path}");
        let asked = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": uri}});
        assert_eq!(self.send(asked).await, 200);
    }

    /// How often a change of a file was told.
    fn count(&self, path: &str) -> usize {
        self.told.lock().expect("a text").matches(&format!("\"uri\":\"sandbox://files/s/{path}\"")).count()
    }

    async fn until_told(&self, path: &str) {
        until(path, async || self.count(path) > 0).await;
    }

    async fn end(self) {
        let ended = request(self.server, &self.token, Method::DELETE, "/mcp").header("mcp-session-id", &self.session);
        assert_eq!(ended.send().await.expect("an answer").status(), 200);
        self.reading.await.expect("its stream ends");
    }
}

async fn put(server: &FakeServer, token: &str, path: &str) {
    let write = request(server, token, Method::PUT, &format!("/v1/conversations/s/files/{path}")).body("text");
    let written = write.send().await.expect("an answer");
    assert!(written.status().is_success(), "{}", written.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_through_one_server_are_announced_at_another_once_and_to_their_owner_alone() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let (_, made) = ask(a, Method::POST, "/v1/tokens", Some(json!({"name": "n", "owner": "ann"}))).await;
    let token = made["token"].as_str().expect("a token");
    for path in ["from", "gone"] {
        put(b, TOKEN, path).await;
    }
    let (mine, theirs) = (Follower::at(a, b, TOKEN).await, Follower::at(a, b, token).await);
    let changed = ["from", "gone", "made", "to", "up"];
    for follower in [&mine, &theirs] {
        for path in changed.into_iter().chain(["z-end"]) {
            follower.follow(path).await;
        }
    }
    // First, since a run may list as changed what a client has just written.
    let (status, ran) = ask(b, Method::POST, "/v1/runs", Some(run("s", "write made x"))).await;
    assert_eq!((status, pair.started()), (200, (0, 1)), "{ran}");
    put(b, TOKEN, "up").await;
    let moved = ask(b, Method::POST, "/v1/conversations/s/move", Some(json!({"from": "from", "to": "to"}))).await;
    assert!((200..300).contains(&moved.0), "{moved:?}");
    assert_eq!(ask(b, Method::DELETE, "/v1/conversations/s/files/gone", None).await.0, 204);
    // What is announced later, or together with the others, comes after them.
    put(b, TOKEN, "z-end").await;
    mine.until_told("z-end").await;
    assert_eq!(changed.map(|path| mine.count(path)), [1; 5], "{}", mine.told.lock().expect("a text"));
    assert_eq!(theirs.count("z-end"), 0);
    put(b, token, "z-end").await;
    theirs.until_told("z-end").await;
    assert_eq!(changed.map(|path| theirs.count(path)), [0; 5], "{}", theirs.told.lock().expect("a text"));
    assert_eq!(mine.count("z-end"), 1);
    assert_eq!(call(b, token, Method::DELETE, "/v1/conversations/s", None).await.0, 204);
    until("the deletion of a conversation is told", async || theirs.count("up") == 1).await;
    assert_eq!(mine.count("up"), 1);
    mine.end().await;
    theirs.end().await;
    pair.stop().await;
}

/// It may have missed something meanwhile, so each file that is followed may have changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_lost_the_database_tells_its_clients_to_read_anew() {
    let mut pair = Pair::start().await;
    let follower = Follower::at(&pair.a, &pair.b, TOKEN).await;
    follower.follow("f").await;
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'";
    assert!(pair.cluster.sql(end));
    until("f may have changed", async || follower.count("f") > 0).await;
    follower.follow("g").await;
    put(&pair.b, TOKEN, "g").await;
    follower.until_told("g").await;
    pair.cluster.pause();
    let before = follower.count("f");
    put(&pair.b, TOKEN, "f").await;
    assert_eq!(follower.count("f"), before);
    pair.cluster.resume().await;
    until("f may have changed again", async || follower.count("f") > before).await;
    follower.follow("h").await;
    put(&pair.b, TOKEN, "h").await;
    follower.until_told("h").await;
    follower.end().await;
    pair.stop().await;
}

/// More than one notification of the database holds.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_many_changes_is_announced_at_another_server() {
    let pair = Pair::start().await;
    let follower = Follower::at(&pair.a, &pair.b, TOKEN).await;
    follower.follow("f0").await;
    follower.follow("last").await;
    let conversation = "s".parse().expect("a key");
    for round in 0..1000 {
        let path = SafePath::from_text(&format!("f{}", round % 100)).expect("a path");
        pair.b.shared.files.write(&conversation, &path, "text".into()).await.expect("written");
    }
    put(&pair.b, TOKEN, "last").await;
    follower.until_told("last").await;
    assert!(follower.count("f0") > 0);
    follower.end().await;
    pair.stop().await;
}
