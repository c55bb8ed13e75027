//! Traces, on the fake engine: what a collector is sent, what it is never sent, and that no run waits for it.
//!
//! A server that has stopped has sent what it had, so tests stop it and then look.

use axum::http::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use reqwest::RequestBuilder;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::support::{
    FakeServer,
    calls::metric,
    collector::{Collector, Silent, attribute, hex},
    server::{FILE_SECRET, TOKEN},
    until,
    until::PATIENCE,
};

const ENDPOINT: &str = "SANDBOX_TRACES__OTLP_ENDPOINT";
const HEADERS: &str = "SANDBOX_TRACES__OTLP_HEADERS";
const CALLER_SPAN: &str = "00f067aa0ba902b7";

/// A trace of a caller's, and the header that says so.
fn caller(number: u8) -> ([u8; 16], String) {
    let trace = [number; 16];
    (trace, format!("00-{}-{CALLER_SPAN}-01", hex(&trace)))
}

fn post(server: &FakeServer, path: &str, body: &Value) -> RequestBuilder {
    server.http.post(format!("http://{}{path}", server.address)).bearer_auth(TOKEN).json(body)
}

async fn answered(request: RequestBuilder) -> Value {
    let response = request.send().await.expect("an answer");
    assert_eq!(response.status(), 200);
    response.json().await.expect("JSON")
}

fn rest(conversation: &str, code: &str) -> Value {
    json!({"conversationId": conversation, "language": "python", "code": code})
}

fn is_within(inner: &Span, outer: &Span) {
    assert_eq!(hex(&inner.parent_span_id), hex(&outer.span_id), "{} is not within {}", inner.name, outer.name);
    assert!(inner.start_time_unix_nano <= inner.end_time_unix_nano);
}

#[tokio::test(flavor = "multi_thread")]
async fn run_joins_its_callers_trace_on_every_interface() {
    let collector = Collector::start().await;
    let server = FakeServer::with(&[(ENDPOINT, &collector.endpoint)]).await;
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "sandbox.run_code", "arguments": rest("b", "print b")}});
    let piston = json!({"language": "python", "version": "*", "files": [{"content": "print c"}]});
    let doors = [("/v1/runs", rest("a", "print a")), ("/mcp", call), ("/api/v2/execute", piston)];
    for (number, (path, body)) in (1..).zip(&doors) {
        answered(post(&server, path, body).header("traceparent", caller(number).1)).await;
    }
    server.stop().await;
    for (number, (path, _)) in (1..).zip(&doors) {
        let (trace, _) = caller(number);
        let request = collector.span(&trace, &format!("POST {path}"));
        assert_eq!(hex(&request.parent_span_id), CALLER_SPAN);
        assert_eq!(request.kind, SpanKind::Server as i32);
        assert_eq!(attribute(&request, "http.route").as_deref(), Some(*path));
        assert_eq!(attribute(&request, "http.response.status_code").as_deref(), Some("200"));
        let run = collector.span(&trace, "run");
        is_within(&run, &request);
        for inner in ["queue", "start", "program", "engine start", "engine destroy"] {
            is_within(&collector.span(&trace, inner), &run);
        }
    }
    // What is thrown away is not collected.
    is_within(&collector.span(&caller(1).0, "collect"), &collector.span(&caller(1).0, "run"));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_spans_hold_the_outcome_and_the_clients_request_id() {
    let collector = Collector::start().await;
    let more = [(ENDPOINT, collector.endpoint.as_str()), (HEADERS, "x-team=a%20b")];
    let server = FakeServer::with(&more).await;
    let response = post(&server, "/v1/runs", &rest("a", "print hello\nwrite a.txt x\nexit 3")).send().await;
    let response = response.expect("an answer");
    let id = response.headers()["x-request-id"].to_str().expect("text").to_owned();
    let told: Value = response.json().await.expect("JSON");
    server.engine.faults().exits_to_lose += 1;
    let failed = post(&server, "/v1/runs", &rest("a", "print lost")).send().await.expect("an answer");
    assert_eq!(failed.status(), 502);
    until("spans were taken", async || metric(&server, "sandbox_trace_spans_total").await > 0).await;
    server.stop().await;
    let request = collector.spans().into_iter().find(|span| attribute(span, "sandbox.request").as_ref() == Some(&id));
    let request = request.expect("the request's span");
    assert_eq!(id, format!("req-{}", hex(&request.trace_id)), "the trace is found by the request's id");
    assert!(request.parent_span_id.is_empty());
    let run = collector.span(&request.trace_id, "run");
    for (key, value) in [
        ("sandbox.run", told["runId"].as_str().expect("an id")),
        ("sandbox.language", "python"),
        ("sandbox.image", "sha256:fake-python"),
        ("sandbox.outcome", "exited"),
        ("sandbox.exit_code", "3"),
        ("sandbox.stdout_bytes", "6"),
        ("sandbox.files", "1"),
        ("sandbox.principal", "default"),
        ("sandbox.stood_by", "false"),
    ] {
        assert_eq!(attribute(&run, key).as_deref(), Some(value), "{key}");
    }
    assert!(attribute(&run, "sandbox.wall_ms").is_some() && run.status.is_none(), "{run:?}");
    // A failure of ours is an error; a program's is not.
    let lost = collector.spans().into_iter().find(|span| attribute(span, "sandbox.failure").is_some()).expect("a span");
    assert_eq!(attribute(&lost, "sandbox.failure").as_deref(), Some("engine_lost"));
    assert_eq!(lost.status.expect("a status").code, 2);
    let (headers, _) = collector.got().swap_remove(0);
    assert_eq!(headers["content-type"], "application/x-protobuf");
    assert_eq!(headers["x-team"], "a b");
}

