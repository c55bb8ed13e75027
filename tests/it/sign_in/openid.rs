//! People who sign in at an OpenID Connect provider, which is npm's `oidc-provider`, certified by the OpenID
//! Foundation.

use std::{collections::HashMap, process::Stdio};

use reqwest::Response;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use super::{ON, Page, REDIRECT, Visitor, answer};
use crate::{
    mcp_clients::tool,
    support::{FakeServer, server::TOKEN},
};

struct World {
    issuer: String,
    server: FakeServer,
    visitor: Visitor,
    _provider: Child,
    /// The provider ends when its output is not there.
    _output: Lines<BufReader<ChildStdout>>,
}

/// Where the provider gives the claims of scopes.
const CLAIMS_IN: [&str; 2] = ["token", "user-info"];

impl World {
    async fn new(allowed: &str, more: &[(&str, &str)]) -> Self {
        Self::with("user-info", allowed, more).await
    }

    async fn with(claims_in: &str, allowed: &str, more: &[(&str, &str)]) -> Self {
        // The provider has to know the address of the server, and the server that of the provider.
        let base = "https://sandbox.test";
        let mut provider = Command::new(tool("npm/node_modules/.bin/node"))
            .args([&*format!("{}/tests/clients/openid_provider.mjs", env!("CARGO_MANIFEST_DIR"))])
            .args([&*format!("{base}/authorize/callback"), claims_in])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the provider");
        let mut lines = BufReader::new(provider.stdout.take().expect("its output")).lines();
        let issuer = lines.next_line().await.expect("its output").expect("its address");
        let mut settings = vec![
            ON,
            ("PUBLIC_BASE_URL", base),
            ("SANDBOX_SIGN_IN__OPENID_ISSUER", &issuer),
            ("SANDBOX_SIGN_IN__OPENID_CLIENT_ID", "sandbox"),
            ("SANDBOX_SIGN_IN__OPENID_CLIENT_SECRET", "a-secret-of-the-client"),
            ("SANDBOX_SIGN_IN__OPENID_ALLOWED", allowed),
        ];
        settings.extend(more);
        let server = FakeServer::with(&settings).await;
        let visitor = Visitor::of(&server).await;
        Self { issuer, server, visitor, _provider: provider, _output: lines }
    }

    /// The consent page of a new client.
    async fn page(&self) -> (String, Page) {
        let client = self.visitor.client(&[REDIRECT]).await;
        let page = self.visitor.consent(&self.visitor.request(&client, &[("resource", "")])).await;
        (client, page)
    }

    /// Where the consent page sends the browser.
    async fn leave(&self, page: &Page) -> String {
        let form = [("request", &*page.request), ("seal", &page.seal), ("decision", "provider")];
        let request = self.visitor.form_request("/authorize", &form).header("cookie", &page.cookie);
        let response = request.header("origin", "https://sandbox.test").send().await.expect("an answer");
        assert_eq!(response.status(), 303, "{}", response.text().await.unwrap_or_default());
        location(&response)
    }

    /// A browser at the provider, until it is sent back to the server: the path and query there.
    async fn at_provider(&self, mut address: String) -> String {
        let mut cookies: HashMap<String, String> = HashMap::new();
        for _ in 0..10 {
            let sent: Vec<_> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
            let request = self.visitor.http.get(&address).header("cookie", sent.join("; "));
            let response = request.send().await.expect("an answer");
            for set in response.headers().get_all("set-cookie") {
                let pair = set.to_str().expect("text").split(';').next().expect("a pair");
                let (name, value) = pair.split_once('=').expect("a pair");
                cookies.insert(name.to_owned(), value.to_owned());
            }
            assert!(response.status().is_redirection(), "{address}: {}", response.text().await.unwrap_or_default());
            let next = location(&response);
            if let Some(path) = next.strip_prefix("https://sandbox.test") {
                return path.to_owned();
            }
            address = if next.starts_with('/') { format!("{}{next}", self.issuer) } else { next };
        }
        panic!("the provider does not send the browser back")
    }

