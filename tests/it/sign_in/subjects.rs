//! Subjects of another issuer, and what stands for them beside their tokens.

use reqwest::Method;
use serde_json::{Value, json};

use super::Visitor;
use crate::{
    admin::administered,
    support::{
        FakeServer,
        calls::{ask, get},
        issuer::{Issuer, Key},
    },
};

async fn server(key: &Key, more: &[(&str, &str)]) -> (Issuer, FakeServer, Visitor) {
    let issuer = Issuer::start(&[key]).await;
    let mut settings = vec![("SANDBOX_SIGN_IN__MODE", "issuer"), ("SANDBOX_SIGN_IN__ISSUER", &*issuer.url)];
    settings.extend(more);
    let server = FakeServer::with(&settings).await;
    let visitor = Visitor::of(&server).await;
    (issuer, server, visitor)
}

/// The digest by which a subject is stored is made of its name and the issuer's. HTTP Basic carries any byte.
#[tokio::test(flavor = "multi_thread")]
async fn name_of_a_subject_opens_nothing() {
    let key = Key::new("first");
    let (issuer, server, visitor) = server(&key, &[]).await;
    let token = key.sign(&issuer.claims(&format!("{}/mcp", visitor.base), &json!({})));
    assert_eq!(visitor.call(&json!(token)).await, 200);
    for (password, status) in [(format!("jwt\0{}\0alice", issuer.url), 401), (token, 200)] {
        let request = visitor.http.get(format!("{}/v1/sessions", visitor.base)).basic_auth("x", Some(&password));
        assert_eq!(request.send().await.expect("an answer").status(), status, "{password:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_are_those_of_a_subject_whatever_tokens_it_has() {
    let key = Key::new("first");
    let (issuer, server, visitor) = server(&key, &[("SANDBOX_SIGN_IN__SUBJECT_RUNS_PER_MINUTE", "2")]).await;
    let token = |changes: &Value| key.sign(&issuer.claims(&format!("{}/mcp", visitor.base), changes));
    for (changes, status) in [
        (json!({}), 200),
        (json!({"jti": "another"}), 200),
        (json!({}), 429),
        (json!({"jti": "a third", "scope": "run"}), 429),
        (json!({"sub": "bob"}), 200),
    ] {
        let run = json!({"language": "python", "code": "print x"});
        let request = visitor.http.post(format!("{}/v1/runs", visitor.base)).bearer_auth(token(&changes)).json(&run);
        assert_eq!(request.send().await.expect("an answer").status(), status, "{changes}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn end_of_a_subject_and_its_return_are_in_the_audit_log_with_its_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.log");
    let key = Key::new("first");
    let (issuer, server, visitor) = server(&key, &[("SANDBOX_AUDIT__FILE", audit.to_str().expect("text"))]).await;
    let token = key.sign(&issuer.claims(&format!("{}/mcp", visitor.base), &json!({})));
    assert_eq!(visitor.call(&json!(token)).await, 200);
    let listed = get(&server, "/v1/connections").await;
    let id = listed["connections"][0]["id"].as_str().expect("an id");
    let path = format!("/v1/connections/{id}");
    assert_eq!(ask(&server, Method::DELETE, &path, None).await.0, 204);
    assert_eq!(ask(&server, Method::POST, &format!("{path}/allow"), None).await.0, 204);
    server.stop().await;
    let line = |action: &str| (action.to_owned(), String::new(), "alice".to_owned(), id.to_owned());
    assert_eq!(administered(&audit), [line("connection_ended"), line("subject_allowed")]);
}
