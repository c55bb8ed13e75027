//! Batches of an MCP session, whose messages may be for several servers, and calls that come to a server without their
//! session.

use reqwest::Method;
use serde_json::{Value, json};

use super::{Pair, run};
use crate::support::{
    calls::ask,
    fake_server::{BOTH, messages},
    server::TOKEN,
};

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_a_batch_are_answered_where_their_conversations_are() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let opened = a.post(hello.to_string()).header("accept", BOTH).send().await.expect("an answer");
    let session = opened.headers()["mcp-session-id"].to_str().expect("an id").to_owned();
    let send = async |message: Value| {
        let request = a.post(message.to_string()).header("accept", BOTH).header("mcp-session-id", &session);
        request.send().await.expect("an answer")
    };
    assert_eq!(send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await.status(), 202);
    assert_eq!(ask(b, Method::POST, "/v1/runs", Some(run("of-b", "print 1"))).await.0, 200);
    let before = pair.started();
    let call = |id: u64, conversation: &str| {
        let code = format!("write f {id}\nprint {id}");
        let arguments = json!({"conversationId": conversation, "language": "python", "code": code});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
               "params": {"name": "sandbox_run_code", "arguments": arguments}})
    };
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    let answered = send(json!([call(1, "new"), call(2, "of-b"), ping])).await;
    assert_eq!(answered.headers()["x-accel-buffering"], "no", "as of a single message");
    let answers = messages(answered).await;
    let answer = |id: u64| &answers.iter().find(|answer| answer["id"] == id).expect("an answer")["result"];
    for id in [1, 2] {
        let blocks = answer(id)["content"].as_array().expect("blocks");
        let text = blocks[0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with(&format!("{id}\n")), "{answers:?}");
        let is_link = |block: &Value| block["type"] == "resource_link";
        assert!(!blocks.iter().any(is_link), "this revision has none: {answers:?}");
    }
    assert!(answer(3).is_object(), "{answers:?}");
    assert_eq!(pair.started(), (before.0 + 1, before.1 + 1));
    let ended = a.http.delete(format!("http://{}/mcp", a.address)).bearer_auth(TOKEN);
    assert_eq!(ended.header("mcp-session-id", &session).send().await.expect("an answer").status(), 200);
    pair.stop().await;
}

/// Also where another server than that of the session would be asked for the conversation.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_come_to_another_server_are_made_in_their_session_alone() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let session = a.open_session().await;
    let call = |name: &str, arguments: Value| {
        let params = json!({"name": name, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    };
    let python = |command: &str| call("execute_python_code", json!({"command": command}));
    // Clients without a session share a conversation, which is at the first server from now on.
    let shared = a.post(python("set x 41").to_string()).send().await.expect("an answer");
    assert_eq!(shared.status(), 200);
    let answers = messages(b.in_session(&session, &python("get x")).send().await.expect("an answer")).await;
    let content = &answers.last().expect("an answer")["result"]["content"];
    let text = content[0]["text"].as_str().unwrap_or_default();
    assert!(text.contains("name 'x' is not defined"), "{answers:?}");
    assert_eq!(ask(a, Method::POST, "/v1/runs", Some(run("of-a", "print 1"))).await.0, 200);
    let ended = a.http.delete(format!("http://{}/mcp", a.address)).bearer_auth(TOKEN);
    assert_eq!(ended.header("mcp-session-id", &session).send().await.expect("an answer").status(), 200);
    let before = pair.started();
    let arguments = json!({"conversationId": "of-a", "language": "python", "code": "print 2"});
    let late = b.in_session(&session, &call("sandbox_run_code", arguments)).send().await.expect("an answer");
    assert_eq!((late.status().as_u16(), pair.started()), (404, before));
    pair.stop().await;
}