    async fn back(&self, path: &str, cookie: &str) -> Response {
        let request = self.visitor.http.get(format!("{}{path}", self.visitor.base)).header("cookie", cookie);
        request.send().await.expect("an answer")
    }

    async fn account(&self, name: &str) {
        let request = self.visitor.http.post(format!("{}/account/{name}", self.issuer));
        assert!(request.send().await.expect("an answer").status().is_success());
    }

    async fn connections(&self) -> Value {
        let request = self.visitor.http.get(format!("{}/v1/connections", self.visitor.base)).bearer_auth(TOKEN);
        request.send().await.expect("an answer").json().await.expect("JSON")
    }
}

fn location(response: &Response) -> String {
    response.headers()["location"].to_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn person_signs_in_at_the_provider() {
    let world = World::new("alice,@example.com", &[]).await;
    let (client, page) = world.page().await;
    assert!(page.html.contains("sign in at 127.0.0.1:"), "{}", page.html);
    let address = world.leave(&page).await;
    for part in ["code_challenge_method=S256", "nonce=", "state=", "scope=openid+email", "client_id=sandbox"] {
        assert!(address.contains(part), "{part} in {address}");
    }
    let path = world.at_provider(address).await;
    let sent_back = world.back(&path, &page.cookie).await;
    assert_eq!(sent_back.status(), 303, "{}", sent_back.text().await.unwrap_or_default());
    let answer = answer(&sent_back);
    assert_eq!((&*answer["iss"], &*answer["state"]), ("https://sandbox.test", "a state & more"));
    let (status, tokens) = world.visitor.redeem(&client, &answer["code"], &[]).await;
    assert_eq!((status, &tokens["scope"]), (200, &json!("run files")), "{tokens}");
    assert_eq!(world.visitor.call(&tokens["access_token"]).await, 200);
    let connection = world.connections().await["connections"][0].clone();
    assert_eq!((&connection["owner"], &connection["name"]), (&json!("alice"), &json!("Tester (claude.ai)")));

    // What came once does not come again: the provider's code is spent.
    assert_eq!(world.back(&path, &page.cookie).await.status(), 403);
    // The page still takes tokens.
    let own = world.visitor.decision(&page, "allow", TOKEN);
    let own = own.headers(
        [(http::header::ORIGIN, http::HeaderValue::from_static("https://sandbox.test"))].into_iter().collect(),
    );
    assert_eq!(own.send().await.expect("an answer").status(), 303);
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_people_who_are_allowed_sign_in() {
    for claims_in in CLAIMS_IN {
        only_people_who_are_allowed_sign_in_by(claims_in).await;
    }
}

async fn only_people_who_are_allowed_sign_in_by(claims_in: &str) {
    let claim = [("SANDBOX_SIGN_IN__OWNER_CLAIM", "email")];
    let world = World::with(claims_in, "bob@example.org,@example.com,subject-7", &claim).await;
    for (account, may) in [("alice", false), ("bob", true), ("subject-7", true), ("default", false)] {
        world.account(account).await;
        let (client, page) = world.page().await;
        let path = world.at_provider(world.leave(&page).await).await;
        let sent_back = world.back(&path, &page.cookie).await;
        assert_eq!(sent_back.status(), if may { 303 } else { 403 }, "{account}");
        if may {
            let code = answer(&sent_back)["code"].clone();
            assert_eq!(world.visitor.redeem(&client, &code, &[]).await.0, 200, "{account}");
        }
    }
    let all = world.connections().await;
    let owners: Vec<_> = all["connections"].as_array().expect("a list").iter().map(|one| &one["owner"]).collect();
    assert!(owners.iter().all(|owner| owner.as_str().is_some_and(|owner| owner.starts_with("sub-"))), "{owners:?}");
    assert!(owners.len() == 2 && owners[0] != owners[1], "{owners:?}");
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_counts_when_the_provider_has_verified_it() {
    for claims_in in CLAIMS_IN {
        address_counts_by(claims_in).await;
    }
}

async fn address_counts_by(claims_in: &str) {
    let world = World::with(claims_in, "@example.org", &[]).await;
    for (account, status) in [("unverified-1", 403), ("alice", 303)] {
        world.account(account).await;
        let (_, page) = world.page().await;
        let path = world.at_provider(world.leave(&page).await).await;
        assert_eq!(world.back(&path, &page.cookie).await.status(), status, "{account}");
    }
    // A person who refuses at the provider: the client is told.
    let refuse = world.visitor.http.delete(format!("{}/account", world.issuer)).send().await.expect("an answer");
    assert!(refuse.status().is_success());
    let (_, page) = world.page().await;
    let path = world.at_provider(world.leave(&page).await).await;
    let told = world.back(&path, &page.cookie).await;
    assert_eq!((told.status().as_u16(), &*answer(&told)["error"]), (303, "access_denied"));
    world.server.stop().await;
}

/// A foreign state, browser or code opens nothing.
#[tokio::test(flavor = "multi_thread")]
async fn answer_of_the_provider_is_bound_to_the_browser_and_the_request() {
    let world = World::new("*", &[]).await;
    let (_, page) = world.page().await;
    let (_, other) = world.page().await;
    let path = world.at_provider(world.leave(&page).await).await;
    let foreign = world.at_provider(world.leave(&other).await).await;
    let part = |path: &str, name: &str| {
        let query = path.split_once('?').expect("a query").1.to_owned();
        form_urlencoded::parse(query.as_bytes()).find(|(key, _)| key == name).expect("a part").1.into_owned()
    };
    let (code, state) = (part(&path, "code"), part(&path, "state"));
    let callback = |pairs: &[(&str, &str)]| {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        format!("/authorize/callback?{query}")
    };
    let later = format!("9{state}");
    for (what, path, cookie) in [
        ("another browser", path.clone(), &*other.cookie),
        ("no cookie", path.clone(), ""),
        ("no state", callback(&[("code", &code)]), &page.cookie),
        ("a state of another browser", callback(&[("code", &code), ("state", &part(&foreign, "state"))]), &page.cookie),
        ("a later end", callback(&[("code", &code), ("state", &later)]), &page.cookie),
        ("the seal of a form", callback(&[("code", &code), ("state", &page.seal)]), &page.cookie),
        // Its nonce and its verifier are those of another request.
        ("a code of another request", callback(&[("code", &part(&foreign, "code")), ("state", &state)]), &page.cookie),
        (
            "another issuer",
            callback(&[("code", &code), ("state", &state), ("iss", "https://other.test")]),
            &page.cookie,
        ),
    ] {
        let response = world.back(&path, cookie).await;
        assert_eq!(response.status(), 403, "{what}");
        assert!(!response.headers().contains_key("location"), "{what}");
    }
    assert_eq!(world.back(&path, &page.cookie).await.status(), 303, "nothing of that has spent the code");
    world.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn provider_that_is_away_leaves_the_token_page() {
    let settings = [
        ON,
        ("SANDBOX_SIGN_IN__OPENID_ISSUER", "http://127.0.0.1:1"),
        ("SANDBOX_SIGN_IN__OPENID_CLIENT_ID", "sandbox"),
        ("SANDBOX_SIGN_IN__OPENID_ALLOWED", "*"),
    ];
    let server = FakeServer::with(&settings).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    let page = visitor.consent(&visitor.request(&client, &[])).await;
    let left = visitor.decision(&page, "provider", "").send().await.expect("an answer");
    assert_eq!(left.status(), 503);
    let allowed = visitor.decision(&page, "allow", TOKEN).send().await.expect("an answer");
    assert_eq!(allowed.status(), 303);
    server.stop().await;
}
