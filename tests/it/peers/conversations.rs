//! What is done to a conversation that one of the servers has, besides running programs in it.

use std::time::Duration;

use mcp_sandbox_server::domain::id::Language;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{Pair, run};
use crate::support::{
    calls::{ask, request},
    server::TOKEN,
    until,
};

/// Two servers that install in one conversation at once would each leave the packages of the other out.
#[tokio::test(flavor = "multi_thread")]
async fn packages_are_installed_by_the_server_that_has_the_conversation() {
    let pair = Pair::with(&[("SANDBOX_PACKAGES__PYTHON_INDEX", "https://packages.example/simple")]).await;
    let (a, b) = (&pair.a, &pair.b);
    assert_eq!(ask(a, Method::POST, "/v1/runs", Some(run("c", "print 1"))).await.0, 200);
    for server in [a, b] {
        server.engine.add_installer("python");
        until("it installs", async || {
            let runner = server.shared.catalog.find(&Language::default());
            runner.is_some_and(|runner| runner.packages.tools().next().is_some())
        })
        .await;
    }
    let before = pair.started();
    let asked = json!({"language": "python", "packages": ["tiny"]});
    let (_, answer) = ask(b, Method::POST, "/v1/conversations/c/packages", Some(asked)).await;
    assert_eq!(answer["code"], "packages_refused", "the scripted engine installs nothing: {answer}");
    assert_eq!(pair.started(), (before.0 + 1, before.1));
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_server_may_be_deleting_does_not_count_in_a_round_of_retention() {
    let pair = Pair::with(&[("SANDBOX_QUOTA__TOTAL_BYTES_MAX", "1048576")]).await;
    let (a, b) = (&pair.a, &pair.b);
    let names = ["oldest", "old", "new"];
    for name in names {
        let put = request(b, TOKEN, Method::PUT, &format!("/v1/conversations/{name}/files/f"));
        let put = put.header("content-type", "application/octet-stream").body(vec![1; 400 << 10]);
        assert_eq!(put.send().await.expect("an answer").status(), StatusCode::CREATED);
    }
    assert_eq!(ask(a, Method::POST, "/v1/runs", Some(run("oldest", "print 1"))).await.0, 200);
    for (name, days) in [("oldest", 9), ("old", 8)] {
        b.used_ago(name, Duration::from_hours(24 * days));
    }
    let key = "oldest".parse().expect("a conversation");
    until("its turn is over", async || a.mcp.runs.is_idle(&key)).await;
    let there = || names.map(|name| b.root.join(name).exists());
    assert_eq!((b.retention.round().await, there()), (Ok(0), [true; 3]));
    assert_eq!((a.retention.round().await, there()), (Ok(1), [false, true, true]));
    pair.stop().await;
}
