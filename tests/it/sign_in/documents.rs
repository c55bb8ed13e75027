//! Clients that are named by the address of a document about them: what is fetched, what is believed, and how often.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use http::{HeaderValue, Request, Response, header::ORIGIN};
use mcp_sandbox_server::{
    api::http::{
        body::Bodies,
        sign_in::{self, SignInParts},
    },
    ports::web::{NamedBy, Web, WebError},
    services::sign_in::{Refusal, Registration},
};
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use super::{
    ON, REDIRECT, Visitor, answer,
    rules::{HERE, World},
};
use crate::support::{self, FakeServer, fake_server::Kind, server::TOKEN};

const CLIENT: &str = "https://client.test/oauth/metadata";

/// Other servers: the body, the status and `Cache-Control` at each address, and what was asked.
#[derive(Default)]
pub struct Pages {
    pub at: Mutex<HashMap<String, (u16, String, &'static str)>>,
    pub asked: Mutex<Vec<(NamedBy, String)>>,
    /// Whether as many are being asked as may be at once.
    busy: AtomicBool,
    /// `Content-Type`, where it is not `application/json`.
    media: Mutex<Option<&'static str>>,
}

impl Pages {
    pub fn put(&self, address: &str, body: &Value) {
        self.answer(address, 200, &body.to_string(), "");
    }

    pub fn answer(&self, address: &str, status: u16, body: &str, cache: &'static str) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.insert(address.to_owned(), (status, body.to_owned(), cache));
    }

