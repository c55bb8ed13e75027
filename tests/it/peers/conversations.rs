//! What is done to a conversation that one of the servers has, besides running programs in it.

use mcp_sandbox_server::domain::id::Language;
use reqwest::Method;
use serde_json::json;

use super::{Pair, run};
use crate::support::{calls::ask, until};

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
