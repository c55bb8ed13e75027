//! Bad input to `/mcp`: every argument of every tool, every form of JSON, and the headers that the protocol reads.
//!
//! Tables: every row says what must come back. Nothing here is ever a 500, starts a sandbox or makes a folder.

use serde_json::{Value, json};

use crate::support::fake_server::FakeServer;

mod messages;

const RUN: &str = "sandbox.run_code";
const GET: &str = "sandbox.get_run";
const CANCEL: &str = "sandbox.cancel_run";
const RUNNERS: &str = "sandbox.list_runners";
const LIST: &str = "sandbox.list_files";
const READ: &str = "sandbox.read_file";
const WRITE: &str = "sandbox.write_file";
const DELETE: &str = "sandbox.delete_file";
const EDIT: &str = "sandbox_edit_file";
const UPLOAD: &str = "sandbox_upload_url";
const SEARCH: &str = "sandbox.search_tools";
const REGISTER: &str = "register_mcp_server";

/// Tool, arguments, the argument that must be named, a part of the sentence.
type ArgumentRow = (&'static str, Value, &'static str, &'static str);

/// Arguments of a good run, with one of another value.
fn run(name: &str, value: Value) -> Value {
    let mut arguments = json!({"conversationId": "c", "language": "python", "code": "print x"});
    arguments[name] = value;
    arguments
}

/// Missing, empty, too long, unknown.
fn plain_rows() -> Vec<ArgumentRow> {
    vec![
        (RUN, json!({}), "language", "missing"),
        (RUN, run("stdin", json!(1)), "stdin", "a number"),
        (RUN, run("args", json!("a")), "args", "a string"),
        (RUN, run("args", json!(["\u{0}"])), "args", "zero bytes"),
        (RUN, run("args", json!(vec!["a"; 257])), "args", "at most 256"),
        (RUN, run("env", json!("KEY=hidden".repeat(1000))), "env", "it is a string: give an object"),
        (RUN, run("env", json!({"KEY": 1})), "env.KEY", "a number"),
        (RUN, run("env", json!({"a\u{1b}": 1})), "env.a\\u{1b}", "a number"),
        (RUN, run("args", json!(["a".repeat(128 << 10)])), "args", "at most 131071 bytes"),
        (RUN, run("timeoutSeconds", json!(0)), "timeoutSeconds", "at least 1"),
        (RUN, run("timeoutSeconds", json!(0.5)), "timeoutSeconds", "whole number"),
        (RUN, json!({"conversationId": "c", "code": "x"}), "language", "missing"),
        (RUN, json!({"conversationId": "c", "language": "python"}), "code", "missing"),
        (RUN, run("code", json!("")), "code", "empty"),
        (RUN, run("code", json!("x".repeat(1_100_000))), "code", "longer than"),
        ("execute_python_code", json!({"command": "x".repeat(1_100_000)}), "command", "longer than"),
        (REGISTER, json!({"server_name": "1", "server_params": {"url": "https://a.test/"}}), "server_name", "1 to 32"),
        (REGISTER, json!({"server_name": "a", "server_params": {"url": "a"}}), "server_params", "`url` must be"),
        (RUN, run("language", json!("")), "language", "empty"),
        (RUN, run("language", json!("cobol")), "language", "no runner"),
        (RUN, run("language", json!("../python")), "language", "first character"),
        (RUN, run("language", json!("python@sha256:00")), "language", "must contain only"),
        (RUN, run("language", json!("py thon")), "language", "must contain only"),
        (RUN, run("language", json!("python\u{0}")), "language", "must contain only"),
        (RUN, run("language", json!("x".repeat(33))), "language", "longer than 32"),
        (RUN, run("language", json!("x".repeat(100_000))), "language", "longer than 32"),
        (RUN, run("timeout", json!(5)), "timeout", "no such argument"),
        (RUN, run("conversation_id", json!("c")), "conversation_id", "write `conversationId`"),
        (RUN, run("Code", json!("c")), "Code", "write `code`"),
        (RUN, run("", json!("c")), "", "no such argument"),
        (RUN, run("__proto__", json!({})), "__proto__", "no such argument"),
        (RUN, run("a\u{1b}[31m\nb", json!(1)), "a\\u{1b}[31m\\nb", "no such argument"),
        (RUN, run("waitSeconds", json!(3601)), "waitSeconds", "more than 3600"),
        (RUN, run("waitSeconds", json!("5")), "waitSeconds", "a string"),
        (RUN, run("waitSeconds", json!(-1)), "waitSeconds", "whole number"),
        (RUN, run("detach", json!("yes")), "detach", "true or false"),
        (GET, json!({}), "runId", "missing"),
        (GET, json!({"runId": "run-1"}), "runId", "32 hexadecimal"),
        (GET, json!({"runId": "../x", "waitSeconds": 1}), "runId", "must contain only"),
        (GET, json!({"runId": "run-1", "wait": 1}), "wait", "write `waitSeconds`"),
        (CANCEL, json!({"runId": "run-1", "force": true}), "force", "no such argument"),
        (CANCEL, json!({"runId": 5}), "runId", "a number"),
        (RUNNERS, json!({"language": "python"}), "language", "takes none"),
        (LIST, json!({}), "conversationId", "missing"),
        (LIST, json!({"conversationId": "c", "path": "."}), "path", "no such argument"),
        (LIST, json!({"conversationId": "c", "folder": "../x"}), "folder", "`..`"),
        (LIST, json!({"conversationId": "c", "cursor": "%"}), "cursor", "percent sign"),
        (READ, json!({"conversationId": "c", "path": "a", "limit": 0}), "limit", "at least 1"),
        (EDIT, json!({"conversationId": "c", "path": "a"}), "oldText", "append alone"),
        (EDIT, json!({"conversationId": "c", "path": "a", "oldText": "x"}), "newText", "missing"),
        (EDIT, json!({"conversationId": "c", "path": "a", "newText": "x"}), "oldText", "missing"),
        (EDIT, json!({"conversationId": "c", "path": "a", "oldText": "", "newText": "x"}), "oldText", "empty"),
        (EDIT, json!({"conversationId": "c", "path": "a", "append": "x", "newText": "x"}), "append", "goes alone"),
        (EDIT, json!({"conversationId": "c", "path": "a", "append": "x", "replaceAll": true}), "replaceAll", "leave"),
        (UPLOAD, json!({"conversationId": "c"}), "path", "missing"),
        (SEARCH, json!({"query": "x".repeat(1001)}), "query", "more than 1000 characters"),
        (SEARCH, json!({"query": "x", "limit": 51}), "limit", "from 1 to 50"),
        (READ, json!({"path": "a"}), "conversationId", "missing"),
        (READ, json!({"conversationId": "c"}), "path", "missing"),
        (READ, json!({"conversationId": "c", "path": "a", "pathEncoded": "a"}), "pathEncoded", "only one"),
        (READ, json!({"conversationId": "c", "path": "a", "encoding": "base64"}), "encoding", "no such argument"),
        (WRITE, json!({"conversationId": "c", "path": "a"}), "content", "missing"),
        (WRITE, json!({"conversationId": "c", "content": "a"}), "path", "missing"),
        (WRITE, json!({"conversationId": "c", "pathEncoded": "a", "content": "a"}), "pathEncoded", "write `path`"),
        (
            WRITE,
            json!({"conversationId": "c", "path": "a", "content": "%", "encoding": "base64"}),
            "content",
            "not base64",
        ),
        (
            WRITE,
            json!({"conversationId": "c", "path": "a", "content": "YQ", "encoding": "base64"}),
            "content",
            "padding",
        ),
        (
            WRITE,
            json!({"conversationId": "c", "path": "a", "content": "YQ==\n", "encoding": "base64"}),
            "content",
            "line breaks",
        ),
        (
            WRITE,
            json!({"conversationId": "c", "path": "a", "content": "a", "encoding": "utf-16"}),
            "encoding",
            "neither",
        ),
        (WRITE, json!({"conversationId": "c", "path": "a", "content": "a", "encoding": ""}), "encoding", "neither"),
        (WRITE, json!({"conversationId": "c", "path": "a", "content": "a", "mode": 511}), "mode", "no such argument"),
        (DELETE, json!({"conversationId": "c"}), "path", "missing"),
        (DELETE, json!({"conversationId": "c", "path": "a", "recursive": true}), "recursive", "no such argument"),
    ]
}

/// Wrong types.
fn type_rows() -> Vec<ArgumentRow> {
    let mut rows = Vec::new();
    for bad in [json!(1), json!(1.5), json!(true), json!([]), json!(["print x"]), json!({}), json!({"a": 1})] {
        for name in ["conversationId", "language", "code"] {
            rows.push((RUN, run(name, bad.clone()), name, "give a string"));
        }
    }
    for name in ["language", "code"] {
        rows.push((RUN, run(name, Value::Null), name, "missing"));
    }
    for offset in [json!(-1), json!(1.5), json!("1"), json!(true), json!([]), json!(1e30)] {
        rows.push((READ, json!({"conversationId": "c", "path": "a", "offset": offset}), "offset", "whole number"));
    }
    rows
}

/// Ids and paths that mean harm.
fn hostile_rows() -> Vec<ArgumentRow> {
    let mut rows = Vec::new();
    let long = "x".repeat(129);
    let hostile = [
        ("", "empty"),
        (".", "first character"),
        ("..", "first character"),
        ("/", "first character"),
        ("../x", "first character"),
        ("-rf", "first character"),
        (".trash", "first character"),
        ("_a", "first character"),
        ("a/b", "must contain only"),
        ("a\\b", "must contain only"),
        ("a\u{0}b", "must contain only"),
        ("a b", "must contain only"),
        ("a%2fb", "must contain only"),
        ("ä", "first character"),
        ("aä", "must contain only"),
        ("a\n", "must contain only"),
        ("a\u{202e}b", "must contain only"),
        (" a", "first character"),
        ("~", "first character"),
        (&long, "longer than 128"),
    ];
    for (id, part) in hostile {
        for tool in [RUN, LIST, READ, WRITE, DELETE] {
            let mut arguments = match tool {
                RUN => run("code", json!("print x")),
                WRITE => json!({"path": "a", "content": "a"}),
                LIST => json!({}),
                _ => json!({"path": "a"}),
            };
            arguments["conversationId"] = json!(id);
            rows.push((tool, arguments, "conversationId", part));
        }
    }
    for (path, part) in [
        ("", "names no file"),
        ("/", "names no file"),
        ("/data", "names no file"),
        ("/etc/passwd", "starts with a slash"),
        ("../x", "`..`"),
        ("a/../../x", "`..`"),
        ("a//b", "empty name"),
        ("a/", "empty name"),
        ("a\u{0}b", "zero byte"),
    ] {
        rows.push((READ, json!({"conversationId": "c", "path": path}), "path", part));
        rows.push((WRITE, json!({"conversationId": "c", "path": path, "content": "x"}), "path", part));
        rows.push((DELETE, json!({"conversationId": "c", "path": path}), "path", part));
    }
    for (path, part) in [("%2e%2e", "`..`"), ("a%2fb", "encoded slash"), ("a%00", "zero byte"), ("a%", "percent sign")]
    {
        rows.push((READ, json!({"conversationId": "c", "pathEncoded": path}), "pathEncoded", part));
        rows.push((DELETE, json!({"conversationId": "c", "pathEncoded": path}), "pathEncoded", part));
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_arguments_are_named() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", "1000000")]).await;
    let rows = [plain_rows(), type_rows(), hostile_rows()].concat();
    assert!(rows.len() >= 80, "{} rows", rows.len());
    for (tool, arguments, name, part) in rows {
        let shown = arguments.to_string();
        let shown: String = shown.chars().take(120).collect();
        let result = server.call(tool, arguments).await;
        let text = result["content"][0]["text"].as_str().expect("a text");
        assert_eq!(result["isError"], true, "{tool} {shown}");
        assert!(text.starts_with(&format!("{name}: ")) && text.contains(part), "{tool} {shown}: {text}");
        assert!(text.len() < 400, "{tool} {shown}: {text}");
        let error = &result["structuredContent"]["error"];
        let expected = if part == "no runner" { "runner_not_found" } else { "invalid_argument" };
        assert_eq!(error["code"], expected, "{tool} {shown}: {result}");
        assert_eq!(error["message"], text);
        assert!(error["requestId"].as_str().is_some_and(|id| id.starts_with("req-")), "{result}");
    }
    // Errors name tools as the list does.
    let result = server.call(RUN, run("code", json!("x".repeat(1_100_000)))).await;
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(text.contains("`sandbox_write_file`"), "{text}");
    assert_eq!(result["structuredContent"]["error"]["message"], text);
    let result = server.call("sandbox_read_file", json!({"conversationId": "c"})).await;
    assert!(
        result["content"][0]["text"].as_str().is_some_and(|text| text.contains("`sandbox_list_files`")),
        "{result}"
    );
    assert_eq!(server.engine.started(), [], "nothing was started");
    assert!(!server.root.join("c").exists(), "no folder was made");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn package_that_is_refused_is_named_as_ipybox_does() {
    let server = FakeServer::with_packages().await;
    let result = server.call("install_package", json!({"package_name": "-r"})).await;
    let text = result["content"][0]["text"].as_str().expect("a text");
    assert!(text.starts_with("package_name: `-r` is an option"), "{result}");
    server.stop().await;
}
