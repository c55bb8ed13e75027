//! Kernels as the handlers use them, in one thread: what happens between two steps of a hub.

use std::time::Duration;

use futures_util::future::join_all;
use mcp_sandbox_server::{
    domain::{
        error::Code,
        id::SessionId,
        outcome::Ended,
        owner::{ConversationKey, Principal},
    },
    services::{
        kernels::{Connection, ConnectionEnd},
        runs::RunRequest,
        sessions::{
            SessionState,
            message::{Channel, KernelMessage},
        },
    },
};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::FakeServer;
use crate::support::{until, until::PATIENCE};

fn conversation() -> ConversationKey {
    ConversationKey::new(Principal::default(), "a".parse().expect("an id"))
}

/// The id of a new kernel.
async fn start(server: &FakeServer) -> SessionId {
    let language = "python".parse().expect("a language");
    server.kernels.start(&conversation(), &language).await.expect("a kernel").id
}

fn connect(server: &FakeServer, kernel: SessionId) -> Connection {
    server.kernels.connect(&Principal::default(), kernel, None).expect("a connection")
}

async fn send(connection: &Connection, id: &str, kind: &str, content: &Value) {
    let header = json!({"msg_id": id, "msg_type": kind, "session": "s"});
    connection.send(KernelMessage::new(Channel::Shell, &header, content)).await.expect("sent");
}

/// The contents until the first message of a kind that answers a request.
async fn until_answered(connection: &mut Connection, id: &str, kind: &str) -> Vec<Value> {
    let mut contents = Vec::new();
    loop {
        let message = timeout(PATIENCE, connection.next()).await.expect("in time").expect("a message");
        contents.push(message.read_content());
        if message.read_parent().msg_id == id && message.read_header().msg_type == kind {
            return contents;
        }
    }
}

#[tokio::test]
async fn a_cell_of_a_client_that_has_left_is_executed() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let mut first = connect(&server, kernel);
    send(&first, "info", "kernel_info_request", &json!({})).await;
    until_answered(&mut first, "info", "kernel_info_reply").await;
    // Until the next await the hub does not run: it finds the cell, and that the client is gone.
    send(&first, "cell", "execute_request", &json!({"code": "print on"})).await;
    drop(first);
    let mut second = connect(&server, kernel);
    let seen = until_answered(&mut second, "cell", "stream").await;
    assert_eq!(seen.last().expect("a message")["text"], "on\n");
    server.stop().await;
}

#[tokio::test]
async fn a_restart_that_is_refused_leaves_the_one_under_way_as_it_is() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let mut client = connect(&server, kernel);
    send(&client, "first", "kernel_info_request", &json!({})).await;
    until_answered(&mut client, "first", "kernel_info_reply").await;
    server.engine.faults().start_delay = Duration::from_millis(300);
    let who = Principal::default();
    let restart = async || server.kernels.restart(&who, kernel).await.map(drop).map_err(|failure| failure.code);
    assert_eq!(tokio::join!(restart(), restart()), (Ok(()), Err(Code::SessionBusy)));
    send(&client, "second", "kernel_info_request", &json!({})).await;
    let seen = until_answered(&mut client, "second", "kernel_info_reply").await;
    let is_announced = seen.iter().any(|content| content["execution_state"] == "restarting");
    assert!(!is_announced, "JupyterLab would show a death: {seen:?}");
    server.stop().await;
}

#[tokio::test]
async fn code_that_is_sent_again_over_a_new_connection_is_not_executed_again() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let code = json!({"code": "append log x\nask go?", "allow_stdin": true});
    let mut first = connect(&server, kernel);
    send(&first, "cell", "execute_request", &code).await;
    until_answered(&mut first, "cell", "input_request").await;
    drop(first);
    let mut second = connect(&server, kernel);
    send(&second, "cell", "execute_request", &code).await;
    until_answered(&mut second, "cell", "input_request").await;
    let header = json!({"msg_id": "line", "msg_type": "input_reply", "session": "s"});
    second.send(KernelMessage::new(Channel::Stdin, &header, &json!({"value": "on"}))).await.expect("sent");
    let seen = until_answered(&mut second, "cell", "execute_reply").await;
    assert_eq!(seen.last().expect("a reply")["status"], "ok", "it comes to where the client is now");
    drop(second);
    let mut third = connect(&server, kernel);
    send(&third, "cell", "execute_request", &code).await;
    let seen = until_answered(&mut third, "cell", "execute_reply").await;
    assert_eq!(seen.last().expect("a reply")["ename"], "idempotency_key_reused");
    assert_eq!(std::fs::read_to_string(server.root.join("a/files/log")).expect("the log"), "x");
    server.stop().await;
}

