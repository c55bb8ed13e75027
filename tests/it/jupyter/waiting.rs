//! A client whose messages wait for the turn of the conversation.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Socket, call, get, socket, start};
use crate::support::{
    FakeServer,
    calls::{self, post},
    server::TOKEN,
    socket::text,
    until,
};

/// Sends more code than the hub takes before a turn, and more than its queue takes behind that; the last request.
async fn fill(client: &mut Socket) -> String {
    for _ in 0..3 {
        let content = json!({"code": "print on", "padding": "x".repeat(3 << 20)});
        client.send("shell", "execute_request", content).await;
    }
    let mut last = String::new();
    for _ in 0..20 {
        last = client.execute("print on").await;
    }
    last
}

/// A cell over REST that asks for input and has the turn of the conversation; its run's path.
async fn asking(server: &FakeServer, id: &str, code: &str) -> String {
    let path = format!("/v1/sessions/session-{}/cells", id.replace('-', ""));
    let run = post(server, &path, json!({"code": code, "stdinOpen": true, "wait": 0})).await;
    until("it runs", async || get(server, &format!("/api/kernels/{id}")).await["execution_state"] == "busy").await;
    format!("/v1/runs/{}", run["runId"].as_str().expect("an id"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_messages_wait_gets_what_the_kernel_sends() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "").await;
    let run = asking(&server, &id, "ask go?\nflood 12000000\nprint end").await;
    let last = fill(&mut client).await;
    let input = format!("http://{}{run}/stdin", server.address);
    let sent = server.http.post(input).bearer_auth(TOKEN).body("on\n").send();
    let (sent, _) = tokio::join!(sent, client.until(|message| message["content"]["text"] == "end\n"));
    assert_eq!(sent.expect("an answer").status(), 202);
    assert_eq!(text(&client.answers(&last).await), "on\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_while_its_messages_wait_gets_what_it_missed() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "session_id=mine").await;
    let path = asking(&server, &id, "ask go?\nprint end").await;
    let last = fill(&mut client).await;
    client.stream.close(None).await.expect("the server reads");
    while client.frame().await.is_some() {}
    let input = server.http.post(format!("http://{}{path}/stdin", server.address)).bearer_auth(TOKEN).body("on\n");
    assert_eq!(input.send().await.expect("an answer").status(), 202);
    assert_eq!(calls::get(&server, &format!("{path}?wait=30")).await["result"]["stdout"], "on\nend\n");
    let mut client = socket(&server, &id, "session_id=mine").await;
    client.until(|message| message["content"]["text"] == "end\n").await;
    assert_eq!(text(&client.answers(&last).await), "on\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_cut_off_because_it_did_not_read_gets_what_it_missed() {
    let server = FakeServer::with_kernel(&[("SANDBOX_SERVER__WRITE_STALL_MS", "1000")]).await;
    let id = start(&server, "/c/mine").await;
    let mut stalled = socket(&server, &id, "session_id=mine").await;
    let request = stalled.execute("wait-file go\nflood 40000000").await;
    stalled.until(|message| message["content"]["execution_state"] == "busy").await;
    std::fs::write(server.root.join("mine/files/go"), "").expect("written");
    let is_over = |kernel: &Value| kernel["execution_state"] == "idle" && kernel["connections"] == 0;
    until("it was cut off", async || is_over(&get(&server, &format!("/api/kernels/{id}")).await)).await;
    let mut client = socket(&server, &id, "session_id=mine").await;
    let missed = text(&client.answers(&request).await);
    assert!(missed.contains("messages were left out"), "{}", missed.len());
    drop(stalled);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_waits_for_room_is_not_executed_by_the_kernel_after_a_restart() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "").await;
    asking(&server, &id, "ask go?").await;
    let last = fill(&mut client).await;
    client.is_read().await;
    let (status, ..) = call(&server, Method::POST, &format!("/api/kernels/{id}/restart"), None).await;
    assert_eq!(status, 200);
    let answers = client.answers(&last).await;
    assert_eq!(text(&answers).matches("on\n").count(), 0, "{answers:?}");
    assert!(answers.iter().any(|message| message["content"]["status"] == "error"), "{answers:?}");
    assert_eq!(client.run("print after").await, "after\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_input_does_not_wait_behind_code() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "").await;
    let info = client.send("shell", "kernel_info_request", json!({})).await;
    client.until(|message| message["parent_header"]["msg_id"] == info).await;
    let path = format!("/v1/sessions/session-{}/cells", id.replace('-', ""));
    post(&server, &path, json!({"code": "ask go?\nprint end", "stdinOpen": true, "wait": 0})).await;
    client.until(|message| message["content"]["execution_state"] == "busy").await;
    let last = fill(&mut client).await;
    client.send("stdin", "input_reply", json!({"value": "yes"})).await;
    client.until(|message| message["content"]["text"] == "yes\n").await;
    assert_eq!(text(&client.answers(&last).await), "on\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_message_does_not_wait_behind_code() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "/c/mine").await;
    let mut client = socket(&server, &id, "").await;
    // A program has the turn of the conversation, and the kernel is idle.
    let run = json!({"conversationId": "mine", "language": "python", "code": "hang", "wait": 0});
    let run = post(&server, "/v1/runs", run).await;
    let path = format!("/v1/runs/{}", run["runId"].as_str().expect("an id"));
    until("it runs", async || calls::get(&server, &path).await["state"] == "running").await;
    let last = fill(&mut client).await;
    let asked = client.send("control", "kernel_info_request", json!({})).await;
    client.until(|message| message["parent_header"]["msg_id"] == asked).await;
    calls::ask(&server, Method::POST, &format!("{path}/cancel"), None).await;
    assert_eq!(text(&client.answers(&last).await), "on\n");
    server.stop().await;
}
