//! Questions that another client answers first.

use reqwest::Method;
use serde_json::json;

use super::{Session, cell, question, text_until};
use crate::support::{FakeServer, calls, server::TOKEN};

/// Without the withdrawal, the answer to the first question would be the line for the second one.
#[tokio::test(flavor = "multi_thread")]
async fn question_for_a_line_is_withdrawn_when_another_client_answers() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = Session::open_as(&server, "2025-06-18", "", json!({"elicitation": {}})).await;
    let mut own = session.listen(None).await;
    // The server counts its own requests from 0, and a withdrawal that has the number of a call goes to that call.
    let mut call = cell("ask who?\nask and?", &json!({}));
    call["id"] = json!(77);
    let mut stream = session.send(&call).await;
    assert!(question(&mut stream).await.1.ends_with("asks: who?"));
    let listed = calls::get(&server, "/v1/runs?conversationId=s").await;
    let path = format!("/v1/runs/{}/stdin", listed["runs"][0]["runId"].as_str().expect("a run"));
    let sent = calls::request(&server, TOKEN, Method::POST, &path).body("Eve\n").send().await.expect("an answer");
    assert_eq!(sent.status(), 202);
    let withdrawn = text_until(&mut own, "notifications/cancelled").await;
    assert!(withdrawn.contains("answered elsewhere"), "{withdrawn}");
    let (id, message) = question(&mut stream).await;
    assert!(message.ends_with("asks: and?"), "{message}");
    let reply = json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"line": "Ada"}}});
    assert_eq!(session.send(&reply).await.status(), 202);
    let text = text_until(&mut stream, "\"id\":77").await;
    assert!(text.contains("Eve\\nAda\\n"), "{text}");
    server.stop().await;
}