#[tokio::test(flavor = "multi_thread")]
async fn run_span_of_a_stopped_run_shows_the_signal_call() {
    let collector = Collector::start().await;
    let server = FakeServer::with(&[(ENDPOINT, &collector.endpoint), ("SANDBOX_LIMITS__WALL_MS", "100")]).await;
    let (trace, header) = caller(5);
    answered(post(&server, "/v1/runs", &rest("a", "hang")).header("traceparent", header)).await;
    server.stop().await;
    let run = collector.span(&trace, "run");
    assert_eq!(attribute(&run, "sandbox.outcome").as_deref(), Some("timed_out"));
    assert!(run.status.is_none(), "a program that hangs is no failure of the server's");
    let signal = collector.span(&trace, "engine signal");
    is_within(&signal, &run);
    assert_eq!(attribute(&signal, "sandbox.engine.result").as_deref(), Some("ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn run_trace_on_a_standby_contains_take_without_start() {
    let collector = Collector::start().await;
    let more = [(ENDPOINT, collector.endpoint.as_str()), ("SANDBOX_STANDBY__TOTAL_MAX", "1")];
    let server = FakeServer::with(&more).await;
    server.run("a", "print first").await;
    let ready = async || {
        let url = format!("http://{}/readyz", server.address);
        server
            .http
            .get(url)
            .bearer_auth(TOKEN)
            .send()
            .await
            .expect("an answer")
            .text()
            .await
            .expect("text")
            .contains("\"warm\":1")
    };
    until("one stands by", ready).await;
    let (trace, header) = caller(9);
    answered(post(&server, "/v1/runs", &rest("a", "print second")).header("traceparent", header)).await;
    server.stop().await;
    let run = collector.span(&trace, "run");
    assert_eq!(attribute(&run, "sandbox.stood_by").as_deref(), Some("true"));
    is_within(&collector.span(&trace, "take"), &run);
    is_within(&collector.span(&trace, "engine destroy"), &run);
    let started = collector.spans().into_iter().any(|span| span.trace_id == trace && span.name == "engine start");
    assert!(!started, "it was started before, for no run");
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_contain_no_client_text_and_no_secret() {
    let collector = Collector::start().await;
    let more = [(ENDPOINT, collector.endpoint.as_str()), (HEADERS, "authorization=canary-header")];
    let server = FakeServer::with(&more).await;
    let code = "print canary-output\nstderr canary-error\nwrite canary-file.txt canary-content";
    let body = rest("canary-conversation", code);
    let mut told = Vec::new();
    for trace in ["canary-trace", "00-canary", &caller(1).1] {
        let request =
            post(&server, "/v1/runs", &body).header("traceparent", trace).header("tracestate", "v=canary-state");
        told.push(answered(request.header("user-agent", "canary-agent")).await);
    }
    server.run("canary-conversation", "exit 1\n# canary-program").await;
    let link = told[0]["result"]["files"][0]["url"].as_str().expect("a link").to_owned();
    assert!(link.contains("canary-file"));
    assert_eq!(server.http.get(link).send().await.expect("an answer").status(), 200);
    for path in ["/canary-path", "/v1/runs/canary-run", "/v1/runs?canary-query=1", "/v1/conversations/canary-c/files/x"]
    {
        let url = format!("http://{}{path}", server.address);
        server.http.get(url).bearer_auth(TOKEN).send().await.expect("an answer");
    }
    let made_up = reqwest::Method::from_bytes(b"CANARY-METHOD").expect("a method");
    let url = format!("http://{}/v1/runs", server.address);
    server.http.request(made_up, url).bearer_auth("canary-token").send().await.expect("an answer");
    server.run("canary-conversation", "language canary").await;
    server.call("sandbox.run_code", json!({"conversationId": "c", "language": "canary-lang", "code": "x"})).await;
    server.stop().await;
    let names: Vec<String> = collector.spans().into_iter().map(|span| span.name).collect();
    for known in ["POST /v1/runs", "GET /files/{*path}", "GET", "_OTHER /v1/runs", "collect"] {
        assert!(names.iter().any(|name| name == known), "no `{known}` in {names:?}");
    }
    for (headers, body) in collector.got() {
        assert_eq!(headers["authorization"], "canary-header");
        let text = String::from_utf8_lossy(&body).to_lowercase();
        for secret in ["canary", TOKEN, FILE_SECRET, "sig="] {
            assert!(!text.contains(secret), "{secret} is in what was sent: {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_collector_delays_no_run() {
    let mut silent = Silent::start().await;
    let server = FakeServer::with(&[(ENDPOINT, &silent.endpoint)]).await;
    server.run("a", "print first").await;
    let asked = silent.seen.wait_for(|(bytes, _)| *bytes > 0);
    drop(timeout(PATIENCE, asked).await.expect("spans were sent").expect("it listens"));
    let result = server.run("a", "print second").await;
    assert_eq!(result["structuredContent"]["stdout"], "second\n");
    assert_eq!(silent.seen.borrow().1, 0, "the run was answered while the collector was still waited for");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn undelivered_spans_are_counted() {
    let refusing = Collector::answering(StatusCode::SERVICE_UNAVAILABLE).await;
    for endpoint in [refusing.endpoint.as_str(), "http://127.0.0.1:1"] {
        let server = FakeServer::with(&[(ENDPOINT, endpoint)]).await;
        server.run("a", "print x").await;
        until("spans are lost", async || metric(&server, "sandbox_trace_spans_lost_total").await >= 7).await;
        assert_eq!(metric(&server, "sandbox_trace_spans_total").await, 0);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_span_is_sent_without_the_setting_or_for_an_unsampled_trace() {
    let collector = Collector::start().await;
    let server = FakeServer::start().await;
    server.run("a", "print x").await;
    server.stop().await;
    assert_eq!(collector.got().len(), 0);

    let server = FakeServer::with(&[(ENDPOINT, &collector.endpoint)]).await;
    let (_, header) = caller(1);
    let unrecorded = header.replace("-01", "-00");
    answered(post(&server, "/v1/runs", &rest("a", "print x")).header("traceparent", unrecorded)).await;
    let (trace, header) = caller(2);
    answered(post(&server, "/v1/runs", &rest("a", "print y")).header("traceparent", header)).await;
    server.stop().await;
    let others = collector.spans().into_iter().filter(|span| span.trace_id != trace);
    assert_eq!(others.map(|span| span.name).collect::<Vec<_>>(), [""; 0]);
    assert_eq!(attribute(&collector.span(&trace, "run"), "sandbox.outcome").as_deref(), Some("exited"));
}
