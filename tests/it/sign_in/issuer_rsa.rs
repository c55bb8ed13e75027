//! Tokens of another issuer with an RSA key, as most issuers and Cloudflare Access have: RS256, and what a key is for.

use jsonwebtoken::{Algorithm, Header};
use serde_json::json;

use super::Visitor;
use crate::support::{
    FakeServer,
    issuer::{Issuer, Key},
};

#[tokio::test(flavor = "multi_thread")]
async fn rsa_token_is_accepted_by_the_algorithm_of_its_key() {
    use Algorithm::{PS256, RS256, RS384};
    let (rs, ps, plain) = (Key::rsa("rs", RS256), Key::rsa("ps", PS256), Key::rsa("plain", RS256));
    let curve = Key::new("rs");
    let issuer = Issuer::start(&[]).await;
    // Many issuers do not say what their key is for.
    let mut published = plain.public();
    published.as_object_mut().expect("an object").remove("alg");
    issuer.publishes(vec![rs.public(), ps.public(), published]);
    let settings = [("SANDBOX_SIGN_IN__MODE", "issuer"), ("SANDBOX_SIGN_IN__ISSUER", &*issuer.url)];
    let server = FakeServer::with(&settings).await;
    let visitor = Visitor::of(&server).await;
    let claims = issuer.claims(&format!("{}/mcp", visitor.base), &json!({}));
    for (key, algorithm, status) in [
        (&rs, RS256, 200),
        (&rs, RS384, 401),
        (&rs, PS256, 401),
        (&ps, PS256, 200),
        (&ps, RS256, 401),
        (&plain, RS256, 200),
        (&plain, RS384, 200),
        (&curve, Algorithm::ES256, 401),
    ] {
        let mut header = Header::new(algorithm);
        header.kid = Some(key.kid.clone());
        let token = key.sign_with(&header, &claims);
        assert_eq!(visitor.call(&json!(token)).await, status, "{} {algorithm:?}", key.kid);
    }
    let good = rs.sign(&claims);
    let (head, signature) = good.rsplit_once('.').expect("a signature");
    let other = Key::rsa("rs", RS256).sign(&claims);
    let foreign = other.rsplit_once('.').expect("a signature").1;
    for bad in [format!("{head}.{foreign}"), format!("{head}."), format!("{head}.{}", &signature[4..])] {
        assert_eq!(visitor.call(&json!(bad)).await, 401, "{bad}");
    }
    assert_eq!(issuer.asked(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rsa_assertion_of_cloudflare_access_is_accepted() {
    let key = Key::rsa("edge", Algorithm::RS256);
    let team = Issuer::start(&[&key]).await;
    let settings = [
        ("SANDBOX_SIGN_IN__MODE", "issuer"),
        ("SANDBOX_SIGN_IN__CLOUDFLARE_TEAM", &*team.url),
        ("SANDBOX_SIGN_IN__CLOUDFLARE_AUDIENCE", "an-application"),
    ];
    let server = FakeServer::with(&settings).await;
    let visitor = Visitor::of(&server).await;
    for (audience, status) in [("an-application", 200), ("another-application", 401)] {
        let assertion = key.sign(&team.claims(audience, &json!({"aud": [audience]})));
        let request = visitor.http.get(format!("{}/v1/runs", visitor.base));
        let answer = request.header("cf-access-jwt-assertion", assertion).send().await.expect("an answer");
        assert_eq!(answer.status(), status, "{audience}");
    }
    server.stop().await;
}
