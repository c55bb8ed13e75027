//! Calls of revision 2026-07-28 that are answered with a question of their program, and repeated with the answer.

use std::sync::Arc;

use bytes::Bytes;
use mcp_sandbox_server::{
    domain::{id::RunId, owner::Principal},
    services::runs::Run,
};
use reqwest::RequestBuilder;
use serde_json::{Value, json};

use super::ended;
use crate::support::{
    fake_server::{BOTH, FakeServer},
    until,
};

/// A cell of a client that shows forms; with what the server answered, the call is repeated with the line `Ada`.
fn cell(server: &FakeServer, arguments: &Value, state: Option<&str>) -> RequestBuilder {
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
    let mut params = json!({"name": "sandbox_run_cell", "arguments": arguments, "_meta": meta});
    if let Some(state) = state {
        params["requestState"] = json!(state);
        params["inputResponses"] = json!({"question": {"action": "accept", "content": {"line": "Ada"}}});
    }
    let message = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let request = server.post(message.to_string()).header("accept", BOTH);
    let request = request.header("mcp-protocol-version", "2026-07-28").header("mcp-method", "tools/call");
    request.header("mcp-name", "sandbox_run_cell")
}

/// The state in the answer that is a question.
async fn question(server: &FakeServer, arguments: &Value, state: Option<&str>) -> String {
    let answer = cell(server, arguments, state).send().await.expect("an answer").text().await.expect("text");
    let line = answer.lines().filter_map(|line| line.strip_prefix("data: ")).next_back().unwrap_or(&answer);
    let asked: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {answer}"));
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    asked["result"]["requestState"].as_str().expect("a state").to_owned()
}

/// The run of a question.
fn asking(server: &FakeServer, state: &str) -> Arc<Run> {
    let run: RunId = state.split(' ').next().and_then(|run| run.parse().ok()).expect("the run's id");
    server.mcp.runs.get(&Principal::default(), run).expect("the run goes on")
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_to_a_question_that_another_client_answered_is_not_given_to_the_next_one() {
    let server = FakeServer::with_kernel(&[]).await;
    let arguments = json!({"conversationId": "c", "language": "python", "code": "ask who?\nask and?"});
    let first = question(&server, &arguments, None).await;
    let run = asking(&server, &first);
    run.send_input(Bytes::from_static(b"Eve\n"), false).await.expect("taken");
    until("it has its line", async || run.output(0, u64::MAX).0.text == "Eve\n").await;
    let second = question(&server, &arguments, Some(&first)).await;
    assert_ne!(second, first);
    let answer = cell(&server, &arguments, Some(&second)).send().await.expect("an answer").text().await.expect("text");
    assert!(answer.contains("Eve\\nAda\\n"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn question_is_answered_while_no_other_program_can_begin() {
    let full = [("SANDBOX_ADMISSION__SLOTS", "1"), ("SANDBOX_ADMISSION__QUEUE_MAX", "0")];
    let server = FakeServer::with_kernel(&full).await;
    let arguments = json!({"conversationId": "c", "language": "python", "code": "ask who?"});
    let state = question(&server, &arguments, None).await;
    let answer = cell(&server, &arguments, None).send().await.expect("an answer").text().await.expect("text");
    assert!(!answer.contains("input_required"), "another one began: {answer}");
    let answer = cell(&server, &arguments, Some(&state)).send().await.expect("an answer").text().await.expect("text");
    assert!(answer.contains("Ada\\n"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_follows_in_a_repeated_call_the_setting_and_the_detach_argument() {
    for (setting, detach, verdict) in [
        ("cancel", None, "cancelled"),
        ("cancel", Some(true), "exited"),
        ("detach", None, "exited"),
        ("detach", Some(false), "cancelled"),
    ] {
        let server = FakeServer::with_kernel(&[("SANDBOX_RUNS__ON_DISCONNECT", setting)]).await;
        let rest = if verdict == "exited" { "sleep 2s\nprint done" } else { "hang" };
        let code = format!("ask who?\n{rest}");
        let mut arguments = json!({"conversationId": "c", "language": "python", "code": code});
        if let Some(detach) = detach {
            arguments["detach"] = json!(detach);
        }
        let state = question(&server, &arguments, None).await;
        let run = asking(&server, &state);
        let repeated = async { cell(&server, &arguments, Some(&state)).send().await.expect("an answer").text().await };
        tokio::select! {
            answer = repeated => panic!("answered: {answer:?}"),
            () = until("it has its line", async || run.output(0, u64::MAX).0.text == "Ada\n") => {}
        }
        until("it is over", async || ended(&server, "c").is_some()).await;
        assert_eq!(ended(&server, "c"), Some(verdict), "{setting} {detach:?}");
        server.stop().await;
    }
}
