//! What `/v1` refuses, byte for byte as it was sent: each row is a request, a status and a code.

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{FakeServer, server::TOKEN};

/// Sends bytes; the status, the headers in lower case, and the body.
async fn send(server: &FakeServer, request: &[u8]) -> (u16, String, String) {
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    // The server may answer and close before it has read everything.
    drop(stream.write_all(request).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, head.to_lowercase(), body.to_owned())
}

struct Sent<'a> {
    host: &'a str,
    authorization: String,
}

impl Sent<'_> {
    fn request(&self, line: &str, headers: &str, body: &str) -> String {
        let Self { host, authorization } = self;
        let length = body.len();
        format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\n{authorization}{headers}Connection: close\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
    }

    fn json(&self, body: &str) -> String {
        self.request("POST /v1/runs", "Content-Type: application/json\r\n", body)
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_with_status_and_code() {
    let patience = [("SANDBOX_SERVER__BODY_READ_MS", "3000"), ("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", "1000")];
    let server = FakeServer::with(&patience).await;
    let host = server.address.to_string();
    let sent = Sent { host: &host, authorization: format!("Authorization: Bearer {TOKEN}\r\n") };
    let anonymous = Sent { host: &host, authorization: String::new() };
    let run = |more: &str| sent.json(&format!(r#"{{"language":"python","code":"print 1"{more}}}"#));
    let line = |line: &str| sent.request(line, "", "");
    let unknown = format!("run-{}", "0".repeat(32));
    let long = "x".repeat(129);
    let json = "Content-Type: application/json\r\n";
    let good = r#"{"language":"python","code":"print 1"}"#;
    let many = format!(r#"{{"a":[{}0]}}"#, "0,".repeat(10_000));
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let keyed = |key: &str| sent.request("POST /v1/runs", &format!("{json}Idempotency-Key: {key}\r\n"), good);
    let rows: Vec<(&str, String, u16, &str)> = vec![
        // Who asks, and what is there.
        ("no token", anonymous.request("GET /v1/runners", "", ""), 401, "unauthorized"),
        ("no token, with a body", anonymous.request("POST /v1/runs", json, good), 401, "unauthorized"),
        ("a wrong token", anonymous.request("GET /v1/runs", "Authorization: Bearer nope\r\n", ""), 401, "unauthorized"),
        ("another scheme", anonymous.request("GET /v1/runs", "Authorization: Basic nope\r\n", ""), 401, "unauthorized"),
        ("no such path", line("GET /v1/nothing"), 404, "not_found"),
        ("the root", line("GET /v1"), 404, "not_found"),
        ("the root with a slash", line("GET /v1/"), 404, "not_found"),
        ("a slash too many", line("GET /v1/runs/"), 404, "not_found"),
        ("another version", line("GET /v1/runs/x/y/z"), 404, "not_found"),
        ("no such method", line("PATCH /v1/runs"), 405, "method_not_allowed"),
        ("no such method on a run", line(&format!("PUT /v1/runs/{unknown}")), 405, "method_not_allowed"),
        ("no such method on runners", line("POST /v1/runners"), 405, "method_not_allowed"),
        ("no such method on a file", line("POST /v1/conversations/a/files/x"), 405, "method_not_allowed"),
        ("no such method on files", line("DELETE /v1/conversations/a/files"), 405, "method_not_allowed"),
        ("no such method on an archive", line("POST /v1/conversations/a/archive"), 405, "method_not_allowed"),
        ("a foreign host", sent.request("GET /v1/runs", "", "").replace(&host, "evil.test"), 403, "forbidden"),
        ("a foreign page", sent.request("GET /v1/runs", "Origin: http://evil.test\r\n", ""), 403, "forbidden"),
        // Bodies.
        ("no kind", sent.request("POST /v1/runs", "", good), 415, "unsupported_media_type"),
        ("text", sent.request("POST /v1/runs", "Content-Type: text/plain\r\n", good), 415, "unsupported_media_type"),
        (
            "a form",
            sent.request("POST /v1/runs", "Content-Type: application/x-www-form-urlencoded\r\n", good),
            415,
            "unsupported_media_type",
        ),
        (
            "nearly json",
            sent.request("POST /v1/runs", "Content-Type: application/jsonx\r\n", good),
            415,
            "unsupported_media_type",
        ),
        ("two kinds", sent.request("POST /v1/runs", &json.repeat(2), good), 400, "invalid_request"),
        (
            "compressed",
            sent.request("POST /v1/runs", &format!("{json}Content-Encoding: gzip\r\n"), good),
            415,
            "unsupported_media_type",
        ),
        ("nothing", sent.json(""), 400, "invalid_request"),
        ("half", sent.json(r#"{"language":"#), 400, "invalid_request"),
        ("no json", sent.json("nonsense"), 400, "invalid_request"),
        ("two values", sent.json(&format!("{good}{good}")), 400, "invalid_request"),
        ("a comma too many", sent.json(r#"{"language":"python","code":"x",}"#), 400, "invalid_request"),
        ("a list", sent.json("[]"), 400, "invalid_request"),
        ("a list that looks like arguments", sent.json(r#"["a","python","x"]"#), 400, "invalid_request"),
        ("a string", sent.json("\"x\""), 400, "invalid_request"),
        ("null", sent.json("null"), 400, "invalid_request"),
        (
            "the same key twice",
            sent.json(r#"{"language":"python","code":"print 1","code":"print 2"}"#),
            400,
            "invalid_request",
        ),
        (
            "the same key twice, escaped",
            sent.json(r#"{"language":"python","code":"x","c\u006fde":"y"}"#),
            400,
            "invalid_request",
        ),
        ("the same key twice inside", run(r#","limits":{"wallMs":1,"wallMs":2}"#), 400, "invalid_request"),
        ("too many values", sent.json(&many), 400, "invalid_request"),
        ("too deep", sent.json(&deep), 400, "invalid_request"),
        ("a lone surrogate", sent.json(r#"{"language":"python","code":"\ud800"}"#), 400, "invalid_request"),
        (
            "announced too large",
            format!(
                "POST /v1/runs HTTP/1.1\r\nHost: {host}\r\n{}{json}Connection: close\r\n\
                 Content-Length: 99999999\r\n\r\n",
                sent.authorization
            ),
            413,
            "too_large",
        ),
        (
            "never sent",
            format!(
                "POST /v1/runs HTTP/1.1\r\nHost: {host}\r\n{}{json}Connection: close\r\nContent-Length: 10\r\n\r\n{{",
                sent.authorization
            ),
            408,
            "body_timeout",
        ),
        (
            "a file never sent",
            format!(
                "PUT /v1/conversations/a/files/x HTTP/1.1\r\nHost: {host}\r\n{}Connection: close\r\n\
                 Content-Length: 10\r\n\r\nx",
                sent.authorization
            ),
            408,
            "body_timeout",
        ),
        // Arguments of a run.
        ("empty", sent.json("{}"), 422, "invalid_argument"),
        ("no language", sent.json(r#"{"code":"x"}"#), 422, "invalid_argument"),
        ("no code", sent.json(r#"{"language":"python"}"#), 422, "invalid_argument"),
        ("empty code", sent.json(r#"{"language":"python","code":""}"#), 422, "invalid_argument"),
        ("code is a number", sent.json(r#"{"language":"python","code":1}"#), 422, "invalid_argument"),
        ("code is null", sent.json(r#"{"language":"python","code":null}"#), 422, "invalid_argument"),
        (
            "code is too long",
            sent.json(&format!(r#"{{"language":"python","code":"{}"}}"#, "x".repeat(1001))),
            422,
            "invalid_argument",
        ),
        ("language is a list", sent.json(r#"{"language":["python"],"code":"x"}"#), 422, "invalid_argument"),
        ("language is empty", sent.json(r#"{"language":"","code":"x"}"#), 422, "invalid_argument"),
        ("language is a path", sent.json(r#"{"language":"../x","code":"x"}"#), 422, "invalid_argument"),
        ("no such language", sent.json(r#"{"language":"cobol","code":"x"}"#), 422, "runner_not_found"),
        ("unknown argument", run(r#","nonsense":1"#), 422, "invalid_argument"),
        ("misspelt argument", run(r#","conversation_id":"a""#), 422, "invalid_argument"),
        ("conversation is a path", run(r#","conversationId":"../x""#), 422, "invalid_argument"),
        ("conversation is empty", run(r#","conversationId":"""#), 422, "invalid_argument"),
        ("conversation is too long", run(&format!(r#","conversationId":"{long}""#)), 422, "invalid_argument"),
        ("conversation is a number", run(r#","conversationId":7"#), 422, "invalid_argument"),
        ("conversation holds a zero", run(r#","conversationId":"a\u0000""#), 422, "invalid_argument"),
        ("args is a string", run(r#","args":"x""#), 422, "invalid_argument"),
        ("args holds a number", run(r#","args":[1]"#), 422, "invalid_argument"),
        ("args holds a zero byte", run(r#","args":["a\u0000"]"#), 422, "invalid_argument"),
        ("args are too many", run(&format!(r#","args":[{}"x"]"#, "\"x\",".repeat(256))), 422, "invalid_argument"),
        ("args are too long", run(&format!(r#","args":["{}"]"#, "x".repeat(128 << 10))), 422, "invalid_argument"),
        ("args of a runner that takes none", run(r#","args":["x"]"#), 422, "invalid_argument"),
        ("stdin of a runner that takes none", run(r#","stdin":"x""#), 422, "invalid_argument"),
        ("stdin is a number", run(r#","stdin":1"#), 422, "invalid_argument"),
        ("wait is text", run(r#","wait":"1""#), 422, "invalid_argument"),
        ("wait is negative", run(r#","wait":-1"#), 422, "invalid_argument"),
        ("wait is a fraction", run(r#","wait":0.5"#), 422, "invalid_argument"),
        ("wait is too long", run(r#","wait":3601"#), 422, "invalid_argument"),
        ("detach is text", run(r#","detach":"yes""#), 422, "invalid_argument"),
        ("limits is a number", run(r#","limits":1"#), 422, "invalid_argument"),
        ("limits holds an unknown one", run(r#","limits":{"wall":1}"#), 422, "invalid_argument"),
        ("limits of nothing", run(r#","limits":{"wallMs":0}"#), 422, "invalid_argument"),
        ("a limit is negative", run(r#","limits":{"wallMs":-5}"#), 422, "invalid_argument"),
        ("a limit is text", run(r#","limits":{"memoryBytes":"1g"}"#), 422, "invalid_argument"),
        ("too little memory", run(r#","limits":{"memoryBytes":1024}"#), 422, "invalid_argument"),
        ("too little CPU", run(r#","limits":{"cpuMillis":1}"#), 422, "invalid_argument"),
        ("too few processes", run(r#","limits":{"processesMax":1}"#), 422, "invalid_argument"),
        ("an empty key", keyed(""), 422, "invalid_argument"),
        ("a key with a blank", keyed("a b"), 422, "invalid_argument"),
        ("a long key", keyed(&"k".repeat(256)), 422, "invalid_argument"),
        ("two keys", keyed("a\r\nIdempotency-Key: b"), 422, "invalid_argument"),
        ("a query where there is none", sent.request("POST /v1/runs?wait=1", json, good), 422, "invalid_argument"),
        // Runs.
        ("no such run", line(&format!("GET /v1/runs/{unknown}")), 404, "run_not_found"),
        ("no such run to cancel", line(&format!("POST /v1/runs/{unknown}/cancel")), 404, "run_not_found"),
        ("no such run to watch", line(&format!("GET /v1/runs/{unknown}/events")), 404, "run_not_found"),
        ("no id", line("GET /v1/runs/x"), 422, "invalid_argument"),
        ("an id in another form", line("GET /v1/runs/run-0"), 422, "invalid_argument"),
        ("an id that is no UTF-8", line("GET /v1/runs/%ff"), 422, "invalid_argument"),
        ("an id with a bad percent", line("GET /v1/runs/run-%zz"), 422, "invalid_argument"),
        ("wait is text", line(&format!("GET /v1/runs/{unknown}?wait=x")), 422, "invalid_argument"),
        ("wait has a sign", line(&format!("GET /v1/runs/{unknown}?wait=+1")), 422, "invalid_argument"),
        ("wait is too long", line(&format!("GET /v1/runs/{unknown}?wait=3601")), 422, "invalid_argument"),
        ("after is text", line(&format!("GET /v1/runs/{unknown}/events?after=x")), 422, "invalid_argument"),
        (
            "a bad event id",
            sent.request(&format!("GET /v1/runs/{unknown}/events"), "Last-Event-ID: x\r\n", ""),
            422,
            "invalid_argument",
        ),
        ("limit is 0", line("GET /v1/runs?limit=0"), 422, "invalid_argument"),
        ("limit is too high", line("GET /v1/runs?limit=201"), 422, "invalid_argument"),
        ("limit is text", line("GET /v1/runs?limit=x"), 422, "invalid_argument"),
        ("limit twice", line("GET /v1/runs?limit=1&limit=2"), 422, "invalid_argument"),
        ("an unknown argument", line("GET /v1/runs?nonsense=1"), 422, "invalid_argument"),
        ("after is no run", line("GET /v1/runs?after=x"), 422, "invalid_argument"),
        ("a bad conversation", line("GET /v1/runs?conversationId=%2e%2e"), 422, "invalid_argument"),
        ("no UTF-8", line("GET /v1/runs?conversationId=%ff"), 422, "invalid_argument"),
        // Conversations and files.
        ("limit is 0", line("GET /v1/conversations?limit=0"), 422, "invalid_argument"),
        ("after is no name", line("GET /v1/conversations?after=.."), 422, "invalid_argument"),
        ("no such conversation", line("DELETE /v1/conversations/nobody"), 404, "conversation_not_found"),
        ("a conversation that is a path", line("DELETE /v1/conversations/%2e%2e"), 422, "invalid_argument"),
        ("a conversation with a slash", line("DELETE /v1/conversations/a%2fb"), 422, "invalid_argument"),
        ("the server's own folder", line("DELETE /v1/conversations/.trash"), 422, "invalid_argument"),
        ("files of a path", line("GET /v1/conversations/%2e%2e/files"), 422, "invalid_argument"),
        (
            "an archive of an unknown conversation",
            line("GET /v1/conversations/nobody/archive"),
            404,
            "conversation_not_found",
        ),
        (
            "a file of an unknown conversation",
            line("GET /v1/conversations/nobody/files/x"),
            404,
            "conversation_not_found",
        ),
        ("no such file", line("GET /v1/conversations/there/files/y"), 404, "file_not_found"),
        ("a folder", line("GET /v1/conversations/there/files/folder"), 409, "not_a_file"),
        ("a file as a folder", sent.request("PUT /v1/conversations/there/files/x/y", "", "z"), 409, "not_a_file"),
        ("over a folder", sent.request("PUT /v1/conversations/there/files/folder", "", "z"), 409, "not_a_file"),
        ("no such file to delete", line("DELETE /v1/conversations/there/files/y"), 404, "file_not_found"),
        ("no name", line("GET /v1/conversations/there/files/"), 404, "not_found"),
        ("dots", line("GET /v1/conversations/there/files/../x"), 422, "invalid_argument"),
        ("encoded dots", line("GET /v1/conversations/there/files/%2e%2e/x"), 422, "invalid_argument"),
        ("an encoded slash", line("GET /v1/conversations/there/files/a%2f..%2fb"), 422, "invalid_argument"),
        ("an encoded zero", line("GET /v1/conversations/there/files/a%00b"), 422, "invalid_argument"),
        ("an absolute path", line("GET /v1/conversations/there/files//etc/passwd"), 422, "invalid_argument"),
        ("a slash at the end", sent.request("PUT /v1/conversations/there/files/a/", "", "z"), 422, "invalid_argument"),
        ("a bad percent", line("GET /v1/conversations/there/files/%g0"), 422, "invalid_argument"),
        (
            "a long name",
            line(&format!("GET /v1/conversations/there/files/{}", "x".repeat(256))),
            422,
            "invalid_argument",
        ),
        (
            "a deep path",
            line(&format!("GET /v1/conversations/there/files/{}x", "a/".repeat(32))),
            422,
            "invalid_argument",
        ),
        ("an unknown query", line("GET /v1/conversations/there/files/x?offset=1"), 422, "invalid_argument"),
        (
            "a compressed file",
            sent.request("PUT /v1/conversations/there/files/z", "Content-Encoding: gzip\r\n", "z"),
            415,
            "unsupported_media_type",
        ),
    ];
    assert!(rows.len() >= 80, "{}", rows.len());
    let put = |path: &str| sent.request(&format!("PUT /v1/conversations/there/files/{path}"), "", "z");
    for path in ["x", "folder/x"] {
        assert_eq!(send(&server, put(path).as_bytes()).await.0, 201);
    }
    for (what, request, status, code) in rows {
        let (got, head, body) = send(&server, request.as_bytes()).await;
        assert_eq!(got, status, "{what}: {body}");
        assert!(head.contains("content-type: application/problem+json"), "{what}: {head}");
        let problem: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{what}: {error}: {body}"));
        assert_eq!((&problem["code"], &problem["status"]), (&code.into(), &status.into()), "{what}: {problem}");
        assert_eq!(code == "invalid_argument", problem["param"].is_string(), "{what}: {problem}");
        assert!(problem["requestId"].as_str().is_some_and(|id| head.contains(id)), "{what}: {problem}");
        assert_eq!(status == 405, head.contains("\nallow: "), "{what}: {head}");
        assert_eq!(status == 401, head.contains("www-authenticate: bearer"), "{what}: {head}");
        assert!(!body.contains(server.root.to_str().expect("text")), "{what}: {body}");
    }
    let (_, _, runs) = send(&server, line("GET /v1/runs").as_bytes()).await;
    assert_eq!(runs, r#"{"runs":[]}"#, "nothing ran");
    server.stop().await;
}

/// Writes 8 MiB before it reads, as simple clients do.
async fn send_before_reading(server: &FakeServer, head: &str) -> String {
    const BODY_BYTES: usize = 8 << 20;
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    let head = format!("{head}Connection: close\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("the head is sent");
    stream.write_all(&vec![b' '; BODY_BYTES]).await.expect("the body is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("the answer comes whole");
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn early_refusals_reach_a_client_that_writes_first() {
    let server = FakeServer::with(&[("SANDBOX_SERVER__BODY_BYTES_MAX", "100000")]).await;
    let host = server.address.to_string();
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    let json = "Content-Type: application/json\r\n";
    let rows = [
        ("401", format!("POST /v1/runs HTTP/1.1\r\nHost: {host}\r\n{json}"), "unauthorized"),
        ("403", format!("POST /v1/runs HTTP/1.1\r\nHost: evil.test\r\n{token}{json}"), "forbidden"),
        ("404", format!("POST /v1/nothing HTTP/1.1\r\nHost: {host}\r\n{token}{json}"), "not_found"),
        ("413", format!("POST /v1/runs HTTP/1.1\r\nHost: {host}\r\n{token}{json}"), "too_large"),
        ("413", format!("POST /mcp HTTP/1.1\r\nHost: {host}\r\n{token}{json}"), "too_large"),
        ("415", format!("POST /v1/runs HTTP/1.1\r\nHost: {host}\r\n{token}"), "unsupported_media_type"),
    ];
    for (status, head, code) in rows {
        let answer = send_before_reading(&server, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
        assert!(answer.contains(&format!("\"code\":\"{code}\"")), "{status}: {answer}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_operations_of_this_surface() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", "10")]).await;
    let host = server.address.to_string();
    let sent = Sent { host: &host, authorization: format!("Authorization: Bearer {TOKEN}\r\n") };
    let file = sent.json(r#"{"language":"python","code":"print 123456789"}"#);
    let language = sent.json(r#"{"code":"print 1"}"#);
    let rows = [(file, "PUT /v1/conversations/{conversationId}/files/{path}"), (language, "GET /v1/runners")];
    for (request, named) in rows {
        let (_, _, body) = send(&server, request.as_bytes()).await;
        assert!(body.contains(named) && !body.contains("sandbox"), "{body}");
    }
    let piston = r#"{"language":"python","version":"*","files":[{"content":"print 123456789"}]}"#;
    let piston = sent.request("POST /api/v2/execute", "Content-Type: application/json\r\n", piston);
    let (status, _, body) = send(&server, piston.as_bytes()).await;
    assert!(status == 400 && body.contains("`files`") && !body.contains("sandbox"), "{body}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_members_are_named_by_their_path() {
    let server = FakeServer::start().await;
    let host = server.address.to_string();
    let sent = Sent { host: &host, authorization: format!("Authorization: Bearer {TOKEN}\r\n") };
    let run = |more: &str| sent.json(&format!(r#"{{"language":"python","code":"print 1",{more}}}"#));
    let rows = [
        (run(r#""args":["a",7]"#), "args[1]", "give a string"),
        (run(r#""limits":{"wallMs":"1"}"#), "limits.wallMs", "whole number"),
        (run(r#""limits":{"wallMs":0}"#), "limits.wallMs", "must be at least 1"),
        (run(r#""limits":{"wall_ms":1}"#), "limits.wall_ms", "write `wallMs`"),
        (run(r#""detach":1"#), "detach", "true or false"),
        (sent.json(r#"{"language":"python"}"#), "code", "it is missing: give it. The whole program."),
        (sent.request("GET /v1/runs?limit=x", "", ""), "limit", "whole number"),
        (sent.request("GET /v1/runs?Limit=1", "", ""), "Limit", "write `limit`"),
    ];
    for (request, path, part) in rows {
        let (status, _, body) = send(&server, request.as_bytes()).await;
        let problem: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, &problem["param"]), (422, &path.into()), "{body}");
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains(part)), "{body}");
    }
    server.stop().await;
}
