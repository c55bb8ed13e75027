//! Tokens of another issuer: which are accepted, what they may do, and how a subject is refused.

use std::time::Duration;

use jsonwebtoken::{Algorithm, Header};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Visitor;
use crate::{
    admin::page as admin,
    page_access::findings,
    support::{
        FakeServer,
        issuer::{Issuer, Key},
        server::TOKEN,
        until::until,
    },
};

struct World {
    key: Key,
    issuer: Issuer,
    server: FakeServer,
    visitor: Visitor,
    folder: TempDir,
}

impl World {
    async fn new(more: &[(&str, &str)]) -> Self {
        let key = Key::new("first");
        let issuer = Issuer::start(&[&key]).await;
        let mut settings = vec![("SANDBOX_SIGN_IN__MODE", "issuer"), ("SANDBOX_SIGN_IN__ISSUER", &*issuer.url)];
        settings.extend(more);
        let folder = tempfile::tempdir().expect("a folder");
        let server = FakeServer::again(&folder.path().join("root"), &settings).await;
        let visitor = Visitor::of(&server).await;
        Self { key, issuer, server, visitor, folder }
    }

    fn token(&self, changes: &Value) -> String {
        self.key.sign(&self.claims(changes))
    }

    fn claims(&self, changes: &Value) -> Value {
        self.issuer.claims(&format!("{}/mcp", self.visitor.base), changes)
    }

    async fn status(&self, token: &str) -> u16 {
        self.visitor.call(&json!(token)).await
    }

