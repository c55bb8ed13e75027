//! Batches of an MCP session, whose messages may be for several servers.

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
        let arguments = json!({"conversationId": conversation, "language": "python", "code": format!("print {id}")});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
               "params": {"name": "sandbox_run_code", "arguments": arguments}})
    };
    let ping = json!({"jsonrpc": "2.0", "id": 3, "method": "ping"});
    let answers = messages(send(json!([call(1, "new"), call(2, "of-b"), ping])).await).await;
    let answer = |id: u64| &answers.iter().find(|answer| answer["id"] == id).expect("an answer")["result"];
    for id in [1, 2] {
        let text = answer(id)["content"][0]["text"].as_str().unwrap_or_default();
        assert!(text.starts_with(&format!("{id}\n")), "{answers:?}");
    }
    assert!(answer(3).is_object(), "{answers:?}");
    assert_eq!(pair.started(), (before.0 + 1, before.1 + 1));
    let ended = a.http.delete(format!("http://{}/mcp", a.address)).bearer_auth(TOKEN);
    assert_eq!(ended.header("mcp-session-id", &session).send().await.expect("an answer").status(), 200);
    pair.stop().await;
}
