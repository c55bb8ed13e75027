//! What operators see and change of every owner, by `/v1/owners` and `/v1/admin`; every change is in the audit log.

mod copy;
mod forms;
mod late;
mod live;
mod network;
pub mod page;

use std::{fs, path::Path};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{
    FakeServer,
    calls::{call, create, get},
    fake_server::{Kind, on_each_database},
    server::TOKEN,
    until,
};

on_each_database! {
    an_operator_ends_what_is_another_owners_and_each_act_is_in_the_audit_log
    owners_and_conversations_are_listed_by_size_a_page_at_a_time
    activity_counts_ends_durations_and_refusals_and_slow_and_failing_runs_are_found
}

/// Begins a run, which may go on.
async fn run(server: &FakeServer, token: &str, conversation: &str, code: &str, wait: u64) -> Value {
    let body = json!({"conversationId": conversation, "language": "python", "code": code, "wait": wait});
    let (status, run) = call(server, token, Method::POST, "/v1/runs", Some(body)).await;
    assert!(status < 300, "{run}");
    run
}

async fn write(server: &FakeServer, token: &str, conversation: &str, bytes: usize) {
    let url = format!("http://{}/v1/conversations/{conversation}/files/f", server.address);
    let sent = server.http.put(url).bearer_auth(token).body(vec![b'x'; bytes]).send().await.expect("an answer");
    assert!(sent.status().is_success(), "{}", sent.status());
}

/// The lines of operators in the audit log: the action, the token's id, the owner, what it was.
pub fn administered(path: &Path) -> Vec<(String, String, String, String)> {
    let text = fs::read_to_string(path).expect("the audit log");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let text = |line: &Value, name: &str| line[name].as_str().unwrap_or_default().to_owned();
    lines
        .filter(|line| line.get("admin").is_some())
        .map(|line| (text(&line, "admin"), text(&line, "by_token"), text(&line, "owner"), text(&line, "subject")))
        .collect()
}

async fn an_operator_ends_what_is_another_owners_and_each_act_is_in_the_audit_log(kind: Kind) {
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.log");
    // The run is to end by the operator, not by its time.
    let settings = [("SANDBOX_AUDIT__FILE", audit.to_str().expect("text")), ("SANDBOX_LIMITS__WALL_MS", "300000")];
    let server = FakeServer::by(kind, &settings).await;
    let (ops_id, ops) =
        create(&server, json!({"name": "ops", "owner": "ops", "scopes": ["admin", "run", "files"]})).await;
    let (ann_id, ann) = create(&server, json!({"name": "ann", "owner": "ann"})).await;
    let hanging = run(&server, &ann, "c", "hang", 0).await;
    let run_id = hanging["runId"].as_str().expect("an id");
    let waiting = run(&server, &ann, "c", "print x", 0).await;
    let body = json!({"conversationId": "d", "language": "python"});
    let (_, session) = call(&server, &ann, Method::POST, "/v1/sessions", Some(body)).await;
    let session_id = session["sessionId"].as_str().expect("an id");

    let mut now = Value::Null;
    until("the run runs", async || {
        now = call(&server, &ops, Method::GET, "/v1/admin/overview", None).await.1;
        now["queue"] == json!([{"owner": "ann", "waiting": 1, "running": 1}])
    })
    .await;
    let found = |id: &str| now["runs"].as_array().expect("a list").iter().find(|run| run["runId"] == id).cloned();
    let one = found(run_id).expect("the run");
    assert_eq!((&one["owner"], &one["conversationId"], &one["state"]), (&json!("ann"), &json!("c"), &json!("running")));
    assert_eq!(found(waiting["runId"].as_str().expect("an id")).expect("it waits")["state"], "queued");
    assert_eq!((&now["runsTotal"], &now["sessionsTotal"]), (&json!(2), &json!(1)));
    assert_eq!((&now["sessions"][0]["sessionId"], &now["sessions"][0]["owner"]), (&json!(session_id), &json!("ann")));

    // By the routes of callers they do not exist for the operator.
    let act = async |method: Method, path: &str| call(&server, &ops, method, path, None).await.0;
    assert_eq!(act(Method::POST, &format!("/v1/runs/{run_id}/cancel")).await, 404);
    assert_eq!(act(Method::DELETE, &format!("/v1/sessions/{session_id}")).await, 404);
    assert_eq!(act(Method::DELETE, "/v1/conversations/c").await, 404);
    assert_eq!(act(Method::DELETE, "/v1/admin/conversations/ann/c").await, 409, "a run is under way");
    assert_eq!(act(Method::POST, &format!("/v1/admin/runs/{run_id}/cancel")).await, 204);
    until("both runs ended", async || get(&server, "/v1/admin/overview").await["runsTotal"] == 0).await;
    let (_, ended) = call(&server, &ann, Method::GET, &format!("/v1/runs/{run_id}"), None).await;
    assert_eq!(ended["outcome"]["ended"], "cancelled", "{ended}");
    assert_eq!(act(Method::DELETE, &format!("/v1/admin/sessions/{session_id}")).await, 204);
    assert_eq!(call(&server, &ann, Method::GET, &format!("/v1/sessions/{session_id}"), None).await.0, 410);
    assert_eq!(act(Method::DELETE, "/v1/admin/conversations/ann/c").await, 204);
    assert_eq!(act(Method::DELETE, &format!("/v1/tokens/{ann_id}")).await, 204);

    let nothing = "00000000000000000000000000000000";
    for (method, path) in [
        (Method::POST, format!("/v1/admin/runs/run-{nothing}/cancel")),
        (Method::DELETE, format!("/v1/admin/sessions/session-{nothing}")),
        (Method::DELETE, format!("/v1/admin/sessions/{session_id}")),
        (Method::DELETE, "/v1/admin/conversations/ann/c".to_owned()),
        (Method::DELETE, "/v1/admin/conversations/ops/d".to_owned()),
        (Method::DELETE, format!("/v1/connections/token-{nothing}")),
        (Method::DELETE, format!("/v1/tokens/token-{nothing}")),
    ] {
        assert_eq!(act(method, &path).await, 404, "{path}");
    }
    for bad in ["/v1/admin/activity?span=week", "/v1/admin/runs?which=best", "/v1/admin/conversations?cursor=1"] {
        assert_eq!(act(Method::GET, bad).await, 422, "{bad}");
    }
    server.stop().await;
    let line = |action: &str, by: &str, owner: &str, subject: &str| {
        (action.to_owned(), by.to_owned(), owner.to_owned(), subject.to_owned())
    };
    let expected = [
        line("token_created", "", "ops", &ops_id),
        line("token_created", "", "ann", &ann_id),
        line("run_cancelled", &ops_id, "ann", run_id),
        line("session_ended", &ops_id, "ann", session_id),
        line("conversation_deleted", &ops_id, "ann", "c"),
        line("token_revoked", &ops_id, "ann", &ann_id),
    ];
    assert_eq!(administered(&audit), expected);
}

