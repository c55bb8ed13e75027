//! Admission from outside: a refusal is sent before a byte of the body is read, on every surface, with a time to retry.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::support::{FakeServer, server::TOKEN, until};

/// The heads of requests that begin a run, identifiable before their body.
const RUNS: [(&str, &str); 4] = [
    ("/v1/runs", ""),
    ("/api/v2/execute", ""),
    ("/mcp", "mcp-method: tools/call\r\nmcp-name: sandbox.run_code\r\n"),
    ("/mcp", "mcp-method: tools/call\r\nmcp-name: sandbox_run_code\r\n"),
];

/// The answer to a head whose body never comes: status, `Retry-After` and body.
async fn answer_to_a_head(server: &FakeServer, path: &str, more: &str) -> (u16, Option<u64>, Value) {
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: application/json\r\n\
         content-length: 100000\r\n{more}\r\n",
        server.address
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut answer = Vec::new();
    let read = async {
        loop {
            let text = String::from_utf8_lossy(&answer).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Ok(body) = serde_json::from_str::<Value>(body)
            {
                break (head.to_ascii_lowercase(), body);
            }
            assert_ne!(stream.read_buf(&mut answer).await.expect("readable"), 0, "{path} ended early: {text}");
        }
    };
    let (head, body) = timeout(Duration::from_secs(20), read).await.unwrap_or_else(|_| panic!("{path} read on"));
    let after = head.lines().find_map(|line| line.strip_prefix("retry-after: ")).map(|s| s.parse().expect("seconds"));
    (head.split(' ').nth(1).expect("a status").parse().expect("a status"), after, body)
}

fn run(conversation: &str, code: &str) -> Value {
    json!({"conversationId": conversation, "language": "python", "code": code})
}

#[tokio::test(flavor = "multi_thread")]
async fn full_queue_refuses_before_the_body_is_read() {
    let full = [("SANDBOX_ADMISSION__SLOTS", "1"), ("SANDBOX_ADMISSION__QUEUE_MAX", "0")];
    let server = FakeServer::with(&full).await;
    let url = format!("http://{}/v1/runs", server.address);
    let begin = |key: &'static str| {
        let body = json!({"language": "python", "code": "hang", "wait": 0});
        server.http.post(&url).bearer_auth(TOKEN).header("idempotency-key", key).json(&body).send()
    };
    let first = begin("one").await.expect("an answer");
    assert_eq!(first.status(), 202);
    let first: Value = first.json().await.expect("JSON");

    for (path, more) in RUNS {
        let (status, after, body) = answer_to_a_head(&server, path, more).await;
        assert_eq!((status, after), (if path == "/mcp" { 503 } else { 429 }, Some(2)), "{path}: {body}");
        let code = if path == "/mcp" { &body["error"]["data"]["code"] } else { &body["code"] };
        assert_eq!(code, "queue_full", "{path}: {body}");
    }
    // The same request again is the same run, and needs no place.
    let again = begin("one").await.expect("an answer");
    assert_eq!((again.status().as_u16(), again.headers().contains_key("idempotency-replayed")), (202, true));
    assert_eq!(begin("two").await.expect("an answer").status(), 429);
    // A head that does not identify its operation is admitted: it may be the cancel that frees a slot.
    assert!(server.rpc("tools/list", json!({})).await["result"]["tools"].is_array());
    let refused = server.call("sandbox.run_code", run("a", "print no")).await;
    assert_eq!(
        (&refused["isError"], &refused["structuredContent"]["error"]["code"]),
        (&json!(true), &json!("queue_full"))
    );

    let cancel = format!("{url}/{}/cancel", first["runId"].as_str().expect("an id"));
    assert_eq!(server.http.post(cancel).bearer_auth(TOKEN).send().await.expect("an answer").status(), 200);
    until("there is room again", async || begin("three").await.expect("an answer").status() == 202).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rate_limited_token_receives_retry_after() {
    let server =
        FakeServer::with(&[("SANDBOX_ADMISSION__RATE_PER_MINUTE", "1"), ("SANDBOX_ADMISSION__RATE_BURST", "2")]).await;
    for n in 0..2 {
        assert_eq!(server.run(&format!("c{n}"), "print x").await["isError"], false);
    }
    let refused = server.run("c2", "print x").await;
    assert_eq!(refused["structuredContent"]["error"]["code"], "rate_limited", "{refused}");
    for (path, more) in RUNS {
        let (status, after, body) = answer_to_a_head(&server, path, more).await;
        assert_eq!(status, 429, "{path}: {body}");
        assert!(after.is_some_and(|seconds| (1..=60).contains(&seconds) && seconds != 2), "{path}: {after:?}");
    }
    assert_eq!(server.engine.started().len(), 2, "what is refused has not touched the engine");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_conversation_cannot_fill_the_queue() {
    let server =
        FakeServer::with(&[("SANDBOX_ADMISSION__SLOTS", "1"), ("SANDBOX_ADMISSION__CONVERSATION_MAX", "3")]).await;
    let url = format!("http://{}/v1/runs", server.address);
    let begin = async |conversation: &str, code: &str, wait: u32| {
        let body = json!({"conversationId": conversation, "language": "python", "code": code, "wait": wait});
        server.http.post(&url).bearer_auth(TOKEN).json(&body).send().await.expect("an answer")
    };
    let mut greedy = Vec::new();
    for _ in 0..3 {
        let answer = begin("greedy", "hang", 0).await;
        assert_eq!(answer.status(), 202);
        let answer: Value = answer.json().await.expect("JSON");
        greedy.push(answer["runId"].as_str().expect("an id").to_owned());
    }
    let refused = begin("greedy", "print x", 0).await;
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].as_bytes()), (429, &b"2"[..]));
    let other = begin("other", "print x", 0).await;
    assert_eq!(other.status(), 202);
    let other: Value = other.json().await.expect("JSON");
    for run in greedy {
        server.http.post(format!("{url}/{run}/cancel")).bearer_auth(TOKEN).send().await.expect("an answer");
    }
    let other = format!("{url}/{}?wait=30", other["runId"].as_str().expect("an id"));
    let other = server.http.get(other).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(other.json::<Value>().await.expect("JSON")["result"]["stdout"], "x\n");
    server.stop().await;
}
