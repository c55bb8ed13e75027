//! What a client gets does not depend on what it asks for: as much of running programs and using files as its person
//! may, and never more.

use serde_json::{Value, json};

use super::{ON, REDIRECT, Visitor};
use crate::support::{FakeServer, server::TOKEN};

async fn token(visitor: &Visitor, scopes: &[&str]) -> String {
    let wanted = json!({"owner": "other", "name": "laptop", "scopes": scopes});
    let made = visitor.http.post(format!("{}/v1/tokens", visitor.base)).bearer_auth(TOKEN).json(&wanted).send().await;
    let made: Value = made.expect("an answer").json().await.expect("JSON");
    made["token"].as_str().expect("a token").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn client_gets_what_its_person_may_whatever_it_asks_for() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    let (runs, reads) = (token(&visitor, &["run"]).await, token(&visitor, &["files", "approve"]).await);
    let all = token(&visitor, &["run", "files", "approve", "admin"]).await;
    for (asked, token, granted) in [
        ("run", TOKEN, "run files"),
        ("files offline_access", TOKEN, "run files"),
        ("admin approve", TOKEN, "run files"),
        ("run files approve admin", &*all, "run files"),
        ("unknown", &*all, "run files"),
        ("", &*runs, "run"),
        ("files", &*runs, "run"),
        ("run", &*reads, "files"),
    ] {
        let request = visitor.request(&client, &[("scope", asked)]);
        let html = visitor.consent(&request).await.html;
        for shown in ["run programs in sandboxes", "read, write and delete the files", "as far as you may"] {
            assert!(html.contains(shown), "{asked}: {html}");
        }
        for never in ["see and change the tokens", "say which tools"] {
            assert!(!html.contains(never), "{asked}: {html}");
        }
        let code = visitor.code(&request, token).await;
        let (status, tokens) = visitor.redeem(&client, &code, &[]).await;
        assert_eq!((status, &tokens["scope"]), (200, &json!(granted)), "{asked}: {tokens}");
        // Nor does a refresh narrow it, which clients do after a 403.
        let refresh = tokens["refresh_token"].as_str().expect("a token");
        let first = granted.split(' ').next().expect("a scope");
        let (status, tokens) = visitor.refresh(&client, refresh, &[("scope", first)]).await;
        assert_eq!((status, &tokens["scope"]), (200, &json!(granted)), "{asked}: {tokens}");
    }
    let admin = token(&visitor, &["admin"]).await;
    let page = visitor.consent(&visitor.request(&client, &[("scope", "admin")])).await;
    let refused = visitor.decision(&page, "allow", &admin).send().await.expect("an answer");
    assert_eq!(refused.status(), 403, "there is nothing that the client could get");
    server.stop().await;
}
