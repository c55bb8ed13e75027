//! Sessions that their server took along, or an operator ended: the next caller is told, once.

use std::fs;

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::id::InstanceId,
    ports::sessions::{ServerProcess, SessionStore as _},
};
use reqwest::Method;
use serde_json::json;
use tempfile::TempDir;

use crate::support::{
    FakeServer,
    calls::ask,
    fake_server::{Kind, OWN_ADDRESS, on_each_database},
    postgres::Postgres,
    until,
};

const STOPPED: &str = "The session ended because its server stopped: its variables are gone";

on_each_database! {
    session_that_was_open_when_its_server_stopped_is_told_once
    session_that_was_open_when_its_server_died_is_told_once
}

/// Where servers are started one after another: a folder, and a database beside it.
struct Place {
    url: String,
    folder: TempDir,
    cluster: Option<Postgres>,
}

impl Place {
    async fn of(kind: Kind) -> Self {
        let folder = tempfile::Builder::new().prefix("sandbox-it-").tempdir().expect("a folder");
        let cluster = if kind == Kind::Postgres { Some(Postgres::start().await) } else { None };
        let sqlite = format!("sqlite://{}/state/a.db", folder.path().display());
        Self { url: cluster.as_ref().map_or(sqlite, Postgres::url), folder, cluster }
    }

    async fn start(&self) -> FakeServer {
        self.start_in("root", &[]).await
    }

    async fn start_in(&self, root: &str, more: &[(&str, &str)]) -> FakeServer {
        let settings = [more, &[("DATABASE_URL", self.url.as_str())]].concat();
        FakeServer::again(&self.folder.path().join(root), &settings).await
    }

    /// Waits until this many sessions of the first server are recorded as open.
    async fn recorded(&self, count: usize) {
        let instance = fs::read_to_string(self.folder.path().join("root/.instance")).expect("an identity");
        let instance: InstanceId = instance.trim_end().parse().expect("an id");
        let database = Database::connect(&self.url).expect("an address");
        let another = ServerProcess { instance, started_ms: 0 };
        until("the sessions are recorded", async || {
            let is_ready = database.prepare().await.is_ok();
            is_ready && database.left(another, 10).await.is_ok_and(|left| left.len() == count)
        })
        .await;
        database.close().await;
    }
}

/// What a cell answers over MCP.
async fn cell(server: &FakeServer, conversation: &str, code: &str) -> String {
    server.call("sandbox_run_cell", json!({"conversationId": conversation, "code": code})).await.to_string()
}

/// The path of the session that is open in a conversation.
async fn session(server: &FakeServer, conversation: &str) -> String {
    let (_, listed) = ask(server, Method::GET, &format!("/v1/sessions?conversationId={conversation}"), None).await;
    format!("/v1/sessions/{}", listed["sessions"][0]["sessionId"].as_str().expect("an id"))
}

/// Waits until a server says by the id that a session ended.
async fn is_told(server: &FakeServer, session: &str) {
    until("it is known that the session ended", async || ask(server, Method::GET, session, None).await.0 == 410).await;
    let (_, why) = ask(server, Method::GET, session, None).await;
    assert_eq!(why["code"], "session_ended", "{why}");
    assert!(why["detail"].as_str().expect("a sentence").starts_with(STOPPED), "{why}");
}

async fn session_that_was_open_when_its_server_stopped_is_told_once(kind: Kind) {
    let place = Place::of(kind).await;
    let server = place.start().await;
    for conversation in ["c", "closed", "deleted"] {
        cell(&server, conversation, "set x 41\nwrite f text").await;
    }
    let first = session(&server, "c").await;
    assert_eq!(ask(&server, Method::DELETE, &session(&server, "closed").await, None).await.0, 200);
    server.stop().await;

    let server = place.start().await;
    is_told(&server, &first).await;
    let (status, why) = ask(&server, Method::POST, &format!("{first}/restart"), None).await;
    assert_eq!((status, &why["code"]), (410, &json!("session_ended")), "its environment is not known: {why}");
    assert_eq!(ask(&server, Method::DELETE, "/v1/conversations/deleted", None).await.0, 204);
    let told = cell(&server, "c", "get x").await;
    assert!(told.contains(STOPPED) && told.contains("NameError"), "{told}");
    for conversation in ["c", "closed", "deleted"] {
        let answer = cell(&server, conversation, "print here").await;
        assert!(answer.contains("here") && !answer.contains("The session ended"), "{conversation}: {answer}");
    }
    is_told(&server, &first).await;
    let second = session(&server, "c").await;
    server.stop().await;

    // The new session was open as well; the one before it was told.
    let server = place.start().await;
    is_told(&server, &second).await;
    assert_eq!(ask(&server, Method::GET, &first, None).await.0, 404);
    assert!(cell(&server, "c", "print here").await.contains(STOPPED));
    assert!(!cell(&server, "c", "print here").await.contains("The session ended"));
    server.stop().await;
}