    fn asked(&self) -> usize {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[async_trait]
impl Web for Pages {
    async fn send(&self, named_by: NamedBy, request: Request<Vec<u8>>) -> Result<Response<Vec<u8>>, WebError> {
        if self.busy.load(Ordering::Relaxed) {
            return Err(WebError::Busy);
        }
        let address = request.uri().to_string();
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push((named_by, address.clone()));
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        let (status, body, cache) = at.get(&address).ok_or(WebError::Unreachable)?;
        let media = self.media.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or("application/json");
        let answer = Response::builder().status(*status).header("cache-control", *cache).header("content-type", media);
        Ok(answer.body(body.clone().into_bytes()).expect("an answer"))
    }
}

fn document() -> Value {
    json!({"client_id": CLIENT, "client_name": "Claude <b>", "redirect_uris": [REDIRECT, "http://localhost/callback"],
        "token_endpoint_auth_method": "none"})
}

#[tokio::test]
async fn document_describes_a_client_and_is_remembered_within_bounds() {
    let world = World::new(Kind::Sqlite).await;
    world.pages.answer(CLIENT, 200, &document().to_string(), "public, max-age=1");
    let client = world.sign_in.client(CLIENT, HERE).await.expect("a client");
    assert_eq!((&*client.id, &*client.name, client.secret), (CLIENT, "Claude <b>", None));
    assert!(world.sign_in.redirect(&client, Some("http://localhost:4711/callback")).is_ok(), "the port is free");
    assert!(world.sign_in.redirect(&client, Some("https://claude.ai/other")).is_err());
    assert_eq!(*world.pages.asked.lock().expect("no panic"), [(NamedBy::Client, CLIENT.to_owned())]);
    world.pass(299);
    world.sign_in.client(CLIENT, HERE).await.expect("remembered");
    assert_eq!(world.pages.asked(), 1, "five minutes at least");
    world.pass(2);
    world.pages.answer(CLIENT, 200, &document().to_string(), "max-age=99999999999");
    world.sign_in.client(CLIENT, HERE).await.expect("read again");
    world.pass(24 * 3600 - 1);
    world.sign_in.client(CLIENT, HERE).await.expect("remembered");
    assert_eq!(world.pages.asked(), 2);
    world.pass(2);
    world.sign_in.client(CLIENT, HERE).await.expect("read again");
    assert_eq!(world.pages.asked(), 3, "a day at most");
    world.pass(-365 * 24 * 3600);
    world.sign_in.client(CLIENT, HERE).await.expect("read again");
    assert_eq!(world.pages.asked(), 4, "the clock was a year ahead");
}

#[tokio::test]
async fn document_that_proves_nothing_is_refused_and_not_asked_for_again_at_once() {
    let changed = |name: &str, value: Value| {
        let mut document = document();
        document[name] = value;
        document.to_string()
    };
    for (what, status, body) in [
        ("another id", 200, changed("client_id", json!("https://client.test/oauth/other"))),
        ("no id", 200, changed("client_id", Value::Null)),
        ("a slash more", 200, changed("client_id", json!(format!("{CLIENT}/")))),
        ("no redirect", 200, changed("redirect_uris", json!([]))),
        ("redirects of no use", 200, changed("redirect_uris", json!(["javascript:alert(1)", "http://x.test/", 1]))),
        ("a secret", 200, changed("client_secret", json!("x"))),
        ("a secret's method", 200, changed("token_endpoint_auth_method", json!("client_secret_post"))),
        ("a proof that is not offered", 200, changed("token_endpoint_auth_method", json!("private_key_jwt"))),
        ("no JSON", 200, "<html>".to_owned()),
        ("no object", 200, "[]".to_owned()),
        ("a redirect", 302, document().to_string()),
        ("an error", 404, document().to_string()),
    ] {
        let world = World::new(Kind::Sqlite).await;
        world.pages.answer(CLIENT, status, &body, "");
        for _ in 0..2 {
            let refused = world.sign_in.client(CLIENT, HERE).await.map(drop);
            assert!(matches!(refused, Err(Refusal::ClientDocument(_))), "{what}: {refused:?}");
        }
        assert_eq!(world.pages.asked(), 1, "{what}");
        world.pages.put(CLIENT, &document());
        world.pass(61);
        world.sign_in.client(CLIENT, HERE).await.expect(what);
    }
}

#[tokio::test]
async fn document_is_what_its_server_calls_json() {
    for (media, is_json) in [
        ("application/json; charset=utf-8", true),
        ("Application/JSON", true),
        ("application/oauth-client+json", true),
        ("text/plain", false),
        ("text/html; x=application/json", false),
        ("text/x+json", false),
        ("application/octet-stream", false),
        ("", false),
    ] {
        let world = World::new(Kind::Sqlite).await;
        world.pages.put(CLIENT, &document());
        *world.pages.media.lock().expect("no panic") = Some(media);
        assert_eq!(world.sign_in.client(CLIENT, HERE).await.is_ok(), is_json, "{media}");
    }
}

#[tokio::test]
async fn document_that_was_not_asked_for_is_not_remembered_as_none() {
    let world = World::new(Kind::Sqlite).await;
    world.pages.put(CLIENT, &document());
    world.pages.busy.store(true, Ordering::Relaxed);
    assert_eq!(world.sign_in.client(CLIENT, HERE).await.map(drop), Err(Refusal::TooMany));
    world.pages.busy.store(false, Ordering::Relaxed);
    world.sign_in.client(CLIENT, HERE).await.expect("a moment later");
}

#[tokio::test]
async fn address_of_a_document_has_one_spelling() {
    let world = World::new(Kind::Sqlite).await;
    for id in [
        "https://client.test",
        "https://client.test/",
        "https://client.test:8443/x",
        "https://client.test:443/x",
        "https://user@client.test/x",
        "https://client.test/x#part",
        "https://client.test/a/../x",
        "https://client.test/a/%2e%2e/x",
        "https://CLIENT.test/x",
        "https://client.test/ x",
        "https://127.0.0.1/x",
        "https://127.1/x",
        "https://0x7f.1/x",
        "https://2130706433/x",
        "https://[::1]/x",
        "https://[::ffff:10.0.0.1]/x",
        &format!("https://client.test/{}", "x".repeat(500)),
    ] {
        let refused = world.sign_in.client(id, HERE).await.map(drop);
        assert!(matches!(refused, Err(Refusal::ClientDocument(_))), "{id}: {refused:?}");
    }
    let other = world.sign_in.client("http://client.test/x", HERE).await.map(drop);
    assert_eq!(other, Err(Refusal::InvalidClient), "another scheme names no document");
    assert_eq!(world.pages.asked(), 0);
}

#[tokio::test]
async fn strangers_make_the_server_ask_only_so_often() {
    let world = World::new(Kind::Sqlite).await;
    let mut refused = 0;
    for n in 0..200 {
        let found = world.sign_in.client(&format!("https://client.test/{n}"), HERE).await.map(drop);
        refused += usize::from(found == Err(Refusal::TooMany));
    }
    assert!(refused > 100 && world.pages.asked() + refused == 200, "{refused}");
}

#[tokio::test]
async fn flood_of_registrations_leaves_clients_with_documents_alone() {
    let world = World::new(Kind::Sqlite).await;
    world.pages.put(CLIENT, &document());
    let mut refused = false;
    for _ in 0..200 {
        let registration = Registration { redirects: vec![REDIRECT.to_owned()], ..Registration::default() };
        refused |= world.sign_in.register(registration, HERE).await.is_err();
    }
    assert!(refused, "200 registrations are too many");
    world.sign_in.client(CLIENT, HERE).await.expect("its document is fetched");
}

/// The surface of a world, on a port of its own. Its pages take forms of its issuer.
async fn served(world: &World) -> (Visitor, AbortOnDropHandle<()>) {
    let parts = SignInParts {
        base: world.sign_in.issuer().into(),
        embedded: Some(Arc::clone(&world.sign_in)),
        issuer: None,
        access: None,
        bodies: Bodies::new(1 << 20, Duration::from_secs(5), 1 << 20),
    };
    let router = sign_in::open(parts.clone()).merge(sign_in::pages(&parts));
    let (address, serving) = support::http::serve(router).await;
    let http = support::http::builder().redirect(Policy::none()).build().expect("a client");
    (Visitor { base: format!("http://{address}"), http }, serving)
}

/// A client that never registers: from its document to the second pair of tokens. claude.ai may ask for no scope but
/// `offline_access`. `ChatGPT`'s document prefers a method that is not offered here and lists `none`; it may send the
/// proof of the other.
#[tokio::test(flavor = "multi_thread")]
async fn client_that_is_named_by_a_document_signs_in_and_refreshes() {
    let claude = "https://claude.ai/oauth/mcp-oauth-client-metadata";
    let of_claude = json!({"client_id": claude, "client_uri": "https://claude.ai", "client_name": "Claude",
        "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"]});
    let chatgpt = "https://chatgpt.com/oauth/IbUR3zxyNQ16/client.json";
    let of_chatgpt = json!({"client_id": chatgpt, "client_uri": "https://chatgpt.com/", "client_name": "ChatGPT",
        "redirect_uris": ["https://chatgpt.com/connector/oauth/IbUR3zxyNQ16"],
        "token_endpoint_auth_method": "private_key_jwt",
        "token_endpoint_auth_methods_supported": ["none", "private_key_jwt"],
        "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
        "token_endpoint_auth_signing_alg": "RS256", "jwks_uri": "https://chatgpt.com/oauth/jwks.json"});
    let proof = [
        ("client_assertion_type", "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"),
        ("client_assertion", "a.b.c"),
    ];
    for (id, document, redirect, host, more) in [
        (CLIENT, document(), REDIRECT, "client.test", &[][..]),
        (claude, of_claude, REDIRECT, "claude.ai", &[][..]),
        (chatgpt, of_chatgpt, "https://chatgpt.com/connector/oauth/IbUR3zxyNQ16", "chatgpt.com", &proof[..]),
    ] {
        let world = World::new(Kind::Sqlite).await;
        world.pages.put(id, &document);
        let (visitor, serving) = served(&world).await;
        let resource = format!("{}/mcp", world.sign_in.issuer());
        let redirect = ("redirect_uri", redirect);
        let asked = [redirect, ("resource", &*resource), ("scope", " offline_access")];
        let page = visitor.consent(&visitor.request(id, &asked)).await;
        assert!(page.html.contains(&format!("<strong>{host}</strong> publishes")), "{}", page.html);
        let origin = HeaderValue::try_from(world.sign_in.issuer()).expect("a header");
        let decided = visitor.decision(&page, "allow", TOKEN).headers([(ORIGIN, origin)].into_iter().collect());
        let decided = decided.send().await.expect("an answer");
        assert_eq!(decided.status(), 303, "{id}");
        let sent = decided.headers()["location"].to_str().expect("text").to_owned();
        assert!(sent.starts_with(&format!("{}?", redirect.1)), "{sent}");
        let code = answer(&decided)["code"].clone();
        let (status, tokens) = visitor.redeem(id, &code, &[&[redirect][..], more].concat()).await;
        assert_eq!((status, &tokens["scope"]), (200, &json!("run files")), "{tokens}");
        let refresh = tokens["refresh_token"].as_str().expect("a token");
        let (status, next) = visitor.refresh(id, refresh, &[&[("resource", &*resource)][..], more].concat()).await;
        assert_eq!(status, 200, "{next}");
        for tokens in [&tokens, &next] {
            let access = tokens["access_token"].as_str().expect("a token");
            let caller = world.tokens.caller(access.as_bytes()).expect("accepted");
            let name = document["client_name"].as_str().expect("a name");
            assert!(caller.token.record.name.starts_with(name), "{}", caller.token.record.name);
        }
        assert_eq!(world.pages.asked(), 1, "the document is read once");
        // Its id is public, and opens nothing by itself.
        assert_eq!(visitor.refresh(id, "mcpr_x", more).await.1["error"], "invalid_grant");
        serving.abort();
    }
}

/// The whole way, on the real adapter. `web::` shows that it connects to no such address.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_this_machine_lead_to_no_document() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let metadata: Value =
        visitor.get("/.well-known/oauth-authorization-server").await.json().await.expect("the metadata");
    assert_eq!(metadata["client_id_metadata_document_supported"], true);
    for (host, why) in [
        ("localhost", "it could not be fetched"),
        ("a.localhost", "it could not be fetched"),
        ("127.0.0.1", "its address must be https with a host name"),
    ] {
        let response = visitor.get(&visitor.request(&format!("https://{host}/x"), &[])).await;
        assert_eq!(response.status(), 400, "{host}");
        assert!(!response.headers().contains_key("location"), "{host}");
        let page = response.text().await.expect("a page");
        assert!(page.contains("The request of the client was not accepted") && page.contains(why), "{page}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_the_internet_says_so() {
    let server = FakeServer::with(&[ON, ("SANDBOX_SIGN_IN__CLIENT_DOCUMENTS", "false")]).await;
    let visitor = Visitor::of(&server).await;
    let metadata: Value =
        visitor.get("/.well-known/oauth-authorization-server").await.json().await.expect("the metadata");
    assert_eq!(metadata["client_id_metadata_document_supported"], false);
    let named = visitor.get(&visitor.request(CLIENT, &[])).await;
    assert_eq!(named.status(), 400);
    assert!(named.text().await.expect("a page").contains("the client is not registered"));
    server.stop().await;
}
