//! What the tools answer, in every era of the protocol, and that a call which is given up ends its program.

use std::time::Duration;

use mcp_sandbox_server::{
    api::http::{
        body::Bodies,
        mcp::{McpHttpOptions, router},
        peers::Relay,
    },
    services::peers::Peers,
};
use reqwest::Response;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::support::{
    fake_server::{BOTH, FakeServer, messages},
    until,
};

const TOOLS: [&str; 10] = [
    "run_code",
    "get_run",
    "cancel_run",
    "list_runners",
    "list_files",
    "read_file",
    "write_file",
    "edit_file",
    "upload_url",
    "delete_file",
];
/// The list is in every conversation of a client.
const LIST_BYTES_MAX: usize = 10_000;

fn names(list: &Value) -> Vec<String> {
    let tools = list["result"]["tools"].as_array().expect("tools");
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

/// Descriptions are read by models: nothing of the source's markup is left there.
#[tokio::test(flavor = "multi_thread")]
async fn descriptions_are_plain_text() {
    let server = FakeServer::with_kernel(&[]).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let groups = "?tools=run,files,session,coderunner,ipybox,web,skills,tools,check";
    let all: Value =
        server.post_to(groups, call.to_string()).send().await.expect("an answer").json().await.expect("JSON");
    let text = all.to_string();
    assert!(names(&all).len() > TOOLS.len() && !text.contains("[`") && !text.contains("::"), "{text}");
    server.stop().await;
}

fn blocks<'a>(result: &'a Value, kind: &str) -> Vec<&'a Value> {
    result["content"].as_array().expect("content").iter().filter(|block| block["type"] == kind).collect()
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().expect("a text first")
}

/// A document that is made from the code: `UPDATE=1` rewrites it.
fn hold(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, text).expect("written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(there == text, "{name} is out of date: run `UPDATE=1 cargo test --test it mcp_tools` and commit.");
}