/// A server on another folder that has the identity of one that never said that it stopped.
async fn session_that_was_open_when_its_server_died_is_told_once(kind: Kind) {
    let place = Place::of(kind).await;
    let dead = place.start().await;
    cell(&dead, "c", "set x 41").await;
    let open = session(&dead, "c").await;
    place.recorded(1).await;
    place.start_in("other", &[]).await.stop().await;
    let [identity, other] = ["root", "other"].map(|root| place.folder.path().join(root).join(".instance"));
    fs::write(other, fs::read(identity).expect("an identity")).expect("written");

    let server = place.start_in("other", &[]).await;
    is_told(&server, &open).await;
    assert!(cell(&server, "c", "get x").await.contains(STOPPED));
    assert!(!cell(&server, "c", "get x").await.contains("The session ended"));
    server.stop().await;
    dead.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_an_operator_ended_is_told_once() {
    let server = FakeServer::with_kernel(&[]).await;
    cell(&server, "c", "set x 41").await;
    let open = session(&server, "c").await;
    let path = open.replace("/v1/sessions/", "/v1/admin/sessions/");
    assert_eq!(ask(&server, Method::DELETE, &path, None).await.0, 204);
    let (status, why) = ask(&server, Method::GET, &open, None).await;
    assert_eq!((status, &why["code"]), (410, &json!("session_ended")), "{why}");
    assert!(why["detail"].as_str().expect("a sentence").contains("an operator ended it"), "{why}");
    assert!(cell(&server, "c", "get x").await.contains("The session ended because an operator ended it"));
    assert!(!cell(&server, "c", "get x").await.contains("The session ended"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_was_opened_while_the_database_was_away_is_recorded_later() {
    let mut place = Place::of(Kind::Postgres).await;
    let server = place.start().await;
    place.recorded(0).await;
    place.cluster.as_mut().expect("a cluster").pause();
    assert!(cell(&server, "c", "set x 41\nget x").await.contains("41\\n"));
    place.cluster.as_mut().expect("a cluster").resume().await;
    place.recorded(1).await;
    let open = session(&server, "c").await;
    server.stop().await;
    let server = place.start().await;
    is_told(&server, &open).await;
    assert!(cell(&server, "c", "get x").await.contains(STOPPED));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn session_that_another_server_left_is_told_once_by_the_one_that_goes_on() {
    let place = Place::of(Kind::Postgres).await;
    let own = [("SANDBOX_SERVER__PEER_URL", OWN_ADDRESS)];
    let (a, b) = (place.start_in("root", &own).await, place.start_in("root", &own).await);
    for server in [&a, &b] {
        until("each knows the other", async || server.mcp.runs.peers().others().len() == 1).await;
    }
    cell(&a, "c", "set x 41").await;
    assert!(cell(&b, "c", "get x").await.contains("41\\n"), "it is sent to the one that has it");
    cell(&a, "deleted", "write f text").await;
    a.stop().await;
    assert_eq!(ask(&b, Method::DELETE, "/v1/conversations/deleted", None).await.0, 204);
    let new = cell(&b, "deleted", "print here").await;
    assert!(new.contains("here") && !new.contains("The session ended"), "{new}");
    let told = cell(&b, "c", "get x").await;
    assert!(told.contains(STOPPED) && told.contains("NameError"), "{told}");
    assert!(!cell(&b, "c", "get x").await.contains("The session ended"));
    b.stop().await;
}
