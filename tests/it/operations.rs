//! What an operator sees: metrics and the audit log, on the fake engine.

use serde_json::Value;
use tokio::net::TcpListener;

use crate::support::{fake_server::FakeServer, server::TOKEN, until};

/// The value of a series, by its whole name with labels.
fn value(text: &str, series: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {series} in\n{text}")).parse().expect("a whole number")
}

async fn metrics(server: &FakeServer) -> String {
    let url = format!("http://{}/metrics", server.address);
    let response = server.http.get(url).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["cache-control"], "no-store");
    response.text().await.expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_runs_stages_calls_and_refusals_without_client_text() {
    let server = FakeServer::start().await;
    server.run("a-secret-conversation", "print hello\nwrite a.txt x").await;
    server.run("c", "exit 3").await;
    server.engine.lose_next_exit();
    server.run("c", "print lost").await;
    let unknown = serde_json::json!({"conversationId": "c", "language": "cobol", "code": "x"});
    server.call("sandbox.run_code", unknown).await;
    server.janitor.idle().await;
    let text = metrics(&server).await;
    assert_eq!(value(&text, r#"sandbox_runs_total{language="python",outcome="exited"}"#), 2);
    assert_eq!(value(&text, r#"sandbox_runs_total{language="python",outcome="failed"}"#), 1);
    assert_eq!(value(&text, r#"sandbox_run_failures_total{code="engine_lost"}"#), 1);
    assert_eq!(value(&text, r#"sandbox_refusals_total{code="runner_not_found"}"#), 1);
    assert_eq!(value(&text, r#"sandbox_run_stage_seconds_count{stage="queue"}"#), 3);
    assert_eq!(value(&text, r#"sandbox_run_stage_seconds_count{stage="start"}"#), 3);
    assert_eq!(value(&text, r#"sandbox_run_stage_seconds_count{stage="collect"}"#), 2);
    assert_eq!(value(&text, r#"sandbox_run_output_bytes_total{stream="stdout"}"#), 6);
    assert_eq!(value(&text, r#"sandbox_engine_call_seconds_count{operation="start",result="ok"}"#), 3);
    assert_eq!(value(&text, r#"sandbox_http_answers_total{status="200"}"#), 4);
    assert_eq!(value(&text, "sandbox_queue_length"), 0);
    assert_eq!(value(&text, "sandbox_sandboxes_unwanted"), 0);
    assert!(value(&text, "sandbox_slots") >= 1);
    assert!(value(&text, "process_resident_memory_bytes") > 1_000_000);
    assert!(text.ends_with("# EOF\n"));
    assert!(!text.contains("a-secret-conversation") && !text.contains("cobol") && !text.contains("run-"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_report_queue_length_and_free_space() {
    let server = FakeServer::with(&[("SANDBOX_ADMISSION__SLOTS", "1")]).await;
    let begin = |conversation: &str| {
        let body = serde_json::json!({"conversationId": conversation, "language": "python", "code": "hang", "wait": 0});
        let url = format!("http://{}/v1/runs", server.address);
        server.http.post(url).bearer_auth(TOKEN).json(&body).send()
    };
    let mut runs = Vec::new();
    for conversation in ["a", "b", "c"] {
        let answer: Value = begin(conversation).await.expect("an answer").json().await.expect("JSON");
        runs.push(answer["runId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned());
    }
    until("one runs and two wait", async || {
        let text = metrics(&server).await;
        value(&text, "sandbox_slots_taken") == 1 && value(&text, "sandbox_queue_length") == 2
    })
    .await;
    assert_eq!(value(&metrics(&server).await, "sandbox_runs_under_way"), 3);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_require_the_token_or_a_separate_address() {
    // Free a moment ago; another process that takes it makes the start fail, which says so.
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("an address");
    let server = FakeServer::with(&[("SANDBOX_METRICS__HTTP_ADDR", &free.to_string())]).await;
    let here = |address| server.http.get(format!("http://{address}/metrics"));
    let refused = here(server.address).send().await.expect("an answer");
    assert_eq!(refused.status(), 401);
    assert_eq!(
        here(server.address).bearer_auth("another-token-of-nobody").send().await.expect("an answer").status(),
        401
    );
    let open = here(free).send().await.expect("an answer");
    assert_eq!(open.status(), 200);
    assert!(open.headers()["content-type"].to_str().expect("text").starts_with("application/openmetrics-text"));
    let text = open.text().await.expect("text");
    assert_eq!(value(&text, r#"sandbox_http_answers_total{status="401"}"#), 2);
    for other in ["/", "/v1/runs", "/mcp"] {
        let answer = server.http.get(format!("http://{free}{other}")).send().await.expect("an answer");
        assert_eq!(answer.status(), 404, "{other} is not served there");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_log_has_a_line_for_each_run_and_is_complete_at_shutdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.jsonl");
    let server = FakeServer::with(&[("SANDBOX_AUDIT__FILE", path.to_str().expect("text"))]).await;
    server.run("mine", "print hello\nwrite a.txt four").await;
    server.run("mine", "signal 11").await;
    server.stop().await;
    let text = std::fs::read_to_string(&path).expect("the log");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [first, second] = &lines[..] else { panic!("{text}") };
    assert_eq!((&first["conversation"], &first["principal"]), (&"mine".into(), &"default".into()));
    assert_eq!(first["files"], serde_json::json!([{"path": "a.txt", "size": 4, "change": "created"}]));
    assert_eq!(first["image"], "sha256:fake-python");
    assert_eq!(first["figures"]["stdout_bytes"], 6);
    assert_eq!((&second["outcome"], &second["signal"]), (&"signaled".into(), &11.into()));
    assert!(!text.contains("print hello") && !text.contains(TOKEN));
}
