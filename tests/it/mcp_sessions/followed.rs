//! Files that a client follows, which programs and other clients change.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{Session, ids, run, text_until};
use crate::support::{FakeServer, fake_server::messages, server::TOKEN, until};

fn about(id: u64, method: &str, uri: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"uri": uri}})
}

/// How a notification names a file.
fn updated(path: &str) -> String {
    format!("\"uri\":\"sandbox://files/s/{path}\"")
}

async fn subscribe(session: &Session<'_>, path: &str) {
    let uri = format!("sandbox://files/s/{path}");
    let answer = messages(session.send(&about(1, "resources/subscribe", &uri)).await).await;
    assert!(answer[0]["result"].is_object(), "{answer:?}");
}

/// Calls a tool in the session; the text of its answer.
async fn tool(session: &Session<'_>, name: &str, arguments: Value) -> String {
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name,
        "arguments": arguments}});
    let answers = messages(session.send(&call).await).await;
    let result = &answers.last().expect("an answer")["result"];
    assert_eq!(result["isError"], false, "{name}: {result}");
    result["content"][0]["text"].as_str().expect("a text").to_owned()
}

fn tar(path: &str, content: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    archive.append_data(&mut header, path, content.as_bytes()).expect("an entry");
    archive.into_inner().expect("an archive")
}

#[tokio::test(flavor = "multi_thread")]
async fn followed_files_are_announced_whichever_way_a_client_changes_them() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let mut stream = session.listen(None).await;
    for path in ["a.txt", "d/b.txt"] {
        subscribe(&session, path).await;
    }
    let mut told = async |path: &str, by: &str| {
        let text = text_until(&mut stream, &updated(path)).await;
        assert!(text.contains("notifications/resources/updated") && !text.contains("other"), "{by}: {text}");
    };
    let in_a = |more: Value| {
        let mut arguments = json!({"conversationId": "s", "path": "a.txt"});
        arguments.as_object_mut().expect("members").extend(more.as_object().expect("members").clone());
        arguments
    };
    // What is not followed is not announced.
    let other = json!({"conversationId": "s", "path": "other.txt", "content": "x"});
    tool(&session, "sandbox_write_file", other).await;
    tool(&session, "sandbox_write_file", in_a(json!({"content": "one"}))).await;
    told("a.txt", "a tool that writes").await;
    tool(&session, "sandbox_edit_file", in_a(json!({"append": "two"}))).await;
    told("a.txt", "a tool that edits").await;

    let http = |method: Method, path: &str| -> RequestBuilder {
        server.http.request(method, format!("http://{}{path}", server.address)).bearer_auth(TOKEN)
    };
    let sent = async |request: RequestBuilder| {
        let answer = request.send().await.expect("an answer");
        assert!(answer.status().is_success(), "{answer:?}");
    };
    sent(http(Method::PUT, "/v1/conversations/s/files/d/b.txt").body("one")).await;
    told("d/b.txt", "PUT").await;
    let archive = http(Method::PUT, "/v1/conversations/s/archive").header("content-type", "application/x-tar");
    sent(archive.body(tar("d/b.txt", "two"))).await;
    told("d/b.txt", "an archive").await;
    let link = tool(&session, "sandbox_upload_url", in_a(json!({}))).await;
    sent(server.http.put(link.rsplit_once(' ').expect("a link at the end").1).body("three")).await;
    told("a.txt", "a link for an upload").await;
    let notebook = json!({"type": "file", "format": "text", "content": "three"});
    sent(http(Method::PUT, "/jupyter/c/s/api/contents/d/b.txt").json(&notebook)).await;
    told("d/b.txt", "Jupyter's contents").await;
    sent(http(Method::DELETE, "/v1/conversations/s/files/d")).await;
    told("d/b.txt", "the deletion of its folder").await;
    tool(&session, "sandbox_delete_file", in_a(json!({}))).await;
    told("a.txt", "a tool that deletes").await;

    let uri = "sandbox://files/s/d/b.txt";
    messages(session.send(&about(3, "resources/unsubscribe", uri)).await).await;
    sent(http(Method::DELETE, "/v1/conversations/s")).await;
    told("a.txt", "the deletion of its conversation").await;
    assert_eq!(session.end().await, 200);
    server.stop().await;
}

/// No event of the run names it.
#[tokio::test(flavor = "multi_thread")]
async fn followed_file_is_announced_when_a_run_changes_more_files_than_are_listed() {
    let server = FakeServer::with(&[("SANDBOX_FILES__LISTED_MAX", "1")]).await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let mut stream = session.listen(None).await;
    subscribe(&session, "z.txt").await;
    messages(session.send(&run(2, "write a.txt x\nwrite z.txt x")).await).await;
    text_until(&mut stream, &updated("z.txt")).await;
    assert_eq!(session.end().await, 200);
    server.stop().await;
}

/// The session's own stream, as those of its calls, goes on after the event that the client names.
#[tokio::test(flavor = "multi_thread")]
async fn own_stream_that_is_resumed_repeats_no_event() {
    let server = FakeServer::start().await;
    let session = Session::open(&server, "2025-06-18", "").await;
    let mut stream = session.listen(None).await;
    for path in ["first", "second"] {
        subscribe(&session, path).await;
    }
    messages(session.send(&run(1, "write first x")).await).await;
    let seen = text_until(&mut stream, &updated("first")).await;
    let last = ids(&seen).last().expect("an id").to_string();
    drop(stream);
    messages(session.send(&run(2, "write second x")).await).await;
    let mut resumed = String::new();
    until("the stream goes on", async || {
        let mut stream = session.listen(Some(&last)).await;
        // While the server takes the earlier stream for open, this one is idle.
        let read = timeout(Duration::from_millis(500), text_until(&mut stream, &updated("second"))).await;
        read.map(|text| resumed = text).is_ok()
    })
    .await;
    assert!(!resumed.contains(&updated("first")) && !ids(&resumed).contains(&last.as_str()), "{resumed}");
    assert_eq!(session.end().await, 200);
    server.stop().await;
}
