//! Malformed JSON-RPC messages and headers: each is answered by a JSON-RPC error.

use serde_json::{Value, json};

use crate::support::fake_server::{BOTH, FakeServer};

/// Body, status, JSON-RPC code, the id that must be echoed.
fn body_rows() -> Vec<(String, u16, i64, Value)> {
    let call = |params: &str| format!(r#"{{"jsonrpc":"2.0","id":"x","method":"tools/call","params":{params}}}"#);
    let method = |method: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"{method}"}}"#);
    let deep = format!("{}1{}", "[".repeat(300), "]".repeat(300));
    let wide = format!("{{\"a\":[{}0]}}", "0,".repeat(20_000));
    let mut rows: Vec<(String, u16, i64, Value)> = [
        "",
        " ",
        "nonsense",
        "{",
        "{\"jsonrpc\":\"2.0\"",
        "{'a':1}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":1e400}",
        "{\"a\":\"\\ud800\"}",
        "\u{feff}{}",
        "{}{}",
        "{\"a\":\"\n\"}",
        "\0",
        &deep,
    ]
    .iter()
    .map(|body| ((*body).to_owned(), 400, -32700, Value::Null))
    .collect();
    rows.extend(
        [
            "[]",
            "null",
            "1",
            "\"x\"",
            "{}",
            "[[]]",
            r#"["2.0",1,"tools/call"]"#,
            r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":129999999999999999999999999999,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":[],"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":true,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}"#,
            &wide,
        ]
        .iter()
        .map(|body| ((*body).to_owned(), 400, -32600, Value::Null)),
    );
    for body in [
        r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#,
        r#"{"jsonrpc":2,"id":7,"method":"ping"}"#,
        r#"{"id":7,"method":"ping"}"#,
        r#"{"jsonrpc":"2.0","id":7}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":1}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":null}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":{}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":{"code":1,"message":"x"}}"#,
        r#"{"jsonrpc":"2.0","id":7,"method":"ping","result":{}}"#,
    ] {
        rows.push((body.to_owned(), 400, -32600, json!(7)));
    }
    rows.push((r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}"#.to_owned(), 400, -32602, json!(7)));
    rows.push((r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":1}"#.to_owned(), 400, -32602, json!(7)));
    for params in [
        "null",
        "{}",
        r#"{"name":1}"#,
        r#"{"name":null}"#,
        r#"{"name":["sandbox.run_code"]}"#,
        r#"{"name":""}"#,
        r#"{"name":"run_code"}"#,
        r#"{"name":"sandbox.run_code "}"#,
        r#"{"name":"SANDBOX.RUN_CODE"}"#,
        r#"{"name":"sandbox.list_runners","arguments":[]}"#,
        r#"{"name":"sandbox.list_runners","arguments":"x"}"#,
        r#"{"name":"sandbox.list_runners","arguments":1}"#,
        r#"{"arguments":{}}"#,
    ] {
        rows.push((call(params), 200, -32602, json!("x")));
    }
    for name in ["tools/nothing", "", "prompts/list", "TOOLS/LIST"] {
        rows.push((method(name), 200, -32601, json!(7)));
    }
    rows.push((
        r#"{"jsonrpc":"2.0","id":7,"method":"tools/list","params":{"cursor":"x"}}"#.to_owned(),
        200,
        -32602,
        json!(7),
    ));
    rows.push((method("initialize"), 200, -32602, json!(7)));
    rows.push((method("resources/read"), 200, -32602, json!(7)));
    rows.push((
        r#"{"jsonrpc":"2.0","id":7,"method":"initialize","params":{"protocolVersion":1}}"#.to_owned(),
        200,
        -32602,
        json!(7),
    ));
    rows
}

/// An opening whose client says so much of itself that its session may not keep it.
fn long_opening() -> (String, u16, i64, Value) {
    let client = json!({"name": "x".repeat(140_000), "version": "1"});
    let params = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client});
    let opening = json!({"jsonrpc": "2.0", "id": 7, "method": "initialize", "params": params});
    (opening.to_string(), 400, -32602, json!(7))
}

