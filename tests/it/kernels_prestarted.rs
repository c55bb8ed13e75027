//! Kernels that wait for the next session of a new conversation, on the real engine.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    Server,
    server::TOKEN,
    until::{until, within},
};

const PATIENCE: Duration = Duration::from_mins(1);

async fn ask(server: &Server, method: Method, path: &str, body: &Value) -> Value {
    let request = server.http.request(method, server.url(path)).bearer_auth(TOKEN).json(body);
    let answer = request.send().await.expect("an answer");
    answer.json().await.unwrap_or_default()
}

/// Opens a session; its path.
async fn open(server: &Server, setup: Value) -> String {
    let session = ask(server, Method::POST, "/v1/sessions", &setup).await;
    format!("/v1/sessions/{}", session["sessionId"].as_str().unwrap_or_else(|| panic!("{session}")))
}

/// What a cell prints.
async fn cell(server: &Server, session: &str, code: &str) -> String {
    let run = ask(server, Method::POST, &format!("{session}/cells"), &json!({"code": code})).await;
    run["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{run}")).trim().to_owned()
}

/// Kernels that wait, by `/readyz`.
async fn waiting(server: &Server, language: &str) -> u64 {
    let ready = ask(server, Method::GET, "/readyz", &json!({})).await;
    ready["standbys"][language]["kernel"].as_u64().unwrap_or(0)
}

async fn one_waits(server: &Server, language: &str) {
    assert!(within(PATIENCE, async || waiting(server, language).await == 1).await.is_ok(), "no kernel waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_conversation_gets_the_kernel_that_waits_with_its_own_folder() {
    let server = Server::with(&[("SANDBOX_ENV__ALLOWED", "MARK")]).await;
    let first = open(&server, json!({"conversationId": "first", "language": "bash"})).await;
    assert_eq!(cell(&server, &first, "mark=first; pwd").await, "/data");
    one_waits(&server, "bash").await;

    let taken = server.standbys.taken();
    let second = open(&server, json!({"conversationId": "second", "language": "bash"})).await;
    assert_eq!(waiting(&server, "bash").await, 0, "it was taken");
    assert_eq!(server.standbys.taken(), taken);
    assert_eq!(
        cell(&server, &second, "echo \"[$mark]\"; echo 1 > f; stat -c %u f; id -u").await.split('\n').count(),
        3
    );
    let owner = fs::metadata(server.root.join("second/files/f")).expect("the file is in the conversation").uid();
    assert_eq!(cell(&server, &second, "echo \"[$mark] $(id -u)\"").await, format!("[] {owner}"));
    let files = ask(&server, Method::GET, "/v1/conversations/second/files", &json!({})).await;
    assert_eq!(files["files"][0]["path"], "f", "{files}");

    // A conversation that has files keeps them, so the kernel goes on waiting.
    one_waits(&server, "bash").await;
    assert_eq!(server.run("known", "bash", "echo 2 > g").await["isError"], false);
    let known = open(&server, json!({"conversationId": "known", "language": "bash"})).await;
    assert_eq!(cell(&server, &known, "cat g").await, "2");
    // So it does for one with variables of its own.
    let with = json!({"conversationId": "env", "language": "bash", "env": {"MARK": "mine"}});
    let with = open(&server, with).await;
    assert_eq!(cell(&server, &with, "echo $MARK").await, "mine");
    assert_eq!(waiting(&server, "bash").await, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_that_waits_makes_room_for_a_session_and_is_replaced_when_it_dies() {
    // Memory for two sessions.
    let settings = [("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "600000000"), ("SANDBOX_ENV__ALLOWED", "MARK")];
    let server = Server::with(&settings).await;
    let first = open(&server, json!({"conversationId": "a", "language": "bash"})).await;
    one_waits(&server, "bash").await;
    let other = json!({"conversationId": "b", "language": "bash", "env": {"MARK": "b"}});
    let second = open(&server, other).await;
    assert_eq!(waiting(&server, "bash").await, 0, "it made room");
    for session in [&first, &second] {
        assert_eq!(cell(&server, session, "echo here").await, "here", "no session had to end");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(waiting(&server, "bash").await, 0, "there is no memory for another");

    ask(&server, Method::DELETE, &second, &json!({})).await;
    let third = open(&server, json!({"conversationId": "c", "language": "bash"})).await;
    ask(&server, Method::DELETE, &third, &json!({})).await;
    one_waits(&server, "bash").await;
    // The engine ends everything that waits; what is dead is given to no session.
    for sandbox in server.sandboxes().await {
        server.engine.destroy(sandbox).await.expect("destroyed");
    }
    until("it is known to be dead", async || waiting(&server, "bash").await == 0).await;
    let fourth = open(&server, json!({"conversationId": "d", "language": "bash"})).await;
    assert_eq!(cell(&server, &fourth, "echo alive").await, "alive");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kernel_waits_where_standbys_are_off() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let session = open(&server, json!({"conversationId": "a", "language": "bash"})).await;
    assert_eq!(cell(&server, &session, "echo here").await, "here");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((waiting(&server, "bash").await, server.containers().await), (0, 1));
    server.stop().await;
}
