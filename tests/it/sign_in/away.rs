//! The database goes away: what HTTP answers, and that nothing was lost when it is back.

use reqwest::Response;
use serde_json::{Value, json};

use super::{ON, REDIRECT, VERIFIER, Visitor};
use crate::support::{FakeServer, postgres::Postgres, server::TOKEN, until::until};

async fn is_unavailable(what: &str, response: Response) {
    assert_eq!(response.status(), 503, "{what}");
    assert_eq!(response.headers()["retry-after"], "30", "{what}");
    assert_eq!(response.headers()["cache-control"], "no-store", "{what}");
    let answer: Value = response.json().await.expect("JSON");
    assert_eq!(answer["error"], "temporarily_unavailable", "{what}: {answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_without_the_database_are_503_and_issue_nothing() {
    let mut cluster = Postgres::start().await;
    let url = cluster.url();
    let server = FakeServer::with(&[ON, ("DATABASE_URL", &url)]).await;
    let visitor = Visitor::of(&server).await;
    let (client, tokens) = visitor.signed_in(TOKEN).await;
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    let request = visitor.request(&client, &[]);
    let code = visitor.code(&request, TOKEN).await;
    let page = visitor.consent(&request).await;
    cluster.pause();

    let of_code = [("grant_type", "authorization_code"), ("client_id", &*client), ("code", &*code)];
    let of_code = [&of_code[..], &[("code_verifier", VERIFIER)]].concat();
    is_unavailable("a code", visitor.form("/token", &of_code).await).await;
    let of_refresh = [("grant_type", "refresh_token"), ("client_id", &*client), ("refresh_token", refresh)];
    is_unavailable("a refresh", visitor.form("/token", &of_refresh).await).await;
    let registration = visitor.http.post(format!("{}/register", visitor.base));
    let registration = registration.json(&json!({"redirect_uris": [REDIRECT]})).send().await.expect("an answer");
    is_unavailable("a registration", registration).await;
    is_unavailable("a revocation", visitor.form("/revoke", &[("token", refresh)]).await).await;
    let shown = visitor.get(&request).await;
    let decided = visitor.decision(&page, "allow", TOKEN).send().await.expect("an answer");
    for (what, response) in [("the page", shown), ("a consent", decided)] {
        assert_eq!(response.status(), 503, "{what}");
        assert!(!response.headers().contains_key("location"), "{what}");
        let html = response.text().await.expect("a page");
        assert!(html.contains("the database does not answer"), "{what}: {html}");
    }
    assert_eq!(visitor.call(&tokens["access_token"]).await, 200, "known tokens go on");

    cluster.resume().await;
    until("the refresh token, which was not spent, serves", async || {
        visitor.refresh(&client, refresh, &[]).await.0 == 200
    })
    .await;
    let list = visitor.http.get(format!("{}/v1/connections", visitor.base)).bearer_auth(TOKEN).send().await;
    let list: Value = list.expect("an answer").json().await.expect("JSON");
    assert_eq!(list["connections"].as_array().map(Vec::len), Some(2), "the consent made none: {list}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_without_a_token_is_challenged_before_the_database_was_read() {
    // No server listens there.
    let server = FakeServer::with(&[ON, ("DATABASE_URL", "postgres://sandbox@127.0.0.1:1/sandbox")]).await;
    let answer = server.http.get(format!("http://{}/mcp", server.address)).send().await.expect("an answer");
    assert_eq!(answer.status(), 401);
    let challenge = answer.headers()["www-authenticate"].to_str().expect("text");
    assert!(challenge.starts_with("Bearer resource_metadata="), "{challenge}");
    server.stop().await;
}
