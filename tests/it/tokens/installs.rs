//! Installations of packages, and checks: they count for their token as runs do, and end with it.

use std::time::Duration;

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use reqwest::Method;
use serde_json::{Value, json};

use super::{call, create};
use crate::support::{
    FakeServer,
    server::TOKEN,
    until::{until, within},
};

/// Less than a check may take, which is 10 s.
const BEFORE_ITS_LIMIT: Duration = Duration::from_secs(6);

async fn install(server: &FakeServer, token: &str) -> (u16, Value) {
    let body = json!({"language": "python", "packages": ["tiny"]});
    call(server, token, Method::POST, "/v1/conversations/c/packages", Some(body)).await
}

/// Why the next installation of a token is refused.
async fn refusal(server: &FakeServer, token: &str) -> String {
    let (status, why) = install(server, token).await;
    assert_eq!((status, &why["code"]), (429, &json!("rate_limited")), "{why}");
    why["detail"].as_str().expect("a sentence").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn installations_count_for_the_limits_of_their_token() {
    let server = FakeServer::with_packages().await;
    let limited = async |limits: Value| create(&server, json!({"name": "n", "owner": "ann", "limits": limits})).await.1;
    for (limits, word) in [
        (json!({"runsPerMinute": 1}), "1 programs a minute"),
        (json!({"outputBytesPerDay": 10}), "10 bytes of output a day"),
    ] {
        let token = limited(limits).await;
        let (_, first) = install(&server, &token).await;
        assert_eq!(first["code"], "packages_refused", "the scripted engine installs nothing: {first}");
        let why = refusal(&server, &token).await;
        assert!(why.contains(word), "{why}");
    }

    let token = limited(json!({"runsAtOnce": 1})).await;
    let hang = json!({"language": "python", "code": "hang", "detach": true, "wait": 0});
    assert_eq!(call(&server, &token, Method::POST, "/v1/runs", Some(hang)).await.0, 202);
    let why = refusal(&server, &token).await;
    assert!(why.contains("1 programs at once"), "{why}");

    let (_, token) = create(&server, json!({"name": "n", "owner": "ann", "languages": ["bash"]})).await;
    let (status, why) = install(&server, &token).await;
    assert_eq!((status, &why["code"]), (403, &json!("insufficient_scope")), "{why}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_under_way_is_cancelled_when_its_token_is_revoked() {
    let server = FakeServer::with_packages().await;
    let (id, token) = create(&server, json!({"name": "n", "owner": "ann"})).await;
    server.engine.hang("Installs packages by uv");
    let installs = install(&server, &token);
    let ends_token = async {
        until("the tool runs", async || !server.engine.live().is_empty()).await;
        call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0
    };
    let ((status, why), revoked) = tokio::join!(installs, ends_token);
    assert_eq!((revoked, status, &why["code"]), (204, 401, &json!("unauthorized")), "{why}");
    until("its sandbox is destroyed", async || server.engine.live().is_empty()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_installation_of_an_owner_runs_and_sixteen_wait() {
    let server = FakeServer::with_packages().await;
    let (id, token) = create(&server, json!({"name": "n", "owner": "ann"})).await;
    server.engine.hang("Installs packages by uv");
    let mut installs: FuturesUnordered<_> = (0..18).map(|_| install(&server, &token)).collect();
    let (status, why) = installs.next().await.expect("an answer");
    assert_eq!((status, &why["code"]), (429, &json!("queue_full")), "{why}");
    assert_eq!(call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0, 204);
    let rest: Vec<_> = installs.collect().await;
    assert!(rest.len() == 17 && rest.iter().all(|(status, _)| *status == 401), "{rest:?}");
    until("the sandbox is destroyed", async || server.engine.live().is_empty()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_count_for_the_limits_of_their_token_and_end_with_it() {
    let server = FakeServer::start().await;
    let check = async |token: &str, language: &str| {
        let body = json!({"language": language, "code": "x"});
        call(&server, token, Method::POST, "/v1/check", Some(body)).await
    };
    server.engine.answer("by ruff", &json!({"code": "x\n", "problems": []}).to_string());
    let (_, limited) = create(&server, json!({"name": "n", "limits": {"outputBytesPerDay": 10}})).await;
    assert_eq!(check(&limited, "python").await.0, 200);
    let (status, why) = check(&limited, "python").await;
    assert_eq!((status, &why["code"]), (429, &json!("rate_limited")), "{why}");
    assert!(why["detail"].as_str().is_some_and(|why| why.contains("10 bytes of output a day")), "{why}");

    until("the sandboxes are destroyed", async || server.engine.live().is_empty()).await;
    let (id, token) = create(&server, json!({"name": "n"})).await;
    server.engine.hang("by shfmt");
    let ends_token = async {
        until("the tool runs", async || !server.engine.live().is_empty()).await;
        call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0
    };
    let ((status, _), revoked) = tokio::join!(check(&token, "bash"), ends_token);
    assert_eq!((revoked, status), (204, 401));
    let destroyed = within(BEFORE_ITS_LIMIT, async || server.engine.live().is_empty()).await;
    assert!(destroyed.is_ok(), "it ends with its token, not by its limit of time");
    server.stop().await;
}
