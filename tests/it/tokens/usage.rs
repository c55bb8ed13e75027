//! Limits of a day: what other processes have used counts too.

use reqwest::Method;
use serde_json::json;

use super::{call, create, run};
use crate::support::{
    FakeServer,
    fake_server::{Kind, on_each_database},
    postgres::Postgres,
    until,
};

on_each_database! {
    what_was_used_before_a_restart_and_at_other_servers_counts
}

async fn what_was_used_before_a_restart_and_at_other_servers_counts(kind: Kind) {
    let folder = tempfile::tempdir().expect("a folder");
    let cluster = if kind == Kind::Postgres { Some(Postgres::start().await) } else { None };
    let sqlite = format!("sqlite://{}/state/a.db", folder.path().display());
    let url = cluster.as_ref().map_or(sqlite, Postgres::url);
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
