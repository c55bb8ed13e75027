//! `/v1/history`, `/v1/usage`, and what a server knows of its runs after a restart.

mod many;
mod read_only;

use std::{fs, path::Path};

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        id::{InstanceId, RunId},
        owner::{ConversationKey, Principal},
    },
    ports::history::{HistoryLine, HistoryStore, KeyStore as _},
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::{
    FakeServer,
    calls::{call, create, metric, request},
    postgres::Postgres,
    server::TOKEN,
    until,
};

async fn ask(
    server: &FakeServer,
    method: Method,
    path: &str,
    body: Option<Value>,
    key: &str,
) -> (StatusCode, bool, Value) {
    let request = request(server, TOKEN, method, path);
    let request = if key.is_empty() { request } else { request.header("idempotency-key", key) };
    let request = if let Some(body) = body { request.json(&body) } else { request };
    let answer = request.send().await.expect("an answer");
    let is_replayed = answer.headers().contains_key("idempotency-replayed");
    (answer.status(), is_replayed, answer.json().await.expect("JSON"))
}

async fn get(server: &FakeServer, path: &str) -> (StatusCode, Value) {
    let (status, _, body) = ask(server, Method::GET, path, None, "").await;
    (status, body)
}

async fn run(server: &FakeServer, conversation: &str, code: &str) -> Value {
    let body = json!({"conversationId": conversation, "language": "python", "code": code});
    ask(server, Method::POST, "/v1/runs", Some(body), "").await.2
}

