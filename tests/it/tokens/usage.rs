//! Limits of a day: what other processes have used counts too.

use std::path::Path;

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::id::{InstanceId, RunId, TokenId},
    ports::database::TokenStore as _,
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{call, create, run};
use crate::support::{
    FakeServer,
    fake_server::{Kind, on_each_database},
    postgres::Postgres,
    until,
};

on_each_database! {
    what_was_used_before_a_restart_and_at_other_servers_counts
    processor_time_that_is_not_known_counts_by_the_limit_of_the_sandbox
}

/// The address of a database of its own, and what ends with it.
async fn database(kind: Kind, folder: &Path) -> (String, Option<Postgres>) {
    let cluster = if kind == Kind::Postgres { Some(Postgres::start().await) } else { None };
    let sqlite = format!("sqlite://{}/state/a.db", folder.display());
    (cluster.as_ref().map_or(sqlite, Postgres::url), cluster)
}

async fn what_was_used_before_a_restart_and_at_other_servers_counts(kind: Kind) {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, _cluster) = database(kind, folder.path()).await;
    let (settings, root) = ([("DATABASE_URL", url.as_str())], folder.path().join("root"));
    let a = FakeServer::again(&root, &settings).await;
    let asked = json!({"name": "n", "owner": "ann", "limits": {"outputBytesPerDay": 10}});
    let (_, token) = create(&a, asked).await;
    let (_, other) = create(&a, json!({"name": "o", "owner": "ann", "limits": {"outputBytesPerDay": 10}})).await;
    let (_, free) = create(&a, json!({"name": "f", "owner": "ann"})).await;
    let post = async |server: &FakeServer, token: &str, code: &str| {
        call(server, token, Method::POST, "/v1/runs", Some(run("c", code))).await.0
    };
    // Six bytes with the end of the line: two of them exceed the limit, one does not.
    assert_eq!((post(&a, &token, "print 12345").await, post(&a, &free, "print 1234567890123").await), (200, 200));
    a.stop().await;

    let a = FakeServer::again(&root, &settings).await;
    let b = FakeServer::again(&root, &settings).await;
    assert_eq!(post(&a, &other, "print 12345").await, 200, "another token of the owner");
    assert_eq!(post(&a, &token, "print 12345").await, 200, "six of ten");
    assert_eq!(post(&a, &token, "print 1").await, 429, "six before the restart, and six after it");
    assert_eq!(post(&b, &free, "print 1").await, 200);
    until("the other server knows", async || post(&b, &token, "# prints nothing").await == 429).await;
    // The first one has read the history too by now: what it counts itself is not counted again.
    assert_eq!(post(&a, &other, "print 1").await, 200, "six of ten");
    a.stop().await;
    b.stop().await;
}

async fn processor_time_that_is_not_known_counts_by_the_limit_of_the_sandbox(kind: Kind) {
    let folder = tempfile::tempdir().expect("a folder");
    let (url, _cluster) = database(kind, folder.path()).await;
    // A thousand cores: a millisecond counts as a second.
    let settings = [("DATABASE_URL", url.as_str()), ("SANDBOX_LIMITS__CPU_MILLIS", "1000000")];
    let server = FakeServer::again(&folder.path().join("root"), &settings).await;
    let mut ids: Vec<TokenId> = Vec::new();
    // Of a plain runner, and where the engine loses how the program ended.
    let hangs = json!({"conversationId": "c", "language": "bash", "code": "hang", "limits": {"wallMs": 100}});
    let lost = json!({"conversationId": "d", "language": "bash", "code": "sleep 100ms\nprint lost"});
    for (name, program, expected) in [("plain", hangs, 200), ("lost", lost, 502)] {
        let wanted = json!({"name": name, "owner": "ann", "limits": {"cpuSecondsPerDay": 50}});
        let (id, token) = create(&server, wanted).await;
        let post = async |body: Value| call(&server, &token, Method::POST, "/v1/runs", Some(body)).await;
        server.engine.faults().exits_to_lose = u32::from(expected == 502);
        let (status, done) = post(program).await;
        assert_eq!(status, expected, "{done}");
        assert!(!done.to_string().contains("cpuMs"), "it is not known: {done}");
        let (status, why) = post(run("c", "print x")).await;
        assert_eq!((status, &why["code"]), (429, &json!("rate_limited")), "{why}");
        assert!(why["detail"].as_str().expect("a sentence").contains("50 s of processor time a day"), "{why}");
        ids.push(id.parse().expect("an id"));
    }
    server.stop().await;

    let stored = Database::connect(&url).expect("an address");
    stored.prepare().await.expect("tables");
    let an_hour_ago = RunId::new().unix_ms() - 3_600_000;
    let others = (InstanceId::new(), 0);
    let spent = stored.spent(&ids, an_hour_ago, others).await.expect("sums");
    assert!(matches!(spent[..], [(_, (100_000.., _)), (_, (100_000.., _))]), "{spent:?}");
    stored.close().await;
}
