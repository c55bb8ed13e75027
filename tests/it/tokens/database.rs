//! Tokens and the database: other processes, restarts, and a database that is away.

use std::process::{Command, Output};

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, create, is_listed};
use crate::support::{FakeServer, server::TOKEN, until};

/// The command line, with the root of a server.
fn cli(server: &FakeServer, arguments: &[&str]) -> Output {
    let set = format!("SANDBOX_ROOT={}", server.root.display());
    Command::new(env!("CARGO_BIN_EXE_mcp-sandbox-server"))
        .args(["--env-file", "/dev/null", "--config", "/dev/null", "--set", &set])
        .args(["--set", &format!("MCP_API_TOKEN={TOKEN}"), "--set", "FILE_SECRET=a-secret-of-a-test-only"])
        .args(arguments)
        .output()
        .expect("it runs")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text").trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_server_follows_the_command_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.log");
    let server = FakeServer::with(&[("SANDBOX_AUDIT__FILE", audit.to_str().expect("a path"))]).await;
    let (own, _) = create(&server, json!({"name": "own", "owner": "ben"})).await;
    let made = ["token", "create", "for Ann", "--owner", "ann", "--scopes", "run", "--languages", "python"];
    let token = text(&cli(&server, &[&made[..], &["--expires-days", "7", "--runs-at-once", "2"]].concat()));
    until("the server knows it", async || is_listed(&server, &token).await).await;
    let listed: Value = serde_json::from_str(&text(&cli(&server, &["token", "list", "--owner", "ann"]))).expect("JSON");
    let shown = (&listed["name"], &listed["scopes"], &listed["languages"], &listed["limits"]);
    let limits = json!({"runsAtOnce": 2});
    assert_eq!(shown, (&json!("for Ann"), &json!(["run"]), &json!(["python"]), &limits));
    assert!(listed["expires"].is_string());
    text(&cli(&server, &["token", "revoke", listed["id"].as_str().expect("an id")]));
    until("the server knows its end", async || !is_listed(&server, &token).await).await;
    text(&cli(&server, &["token", "revoke", &own]));
    let told = async || {
        let text = std::fs::read_to_string(&audit).unwrap_or_default();
        // The last one may be half written.
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let one = |line: Value| Some((line["admin"].as_str()?.to_owned(), line["subject"].as_str()?.to_owned()));
        lines.filter_map(one).collect::<Vec<_>>()
    };
    until("the last is recorded", async || told().await.len() == 4).await;
    let line = |action: &str, id: &str| (action.to_owned(), id.to_owned());
    let anns = listed["id"].as_str().expect("an id");
    let expected = [
        line("token_created", &own),
        line("token_created_elsewhere", anns),
        line("token_revoked_elsewhere", anns),
        line("token_revoked_elsewhere", &own),
    ];
    assert_eq!(told().await, expected);

    for wrong in
        [&["token", "create", ""][..], &["token", "create", "a", "--scopes", "root"], &["token", "revoke", "x"]]
    {
        let refused = cli(&server, wrong);
        assert!(!refused.status.success() && !refused.stderr.is_empty(), "{wrong:?}");
    }
    for days in ["0", "2000001", "3000000"] {
        let refused = cli(&server, &["token", "create", "a", "--expires-days", days]);
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && why.contains("--expires-days"), "{days}: {why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_outlive_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/state/tokens.db", folder.path().display());
    let settings = [("DATABASE_URL", url.as_str())];
    let first = FakeServer::with(&settings).await;
    let (_, kept) = create(&first, json!({"name": "kept", "owner": "ann"})).await;
    let (id, revoked) = create(&first, json!({"name": "revoked", "owner": "ann"})).await;
    assert_eq!(call(&first, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0, 204);
    assert!(is_listed(&first, &kept).await);
    first.stop().await;
    let second = FakeServer::with(&settings).await;
    until("the tokens are known", async || is_listed(&second, &kept).await).await;
    assert!(!is_listed(&second, &revoked).await);
    let (_, listed) = call(&second, TOKEN, Method::GET, "/v1/tokens", None).await;
    assert!(listed["tokens"][1]["lastUsed"].is_string(), "stored at the end: {listed}");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_database_the_server_runs_programs_and_says_what_it_cannot_do() {
    // No server listens there.
    let server = FakeServer::with(&[("DATABASE_URL", "postgres://sandbox@127.0.0.1:1/sandbox")]).await;
    let body = json!({"language": "python", "code": "print x"});
    assert_eq!(call(&server, TOKEN, Method::POST, "/v1/runs", Some(body)).await.0, 200);
    let (status, why) = call(&server, "mcps_unknown", Method::GET, "/v1/runs", None).await;
    assert_eq!((status, &why["code"]), (503, &json!("database_unavailable")), "it may be a token of the database");
    let (tokens, from) = (&server.shared.tokens, server.address.ip());
    for _ in 0..9 {
        assert_eq!(call(&server, "mcps_unknown", Method::GET, "/v1/runs", None).await.0, 503);
    }
    assert!((0..10).any(|_| !tokens.refused(from).is_zero()), "the ten wrong tokens were counted");
    let (status, why) = call(&server, TOKEN, Method::POST, "/v1/tokens", Some(json!({"name": "a"}))).await;
    assert_eq!((status, &why["code"]), (503, &json!("database_unavailable")));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn known_tokens_go_on_while_the_database_is_locked() {
    let server = FakeServer::start().await;
    let (_, token) = create(&server, json!({"name": "a", "owner": "ann"})).await;
    let file = server.root.join(".state/sandbox.db");
    let lock = Command::new("python3")
        .args([
            "-c",
            "import sqlite3, sys, time\nbase = sqlite3.connect(sys.argv[1])\nbase.execute('BEGIN EXCLUSIVE')\n\
            print('held', flush=True)\ntime.sleep(600)",
            &file.display().to_string(),
        ])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut lock = lock.expect("python3");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(lock.stdout.as_mut().expect("a pipe")), &mut line)
        .expect("a line");
    assert!(is_listed(&server, &token).await);
    let (status, _) = call(&server, &token, Method::POST, "/v1/runs", Some(super::run("c", "print x"))).await;
    assert_eq!(status, 200);
    let (status, why) = call(&server, TOKEN, Method::POST, "/v1/tokens", Some(json!({"name": "b"}))).await;
    assert_eq!((status, &why["code"]), (503, &json!("database_unavailable")));
    lock.kill().and_then(|()| lock.wait()).expect("it ends");
    create(&server, json!({"name": "c"})).await;
    server.stop().await;
}