    async fn get(&self, path: &str, token: &str) -> (u16, Value) {
        let request = self.visitor.http.get(format!("{}{path}", self.visitor.base)).bearer_auth(token);
        super::read(request.send().await.expect("an answer")).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn token_of_the_issuer_is_accepted_on_every_surface() {
    let world = World::new(&[]).await;
    let (base, token) = (&world.visitor.base, world.token(&json!({})));
    assert_eq!(world.status(&token).await, 200);
    for path in ["/v1/runs", "/v1/runners", "/api/v2/runtimes", "/jupyter/api/kernelspecs"] {
        assert_eq!(world.get(path, &token).await.0, 200, "{path}");
    }
    let request = world.visitor.http.get(format!("{base}/jupyter/api/kernels?token={token}"));
    assert_eq!(request.send().await.expect("an answer").status(), 200, "the token in Jupyter's way");
    assert_eq!(world.get("/v1/connections", &token).await.0, 403, "the scope admin comes from no default");
    assert_eq!(world.issuer.asked(), 1, "keys are read once");

    let metadata = world.visitor.get("/.well-known/oauth-protected-resource/mcp").await;
    let metadata: Value = metadata.json().await.expect("JSON");
    assert_eq!(metadata["authorization_servers"], json!([world.issuer.url]));
    assert_eq!(metadata["resource"], format!("{base}/mcp"));
    let challenge = world.visitor.get("/mcp").await.headers()["www-authenticate"].clone();
    assert!(challenge.to_str().expect("text").contains("resource_metadata="), "{challenge:?}");
    for path in ["/.well-known/oauth-authorization-server", "/authorize"] {
        assert_eq!(world.visitor.get(path).await.status(), 404, "{path}");
    }
    for path in ["/register", "/token", "/revoke"] {
        assert_eq!(world.visitor.form(path, &[]).await.status(), 404, "{path}");
    }
    assert_eq!(world.visitor.call(&json!(TOKEN)).await, 200, "the server's own tokens go on");
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_that_is_not_for_this_server_now_is_refused() {
    let world = World::new(&[]).await;
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    let resource = format!("{}/mcp", world.visitor.base);
    for good in [
        json!({}),
        json!({"exp": now - 30}),
        json!({"nbf": now + 30}),
        json!({"aud": ["https://other.test", resource]}),
        json!({"iat": null}),
    ] {
        assert_eq!(world.status(&world.token(&good)).await, 200, "{good}");
    }
    for bad in [
        json!({"exp": now - 90}),
        json!({"exp": null}),
        json!({"exp": "never"}),
        json!({"nbf": now + 90}),
        json!({"nbf": "x"}),
        json!({"iss": "https://other.test"}),
        json!({"iss": format!("{}/", world.issuer.url)}),
        json!({"iss": null}),
        json!({"aud": "https://other.test/mcp"}),
        json!({"aud": [format!("{resource}/")]}),
        json!({"aud": null}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": 7}),
    ] {
        assert_eq!(world.status(&world.token(&bad)).await, 401, "{bad}");
    }
    let good = world.token(&json!({}));
    let (head, signature) = good.rsplit_once('.').expect("a signature");
    for bad in
        [head.to_owned(), format!("{head}."), format!("{head}.AAAA{signature}"), format!("{good}.x"), "a.b.c".into()]
    {
        assert_eq!(world.status(&bad).await, 401, "{bad}");
    }
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn algorithm_follows_from_the_key() {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    let world = World::new(&[]).await;
    let claims = world.claims(&json!({}));
    let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
    for header in
        [json!({"alg": "none", "kid": "first"}), json!({"alg": "None", "kid": "first"}), json!({"alg": "none"})]
    {
        assert_eq!(world.status(&format!("{}.{}.", part(&header), part(&claims))).await, 401, "{header}");
        assert_eq!(world.status(&format!("{}.{}.AAAA", part(&header), part(&claims))).await, 401, "{header}");
    }
    // The public key as a shared secret, which every client knows.
    let public = world.key.public();
    for secret in [public.to_string(), public["x"].as_str().expect("a key").to_owned()] {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("first".into());
        let shared = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
        let forged = jsonwebtoken::encode(&header, &claims, &shared).expect("a token");
        assert_eq!(world.status(&forged).await, 401);
    }
    let other = Key::new("first");
    assert_eq!(world.status(&other.sign(&claims)).await, 401, "another key of the same name");
    let mut embedded = Header::new(Algorithm::ES256);
    embedded.jwk = serde_json::from_value(other.public()).expect("a key");
    embedded.jku = Some("https://evil.test/keys".into());
    assert_eq!(world.status(&other.sign_with(&embedded, &claims)).await, 401, "a key inside the token");
    for typ in ["logout+jwt", "dpop+jwt", "id_token"] {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some(typ.into());
        assert_eq!(world.status(&world.key.sign_with(&header, &claims)).await, 401, "{typ}");
    }
    for typ in [None, Some("at+jwt"), Some("application/at+jwt")] {
        let mut header = Header::new(Algorithm::ES256);
        header.typ = typ.map(str::to_owned);
        assert_eq!(world.status(&world.key.sign_with(&header, &claims)).await, 200, "{typ:?}");
    }
    // A key that is for something else.
    let World { key, server, .. } = world;
    server.stop().await;
    let (mut encrypts, mut named) = (key.public(), key.public());
    encrypts["use"] = json!("enc");
    named["alg"] = json!("ES384");
    let shared = json!({"kty": "oct", "k": "AAAA", "kid": "first"});
    for (published, status) in [(encrypts, 401), (named, 401), (shared, 401), (key.public(), 200)] {
        let world = World::new(&[]).await;
        world.issuer.publishes(vec![published.clone()]);
        assert_eq!(world.status(&key.sign(&world.claims(&json!({})))).await, status, "{published}");
        world.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_key_is_read_and_unknown_ones_ask_once_a_minute() {
    let world = World::new(&[]).await;
    assert_eq!(world.status(&world.token(&json!({}))).await, 200);
    for n in 0..20 {
        let unknown = Key::new(&format!("unknown-{n}")).sign(&world.claims(&json!({})));
        assert_eq!(world.status(&unknown).await, 401);
    }
    assert_eq!(world.issuer.asked(), 1, "within the minute of the first reading");
    world.issuer.goes_away();
    let (first, other) = (world.token(&json!({})), world.token(&json!({"sub": "bob"})));
    assert_eq!((world.status(&first).await, world.status(&other).await), (200, 200), "what was read goes on");
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn issuer_that_is_away_is_no_refusal() {
    let world = World::new(&[]).await;
    world.issuer.goes_away();
    let (status, answer) = world.get("/v1/runs", &world.token(&json!({}))).await;
    assert_eq!((status, &answer["code"]), (503, &json!("issuer_unavailable")), "{answer}");
    assert_eq!(world.get("/v1/runs", TOKEN).await.0, 200);
    assert_eq!(world.status("a-wrong-token").await, 401);
    world.issuer.has(&[&world.key]);
    let token = world.token(&json!({}));
    until("the issuer is asked again", async || world.status(&token).await == 200).await;
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_and_scopes_come_from_claims() {
    let claim = [("SANDBOX_SIGN_IN__OWNER_CLAIM", "email"), ("SANDBOX_SIGN_IN__ADMIN_SCOPE", "sandbox:admin")];
    let world = World::new(&claim).await;
    assert_eq!(world.status(&world.token(&json!({}))).await, 401, "no claim, no owner");
    for mark in [json!(false), json!("false"), json!(0)] {
        let claimed = world.token(&json!({"email": "alice", "email_verified": mark}));
        assert_eq!(world.status(&claimed).await, 401, "an address that the person only claims to have: {mark}");
    }
    for (sub, email, more, scopes) in [
        ("1", "alice", json!({"scope": "openid run"}), json!(["run"])),
        ("2", "a@b.test", json!({"scp": ["files"], "email_verified": "true"}), json!(["files"])),
        ("3", "default", json!({"scope": "admin profile"}), json!(["run", "files"])),
        ("4", "operator", json!({"scp": "sandbox:admin files"}), json!(["files", "admin"])),
    ] {
        let mut changes = more;
        changes["sub"] = json!(sub);
        changes["email"] = json!(email);
        let token = world.token(&changes);
        world.status(&token).await;
        let (_, all) = world.get("/v1/connections", TOKEN).await;
        let all = all["connections"].as_array().expect("a list");
        let seen = all.iter().find(|one| one["name"].as_str().expect("text").starts_with(email)).expect(email);
        assert_eq!(seen["scopes"], scopes, "{seen}");
        let owner = seen["owner"].as_str().expect("an owner");
        assert_eq!(owner == email, matches!(email, "alice" | "operator"), "{seen}");
        assert_ne!(owner, "default");
        let may_admin = world.get("/v1/connections", &token).await.0 == 200;
        assert_eq!(may_admin, email == "operator");
    }
    // The scopes are those of each token, not of the subject.
    let wide = json!({"sub": "1", "email": "alice", "scope": "run files"});
    let narrow = json!({"sub": "1", "email": "alice", "scope": "files"});
    let (wide, narrow) = (world.token(&wide), world.token(&narrow));
    let run = |token: String| {
        let body = json!({"language": "python", "code": "print x"});
        world.visitor.http.post(format!("{}/v1/runs", world.visitor.base)).bearer_auth(token).json(&body).send()
    };
    assert_eq!(run(wide).await.expect("an answer").status().as_u16() / 100, 2);
    assert_eq!(run(narrow).await.expect("an answer").status(), 403);
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subject_is_refused_at_once_and_after_a_restart() {
    let world = World::new(&[]).await;
    let (token, other) = (world.token(&json!({})), world.token(&json!({"sub": "bob"})));
    assert_eq!((world.status(&token).await, world.status(&other).await), (200, 200));
    let events = world.visitor.http.get(format!("{}/mcp/events", world.visitor.base)).bearer_auth(&token).send().await;
    let events = events.expect("a stream");
    assert_eq!(events.status(), 200);
    let (_, all) = world.get("/v1/connections", TOKEN).await;
    let all = all["connections"].as_array().expect("a list").clone();
    let alice = all.iter().find(|one| one["owner"] == "alice").expect("a subject")["id"].as_str().expect("an id");
    let url = format!("{}/v1/connections/{alice}", world.visitor.base);
    let ended = world.visitor.http.delete(&url).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(ended.status(), 204);
    drop(events.text().await);
    let later = world.token(&json!({"jti": "another"}));
    assert_eq!((world.status(&token).await, world.status(&later).await), (401, 401));
    assert_eq!(world.status(&other).await, 200, "another subject");
    let World { key, issuer, server, visitor, folder } = world;
    let claims = issuer.claims(&format!("{}/mcp", visitor.base), &json!({}));
    server.stop().await;
    let settings = [
        ("SANDBOX_SIGN_IN__MODE", "issuer"),
        ("SANDBOX_SIGN_IN__ISSUER", &*issuer.url),
        ("SANDBOX_SIGN_IN__AUDIENCE", claims["aud"].as_str().expect("text")),
    ];
    let server = FakeServer::again(&folder.path().join("root"), &settings).await;
    let visitor = Visitor::of(&server).await;
    assert_eq!(visitor.call(&json!(key.sign(&claims))).await, 401, "what was denied stays denied");
    let bob = issuer.claims(claims["aud"].as_str().expect("text"), &json!({"sub": "bob"}));
    assert_eq!(visitor.call(&json!(key.sign(&bob))).await, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_when_their_token_expires() {
    let world = World::new(&[]).await;
    let now = std::time::UNIX_EPOCH.elapsed().expect("a clock").as_secs();
    // A minute is granted beyond its time.
    let (short, long) = (world.token(&json!({"exp": now - 50})), world.token(&json!({})));
    assert_eq!((world.status(&short).await, world.status(&long).await), (200, 200));
    let listen = async |token: &str| {
        let events = world.visitor.http.get(format!("{}/mcp/events", world.visitor.base)).bearer_auth(token);
        events.send().await.expect("a stream")
    };
    let (events, mut others) = (listen(&short).await, listen(&long).await);
    assert_eq!(events.status(), 200);
    drop(events.text().await);
    assert_eq!(world.status(&short).await, 401);
    let ends = tokio::time::timeout(Duration::from_secs(2), async {
        while others.chunk().await.is_ok_and(|chunk| chunk.is_some()) {}
    });
    assert!(ends.await.is_err(), "a stream of the subject's other token goes on");
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn subject_that_was_refused_is_allowed_again() {
    let world = World::new(&[]).await;
    let token = world.token(&json!({}));
    assert_eq!(world.status(&token).await, 200);
    let seen = async || world.get("/v1/connections", TOKEN).await.1["connections"][0].clone();
    let before = seen().await;
    assert_eq!((&before["isSubject"], before.get("refusedAt")), (&json!(true), None), "{before}");
    let url = format!("{}/v1/connections/{}", world.visitor.base, before["id"].as_str().expect("an id"));
    let post = async |as_who: &str| {
        let request = world.visitor.http.post(format!("{url}/allow")).bearer_auth(as_who.to_owned());
        request.send().await.expect("an answer").status().as_u16()
    };
    assert_eq!((post(TOKEN).await, post(&token).await), (404, 403), "it is not refused, and may not allow itself");
    for _ in 0..2 {
        let delete = async || {
            let ended = world.visitor.http.delete(&url).bearer_auth(TOKEN).send().await.expect("an answer");
            ended.status().as_u16()
        };
        assert_eq!((delete().await, delete().await), (204, 404), "once");
        let refused = seen().await;
        assert!(refused["refusedAt"].is_string() && refused["lastUsedAt"].is_string(), "{refused}");
        let later = world.token(&json!({"jti": "another"}));
        assert_eq!((world.status(&token).await, world.status(&later).await), (401, 401));
        assert_eq!((post(TOKEN).await, post(TOKEN).await), (204, 404));
        assert_eq!((world.status(&token).await, world.status(&later).await), (200, 200));
        let events = world.visitor.http.get(format!("{}/mcp/events", world.visitor.base)).bearer_auth(&token);
        let mut events = events.send().await.expect("a stream");
        let ends = tokio::time::timeout(Duration::from_secs(2), async {
            while events.chunk().await.is_ok_and(|c| c.is_some()) {}
        });
        assert!(ends.await.is_err(), "a stream goes on as before");
    }
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn assertion_of_cloudflare_access_counts_where_it_is_set() {
    let (key, other) = (Key::new("edge"), Key::new("other"));
    let (team, issuer) = (Issuer::start(&[&key]).await, Issuer::start(&[&other]).await);
    let settings = |team: bool, url: &str| -> Vec<(&'static str, String)> {
        let mut all = vec![("SANDBOX_SIGN_IN__MODE", "issuer".to_owned()), ("SANDBOX_SIGN_IN__ISSUER", url.to_owned())];
        if team {
            all.truncate(1);
            all.push(("SANDBOX_SIGN_IN__CLOUDFLARE_TEAM", url.to_owned()));
            all.push(("SANDBOX_SIGN_IN__CLOUDFLARE_AUDIENCE", "an-application".to_owned()));
        }
        all
    };
    let assertion = key.sign(&team.claims("an-application", &json!({"aud": ["an-application"]})));
    for (set, url, expected) in [(true, &team.url, 200), (false, &issuer.url, 401)] {
        let settings = settings(set, url);
        let settings: Vec<_> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let server = FakeServer::with(&settings).await;
        let visitor = Visitor::of(&server).await;
        let get = |assertion: &str| {
            visitor.http.get(format!("{}/v1/runs", visitor.base)).header("cf-access-jwt-assertion", assertion).send()
        };
        assert_eq!(get(&assertion).await.expect("an answer").status(), expected);
        let foreign = key.sign(&team.claims("another-application", &json!({})));
        assert_eq!(get(&foreign).await.expect("an answer").status(), 401);
        let request = visitor.http.get(format!("{}/v1/runs", visitor.base)).bearer_auth("wrong");
        let both = request.header("cf-access-jwt-assertion", &assertion).send().await.expect("an answer");
        assert_eq!(both.status(), 401, "a token that is sent is the one that counts");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_page_an_operator_ends_a_subject_and_allows_it_again() {
    let world = World::new(&[]).await;
    let token = world.token(&json!({}));
    assert_eq!(world.status(&token).await, 200);
    let sheet = admin::page(&world.server, TOKEN, "ready").await;
    admin::open(&sheet, "connections").await;
    sheet.says("connections", |text| text.contains("alice") && text.contains("allowed")).await;
    sheet.click("act-close").await;
    sheet.says("confirm-dialog", |text| text.contains("refused until you allow it again")).await;
    sheet.click("confirm-yes").await;
    sheet.says("connections", |text| text.contains("refused")).await;
    assert_eq!(world.status(&token).await, 401);
    assert_eq!(findings(&sheet.browser, "a refused subject").await, Vec::<Value>::new());
    let picture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots/admin-subject.png");
    std::fs::create_dir_all(picture.parent().expect("a folder")).expect("a folder");
    sheet.browser.screenshot(&picture).await;
    sheet.click("act-ok").await;
    sheet.says("connections", |text| text.contains("allowed")).await;
    assert_eq!(world.status(&token).await, 200);
    sheet.browser.close().await;
    world.server.stop().await;
}
