//! Subjects of another issuer, and what stands for them beside their tokens.

use serde_json::json;

use super::Visitor;
use crate::support::{
    FakeServer,
    issuer::{Issuer, Key},
};

/// The digest by which a subject is stored is made of its name and the issuer's. HTTP Basic carries any byte.
#[tokio::test(flavor = "multi_thread")]
async fn name_of_a_subject_opens_nothing() {
    let key = Key::new("first");
    let issuer = Issuer::start(&[&key]).await;
    let settings = [("SANDBOX_SIGN_IN__MODE", "issuer"), ("SANDBOX_SIGN_IN__ISSUER", &*issuer.url)];
    let server = FakeServer::with(&settings).await;
    let visitor = Visitor::of(&server).await;
    let token = key.sign(&issuer.claims(&format!("{}/mcp", visitor.base), &json!({})));
    assert_eq!(visitor.call(&json!(token)).await, 200);
    for (password, status) in [(format!("jwt\0{}\0alice", issuer.url), 401), (token, 200)] {
        let request = visitor.http.get(format!("{}/v1/sessions", visitor.base)).basic_auth("x", Some(&password));
        assert_eq!(request.send().await.expect("an answer").status(), status, "{password:?}");
    }
    server.stop().await;
}
