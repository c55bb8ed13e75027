//! Servers that attack or break: endless answers, endless pages, wrong messages, redirects, sessions that are lost.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::post,
};
use mcp_sandbox_server::ports::tools::{Transport, UpstreamError};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use super::{call, connect, error_of, http, serve, soon, streams};

/// The answer to a request of an older era; `None` for what the test is about.
fn greeting(message: &Value) -> Option<Value> {
    let id = &message["id"];
    match message["method"].as_str()? {
        "server/discover" => {
            Some(json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}))
        }
        "initialize" => {
            let info = json!({"name": "x", "version": "1"});
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info});
            Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
        }
        _ => None,
    }
}

/// A server over streams that greets, and answers other requests by lines. `None` ends the connection.
fn lines(answer: impl Fn(&Value) -> Option<String> + Send + Sync + 'static) -> Transport {
    let answer = Arc::new(answer);
    streams(move |io| {
        let answer = Arc::clone(&answer);
        tokio::spawn(async move {
            let (reader, mut writer) = tokio::io::split(io);
            let mut requests = BufReader::new(reader).lines();
            while let Ok(Some(line)) = requests.next_line().await {
                let message: Value = serde_json::from_str(&line).expect("JSON");
                let line = match greeting(&message) {
                    Some(greeting) => greeting.to_string(),
                    None if message["id"].is_null() => continue,
                    None => match answer(&message) {
                        Some(line) => line,
                        None => return,
                    },
                };
                if writer.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    })
}

#[expect(clippy::unnecessary_wraps, reason = "it is what a server of lines answers")]
fn result(message: &Value, result: &Value) -> Option<String> {
    Some(json!({"jsonrpc": "2.0", "id": message["id"], "result": result}).to_string())
}

fn tool(name: &str, description: &str) -> Value {
    json!({"name": name, "description": description, "inputSchema": {"type": "object"}})
}

#[tokio::test]
async fn endless_lists_of_tools_are_not_usable() {
    let count = AtomicUsize::new(0);
    let pages = lines(move |message| {
        let cursor = count.fetch_add(1, Ordering::Relaxed).to_string();
        result(message, &json!({"tools": [], "nextCursor": cursor}))
    });
    let again = lines(|message| result(message, &json!({"tools": [tool("a", "")], "nextCursor": "again"})));
    let big = lines(|message| {
        let cursor = message["params"]["cursor"].as_str().unwrap_or_default().to_owned() + "x";
        result(message, &json!({"tools": [tool(&cursor, &"x".repeat(1 << 20))], "nextCursor": cursor}))
    });
    for (server, why) in [(pages, "pages"), (again, "back to"), (big, "bytes")] {
        let (upstream, _changes) = connect(&server).await.expect("it connects");
        let error = error_of(soon(upstream.tools()).await);
        assert!(matches!(&error, UpstreamError::Unusable(text) if text.contains(why)), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn server_that_lists_no_tools_in_time_is_connected_to_again() {
    let changed = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}).to_string();
    let silent = lines(move |_| Some(changed.clone()));
    let (upstream, _changes) = connect(&silent).await.expect("it connects");
    assert!(upstream.is_open());
    assert!(matches!(error_of(upstream.tools().await), UpstreamError::Late(_)));
    assert!(!upstream.is_open());
}

#[tokio::test]
async fn tool_that_cannot_be_read_is_left_out() {
    let server = lines(|message| result(message, &json!({"tools": [{"name": 1}, tool("good", "")]})));
    let (upstream, _changes) = connect(&server).await.expect("it connects");
    let tools = soon(upstream.tools()).await.expect("tools");
    assert_eq!(tools.iter().map(|tool| tool.name.as_str()).collect::<Vec<_>>(), ["good"]);
}

#[tokio::test]
async fn many_tools_are_cut() {
    let server = lines(|message| {
        let tools: Vec<_> = (0..600).map(|number| tool(&number.to_string(), "")).collect();
        result(message, &json!({"tools": tools}))
    });
    let (upstream, _changes) = connect(&server).await.expect("it connects");
    assert_eq!(soon(upstream.tools()).await.expect("tools").len(), 512);
}

#[tokio::test]
async fn wrong_answers_end_their_call_alone() {
    let server = lines(|message| match message["params"]["name"].as_str().unwrap_or_default() {
        "result" => result(message, &json!({"x": 1})),
        "base64" => result(message, &json!({"content": [{"type": "image", "data": "?", "mimeType": "a/b"}]})),
        "input" => result(message, &json!({"resultType": "input_required", "inputRequests": {}, "requestState": "x"})),
        "error" => {
            let error = json!({"code": -32000, "message": "no\n".repeat(100_000)});
            Some(json!({"jsonrpc": "2.0", "id": message["id"], "error": error}).to_string())
        }
        // Lines before the answer: no JSON, and answers for no request and another one.
        "noise" => Some(format!(
            "{{\n\n[1]\n{}\n{}\n{}",
            json!({"jsonrpc": "2.0", "id": 4711, "result": {"content": []}}),
            json!({"jsonrpc": "2.0", "id": "x", "error": {"code": 1, "message": "x"}}),
            result(message, &json!({"content": [{"type": "text", "text": "right"}]})).expect("an answer")
        )),
        _ => None,
    });
    let (upstream, _changes) = connect(&server).await.expect("it connects");
    for name in ["result", "base64"] {
        let error = error_of(call(upstream.as_ref(), name).await);
        assert!(matches!(error, UpstreamError::Unusable(_)), "{name}: {error:?}");
    }
    for name in ["input", "error"] {
        let error = error_of(call(upstream.as_ref(), name).await);
        assert!(matches!(&error, UpstreamError::Refused(text) if text.len() <= 500), "{name}: {error:?}");
    }
    assert_eq!(call(upstream.as_ref(), "noise").await.expect("an answer").texts, ["right"]);
    assert!(upstream.is_open());

    let error = error_of(call(upstream.as_ref(), "end").await);
    assert!(matches!(error, UpstreamError::Away(_)), "{error:?}");
    assert!(!upstream.is_open());
}

/// A server over HTTP that greets with a session, and answers other requests as it likes.
async fn over_http(answer: impl Fn(&Value) -> Response + Clone + Send + Sync + 'static) -> Transport {
    let handle = move |headers: HeaderMap, body: Bytes| {
        let message: Value = serde_json::from_slice(&body).expect("JSON");
        let authorized = headers.get("authorization").is_some_and(|value| value == "Bearer token-1");
        let response = match greeting(&message) {
            _ if !authorized => StatusCode::UNAUTHORIZED.into_response(),
            Some(greeting) => {
                let mut response = axum::Json(greeting).into_response();
                if message["method"] == "initialize" {
                    response.headers_mut().insert("mcp-session-id", "session-1".parse().expect("a value"));
                }
                response
            }
            None if message["id"].is_null() => StatusCode::ACCEPTED.into_response(),
            None => answer(&message),
        };
        std::future::ready(response)
    };
    http(serve(Router::new().route("/mcp", post(handle))).await, &[("Authorization", "Bearer token-1")])
}

fn endless(kind: &'static str, piece: &'static [u8]) -> Response {
    let pieces = futures_util::stream::repeat_with(move || Ok::<_, std::io::Error>(Bytes::from_static(piece)));
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(pieces)).into_response()
}

#[tokio::test]
async fn endless_and_wrong_bodies_end_the_call() {
    static X: [u8; 1 << 16] = [b'x'; 1 << 16];
    let server = over_http(|message| match message["params"]["name"].as_str().unwrap_or_default() {
        "json" => endless("application/json", &X),
        "event" => endless("text/event-stream", &X),
        "html" => ([(header::CONTENT_TYPE, "text/html")], "<p>token-1</p>").into_response(),
        "wrong" => ([(header::CONTENT_TYPE, "application/json")], "{\"token-1\"").into_response(),
        "cut" => ([(header::CONTENT_TYPE, "text/event-stream")], ": nothing\n\n").into_response(),
        _ => (StatusCode::BAD_GATEWAY, "Bearer token-1").into_response(),
    })
    .await;
    for name in ["json", "event", "html", "wrong", "cut", "status"] {
        let (upstream, _changes) = connect(&server).await.expect("it connects");
        let error = error_of(call(upstream.as_ref(), name).await);
        let is_right = match name {
            "json" | "html" | "wrong" => matches!(error, UpstreamError::Unusable(_)),
            _ => matches!(error, UpstreamError::Away(_)) && !upstream.is_open(),
        };
        assert!(is_right && !error.to_string().contains("token-1"), "{name}: {error:?}");
    }
}

#[tokio::test]
async fn lost_session_closes_the_connection_and_sends_no_call_again() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let server = over_http(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        StatusCode::NOT_FOUND.into_response()
    })
    .await;
    let (upstream, _changes) = connect(&server).await.expect("it connects");
    let error = error_of(call(upstream.as_ref(), "any").await);
    assert!(matches!(error, UpstreamError::Away(_)), "{error:?}");
    assert!(!upstream.is_open());
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let reached = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&reached);
    let other = serve(Router::new().fallback(move || {
        seen.store(true, Ordering::Relaxed);
        std::future::ready(StatusCode::OK)
    }))
    .await;
    let address = format!("http://{other}/mcp");
    let redirect = move || std::future::ready(axum::response::Redirect::temporary(&address).into_response());
    let server = serve(Router::new().route("/mcp", post(redirect))).await;
    let error = error_of(connect(&http(server, &[("Authorization", "Bearer token-1")])).await);
    assert!(matches!(error, UpstreamError::Unusable(_) | UpstreamError::Away(_)), "{error:?}");
    assert!(!reached.load(Ordering::Relaxed));
}

#[tokio::test]
async fn server_that_is_not_there_is_away_and_no_address_is_told() {
    let url = "http://127.0.0.1:1/mcp?key=token-1".parse().expect("a URL");
    let error = error_of(connect(&Transport::Http { url, headers: Vec::new() }).await);
    assert!(matches!(&error, UpstreamError::Away(text) if !text.contains("token-1")), "{error:?}");
}