async fn owners_and_conversations_are_listed_by_size_a_page_at_a_time(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann"})).await;
    let (bob_id, bob) = create(&server, json!({"name": "bob", "owner": "bob"})).await;
    create(&server, json!({"name": "no files", "owner": "carl"})).await;
    for (token, conversation, bytes) in
        [(&ann, "large", 300_000), (&bob, "same", 100_000), (&ann, "same", 100_000), (&bob, "small", 10)]
    {
        write(&server, token, conversation, bytes).await;
    }
    run(&server, &ann, "large", "print x", 60).await;
    // An owner whose token is gone has a folder.
    assert_eq!(call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{bob_id}"), None).await.0, 204);

    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = get(&server, &format!("/v1/admin/conversations?limit=1{cursor}")).await;
        assert_eq!((&page["total"], &page["unmeasured"]), (&json!(4), &json!(0)));
        for one in page["conversations"].as_array().expect("a list") {
            assert!(one["bytes"].as_u64().is_some_and(|bytes| bytes >= 4096), "{one}");
            seen.push(format!(
                "{}/{}",
                one["owner"].as_str().expect("text"),
                one["conversationId"].as_str().expect("text")
            ));
        }
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = format!("&cursor={}", next.replace('/', "%2F"));
    }
    assert_eq!(seen, ["ann/large", "ann/same", "bob/same", "bob/small"]);
    let of_bob = get(&server, "/v1/admin/conversations?owner=bob").await;
    assert_eq!((&of_bob["total"], &of_bob["conversations"][0]["conversationId"]), (&json!(2), &json!("same")));

    let mut owners = Value::Null;
    until("the run is counted", async || {
        owners = get(&server, "/v1/owners").await["owners"].clone();
        owners[0]["runsToday"] == 1
    })
    .await;
    let facts = |one: &Value| json!([one["owner"], one["tokens"], one["conversations"], one["unmeasured"]]);
    let facts: Vec<_> = owners.as_array().expect("a list").iter().map(facts).collect();
    assert_eq!(json!(facts), json!([["ann", 1, 2, 0], ["bob", 0, 2, 0], ["carl", 1, 0, 0], ["default", 0, 0, 0]]));
    assert_eq!(owners[0]["bytes"], of_ann(&server).await, "the same measurement");
    server.stop().await;
}

