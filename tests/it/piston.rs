//! Piston's interface as its clients use it.

use std::path::Path;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::{
    mcp_clients::{client, tool},
    support::{FakeServer, Server, server::TOKEN, until},
};

async fn execute(server: &FakeServer, body: Value) -> Response {
    let call = server.http.post(format!("http://{}/api/v2/execute", server.address)).bearer_auth(TOKEN);
    call.json(&body).send().await.expect("an answer")
}

fn program(text: &str) -> Value {
    json!({"language": "python", "version": "*", "files": [{"content": text}]})
}

/// Folders of conversations under the root.
fn folders(root: &Path) -> usize {
    let names = std::fs::read_dir(root).expect("the root").map(|entry| entry.expect("an entry").file_name());
    names.filter(|name| !name.to_string_lossy().starts_with('.')).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn runtimes_lists_the_runners() {
    let server = FakeServer::start().await;
    let call = |method, path: &str| {
        let url = format!("http://{}/api/v2/{path}", server.address);
        server.http.request(method, url).bearer_auth(TOKEN).send()
    };
    let runtimes: Value = call(Method::GET, "runtimes").await.expect("an answer").json().await.expect("JSON");
    assert_eq!(runtimes[1], json!({"language": "python", "version": "0.0.0", "aliases": []}), "{runtimes}");
    let packages: Value = call(Method::GET, "packages").await.expect("an answer").json().await.expect("JSON");
    assert_eq!(packages[0], json!({"language": "bash", "language_version": "0.0.0", "installed": true}));
    for method in [Method::POST, Method::DELETE] {
        let refused = call(method, "packages").await.expect("an answer");
        assert_eq!((refused.status().as_u16(), refused.headers()["allow"].as_bytes()), (405, &b"GET,HEAD"[..]));
        assert!(refused.json::<Value>().await.expect("JSON")["message"].is_string());
    }
    let without =
        server.http.get(format!("http://{}/api/v2/runtimes", server.address)).send().await.expect("an answer");
    assert_eq!(without.status(), 401);
    assert!(without.json::<Value>().await.expect("JSON")["message"].is_string());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn execute_reports_outcomes_and_output_order() {
    let server = FakeServer::start().await;
    let table = [
        ("print a\nstderr b\nprint c", json!([0, null, null])),
        ("exit 3", json!([3, null, "RE"])),
        ("signal 11", json!([null, "SIGSEGV", "SG"])),
        ("oom", json!([null, "SIGKILL", "SG"])),
        ("flood 20000000", json!([null, "SIGKILL", "OL"])),
    ];
    for (text, expected) in table {
        let answer = execute(&server, program(text)).await;
        assert_eq!(answer.status(), 200);
        let answer: Value = answer.json().await.expect("JSON");
        let run = &answer["run"];
        assert_eq!(json!([run["code"], run["signal"], run["status"]]), expected, "{text}: {run}");
        assert_eq!(run["message"].is_null(), run["status"].is_null(), "{run}");
        for name in ["stdout", "stderr", "output", "cpu_time", "wall_time", "memory"] {
            assert!(run.get(name).is_some(), "{name}: {run}");
        }
        if text.starts_with("print") {
            assert_eq!(json!([run["stdout"], run["stderr"], run["output"]]), json!(["a\nc\n", "b\n", "a\nb\nc\n"]));
        }
    }
    let mut slow = program("hang");
    slow["run_timeout"] = json!(200);
    let slow: Value = execute(&server, slow).await.json().await.expect("JSON");
    assert_eq!(json!([slow["run"]["signal"], slow["run"]["status"]]), json!(["SIGKILL", "TO"]));
    assert_eq!(folders(&server.root), 0, "every conversation is thrown away");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_client_leaves_no_folder() {
    let server = FakeServer::start().await;
    {
        let mut asking = Box::pin(execute(&server, program("hang")));
        until("it runs", async || {
            assert!(futures_util::FutureExt::now_or_never(&mut asking).is_none());
            !server.engine.live().is_empty() && folders(&server.root) == 1
        })
        .await;
    }
    until("it is cleaned up", async || server.engine.live().is_empty() && folders(&server.root) == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn execute_refuses_bad_requests() {
    let server = FakeServer::start().await;
    let files = json!([{"content": "print 1"}]);
    let with = |name: &str, value: Value| {
        let mut body = program("print 1");
        body[name] = value;
        body
    };
    let without = |name: &str| {
        let mut body = program("print 1");
        body.as_object_mut().expect("an object").remove(name);
        body
    };
    let file = |file: Value| with("files", json!([{"content": "print 1"}, file]));
    let rows: Vec<(Value, u16, &str)> = vec![
        (without("language"), 400, "language is required as a string"),
        (with("language", json!(7)), 400, "language is required as a string"),
        (with("language", json!("")), 400, "language is required as a string"),
        (without("version"), 400, "version is required as a string"),
        (with("version", json!(3)), 400, "version is required as a string"),
        (without("files"), 400, "files is required as an array"),
        (with("files", json!({})), 400, "files is required as an array"),
        (with("files", json!([])), 400, "at least one utf8"),
        (with("files", json!([{"content": "x".repeat(2 << 20)}])), 400, "files: it is longer than 1048576 bytes"),
        (with("files", json!([7])), 400, "files[0]"),
        (with("files", json!([{}])), 400, "files[0].content is required as a string"),
        (with("files", json!([{"content": 7}])), 400, "files[0].content"),
        (with("files", json!([{"content": "aGk=", "encoding": "base64"}])), 400, "at least one utf8"),
        (
            with("files", json!(vec![json!({"content": "x"}); 201])),
            400,
            "files cannot exceed the configured limit of 200",
        ),
        (file(json!({"content": "!", "encoding": "base64"})), 400, "files[1].content"),
        (file(json!({"content": "0", "encoding": "hex"})), 400, "files[1].content"),
        (file(json!({"content": "zz", "encoding": "hex"})), 400, "files[1].content"),
        (file(json!({"content": "x", "name": "../evil"})), 400, "files[1].name"),
        (file(json!({"content": "x", "name": "/etc/evil"})), 400, "files[1].name"),
        (file(json!({"content": "x", "name": 7})), 400, "files[1].name"),
        (file(json!({"content": "x", "encoding": 7})), 400, "files[1].encoding"),
        (with("language", json!("cobol")), 400, "cobol-* runtime is unknown"),
        (with("language", json!("../x")), 400, "runtime is unknown"),
        (with("version", json!("99.x")), 400, "python-99.x runtime is unknown"),
        (with("version", json!("nonsense")), 400, "runtime is unknown"),
        (with("stdin", json!(7)), 400, "stdin"),
        (with("args", json!("x")), 400, "args"),
        (with("args", json!([7])), 400, "args"),
        (with("args", json!(["a\0b"])), 400, "args"),
        (with("run_timeout", json!("1000")), 400, "If specified, run_timeout must be a number"),
        (with("run_timeout", json!(30_001)), 400, "run_timeout cannot exceed the configured limit of 30000"),
        (with("run_timeout", json!(-1)), 400, "run_timeout"),
        (with("run_timeout", json!(-0.5)), 400, "run_timeout"),
        (with("run_timeout", json!(1e300)), 400, "run_timeout cannot exceed the configured limit of 30000"),
        (with("run_memory_limit", json!(1_u64 << 40)), 400, "run_memory_limit cannot exceed the configured limit of"),
        (with("run_memory_limit", json!(1.5e20)), 400, "run_memory_limit cannot exceed the configured limit of"),
        (with("run_memory_limit", json!(-2)), 400, "run_memory_limit"),
        (with("compile_timeout", json!("x")), 400, "compile_timeout must be a number"),
        (with("compile_memory_limit", json!([])), 400, "compile_memory_limit must be a number"),
        // What Piston takes is taken.
        (with("run_memory_limit", json!(-1)), 200, ""),
        (with("compile_memory_limit", json!(-1)), 200, ""),
        (with("compile_timeout", json!(10_000)), 200, ""),
        (with("run_timeout", json!(null)), 200, ""),
        (with("run_timeout", json!(0)), 200, ""),
        (with("run_timeout", json!(3000.5)), 200, ""),
        (with("unknown", json!(1)), 200, ""),
        (with("files", json!([{"content": ""}])), 200, ""),
        (with("stdin", json!("")), 200, ""),
        (with("args", json!([])), 200, ""),
        (with("files", json!([{"content": "print 1", "encoding": "utf-8"}])), 200, ""),
        (with("files", json!([{"content": "aGk=", "encoding": "base64"}, files[0]])), 200, ""),
    ];
    for (body, status, part) in rows {
        let answer = execute(&server, body.clone()).await;
        assert_eq!(answer.status(), status, "{body}");
        let answer: Value = answer.json().await.expect("JSON");
        let said = answer["message"].as_str().unwrap_or_default();
        assert!(said.contains(part), "{body}: {said}");
    }
    let post = server.http.post(format!("http://{}/api/v2/execute", server.address)).bearer_auth(TOKEN);
    let plain = post.body(program("print 1").to_string()).send().await.expect("an answer");
    assert_eq!(plain.status(), 415);
    assert_eq!(folders(&server.root), 0);
    server.stop().await;
}

/// A client that other people wrote, unchanged, against real programs.
#[tokio::test(flavor = "multi_thread")]
async fn piston_client_runs_programs() {
    let python = tool("piston/bin/python");
    let server = Server::start().await;
    client(&python, &["piston_client.py", &server.url("/api/v2/"), &format!("Bearer {TOKEN}")]).await;
    assert_eq!(folders(&server.root), 0);
    server.stop().await;
}
