//! Installations of packages: they count for their token as runs do.

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, create};
use crate::support::FakeServer;

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
