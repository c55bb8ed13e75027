//! What is done to a conversation that one of the servers has, besides running programs in it.

use std::time::Duration;

use mcp_sandbox_server::{
    domain::{Code, ConversationKey, id::Language},
    services::packages::InstallRequest,
};
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{OWN_ADDRESS, Pair, run};
use crate::support::{
    FakeServer,
    calls::{ask, request},
    postgres::Postgres,
    server::TOKEN,
    until,
};

const INDEX: (&str, &str) = ("SANDBOX_PACKAGES__PYTHON_INDEX", "https://packages.example/simple");

/// Gives a server a Python that installs packages.
async fn add_installer(server: &FakeServer) {
    server.engine.add_installer("python");
    until("it installs", async || {
        let runner = server.shared.catalog.find(&Language::default());
        runner.is_some_and(|runner| runner.packages.tools().next().is_some())
    })
    .await;
}

/// Two servers that install in one conversation at once would each leave the packages of the other out.
#[tokio::test(flavor = "multi_thread")]
async fn packages_are_installed_by_the_server_that_has_the_conversation() {
    let pair = Pair::with(&[INDEX]).await;
    let (a, b) = (&pair.a, &pair.b);
    assert_eq!(ask(a, Method::POST, "/v1/runs", Some(run("c", "print 1"))).await.0, 200);
    for server in [a, b] {
        add_installer(server).await;
    }
    let before = pair.started();
    let asked = json!({"language": "python", "packages": ["tiny"]});
    let (_, answer) = ask(b, Method::POST, "/v1/conversations/c/packages", Some(asked)).await;
    assert_eq!(answer["code"], "packages_refused", "the scripted engine installs nothing: {answer}");
    assert_eq!(pair.started(), (before.0 + 1, before.1));
    pair.stop().await;
}

/// It takes longer than an idle conversation is held. While the database is away, a server forgets those that are idle.
#[tokio::test]
async fn a_conversation_in_which_packages_are_installed_is_not_given_back() {
    let mut cluster = Postgres::start().await;
    let url = cluster.url();
    let own = [("DATABASE_URL", url.as_str()), ("SANDBOX_SERVER__PEER_URL", OWN_ADDRESS)];
    let server = FakeServer::with(&[&own[..], &[INDEX, ("SANDBOX_PACKAGES__INSTALL_S", "120")]].concat()).await;
    add_installer(&server).await;
    server.engine.hang("Installs packages by uv");
    // It divides by zero before.
    until("the server is known", async || cluster.sql("SELECT 1 / count(*) FROM peers")).await;
    cluster.pause();
    tokio::time::pause();
    let conversation: ConversationKey = "c".parse().expect("a conversation");
    let peers = server.mcp.runs.peers();
    assert!(matches!(peers.take(&conversation).await, Ok(None)), "this server works alone");
    let (language, packages) = (Language::default(), vec!["tiny".to_owned()]);
    let wanted = InstallRequest { conversation: conversation.clone(), language, tool: None, packages };
    let installed = server.mcp.packages.install(wanted).await;
    assert_eq!(installed.map_err(|failure| failure.code), Err(Code::PackagesRefused), "it ends at its limit of time");
    assert_eq!(peers.check(&conversation), Ok(()));
    tokio::time::resume();
    cluster.resume().await;
    server.stop().await;
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