/// The history once it has so many lines that have ended.
async fn history(server: &FakeServer, query: &str, count: usize) -> Vec<Value> {
    let mut found = Vec::new();
    until("the lines are stored", async || {
        let (status, page) = get(server, &format!("/v1/history?{query}")).await;
        assert_eq!(status, 200, "{page}");
        found.clone_from(page["runs"].as_array().expect("a list"));
        found.len() == count && found.iter().all(|run| run.get("endedAt").is_some())
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_over_tls_a_certificate_that_is_not_trusted_is_refused() {
    let cluster = Postgres::over_tls().await;
    let trusted = format!("sslmode=verify-full&sslrootcert={}", cluster.certificate().display());
    let server = FakeServer::with(&[("DATABASE_URL", &cluster.tls_url(&trusted))]).await;
    run(&server, "c", "print x").await;
    history(&server, "", 1).await;
    server.stop().await;
    // The cluster takes no connection in the clear.
    for (parameters, is_taken) in [
        ("sslmode=require", true),
        ("", true),
        ("sslmode=verify-full", false),
        ("sslmode=verify-ca", false),
        ("sslmode=disable", false),
    ] {
        let database = Database::connect(&cluster.tls_url(parameters)).expect("an address");
        let prepared = database.prepare().await;
        assert_eq!(prepared.is_ok(), is_taken, "{parameters}: {prepared:?}");
        database.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_runs_are_known_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    let url = format!("sqlite://{}/state.db", folder.path().display());
    runs_are_known_after_a_restart(&root, &url).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres_runs_are_known_after_a_restart() {
    let (folder, cluster) = (tempfile::tempdir().expect("a folder"), Postgres::start().await);
    runs_are_known_after_a_restart(&folder.path().join("root"), &cluster.url()).await;
}

async fn runs_are_known_after_a_restart(root: &Path, url: &str) {
    let settings = [
        ("DATABASE_URL", url),
        ("SANDBOX_HISTORY__SOURCE", "true"),
        ("SANDBOX_HISTORY__SOURCE_BYTES_MAX", "20"),
        ("SANDBOX_RUNS__KEPT_MAX", "100"),
    ];
    let server = FakeServer::again(root, &settings).await;
    let good = run(&server, "c", "write made text\nprint x").await;
    let (token_id, token) = create(&server, json!({"name": "t"})).await;
    let body = json!({"conversationId": "c", "language": "python", "code": "stderr y\nexit 3"});
    let (_, bad) = call(&server, &token, Method::POST, "/v1/runs", body).await;
    server.engine.faults().streams_to_break += 1;
    let broken = run(&server, "d", "hang").await;
    assert_eq!(broken["code"], "engine_lost", "{broken}");
    let cell = json!({"conversationId": "c", "language": "python", "code": "print z"});
    server.call("sandbox.run_cell", cell).await;
    let body = json!({"conversationId": "e", "language": "python", "code": "print once"});
    let (status, is_replayed, first) = ask(&server, Method::POST, "/v1/runs", Some(body.clone()), "k").await;
    assert_eq!((status, is_replayed), (StatusCode::OK, false), "{first}");
    // Where the machine is slow, a run begins before its key is stored.
    until("the key is stored", async || keys_stored(url).await == 1).await;

    let lines = history(&server, "", 5).await;
    let find = |lines: &[Value], run: &Value| lines.iter().find(|line| line["runId"] == run["runId"]).cloned();
    let line = find(&lines, &bad).expect("the line");
    assert_eq!((&line["ended"], &line["exitCode"], &line["owner"]), (&json!("exited"), &json!(3), &json!("default")));
    assert_eq!(line["source"], "stderr y\nexit 3");
    assert_eq!((&line["tokenId"], &line["image"]), (&json!(token_id), &json!("sha256:fake-python")));
    let line = find(&lines, &good).expect("the line");
    assert!(line.get("tokenId").is_none(), "it is of the configured token: {line}");
    assert_eq!((&line["files"], &line["figures"]["stdoutBytes"]), (&json!(["made"]), &json!(2)));
    assert_eq!(line["programSha256"].as_str().map(str::len), Some(64));
    assert_eq!(history(&server, "ended=failed", 1).await[0]["error"], "engine_lost");
    assert_eq!(lines.iter().filter(|line| line["cell"] == true).count(), 1);
    assert_eq!(history(&server, "conversation=c&from=2020-01-01T00:00:00Z&limit=200", 3).await.len(), 3);
    assert_eq!(get(&server, "/v1/history?to=2020-01-01T00:00:00Z").await.1["runs"], json!([]));
    assert_eq!(get(&server, "/v1/history?owner=other").await.1["runs"], json!([]));
    let (_, page) = get(&server, "/v1/history?limit=2").await;
    let next = page["cursor"].as_str().expect("a cursor");
    let (_, rest) = get(&server, &format!("/v1/history?limit=2&cursor={next}")).await;
    let ids = |page: &[Value]| page.iter().map(|run| run["runId"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(rest["runs"].as_array().expect("a list")), ids(&lines)[2..4]);
    for bad in ["offset=1", "ended=nicely", "from=yesterday", "limit=0", "cursor=2"] {
        assert_eq!(get(&server, &format!("/v1/history?{bad}")).await.0, 422, "{bad}");
    }
    server.stop().await;

    // A run that the server left when it was killed: only its begin was stored.
    let left = plant_open_line(root, url).await;
    let server = FakeServer::again(root, &settings).await;
    let path = |run: &Value| format!("/v1/runs/{}", run["runId"].as_str().expect("an id"));
    let (status, after) = get(&server, &path(&bad)).await;
    assert_eq!(status, 200, "{after}");
    assert_eq!((&after["state"], &after["fromHistory"]), (&json!("finished"), &json!(true)));
    assert_eq!(after["outcome"], bad["outcome"]);
    assert_eq!(after["figures"], bad["figures"]);
    assert!(after.get("result").is_none(), "{after}");
    assert_eq!((&after["source"], &after["sourceTruncated"]), (&json!("stderr y\nexit 3"), &json!(false)));
    let (_, after) = get(&server, &path(&good)).await;
    assert_eq!((&after["source"], &after["sourceTruncated"]), (&json!("write made text\nprin"), &json!(true)));
    assert_eq!(history(&server, "ended=server_lost", 1).await[0]["runId"], json!(left.to_string()));
    let (_, after) = get(&server, &format!("/v1/runs/{left}")).await;
    assert_eq!((&after["state"], &after["error"]["code"]), (&json!("finished"), &json!("server_lost")), "{after}");
    let told = server.call("sandbox.get_run", json!({"runId": bad["runId"]})).await;
    assert!(told["content"][0]["text"].as_str().expect("text").contains("/data of the conversationId c]"), "{told}");
    assert_eq!(get(&server, &format!("/v1/runs/{}", RunId::new())).await.0, 404);

    // The key is known, and its program is not run again.
    let (status, is_replayed, again) = ask(&server, Method::POST, "/v1/runs", Some(body), "k").await;
    assert_eq!((status, is_replayed, &again["runId"]), (StatusCode::OK, true, &first["runId"]), "{again}");
    let other = json!({"conversationId": "e", "language": "python", "code": "print other"});
    let (status, _, refused) = ask(&server, Method::POST, "/v1/runs", Some(other), "k").await;
    assert_eq!((status.as_u16(), &refused["code"]), (422, &json!("idempotency_key_reused")));
    assert_eq!(server.engine.started(), [], "nothing was run");

    let (status, usage) = get(&server, "/v1/usage").await;
    let days = usage["usage"].as_array().expect("a list");
    // Two where midnight comes between the runs.
    assert!(status == StatusCode::OK && matches!(days.len(), 1 | 2), "{usage}");
    let sum = |what: &str| days.iter().map(|day| day[what].as_u64().expect("a number")).sum::<u64>();
    assert_eq!((sum("runs"), sum("cells"), sum("failed")), (5, 1, 1), "{usage}");
    assert_eq!(get(&server, "/v1/usage?from=2020-01-01&to=2020-01-02").await.1["usage"], json!([]));
    assert_eq!(get(&server, "/v1/usage?from=soon").await.0, 422);
    server.stop().await;
}

async fn keys_stored(url: &str) -> usize {
    let database = Database::connect(url).expect("an address");
    database.prepare().await.expect("tables");
    let keys = database.keys(0, 10).await.expect("keys");
    database.close().await;
    keys.len()
}

async fn plant_open_line(root: &Path, url: &str) -> RunId {
    let instance = fs::read_to_string(root.join(".instance")).expect("the server's name");
    let instance: InstanceId = instance.trim().parse().expect("an instance");
    let database = Database::connect(url).expect("an address");
    database.prepare().await.expect("tables");
    let line = HistoryLine {
        run: RunId::new(),
        conversation: ConversationKey::new(Principal::default(), "c".parse().expect("an id")),
        token: None,
        is_cell: false,
        language: "python".parse().expect("a language"),
        image: "sha256:abc".to_owned(),
        program_sha256: String::new(),
        source: None,
        instance,
        end: None,
    };
    database.write(std::slice::from_ref(&line)).await.expect("stored");
    database.close().await;
    line.run
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_go_on_while_the_database_is_away() {
    let (folder, mut cluster) = (tempfile::tempdir().expect("a folder"), Postgres::start().await);
    let url = cluster.url();
    let server = FakeServer::again(&folder.path().join("root"), &[("DATABASE_URL", url.as_str())]).await;
    history(&server, "", 0).await;
    cluster.pause();
    let done = run(&server, "c", "print x").await;
    assert_eq!(done["outcome"]["exitCode"], 0, "{done}");
    let body = json!({"conversationId": "e", "language": "python", "code": "print once"});
    let (_, _, keyed) = ask(&server, Method::POST, "/v1/runs", Some(body.clone()), "k").await;
    assert_eq!(keyed["outcome"]["exitCode"], 0, "{keyed}");
    let (_, is_replayed, again) = ask(&server, Method::POST, "/v1/runs", Some(body), "k").await;
    assert_eq!((is_replayed, &again["runId"]), (true, &keyed["runId"]));
    assert_eq!(get(&server, "/v1/history").await.1["code"], "database_unavailable");
    assert_eq!(metric(&server, "sandbox_idempotency_keys_unstored_total").await, 1);
    cluster.resume().await;
    until("both are recorded", async || {
        get(&server, "/v1/history").await.1["runs"].as_array().is_some_and(|runs| runs.len() == 2)
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_run_keeps_no_key() {
    let server = FakeServer::start().await;
    let body = |language: &str| Some(json!({"language": language, "code": "print x"}));
    let (status, ..) = ask(&server, Method::POST, "/v1/runs", body("cobol"), "k").await;
    assert_eq!(status, 422);
    let (status, is_replayed, done) = ask(&server, Method::POST, "/v1/runs", body("python"), "k").await;
    assert_eq!((status, is_replayed), (StatusCode::OK, false), "{done}");
    server.stop().await;
}