/// URIs that name no file of the caller.
fn uri_rows() -> Vec<(String, u16, i64, Value)> {
    let read =
        |uri: &str| format!(r#"{{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{{"uri":"{uri}"}}}}"#);
    let uris =
        ["", "file:///etc/passwd", "sandbox://files/c/../x", "sandbox://files/@a/c/x", "http://evil.test/files/c/x"];
    uris.map(|uri| (read(uri), 200, -32002, json!(7))).into()
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_messages_are_json_rpc_errors() {
    let server = FakeServer::start().await;
    for (body, status, code, id) in [body_rows(), uri_rows(), vec![long_opening()]].concat() {
        let response = server.post(body.clone()).send().await.expect("an answer");
        let got = response.status().as_u16();
        let answer: Value = response.json().await.expect("JSON");
        let ok = got == status && answer["error"]["code"] == code && answer["id"] == id && answer["jsonrpc"] == "2.0";
        assert!(ok, "{body:.120}: {got} {answer}, expected {status} {code} {id}");
        assert!(
            answer["error"]["message"].as_str().is_some_and(|text| !text.is_empty() && text.len() < 300),
            "{answer}"
        );
    }
    assert_eq!(server.engine.started(), []);
    server.stop().await;
}

/// What it is, body, headers, status.
type HeaderRow<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16);

#[tokio::test(flavor = "multi_thread")]
async fn bad_headers_are_json_rpc_errors() {
    let server =
        FakeServer::with(&[("SANDBOX_SERVER__BODY_BYTES_MAX", "100000"), ("SANDBOX_SERVER__BODY_READ_MS", "3000")])
            .await;
    let ping = r#"{"jsonrpc":"2.0","id":7,"method":"tools/list"}"#;
    let modern = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"sandbox.list_runners",
        "_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",
        "io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let rows: [HeaderRow; 15] = [
        ("session twice", ping, &[("mcp-session-id", "a"), ("mcp-session-id", "a")], 400),
        ("version twice", ping, &[("mcp-protocol-version", "2025-06-18"), ("mcp-protocol-version", "2025-06-18")], 400),
        ("unknown session", ping, &[("mcp-session-id", "a"), ("accept", BOTH)], 404),
        ("an old session on a bare call is ignored", ping, &[("mcp-session-id", "a")], 200),
        ("unknown version", ping, &[("mcp-protocol-version", "1999-01-01")], 400),
        ("version of no form", ping, &[("mcp-protocol-version", "x")], 400),
        ("new version without its fields", ping, &[("mcp-protocol-version", "2026-07-28")], 400),
        ("method that is another", ping, &[("mcp-method", "tools/call"), ("mcp-protocol-version", "2025-06-18")], 400),
        (
            "modern, whole",
            modern,
            &[
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/call"),
                ("mcp-name", "sandbox.list_runners"),
            ],
            200,
        ),
        (
            "modern, another name",
            modern,
            &[("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "sandbox.run_code")],
            400,
        ),
        (
            "modern, another method",
            modern,
            &[
                ("mcp-protocol-version", "2026-07-28"),
                ("mcp-method", "tools/list"),
                ("mcp-name", "sandbox.list_runners"),
            ],
            400,
        ),
        ("compressed", ping, &[("content-encoding", "gzip")], 415),
        ("any kind", ping, &[("accept", "*/*")], 200),
        ("a picture wanted", ping, &[("accept", "image/png")], 200),
        ("only a stream", ping, &[("accept", "text/event-stream")], 200),
    ];
    for (what, body, headers, status) in rows {
        let mut request = server.post(body);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = request.send().await.expect("an answer");
        let got = response.status().as_u16();
        let text = response.text().await.expect("text");
        assert_eq!(got, status, "{what}: {text}");
        if status >= 400 {
            let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{what}: {text}"));
            assert!(answer["error"]["code"].is_i64(), "{what}: {text}");
        }
    }
    let large = server.post(format!("{{\"a\":\"{}\"}}", "x".repeat(100_000))).send().await.expect("an answer");
    assert_eq!(large.status(), 413);
    assert_eq!(large.json::<Value>().await.expect("JSON")["error"]["data"]["code"], "too_large");
    // Without a length the server finds out while it reads, and answers when it has drained the rest.
    let long = futures_util::stream::iter((0..2048).map(|_| Ok::<_, std::io::Error>(vec![b' '; 4096])));
    let large = server.post(reqwest::Body::wrap_stream(long)).send().await.expect("an answer");
    assert_eq!(large.status(), 413);
    assert_eq!(large.json::<Value>().await.expect("JSON")["error"]["data"]["code"], "too_large");
    let silent =
        server.post(reqwest::Body::wrap_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>()));
    assert_eq!(silent.send().await.expect("an answer").status(), 408);
    server.stop().await;
}