/// Waits until the fake engine has so many sandboxes alive.
async fn alive(server: &FakeServer, count: usize) {
    until(&format!("{count} sandboxes are alive"), async || server.engine.live().len() == count).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_list_is_complete_portable_and_stable() {
    let server = FakeServer::start().await;
    let list = async |query: &str| -> Value {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let response = server.post_to(query, body.to_string()).send().await.expect("an answer");
        response.json().await.expect("JSON")
    };
    let plain = list("").await;
    assert_eq!(names(&plain), TOOLS.map(|name| format!("sandbox_{name}")));
    assert_eq!(plain, list("").await);
    let bytes = plain["result"].to_string().len();
    println!("the list has {bytes} bytes");
    assert!(bytes <= LIST_BYTES_MAX - 2500, "{bytes} bytes, and the runners' labels may add 2500");
    for tool in plain["result"]["tools"].as_array().expect("tools") {
        for member in ["title", "description", "inputSchema", "annotations"] {
            assert!(!tool[member].is_null(), "{member} of {tool}");
        }
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{hint} of {tool}");
        }
        assert!(tool["inputSchema"]["type"] == "object" && tool.get("outputSchema").is_none(), "{tool}");
        assert!(!tool.to_string().contains("$ref") && !tool.to_string().contains('@'), "{tool}");
    }
    let run = plain["result"]["tools"][0].to_string();
    for part in ["30 s", "256 MiB", "0.5 CPU", "/data", "No network", "- bash", "- python", "sandbox_get_run"] {
        assert!(run.contains(part), "{part} in {run}");
    }
    let pretty = serde_json::to_string_pretty(&plain["result"]["tools"]).expect("JSON") + "\n";
    hold("docs/generated/mcp-tools.json", &pretty);
    let structured = list("?structured=on").await;
    let tools = structured["result"]["tools"].as_array().expect("tools");
    assert!(tools.iter().all(|tool| tool["outputSchema"]["type"] == "object"), "{structured}");
    let dotted = list("?names=dotted").await;
    assert_eq!(names(&dotted), TOOLS.map(|name| format!("sandbox.{name}")));
    assert!(!dotted.to_string().contains("sandbox_"), "texts name the tools as the list does: {dotted}");
    assert_eq!(
        names(&list("?tools=files").await),
        TOOLS[4..].iter().map(|name| format!("sandbox_{name}")).collect::<Vec<_>>()
    );
    for query in ["?tools=shell", "?names=x", "?structured=1"] {
        assert_eq!(list(query).await["error"]["code"], -32600, "{query}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_result_has_text_structured_content_and_links() {
    let server = FakeServer::start().await;
    let result = server.run("run", "print hello\nstderr oh\nwrite out.csv a,b\nsleep 20ms").await;
    assert_eq!(result["isError"], false);
    let report = &result["structuredContent"];
    assert_eq!((&report["stdout"], &report["stderr"]), (&json!("hello\n"), &json!("oh\n")));
    assert_eq!((&report["outcome"]["ended"], &report["outcome"]["exitCode"]), (&json!("exited"), &json!(0)));
    assert_eq!((&report["language"], &report["conversationId"]), (&json!("python"), &json!("run")));
    assert_eq!(report["figures"]["stdoutBytes"], 6);
    assert!(report["runId"].as_str().is_some_and(|id| id.starts_with("run-")));
    let file = &report["files"][0];
    assert_eq!((&file["path"], &file["change"], &file["size"]), (&json!("out.csv"), &json!("created"), &json!(3)));
    assert!(file["modifiedAt"].as_str().is_some_and(|at| at.ends_with('Z')) && file.get("pathEncoded").is_none());
    let shown = text(&result);
    for part in ["hello\n", "[standard error]\noh\n", "exit status 0", "- out.csv (3 B, created): http"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let links = blocks(&result, "resource_link");
    assert_eq!(links.len(), 1);
    let expected = json!({"type": "resource_link", "uri": file["url"], "name": "out.csv",
                          "mimeType": file["mediaType"], "size": 3});
    assert_eq!(*links[0], expected);
    // The second run made nothing, so it links nothing.
    let result = server.run("run", "").await;
    assert_eq!(result["structuredContent"]["error"]["code"], "invalid_argument");
    let result = server.run("run", "print again").await;
    assert!(blocks(&result, "resource_link").is_empty());
    assert!(text(&result).contains("[Other files in /data: 1]"), "{result}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_program_is_a_result_with_is_error() {
    let server = FakeServer::start().await;
    for (code, ended) in [
        ("exit 3", "exited"),
        ("signal 11", "signaled"),
        ("oom", "out_of_memory"),
        ("fork-limit\nexit 1", "process_limit"),
        ("flood 20000000", "output_limit"),
    ] {
        let result = server.run("fails", code).await;
        assert_eq!(result["isError"], true, "{code}");
        let outcome = &result["structuredContent"]["outcome"];
        assert_eq!(outcome["ended"], ended, "{code}");
        assert!(text(&result).contains(outcome["sentence"].as_str().expect("a sentence")), "{code}");
    }
    assert_eq!(server.run("fails", "signal 11").await["structuredContent"]["outcome"]["signal"], "SIGSEGV");
    server.engine.faults().away = true;
    let result = server.run("fails", "print x").await;
    assert_eq!(result["structuredContent"]["error"]["code"], "engine_unavailable");
    assert_eq!(result["isError"], true);
    server.engine.faults().away = false;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn small_images_are_embedded_and_other_bytes_are_not() {
    let server =
        FakeServer::with(&[("SANDBOX_FILES__IMAGES_MAX", "2"), ("SANDBOX_FILES__IMAGE_BYTES_MAX", "100")]).await;
    let gif = "GIF89a\u{1}\u{1}\u{1}\u{1}end";
    let big = "x".repeat(200);
    let code = format!(
        "write a.gif {gif}\nwrite b.png no picture\nwrite c.gif {gif}{big}\nwrite d.gif {gif}\nwrite e.gif {gif}"
    );
    let result = server.run("pictures", &code).await;
    let images = blocks(&result, "image");
    assert_eq!(images.len(), 2, "{result}");
    assert!(images.iter().all(|image| image["mimeType"] == "image/gif"));
    assert_eq!(blocks(&result, "resource_link").len(), 5);
    let read = server.call("sandbox.read_file", json!({"conversationId": "pictures", "path": "a.gif"})).await;
    assert_eq!(blocks(&read, "image").len(), 1, "{read}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file_tools_write_read_list_and_delete() {
    let server =
        FakeServer::with(&[("SANDBOX_FILES__READ_BYTES_MAX", "5"), ("SANDBOX_FILES__WRITE_BYTES_MAX", "10")]).await;
    let at = |path: &str| json!({"conversationId": "files", "path": path});
    let write = |path: &str, content: &str, encoding: &str| {
        json!({"conversationId": "files", "path": path,
               "content": content, "encoding": encoding})
    };
    let written = server.call("sandbox.write_file", write("d/a.txt", "abcd€f", "utf-8")).await;
    assert_eq!(written["structuredContent"]["size"], 8, "{written}");
    assert_eq!(blocks(&written, "resource_link")[0]["uri"], written["structuredContent"]["url"]);
    let read = server.call("sandbox_read_file", at("/data/d/a.txt")).await;
    let piece = &read["structuredContent"];
    assert_eq!((&piece["content"], &piece["nextOffset"]), (&json!("abcd"), &json!(4)));
    let mut rest = at("d/a.txt");
    rest["offset"] = json!(4);
    let read = server.call("sandbox.read_file", rest).await;
    assert_eq!(read["structuredContent"]["content"], "€f");
    assert_eq!(read["structuredContent"].get("nextOffset"), None);
    server.call("sandbox.write_file", write("b.bin", "//79", "base64")).await;
    let read = server.call("sandbox.read_file", at("b.bin")).await;
    assert_eq!(
        (&read["structuredContent"]["encoding"], &read["structuredContent"]["content"]),
        (&json!("base64"), &json!("//79"))
    );
    let large = server.call("sandbox.write_file", write("c.txt", "12345678901", "utf-8")).await;
    assert_eq!(large["structuredContent"]["error"]["code"], "too_large");
    assert!(text(&large).starts_with("content: "), "{large}");
    let listed = server.call("sandbox.list_files", json!({"conversationId": "files"})).await;
    let paths: Vec<_> =
        listed["structuredContent"]["files"].as_array().expect("files").iter().map(|f| &f["path"]).collect();
    assert_eq!(paths, ["b.bin", "d/a.txt"]);
    for path in paths {
        let gone = server.call("sandbox.delete_file", json!({"conversationId": "files", "path": path})).await;
        assert_eq!(gone["structuredContent"], json!({"deleted": true}));
    }
    let again = server.call("sandbox.delete_file", at("b.bin")).await;
    assert_eq!(again["structuredContent"]["error"]["code"], "file_not_found");
    let missing = server.call("sandbox.read_file", json!({"conversationId": "nobody", "path": "x"})).await;
    assert_eq!(missing["structuredContent"]["error"]["code"], "conversation_not_found");
    let empty = server.call("sandbox.list_files", json!({"conversationId": "nobody"})).await;
    assert_eq!(empty["structuredContent"]["files"], json!([]));
    assert!(!server.root.join("nobody").exists());
    server.stop().await;
}

#[tokio::test]
async fn requests_without_a_principal_are_refused() {
    let server = FakeServer::start().await;
    let bodies = Bodies::new(1000, Duration::from_secs(1), 1000);
    let options = McpHttpOptions {
        sessions_max: 10,
        principal_sessions_max: 10,
        relay: Relay::new(Peers::default(), bodies.clone()),
        bodies,
        run_max: Duration::from_secs(1),
        shutdown: CancellationToken::new(),
    };
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox.list_runners"}});
    for accept in [BOTH, "application/json"] {
        let request = http::Request::post("/mcp").header("host", "localhost").header("accept", accept);
        let request = request.header("content-type", "application/json").body(axum::body::Body::from(body.to_string()));
        let router = router(server.mcp.clone(), &options);
        let response = router.oneshot(request.expect("a request")).await.expect("an answer");
        let bytes = axum::body::to_bytes(response.into_body(), 10_000).await.expect("bytes");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("-32600") && text.contains("the request has no principal"), "{text}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_are_returned_unchanged() {
    let server = FakeServer::start().await;
    for id in ["0", "-1", "9223372036854775807", "\"1\"", "\"\"", "\"a b ä\"", "\"00\""] {
        let body = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/list\"}}");
        let answer = server.post(body).send().await.expect("an answer").text().await.expect("text");
        assert!(answer.contains(&format!("\"id\":{id},")), "{id}: {answer:.60}");
    }
    let notified =
        server.post(r#"{"jsonrpc":"2.0","method":"notifications/nothing"}"#).send().await.expect("an answer");
    assert_eq!(notified.status(), 202);
    server.stop().await;
}

async fn in_session(server: &FakeServer, session: &str, message: &Value) -> Response {
    server.in_session(session, message).send().await.expect("an answer")
}

fn hang(id: u64) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "sandbox.run_code",
        "arguments": {"conversationId": "hangs", "language": "python", "code": "hang"}}})
}

#[tokio::test(flavor = "multi_thread")]
async fn session_cancellation_ends_the_program() {
    let server = FakeServer::start().await;
    let session = server.open_session().await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox_run_code",
        "arguments": {"conversationId": "s", "language": "python", "code": "print hi"}}});
    let answers = messages(in_session(&server, &session, &call).await).await;
    assert_eq!(answers[0]["result"]["structuredContent"]["stdout"], "hi\n");
    let hanging = hang(2);
    let hanging = in_session(&server, &session, &hanging);
    let cancel = async {
        alive(&server, 1).await;
        let params = json!({"requestId": 2, "reason": "test"});
        let cancelled = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params});
        assert_eq!(in_session(&server, &session, &cancelled).await.status(), 202);
        alive(&server, 0).await;
    };
    let (stream, ()) = tokio::join!(hanging, cancel);
    drop(stream);
    // Going away is no cancellation in a session; the end of the session is.
    let stream = in_session(&server, &session, &hang(3)).await;
    alive(&server, 1).await;
    drop(stream);
    let url = format!("http://{}/mcp", server.address);
    let closed = server.http.delete(url).bearer_auth(crate::support::server::TOKEN).header("mcp-session-id", &session);
    assert_eq!(closed.send().await.expect("an answer").status(), 200);
    alive(&server, 0).await;
    assert_eq!(in_session(&server, &session, &call).await.status(), 404);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_without_a_session_ends_the_program() {
    let server = FakeServer::start().await;
    let mut modern = hang(1);
    modern["params"]["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {}});
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", "sandbox.run_code")];
    let streaming = server.post(modern.to_string()).header("accept", BOTH);
    let streaming = headers.iter().fold(streaming, |request, (name, value)| request.header(*name, *value));
    for request in [server.post(hang(1).to_string()), streaming] {
        let answered = tokio::select! {
            answer = async { request.send().await.expect("an answer").text().await } => Some(answer),
            () = alive(&server, 1) => None,
        };
        assert!(answered.is_none(), "{answered:?}");
        alive(&server, 0).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_sent_for_a_long_run_on_request() {
    let server = FakeServer::start().await;
    let mut call = hang(1);
    call["params"]["arguments"]["code"] = json!("wait-file go\nprint done");
    call["params"]["_meta"] = json!({"progressToken": "p"});
    let mut answer = server.post(call.to_string()).header("accept", BOTH).send().await.expect("an answer");
    let (mut text, mut is_told) = (String::new(), false);
    while let Some(chunk) = answer.chunk().await.expect("a chunk") {
        text += std::str::from_utf8(&chunk).expect("text");
        if !is_told && text.contains("under way for ") {
            std::fs::write(server.root.join("hangs/files/go"), "").expect("written");
            is_told = true;
        }
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim);
    let data = data.filter(|data| !data.is_empty());
    let received: Vec<Value> = data.map(|data| serde_json::from_str(data).expect("JSON")).collect();
    assert_eq!(
        (&received[0]["method"], &received[0]["params"]["progressToken"]),
        (&json!("notifications/progress"), &json!("p"))
    );
    assert!(
        received[0]["params"]["message"].as_str().is_some_and(|text| text.starts_with("under way for ")),
        "{received:?}"
    );
    let last = received.last().expect("a message");
    assert_eq!(last["result"]["structuredContent"]["stdout"], "done\n");
    server.stop().await;
}