#[tokio::test]
async fn no_message_for_a_kernel_reaches_the_one_after_a_restart() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let mut client = connect(&server, kernel);
    send(&client, "first", "kernel_info_request", &json!({})).await;
    until_answered(&mut client, "first", "kernel_info_reply").await;
    let message = |channel, id: &str, kind: &str, content: &Value| {
        KernelMessage::new(channel, &json!({"msg_id": id, "msg_type": kind, "session": "s"}), content)
    };
    // The server has read them, and they have no room before the restart.
    let asked = [Channel::Control, Channel::Shell]
        .map(|channel| client.send(message(channel, "late", "kernel_info_request", &json!({}))));
    let answered = client.send(message(Channel::Stdin, "late", "input_reply", &json!({"value": "late"})));
    server.kernels.restart(&Principal::default(), kernel).await.expect("a kernel");
    for late in asked {
        late.await.expect("sent");
    }
    send(&client, "now", "kernel_info_request", &json!({})).await;
    let mut replies = Vec::<String>::new();
    while replies.last().is_none_or(|id| id != "now") {
        let message = timeout(PATIENCE, client.next()).await.expect("in time").expect("a message");
        if message.channel != Channel::Iopub {
            replies.push(message.read_parent().msg_id);
        }
    }
    assert_eq!(replies, ["now"]);
    send(&client, "cell", "execute_request", &json!({"code": "ask go?", "allow_stdin": true})).await;
    until_answered(&mut client, "cell", "input_request").await;
    answered.await.expect("sent");
    let line = message(Channel::Stdin, "line", "input_reply", &json!({"value": "now"}));
    client.send(line).await.expect("sent");
    let seen = until_answered(&mut client, "cell", "execute_reply").await;
    let printed: Vec<_> = seen.iter().filter_map(|content| content["text"].as_str()).collect();
    assert_eq!(printed, ["now\n"]);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_did_not_read_gets_what_it_missed_when_it_comes_back() {
    let server = FakeServer::with_kernel(&[]).await;
    let (kernel, who) = (start(&server).await, Principal::default());
    let connect = || server.kernels.connect(&who, kernel, Some("one")).expect("a connection");
    let is = |state: SessionState| server.kernels.get(&who, kernel).expect("a kernel").state == Some(state);
    let mut client = connect();
    // More than is kept, and more than its queue holds.
    for (bytes, has_left) in [(3_000_000, true), (3_000_000, false), (9_000_000, true), (9_000_000, false)] {
        let id = format!("{bytes} {has_left}");
        send(&client, &id, "execute_request", &json!({"code": format!("wait-file go\nflood {bytes}")})).await;
        until("the cell runs", async || is(SessionState::Busy)).await;
        std::fs::write(server.root.join("a/files/go"), "").expect("written");
        until("the cell is over", async || is(SessionState::Idle)).await;
        let before = (!has_left).then_some(client);
        client = connect();
        let missed = until_answered(&mut client, &id, "execute_reply").await;
        assert_eq!(missed.last().expect("a reply")["status"], "ok", "{id}");
        let printed = missed.iter().filter(|content| content["name"] == "stdout");
        let printed: usize = printed.map(|content| content["text"].as_str().expect("a text").len()).sum();
        assert!((1..1 << 20).contains(&printed), "{id}: {printed}");
        let notes: Vec<_> = missed.iter().filter(|content| content["name"] == "stderr").collect();
        assert!(notes.len() == 1 && notes[0].to_string().contains("messages were left out"), "{id}: {notes:?}");
        if let Some(mut before) = before {
            assert!(before.next().await.is_none(), "{id}: nothing comes twice");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_left_with_one_that_cannot_come_back_gets_what_it_missed() {
    let server = FakeServer::with_kernel(&[]).await;
    let (kernel, who) = (start(&server).await, Principal::default());
    let connect = |name| server.kernels.connect(&who, kernel, name).expect("a connection");
    let (mut named, unnamed) = (connect(Some("one")), connect(None));
    send(&named, "cell", "execute_request", &json!({"code": "print begun\nwait-file go\nprint on"})).await;
    until_answered(&mut named, "cell", "stream").await;
    // The hub learns of both by its next message.
    drop((named, unnamed));
    std::fs::write(server.root.join("a/files/go"), "").expect("written");
    until("the cell is over", async || {
        server.kernels.get(&who, kernel).expect("a kernel").state == Some(SessionState::Idle)
    })
    .await;
    let missed = until_answered(&mut connect(Some("one")), "cell", "execute_reply").await;
    assert!(missed.iter().any(|content| content["text"] == "on\n"), "{missed:?}");
    server.stop().await;
}

#[tokio::test]
async fn each_cell_of_a_turn_counts_for_its_session() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let mut client = connect(&server, kernel);
    // Both are there when the hub runs, so they have one turn.
    for id in ["first", "second"] {
        send(&client, id, "execute_request", &json!({"code": "print on"})).await;
    }
    until_answered(&mut client, "second", "execute_reply").await;
    assert_eq!(server.sessions.list(&Principal::default(), None)[0].cells, 2);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_forges_its_idle_status_keeps_its_turn_until_its_reply() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let mut client = connect(&server, kernel);
    send(&client, "cell", "execute_request", &json!({"code": "idle\nsleep 3s\nappend log cell,"})).await;
    until_answered(&mut client, "cell", "status").await;
    let program = RunRequest::new(conversation(), "python".parse().expect("a language"), "append log run".into());
    let report = server.mcp.runs.begin(program).expect("a run").finished().await.expect("a report");
    assert_eq!(report.outcome.ended, Ended::Exited { code: 0 });
    assert_eq!(std::fs::read_to_string(server.root.join("a/files/log")).expect("the log"), "cell,run");
    server.stop().await;
}

/// As where a kernel fails in the request itself.
#[tokio::test(start_paused = true)]
async fn a_cell_that_gets_an_idle_status_alone_gives_its_turn_back() {
    let server = FakeServer::with_kernel(&[]).await;
    let kernel = start(&server).await;
    let mut client = connect(&server, kernel);
    send(&client, "cell", "execute_request", &json!({"code": "noreply\nprint on"})).await;
    until_answered(&mut client, "cell", "stream").await;
    let program = RunRequest::new(conversation(), "python".parse().expect("a language"), "print run".into());
    let report = server.mcp.runs.begin(program).expect("a run").finished().await.expect("a report");
    assert_eq!(report.stdout.text, "run\n");
    server.stop().await;
}

/// It replies just before it would be given up, and its idle status is lost.
#[tokio::test(start_paused = true)]
async fn a_cell_that_obeys_a_disk_limit_late_keeps_its_session() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let (kernel, who) = (start(&server).await, Principal::default());
    let mut client = connect(&server, kernel);
    send(&client, "cell", "execute_request", &json!({"code": "linger 1500ms\nnoidle\nprint on\nhang"})).await;
    until_answered(&mut client, "cell", "stream").await;
    for name in 0..12 {
        std::fs::write(server.root.join(format!("a/files/{name}")), "").expect("written");
    }
    until_answered(&mut client, "cell", "execute_reply").await;
    until("its turn is given back", async || {
        server.sessions.get(&who, kernel).expect("its session").state == SessionState::Idle
    })
    .await;
    server.stop().await;
}

/// The scripted sandbox never takes its files.
#[tokio::test(start_paused = true)]
async fn a_session_that_gets_its_files_for_a_cell_makes_no_room_for_another() {
    let one = [("SANDBOX_ENGINE__FILES", "streamed"), ("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "268435456")];
    let server = FakeServer::with_kernel(&one).await;
    let (kernel, who) = (start(&server).await, Principal::default());
    let client = connect(&server, kernel);
    send(&client, "cell", "execute_request", &json!({"code": "print on"})).await;
    until("it gets its files", async || {
        server.sessions.get(&who, kernel).expect("its session").state == SessionState::Busy
    })
    .await;
    let other = ConversationKey::new(who.clone(), "b".parse().expect("an id"));
    let refused = server.sessions.open(&other, &"python".parse().expect("a language")).await.expect_err("no memory");
    assert_eq!(refused.code, Code::SessionsFull);
    server.sessions.get(&who, kernel).expect("its session");
    server.stop().await;
}

/// The interrupt of its cell at a disk limit has no room either.
#[tokio::test(start_paused = true)]
async fn a_kernel_whose_bridge_reads_nothing_ends_for_that_reason() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let (kernel, who) = (start(&server).await, Principal::default());
    let mut client = connect(&server, kernel);
    send(&client, "cell", "execute_request", &json!({"code": "print on\ndeaf"})).await;
    until_answered(&mut client, "cell", "stream").await;
    let code = "x".repeat(4000);
    for answer in join_all((0..200).map(|_| server.sessions.complete(&who, kernel, &code, 0))).await {
        assert_eq!(answer.expect_err("the cell runs").code, Code::SessionBusy);
    }
    for name in 0..12 {
        std::fs::write(server.root.join(format!("a/files/{name}")), "").expect("written");
    }
    while timeout(PATIENCE, client.next()).await.expect("in time").is_some() {}
    let why = "its interpreter took no messages any more";
    assert_eq!(client.end(), ConnectionEnd::Ended(why.to_owned()));
    let ended = server.sessions.get(&who, kernel).expect_err("it has ended");
    assert!(ended.message.contains(why), "the next caller is told too: {ended}");
    server.stop().await;
}
