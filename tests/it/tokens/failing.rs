//! A database that takes nothing: full, or read-only. Known tokens go on, programs run, and what cannot be is said.

use reqwest::Method;
use serde_json::json;

use super::{call, create, is_listed, run};
use crate::{
    history::failing::{Disk, mount},
    support::{FakeServer, postgres::Postgres, server::TOKEN, until},
};

/// `fail` makes the database take nothing, `restore` makes it take everything again.
async fn goes_on(url: &str, fail: impl FnOnce(), restore: impl FnOnce()) {
    let server = FakeServer::with(&[("DATABASE_URL", url)]).await;
    let (id, token) = create(&server, json!({"name": "a", "owner": "ann"})).await;
    fail();
    let make = async || call(&server, TOKEN, Method::POST, "/v1/tokens", Some(json!({"name": "b"}))).await;
    until("it takes nothing", async || make().await.0 == 503).await;
    assert_eq!(make().await.1["code"], "database_unavailable");
    let (status, why) = call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await;
    assert_eq!((status, &why["code"]), (503, &json!("database_unavailable")), "it is not told as revoked");
    assert!(is_listed(&server, &token).await);
    let (status, done) = call(&server, &token, Method::POST, "/v1/runs", Some(run("c", "print x"))).await;
    assert_eq!(status, 200, "{done}");
    restore();
    until("it takes tokens again", async || make().await.0 == 201).await;
    until("and their ends", async || {
        call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0 == 204
    })
    .await;
    assert!(!is_listed(&server, &token).await);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_on_a_full_disk_makes_and_revokes_no_token() {
    let disk = Disk::new();
    let folder = disk.0.path();
    let fill = || {
        std::fs::write(folder.join("filler"), vec![0; 8 << 20]).expect_err("the disk is full");
    };
    let make_room = || {
        std::fs::remove_file(folder.join("filler")).expect("room");
        mount(&["-o", "remount,size=64m"], folder);
    };
    goes_on(&format!("sqlite://{}/state.db", folder.display()), fill, make_room).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_that_is_read_only_makes_and_revokes_no_token() {
    let cluster = Postgres::start().await;
    let set = |mode: &str| {
        assert!(cluster.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {mode}")));
        assert!(cluster.sql("SELECT pg_reload_conf()"));
    };
    goes_on(&cluster.url(), || set("on"), || set("off")).await;
}
