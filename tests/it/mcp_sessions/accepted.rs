//! Messages that a session takes once, and messages of clients that accept less than the protocol asks for.

use serde_json::{Value, json};

use super::{CHANGED, Session, cell, question, run, text_until};
use crate::support::{FakeServer, fake_server::messages, until};

const JSON: &str = "application/json";

/// However often it says that it is ready.
#[tokio::test(flavor = "multi_thread")]
async fn client_is_told_once_of_each_change_of_the_languages() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    for _ in 0..20 {
        assert_eq!(session.send(&ready).await.status(), 202);
    }
    let uri = "sandbox://files/s/end";
    let subscribe = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": uri}});
    let subscribed = messages(session.send(&subscribe).await).await;
    assert!(subscribed[0]["result"].is_object(), "{subscribed:?}");
    let mut stream = session.listen(None).await;
    server.engine.add_runner("ruby");
    let mut told = text_until(&mut stream, CHANGED).await;
    // What is sent a second time comes before this.
    messages(session.send(&run(2, "write end x")).await).await;
    told += &text_until(&mut stream, uri).await;
    assert_eq!(told.matches(CHANGED).count(), 1, "{told}");
    assert_eq!(session.end().await, 200);
    server.stop().await;
}

/// Earlier revisions have no such block, and their clients may refuse the whole answer for it.
#[tokio::test(flavor = "multi_thread")]
async fn link_blocks_are_sent_from_2025_06_18_on_only() {
    let server = FakeServer::start().await;
    for (version, links) in [("2024-11-05", 0), ("2025-03-26", 0), ("2025-06-18", 1), ("2025-11-25", 1)] {
        let session = Session::open(&server, version, "").await;
        let answers = messages(session.send(&run(1, "write a.txt x")).await).await;
        let content = &answers.last().expect("an answer")["result"]["content"];
        let blocks = content.as_array().unwrap_or_else(|| panic!("{version}: {answers:?}"));
        let found = blocks.iter().filter(|block| block["type"] == "resource_link").count();
        assert_eq!(found, links, "{version}: {content}");
        assert!(blocks[0]["text"].as_str().is_some_and(|text| text.contains("http://")), "{version}: {content}");
        assert_eq!(session.end().await, 200);
    }
    server.stop().await;
}

/// It has no answer itself, so it needs no stream.
#[tokio::test(flavor = "multi_thread")]
async fn answer_to_a_question_reaches_its_session_whatever_the_client_accepts() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = Session::open_as(&server, "2025-06-18", "", json!({"elicitation": {}})).await;
    let mut stream = session.send(&cell("ask who?", &json!({}))).await;
    let (id, _) = question(&mut stream).await;
    let line = json!({"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {"line": "Ada"}}});
    assert_eq!(session.send_accepting(JSON, &line).await.status(), 202);
    let text = text_until(&mut stream, "\"id\":1").await;
    assert!(text.contains("Ada\\n"), "{text}");
    assert_eq!(session.end().await, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cancellation_reaches_its_call_whatever_the_client_accepts() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let hanging = session.send(&run(9, "hang")).await;
    until("it runs", async || server.engine.live().len() == 1).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
    assert_eq!(session.send_accepting("*/*", &cancel).await.status(), 202);
    until("it is stopped", async || server.engine.live().is_empty()).await;
    drop(hanging);
    assert_eq!(session.end().await, 200);
    server.stop().await;
}

/// Such a request is answered outside of its session, where no notification could follow.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_takes_one_answer_subscribes_to_nothing() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let subscribe = json!({"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe",
        "params": {"uri": "sandbox://files/s/a"}});
    let refused: Value = session.send_accepting(JSON, &subscribe).await.json().await.expect("JSON");
    assert_eq!(refused["error"]["code"], -32600, "{refused}");
    let subscribed = messages(session.send(&subscribe).await).await;
    assert!(subscribed[0]["result"].is_object(), "{subscribed:?}");
    assert_eq!(session.end().await, 200);
    server.stop().await;
}