async fn of_ann(server: &FakeServer) -> Value {
    get(server, "/v1/admin/conversations?owner=ann").await["totalBytes"].clone()
}

async fn activity_counts_ends_durations_and_refusals_and_slow_and_failing_runs_are_found(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    for (code, times) in [("print x", 3), ("exit 3", 2)] {
        for _ in 0..times {
            run(&server, TOKEN, "c", code, 60).await;
        }
    }
    let unknown = json!({"conversationId": "c", "language": "cobol", "code": "x"});
    assert_eq!(call(&server, TOKEN, Method::POST, "/v1/runs", Some(unknown)).await.0, 422);
    for (span, parts) in [("hour", 60), ("day", 96)] {
        let mut activity = Value::Null;
        let sum = |activity: &Value, list: &str| {
            let parts = activity["parts"].as_array().expect("a list").iter();
            let counts = parts.flat_map(|part| part[list].as_array().expect("a list").clone());
            counts
                .map(|count| format!("{} {}", count["word"].as_str().expect("text"), count["count"]))
                .collect::<Vec<_>>()
        };
        until("the runs are stored", async || {
            activity = get(&server, &format!("/v1/admin/activity?span={span}")).await;
            let counts = sum(&activity, "runs").into_iter();
            counts.map(|count| count.split(' ').nth(1).expect("a count").parse::<u64>().expect("a number")).sum::<u64>()
                == 5
        })
        .await;
        assert_eq!(activity["parts"].as_array().map(Vec::len), Some(parts));
        assert!(sum(&activity, "runs").iter().all(|count| count.starts_with("exited ")), "{activity}");
        assert_eq!(sum(&activity, "refusals"), ["runner_not_found 1"]);
        let took = activity["parts"].as_array().expect("a list").iter().find_map(|part| part.get("took"));
        let took = took.expect("a part with runs");
        assert!(took["p50Ms"].as_u64() <= took["p99Ms"].as_u64() && took["p99Ms"].as_u64() > Some(0), "{took}");
    }
    let failing = get(&server, "/v1/admin/runs?which=failing").await;
    assert_eq!(failing["runs"].as_array().map(Vec::len), Some(2), "{failing}");
    assert_eq!(failing["runs"][0]["exitCode"], 3);
    assert_eq!(get(&server, "/v1/admin/runs?limit=4").await["runs"].as_array().map(Vec::len), Some(4));
    assert_eq!(get(&server, "/v1/admin/runs?from=2100-01-01T00:00:00Z").await["runs"], json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_checks_with_the_servers_engine_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.log");
    let server = FakeServer::with(&[("SANDBOX_AUDIT__FILE", audit.to_str().expect("text"))]).await;
    // They are under way together.
    server.engine.faults().start_delay = std::time::Duration::from_secs(1);
    let all = (0..8).map(|_| call(&server, TOKEN, Method::GET, "/v1/admin/doctor", None));
    let (done, refused): (Vec<_>, Vec<_>) = join_all(all).await.into_iter().partition(|(status, _)| *status == 200);
    assert!(!refused.is_empty() && refused.iter().all(|(_, why)| why["code"] == "queue_full"), "{refused:?}");
    let findings = done[0].1["findings"].as_array().expect("a list");
    let of = |check: &str| findings.iter().find(|one| one["check"] == check).unwrap_or_else(|| panic!("{check}"));
    assert_eq!(of("settings")["level"], "ok");
    assert_eq!(of("files")["level"], "ok");
    // The fake engine has no kernel that could show its walls.
    assert_eq!(of("isolation")["level"], "fail");
    assert!(of("isolation")["fix"].is_string(), "{findings:?}");
    assert!(findings.iter().all(|one| one["check"] != "address"), "the server's own addresses are in use");
    server.stop().await;
    assert_eq!(administered(&audit)[0].0, "checked");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_database_the_present_is_shown_and_refusals_are_counted() {
    let server = FakeServer::with(&[("DATABASE_URL", "postgres://127.0.0.1:1/nothing")]).await;
    assert_eq!(get(&server, "/v1/admin/overview").await["runsTotal"], 0);
    assert_eq!(get(&server, "/v1/admin/activity").await["hasHistory"], false);
    assert_eq!(get(&server, "/v1/admin/conversations").await["total"], 0);
    for path in ["/v1/owners", "/v1/admin/runs"] {
        assert_eq!(call(&server, TOKEN, Method::GET, path, None).await.1["code"], "database_unavailable", "{path}");
    }
    server.stop().await;
}
