//! What an operator sees: metrics and the audit log, on the fake engine.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use mcp_sandbox_server::{
    adapters::database::Database,
    api::http::json,
    domain::{network::PolicyText, tools::ServerText},
    ports::{
        database::{DefinitionKind, DefinitionStore as _, StoredDefinition},
        engine::{Engine as _, ImageId},
        runner::RunnerImage,
    },
};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{
    calls::{metrics, request, value},
    fake_server::FakeServer,
    free_port,
    server::TOKEN,
    until,
};

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_runs_stages_calls_and_refusals_without_client_text() {
    let server = FakeServer::start().await;
    server.run("a-secret-conversation", "print hello\nwrite a.txt x").await;
    server.run("c", "exit 3").await;
    server.engine.faults().exits_to_lose += 1;
    server.run("c", "print lost").await;
    let unknown = serde_json::json!({"conversationId": "c", "language": "cobol", "code": "x"});
    server.call("sandbox.run_code", unknown).await;
    let unknown = serde_json::json!({"language": "cobol", "version": "*", "files": [{"content": "x"}]});
    let url = format!("http://{}/api/v2/execute", server.address);
    let unknown = server.http.post(url).bearer_auth(TOKEN).json(&unknown).send().await.expect("an answer");
    assert_eq!(unknown.status(), 400);
    server.janitor.idle().await;
    let answer = request(&server, TOKEN, Method::GET, "/metrics").send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let text = answer.text().await.expect("text");
    assert_eq!(value(&text, r#"sandbox_http_answers_total{status="400"}"#), 1);
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
    let text = metrics(&server).await;
    for (series, wanted) in [("runs_under_way", 3), ("owners", 1), ("owner_runs_max", 3), ("sessions", 0)] {
        assert_eq!(value(&text, &format!("sandbox_{series}")), wanted, "{series}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_image_of_a_language_is_counted() {
    let server = FakeServer::start().await;
    let counted = r#"sandbox_runner_changes_total{language="python"} 1"#;
    let mut images = server.engine.runners().await.expect("images");
    let is_python = |image: &RunnerImage| image.labels.get("sandbox.language").is_some_and(|name| name == "python");
    // Removed first, as when an image is built in another place and loaded.
    server.engine.set_runners(images.iter().filter(|image| !is_python(image)).cloned().collect());
    until("Python is gone", async || value(&metrics(&server).await, "sandbox_languages") == 1).await;
    server.engine.set_runners(images.clone());
    until("it is back", async || value(&metrics(&server).await, "sandbox_languages") == 2).await;
    assert!(!metrics(&server).await.contains(counted), "the same image is no change");
    // Only another id of the newest is a change: no date, no name, no older image beside it and no other language.
    let python = images.iter().find(|image| is_python(image)).expect("Python").clone();
    images.retain(|image| !is_python(image));
    for (step, (dated, changes)) in [
        (vec![("a", 10)], 1),
        (vec![("a", 20)], 1),
        (vec![("b", 15), ("a", 20)], 1),
        (vec![("a", 20), ("b", 25)], 2),
        (vec![("a", 30), ("b", 25)], 3),
        (vec![("b", 1)], 4),
        (vec![("a", -1), ("b", 1)], 4),
        (vec![("a", -1)], 5),
    ]
    .into_iter()
    .enumerate()
    {
        // The other language comes and goes, which shows that the step was taken.
        let others = &images[..if step % 2 == 0 { 0 } else { images.len() }];
        let of_python = dated.into_iter().map(|(id, created_unix_s)| RunnerImage {
            id: ImageId(format!("sha256:{id}")),
            reference: Some(format!("runner-{step}")),
            created_unix_s,
            ..python.clone()
        });
        server.engine.set_runners(of_python.chain(others.iter().cloned()).collect());
        let counted = format!(r#"sandbox_runner_changes_total{{language="python"}} {changes}"#);
        until("the step is taken", async || {
            let now = metrics(&server).await;
            value(&now, "sandbox_languages") == 1 + others.len() as u64 && now.contains(&counted)
        })
        .await;
    }
    let text = metrics(&server).await;
    assert_eq!(text.lines().filter(|line| line.starts_with("sandbox_runner_changes_total{")).count(), 1, "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_require_the_token_or_a_separate_address() {
    let free = SocketAddr::from(([127, 0, 0, 1], free_port()));
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

#[tokio::test(flavor = "multi_thread")]
async fn audit_verify_says_by_its_exit_status_whether_the_chain_is_whole() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.jsonl");
    let file = path.to_str().expect("text");
    let server = FakeServer::with(&[("SANDBOX_AUDIT__FILE", file)]).await;
    for _ in 0..3 {
        server.run("mine", "print hello").await;
    }
    server.stop().await;
    let verify = |files: &[&str], settings: &[(&str, &str)]| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
            .args(["audit", "verify"])
            .args(files)
            .current_dir(folder.path())
            .env_clear()
            .envs(settings.iter().copied())
            .output()
            .expect("a process");
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
        (output.status.code(), stdout, stderr)
    };
    let is_refused = |files: &[&str], settings: &[(&str, &str)], why: &str| {
        let (status, stdout, stderr) = verify(files, settings);
        assert!(status == Some(1) && stdout.is_empty() && stderr.contains(why), "{status:?}: {stdout}{stderr}");
    };
    let whole = (Some(0), "The chain is unbroken: 3 lines, from number 1.\n".to_owned(), String::new());
    assert_eq!(verify(&[file], &[]), whole, "it needs no settings");
    let secrets = [("MCP_API_TOKEN", TOKEN), ("FILE_SECRET", "another-secret-of-this-test")];
    assert_eq!(verify(&[], &[&secrets[..], &[("SANDBOX_AUDIT__FILE", file)]].concat()), whole, "the default file");
    is_refused(&[], &secrets, "SANDBOX_AUDIT__FILE");
    is_refused(&["nowhere"], &[], "nowhere cannot be read");
    let text = std::fs::read_to_string(&path).expect("the log");
    std::fs::write(&path, text.replacen("\"mine\"", "\"ours\"", 1)).expect("changed");
    is_refused(&[file], &[], "audit.jsonl, line 2: the line with number 1 was changed");
    let (older, newer) = text.split_at(text.find('\n').expect("a line") + 1);
    std::fs::write(folder.path().join("audit.jsonl.1"), older).expect("rotated");
    std::fs::write(&path, newer).expect("rotated");
    assert_eq!(verify(&["audit.jsonl.1", file], &[]), whole);
    is_refused(&[file, "audit.jsonl.1"], &[], "audit.jsonl.1, line 1: its number is 1 where 4 must follow");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_ends_a_start_that_waits_for_the_engine() {
    for command in ["serve", "stdio"] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let engine = tokio::net::UnixListener::bind(path("engine.sock")).expect("a socket");
        let mut server = tokio::process::Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
            .arg(command)
            .current_dir(folder.path())
            .env_clear()
            .envs([("MCP_API_TOKEN", TOKEN), ("FILE_SECRET", "another-secret-of-this-test")])
            .envs([("SANDBOX_ROOT", path("root")), ("DOCKER_HOST", format!("unix://{}", path("engine.sock")))])
            .env("MCP_HTTP_ADDR", "127.0.0.1:0")
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a process");
        // The engine takes the first call and never answers it.
        let _call = tokio::select! {
            call = engine.accept() => call.expect("a call"),
            status = server.wait() => panic!("{command}: {status:?}"),
        };
        let id = server.id().and_then(|id| Pid::from_raw(id.try_into().expect("an id"))).expect("it runs");
        kill_process(id, Signal::TERM).expect("terminated");
        let status = server.wait().await.expect("it ends");
        assert!(status.success(), "{command}: {status}");
    }
}

/// What a test's own thread logs, as JSON.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// On one thread, so that everything is logged there.
#[tokio::test]
async fn log_lines_have_each_key_once_and_say_what_was_wrong() {
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().json().with_max_level(tracing::Level::INFO).with_writer(move || writer.clone());
    let guard = tracing::subscriber::set_default(log.finish());
    let server = FakeServer::start().await;
    server.run("c", "print hello").await;
    let get = async |path: &str| {
        let url = format!("http://{}{path}", server.address);
        server.http.get(url).bearer_auth(TOKEN).send().await.expect("an answer")
    };
    get("/readyz").await;
    assert_eq!(get("/v1/runs?limit=0").await.status(), 422);
    server.call("sandbox_run_code", serde_json::json!({"language": "python"})).await;
    server.stop().await;
    drop(guard);
    let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone()).expect("text");
    let read = |line: &str| json::read(line.as_bytes(), 1000).unwrap_or_else(|error| panic!("{error}: {line}"));
    let all: Vec<_> = text.lines().map(|line| read(line)["fields"].clone()).collect();
    assert!(all.iter().any(|line| line["message"] == "run ended" && line["ended"] == "exited"), "{text}");
    assert!(!text.contains("/readyz"), "{text}");
    let refused = all.iter().find(|line| line["message"] == "request refused").expect("a line");
    assert_eq!((&refused["code"], &refused["status"]), (&"invalid_argument".into(), &422.into()));
    assert!(refused["why"].as_str().is_some_and(|why| why.contains("limit")), "{refused}");
    let failed = all.iter().find(|line| line["message"] == "a tool call failed").expect("a line");
    assert_eq!((&failed["tool"], &failed["code"]), (&"sandbox.run_code".into(), &"invalid_argument".into()));
    assert!(failed["why"].as_str().is_some_and(|why| why.contains("code")), "{failed}");
}

/// On one thread, so that everything is logged there.
#[tokio::test]
async fn a_stored_policy_or_tool_server_that_does_not_hold_is_logged_once_until_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/state.db", folder.path().display());
    // No policy and no tool server is without a host or an address.
    let store = async |port: u16, seconds: u64| {
        let database = Database::connect(&url).expect("a database");
        database.prepare().await.expect("tables");
        let policy = PolicyText { ports: vec![port], ..PolicyText::default() };
        let server = ServerText { call_seconds: Some(seconds), ..ServerText::default() };
        for (kind, definition) in [
            (DefinitionKind::NetworkPolicy, serde_json::to_string(&policy)),
            (DefinitionKind::ToolServer, serde_json::to_string(&server)),
        ] {
            let (name, definition) = ("bad".to_owned(), definition.expect("JSON"));
            let bad = StoredDefinition { name, definition, secret: String::new() };
            database.put_definition(kind, &bad, 1).await.expect("stored");
        }
        database.close().await;
    };
    store(80, 1).await;
    let lines = Lines::default();
    let writer = lines.clone();
    let log = tracing_subscriber::fmt().json().with_max_level(tracing::Level::WARN).with_writer(move || writer.clone());
    let guard = tracing::subscriber::set_default(log.finish());
    let server = FakeServer::with(&[("DATABASE_URL", url.as_str())]).await;
    let logged = |what: &str| {
        let text = String::from_utf8(lines.0.lock().expect("not poisoned").clone()).expect("text");
        text.lines().filter(|line| line.contains(what) && line.contains("\"bad\"")).count()
    };
    for count in [1, 2] {
        for name in ["a", "b"] {
            let policy = serde_json::json!({"hosts": ["a.example"]});
            let tools = serde_json::json!({"server": {"url": "https://a.example/mcp"}});
            for (path, body) in [("admin/network", policy), ("tool-servers", tools)] {
                let url = format!("http://{}/v1/{path}/{name}", server.address);
                let put = server.http.put(url).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
                assert_eq!(put.status(), 204, "it reads them all: {path}");
            }
        }
        for what in ["a stored network policy does not hold", "a stored tool server does not hold"] {
            assert_eq!(logged(what), count, "{what}");
        }
        store(443, 2).await;
    }
    server.stop().await;
    drop(guard);
}

#[test]
fn a_fatal_error_has_the_format_of_the_log() {
    let engine = ("DOCKER_HOST", "unix:///nonexistent/engine.sock");
    for (wrong, part) in [(engine, "engine"), (("SANDBOX_LIMITS__WALLMS", "1"), "SANDBOX_LIMITS__WALLMS")] {
        let folder = tempfile::tempdir().expect("a folder");
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
            .arg("serve")
            .current_dir(folder.path())
            .env_clear()
            .envs([("MCP_API_TOKEN", TOKEN), ("FILE_SECRET", "another-secret-of-this-test")])
            .envs([("MCP_HTTP_ADDR", "127.0.0.1:0"), wrong])
            .env("SANDBOX_ROOT", folder.path().join("root"))
            .env("SANDBOX_LOG__FORMAT", "json")
            .output()
            .expect("a process");
        assert!(!output.status.success());
        let text = String::from_utf8(output.stderr).expect("text");
        let last: Value = serde_json::from_str(text.lines().last().expect("a line")).expect(&text);
        assert_eq!(last["level"], "ERROR", "{text}");
        assert!(last["fields"]["error"].as_str().is_some_and(|error| error.contains(part)), "{text}");
    }
}
