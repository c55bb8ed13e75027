//! Runs as tasks: for clients that declare the extension, and for no others.

use mcp_sandbox_server::domain::{id::RunId, owner::Principal};
use serde_json::{Value, json};

use crate::support::{FakeServer, calls::create, server::TOKEN, until};

const EXTENSION: &str = "io.modelcontextprotocol/tasks";

/// A request of revision 2026-07-28 by a client with these extensions.
async fn ask(server: &FakeServer, token: &str, extensions: Value, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"extensions": extensions}});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let url = format!("http://{}/mcp", server.address);
    let request = server.http.post(url).bearer_auth(token).header("accept", "application/json, text/event-stream");
    let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", method);
    let request = match params["name"].as_str().or(params["taskId"].as_str()) {
        Some(name) => request.header("mcp-name", name),
        None => request,
    };
    let answer = request.json(&body).send().await.expect("an answer").text().await.expect("text");
    let line = answer.lines().filter_map(|line| line.strip_prefix("data: ")).next_back();
    serde_json::from_str(line.unwrap_or(&answer)).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

fn knows() -> Value {
    json!({EXTENSION: {}})
}

async fn run(server: &FakeServer, extensions: Value, code: &str, wait: u64) -> Value {
    let arguments = json!({"conversationId": "tasks", "language": "python", "code": code, "waitSeconds": wait});
    let params = json!({"name": "sandbox_run_code", "arguments": arguments});
    ask(server, TOKEN, extensions, "tools/call", params).await["result"].clone()
}

async fn task(server: &FakeServer, method: &str, id: &Value) -> Value {
    ask(server, TOKEN, knows(), method, json!({"taskId": id, "inputResponses": {}})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_goes_on_is_a_task() {
    let server = FakeServer::start().await;
    let done = run(&server, knows(), "print at once", 45).await;
    assert_eq!((&done["resultType"], &done["isError"]), (&json!("complete"), &json!(false)), "{done}");

    let left = run(&server, knows(), "print first\nwait-file go\nprint last", 0).await;
    assert_eq!((&left["resultType"], &left["status"]), (&json!("task"), &json!("working")), "{left}");
    let id = &left["taskId"];
    assert!(id.as_str().is_some_and(|id| id.starts_with("run-")) && left["createdAt"].is_string(), "{left}");
    let now = task(&server, "tasks/get", id).await;
    assert_eq!(now["result"]["status"], "working", "{now}");
    assert!(task(&server, "tasks/update", id).await["error"].is_null());
    until("its folder", async || std::fs::write(server.root.join("tasks/files/go"), "").is_ok()).await;
    until("it is over", async || task(&server, "tasks/get", id).await["result"]["status"] == "completed").await;
    let over = task(&server, "tasks/get", id).await["result"].clone();
    let text = over["result"]["content"][0]["text"].as_str().expect("text").to_owned();
    assert!(text.starts_with("first\nlast\n"), "the same answer as a call's: {over}");
    // By the tool too: a task is a run.
    let get = json!({"name": "sandbox_get_run", "arguments": {"runId": id}});
    let got = ask(&server, TOKEN, knows(), "tools/call", get).await;
    assert_eq!(got["result"]["content"][0]["text"], text, "{got}");

    let left = run(&server, knows(), "print first\nhang", 0).await;
    assert!(task(&server, "tasks/cancel", &left["taskId"]).await["error"].is_null());
    let status = async || task(&server, "tasks/get", &left["taskId"]).await["result"]["status"].clone();
    until("it is cancelled", async || status().await == "cancelled").await;
    server.stop().await;
}

/// A task is begun without a text, so its result says where its files are.
#[tokio::test(flavor = "multi_thread")]
async fn a_task_names_the_conversation_that_was_made_for_it() {
    let server = FakeServer::start().await;
    let arguments = json!({"language": "python", "code": "sleep 300ms\nwrite a.txt kept", "waitSeconds": 0});
    let params = json!({"name": "sandbox_run_code", "arguments": arguments});
    let left = ask(&server, TOKEN, knows(), "tools/call", params).await["result"].clone();
    assert_eq!(left["resultType"], "task", "{left}");
    let now = async || task(&server, "tasks/get", &left["taskId"]).await["result"].clone();
    until("it is over", async || now().await["status"] == "completed").await;
    let over = now().await;
    let text = over["result"]["content"][0]["text"].as_str().expect("text");
    let id = text.split_once("The conversationId is ").expect("it is named").1.split_once(':').expect("its end").0;
    let read = server.call("sandbox_read_file", json!({"conversationId": id, "path": "a.txt"})).await;
    assert_eq!(read["structuredContent"]["content"], "kept", "{read}");
    server.stop().await;
}

/// Also when the run is in the history only.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_stays_cancelled() {
    let server = FakeServer::with(&[("SANDBOX_RUNS__KEPT_MAX", "1")]).await;
    let left = run(&server, knows(), "hang", 0).await;
    let id = &left["taskId"];
    assert!(task(&server, "tasks/cancel", id).await["error"].is_null());
    let status = async || task(&server, "tasks/get", id).await["result"]["status"].clone();
    until("it is cancelled", async || status().await == "cancelled").await;
    // The next run takes its place in memory.
    run(&server, knows(), "print x", 45).await;
    let known: RunId = id.as_str().expect("an id").parse().expect("an id");
    until("it is not kept", async || server.mcp.runs.get(&Principal::default(), known).is_err()).await;
    until("the history has it as cancelled", async || {
        let now = status().await;
        assert_ne!(now, "completed");
        now == "cancelled"
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_the_callers_and_of_clients_that_know_them() {
    let server = FakeServer::start().await;
    let text = run(&server, json!({}), "sleep 300ms", 0).await;
    assert!(text["resultType"] == "complete" && text["content"][0]["text"].to_string().contains("run-"), "{text}");
    let left = run(&server, knows(), "hang", 0).await;
    let unknown = ask(&server, TOKEN, json!({}), "tasks/get", json!({"taskId": left["taskId"]})).await;
    assert_eq!(unknown["error"]["code"], -32021, "{unknown}");
    let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann", "scopes": ["run"]})).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        for id in [&left["taskId"], &json!("run-00000000000000000000000000000000"), &json!("../x"), &json!("")] {
            let refused = ask(&server, &ann, knows(), method, json!({"taskId": id, "inputResponses": {}})).await;
            assert_eq!(refused["error"]["code"], -32602, "{method} {id}: {refused}");
        }
    }
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let refused = ask(&server, TOKEN, knows(), method, json!({"taskId": 5})).await;
        assert_eq!(refused["error"]["code"], -32602, "there is this method: {refused}");
    }
    assert_eq!(task(&server, "tasks/get", &left["taskId"]).await["result"]["status"], "working", "it still runs");
    task(&server, "tasks/cancel", &left["taskId"]).await;
    server.stop().await;
}
