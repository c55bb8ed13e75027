//! Kernels that wait for the next session of a new conversation, on the real engine.

use std::{fs, os::unix::fs::MetadataExt as _, time::Duration};

use reqwest::Method;
use serde_json::json;

use crate::support::{
    Server,
    calls::{ask, cell, open_session, streams},
    server::TOKEN,
    until::{until, within},
};

const PATIENCE: Duration = Duration::from_mins(1);

/// What a cell prints.
async fn said(server: &Server, session: &str, code: &str) -> String {
    streams(&cell(server, TOKEN, session, code).await).0.trim().to_owned()
}

/// Kernels that wait, by `/readyz`.
async fn waiting(server: &Server, language: &str) -> u64 {
    let (_, ready) = ask(server, Method::GET, "/readyz", None).await;
    ready["standbys"][language]["kernel"].as_u64().unwrap_or(0)
}

/// How long the machine is up, in the unit of the starts of processes in `/proc`.
fn machine_age() -> u64 {
    let uptime = fs::read_to_string("/proc/uptime").expect("of the kernel");
    uptime.split(' ').next().expect("two numbers").replace('.', "").parse().expect("a number")
}

async fn one_waits(server: &Server, language: &str) {
    assert!(within(PATIENCE, async || waiting(server, language).await == 1).await.is_ok(), "no kernel waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn new_conversation_gets_the_kernel_that_waits_with_its_own_folder() {
    let server = Server::with(&[("SANDBOX_ENV__ALLOWED", "MARK")]).await;
    let first = open_session(&server, TOKEN, json!({"conversationId": "first", "language": "bash"})).await;
    assert_eq!(said(&server, &first, "mark=first; pwd").await, "/data");
    one_waits(&server, "bash").await;

    let (taken, before) = (server.standbys.taken(), machine_age());
    let second = open_session(&server, TOKEN, json!({"conversationId": "second", "language": "bash"})).await;
    let begun: u64 =
        said(&server, &second, "read -ra s < /proc/$$/stat; echo ${s[21]}").await.parse().expect("when it began");
    assert!(begun <= before, "{begun} and {before}: it was not taken");
    assert_eq!(server.standbys.taken(), taken);
    assert_eq!(
        said(&server, &second, "echo \"[$mark]\"; echo 1 > f; stat -c %u f; id -u").await.split('\n').count(),
        3
    );
    let owner = fs::metadata(server.root.join("second/files/f")).expect("the file is in the conversation").uid();
    assert_eq!(said(&server, &second, "echo \"[$mark] $(id -u)\"").await, format!("[] {owner}"));
    let (_, files) = ask(&server, Method::GET, "/v1/conversations/second/files", None).await;
    assert_eq!(files["files"][0]["path"], "f", "{files}");

    // A conversation that has files keeps them, so the kernel goes on waiting.
    one_waits(&server, "bash").await;
    assert_eq!(server.run("known", "bash", "echo 2 > g").await["isError"], false);
    let known = open_session(&server, TOKEN, json!({"conversationId": "known", "language": "bash"})).await;
    assert_eq!(said(&server, &known, "cat g").await, "2");
    // So it does for one with variables of its own.
    let with = json!({"conversationId": "env", "language": "bash", "env": {"MARK": "mine"}});
    let with = open_session(&server, TOKEN, with).await;
    assert_eq!(said(&server, &with, "echo $MARK").await, "mine");
    assert_eq!(waiting(&server, "bash").await, 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kernel_that_waits_makes_room_for_a_session_and_is_replaced_when_it_dies() {
    // Memory for two sessions.
    let settings = [("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "600000000"), ("SANDBOX_ENV__ALLOWED", "MARK")];
    let server = Server::with(&settings).await;
    let first = open_session(&server, TOKEN, json!({"conversationId": "a", "language": "bash"})).await;
    one_waits(&server, "bash").await;
    let other = json!({"conversationId": "b", "language": "bash", "env": {"MARK": "b"}});
    let second = open_session(&server, TOKEN, other).await;
    assert_eq!(waiting(&server, "bash").await, 0, "it made room");
    for session in [&first, &second] {
        assert_eq!(said(&server, session, "echo here").await, "here", "no session had to end");
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(waiting(&server, "bash").await, 0, "there is no memory for another");

    ask(&server, Method::DELETE, &second, None).await;
    let third = open_session(&server, TOKEN, json!({"conversationId": "c", "language": "bash"})).await;
    ask(&server, Method::DELETE, &third, None).await;
    one_waits(&server, "bash").await;
    // The engine ends everything that waits; what is dead is given to no session.
    for sandbox in server.sandboxes().await {
        server.engine.destroy(sandbox).await.expect("destroyed");
    }
    until("it is known to be dead", async || waiting(&server, "bash").await == 0).await;
    let fourth = open_session(&server, TOKEN, json!({"conversationId": "d", "language": "bash"})).await;
    assert_eq!(said(&server, &fourth, "echo alive").await, "alive");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kernel_waits_where_standbys_are_off() {
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let session = open_session(&server, TOKEN, json!({"conversationId": "a", "language": "bash"})).await;
    assert_eq!(said(&server, &session, "echo here").await, "here");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!((waiting(&server, "bash").await, server.containers().await), (0, 1));
    server.stop().await;
}
