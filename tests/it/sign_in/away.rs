//! The database goes away or is locked: what HTTP answers, and that nothing was lost when it is back.

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{TokenRecord, token::SUBJECT_MARK},
    ports::{database::TokenStore as _, sign_in::RegisteredClient},
    services::{
        sign_in::{Consent, Refusal},
        tokens::blank_record,
    },
};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::{
    ON, REDIRECT, VERIFIER, Visitor,
    rules::{HERE, World},
};
use crate::support::{
    FakeServer,
    calls::{call, create},
    fake_server::Kind,
    postgres::Postgres,
    server::TOKEN,
    until::{PATIENCE, until},
};

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

/// The page is shown then to a client that is named by a document.
#[tokio::test]
async fn token_that_may_be_of_a_database_that_was_not_read_is_no_wrong_one() {
    let world = World::new(Kind::Sqlite).await;
    let client = RegisteredClient { id: "a".into(), name: "a".into(), redirects: Vec::new(), secret: None };
    let consent = Consent { client, redirect: REDIRECT.into(), challenge: String::new() };
    world.database.close().await;
    let refused = world.sign_in.consent(&consent, "a token", HERE).await.map(drop);
    assert_eq!(refused, Err(Refusal::Unavailable));
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_that_wait_for_a_lock_are_503_and_change_nothing() {
    let cluster = Postgres::start().await;
    let url = cluster.url();
    let server = FakeServer::with(&[ON, ("DATABASE_URL", &url)]).await;
    let visitor = Visitor::of(&server).await;
    let (kept, _) = create(&server, json!({"name": "kept"})).await;
    let (client, tokens) = visitor.signed_in(TOKEN).await;
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    let page = visitor.consent(&visitor.request(&client, &[])).await;
    let refused = TokenRecord { prefix: SUBJECT_MARK.to_owned(), revoked_unix_ms: Some(1), ..blank_record() };
    let database = Database::connect(&url).expect("a database");
    database.prepare().await.expect("tables");
    database.insert(&refused).await.expect("stored");
    let pool = sqlx::AnyPool::connect(&url).await.expect("another process");
    let mut other = pool.acquire().await.expect("a connection");
    for statement in ["BEGIN", "LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE"] {
        sqlx::query(statement).execute(&mut *other).await.expect("a lock");
    }

    let (path, allow) = (format!("/v1/tokens/{kept}"), format!("/v1/connections/{}/allow", refused.id));
    let of_refresh = [("grant_type", "refresh_token"), ("client_id", &*client), ("refresh_token", refresh)];
    let of_sign_out = [("token", refresh)];
    let requests = async {
        tokio::join!(
            call(&server, TOKEN, Method::POST, "/v1/tokens", json!({"name": "another"})),
            call(&server, TOKEN, Method::DELETE, &path, None),
            call(&server, TOKEN, Method::GET, "/v1/tokens", None),
            call(&server, TOKEN, Method::POST, &allow, None),
            visitor.form("/token", &of_refresh),
            visitor.form("/revoke", &of_sign_out),
            visitor.decision(&page, "allow", TOKEN).send(),
        )
    };
    let answers = timeout(PATIENCE, Box::pin(requests)).await.expect("they are answered while the lock is held");
    let (made, revoked, listed, allowed, refreshed, signed_out, decided) = answers;
    for (what, (status, why)) in [("a token", made), ("its end", revoked), ("the list", listed), ("a subject", allowed)]
    {
        assert_eq!((status, &why["code"]), (503, &json!("database_unavailable")), "{what}: {why}");
    }
    is_unavailable("a refresh", refreshed).await;
    is_unavailable("a revocation", signed_out).await;
    assert_eq!(decided.expect("an answer").status(), 503, "a consent");

    sqlx::query("ROLLBACK").execute(&mut *other).await.expect("no lock");
    until("the refresh token, which was not spent, serves", async || {
        visitor.refresh(&client, refresh, &[]).await.0 == 200
    })
    .await;
    let (_, listed) = call(&server, TOKEN, Method::GET, "/v1/tokens", None).await;
    let listed = listed["tokens"].as_array().expect("a list");
    let ended = listed.iter().filter(|token| !token["revoked"].is_null()).count();
    assert_eq!((listed.len(), ended), (3, 1), "a token, a connection, and the subject that is refused: {listed:?}");
    drop(other);
    database.close().await;
    server.stop().await;
}
