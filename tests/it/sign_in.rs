//! Sign-in of remote clients, from outside: discovery, registration, consent, tokens, and what attackers send. The
//! rules of time and of requests at once are in [`rules`], clients that other people wrote in [`clients`].

mod attacks;
mod away;
mod clients;
mod documents;
mod incomplete;
mod issuer;
mod issuer_rsa;
mod openid;
mod page;
mod replays;
mod rotation;
mod rules;
mod scopes;
mod shared;
mod subjects;
mod user_info;

use std::collections::HashMap;

use reqwest::{Client, RequestBuilder, Response, header::HeaderMap, redirect::Policy};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    admin::administered,
    support::{
        FakeServer,
        fake_server::{Kind, on_each_database},
        server::TOKEN,
        until::until,
    },
};

on_each_database! {
    off_means_that_nothing_is_there
    metadata_leads_from_the_challenge_to_the_endpoints
    pages_elsewhere_may_use_what_needs_no_cookie
    client_signs_in_refreshes_and_signs_out
    operator_ends_a_connection_and_its_stream
    assistants_in_the_cloud_are_served
}

pub const ON: (&str, &str) = ("SANDBOX_SIGN_IN__MODE", "embedded");
pub const VERIFIER: &str = "a-verifier-of-43-characters-or-more-0123456789";
pub const REDIRECT: &str = "https://claude.ai/api/mcp/auth_callback";

/// A client of the protocol, with a browser that keeps no cookie by itself.
pub struct Visitor {
    pub base: String,
    pub http: Client,
}

impl Visitor {
    /// Of a server that has read its tokens.
    pub async fn of(server: &FakeServer) -> Self {
        let http = Client::builder().redirect(Policy::none()).build().expect("a client");
        let visitor = Self { base: format!("http://{}", server.address), http };
        until("the tokens are known", async || server.shared.tokens.is_loaded()).await;
        visitor
    }

    pub async fn get(&self, path: &str) -> Response {
        self.http.get(format!("{}{path}", self.base)).send().await.expect("an answer")
    }

    pub async fn form(&self, path: &str, pairs: &[(&str, &str)]) -> Response {
        self.form_request(path, pairs).send().await.expect("an answer")
    }

    pub fn form_request(&self, path: &str, pairs: &[(&str, &str)]) -> RequestBuilder {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        let request = self.http.post(format!("{}{path}", self.base)).body(body);
        request.header("content-type", "application/x-www-form-urlencoded")
    }

    pub async fn register(&self, metadata: &Value) -> (u16, Value) {
        let response = self.http.post(format!("{}/register", self.base)).json(metadata).send().await.expect("sent");
        (response.status().as_u16(), response.json().await.expect("JSON"))
    }

    /// A public client.
    pub async fn client(&self, redirects: &[&str]) -> String {
        let (status, client) = self.register(&json!({"client_name": "Tester", "redirect_uris": redirects})).await;
        assert_eq!(status, 201, "{client}");
        client["client_id"].as_str().expect("an id").to_owned()
    }

    /// The address of a request for authorization, with changes: an empty value removes a parameter.
    pub fn request(&self, client: &str, changes: &[(&str, &str)]) -> String {
        let resource = format!("{}/mcp", self.base);
        let challenge = challenge(VERIFIER);
        let mut pairs = vec![
            ("response_type", "code"),
            ("client_id", client),
            ("redirect_uri", REDIRECT),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("state", "a state & more"),
            ("resource", &resource),
        ];
        pairs.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        pairs.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
        format!("/authorize?{query}")
    }

    /// The consent page of a request: its cookie and its hidden fields.
    pub async fn consent(&self, request: &str) -> Page {
        let response = self.get(request).await;
        assert_eq!(response.status(), 200, "{request}");
        let headers = response.headers().clone();
        let cookie = headers["set-cookie"].to_str().expect("text").split(';').next().expect("a cookie").to_owned();
        let html = response.text().await.expect("a page");
        let field = |name: &str| {
            let (_, rest) = html.split_once(&format!("name=\"{name}\" value=\"")).expect(name);
            rest.split_once('"').expect("its end").0.replace("&amp;", "&")
        };
        Page { cookie, request: field("request"), seal: field("seal"), headers, html }
    }

    pub fn decision(&self, page: &Page, decision: &str, token: &str) -> RequestBuilder {
        let form = [("request", &*page.request), ("seal", &page.seal), ("decision", decision), ("token", token)];
        self.form_request("/authorize", &form).header("cookie", &page.cookie).header("origin", &self.base)
    }

    /// A code for a client, by a token.
    pub async fn code(&self, request: &str, token: &str) -> String {
        let page = self.consent(request).await;
        let response = self.decision(&page, "allow", token).send().await.expect("an answer");
        assert_eq!(response.status(), 303, "{}", response.text().await.unwrap_or_default());
        let answer = answer(&response);
        assert_eq!(answer["iss"], self.base);
        answer["code"].clone()
    }

    pub async fn redeem(&self, client: &str, code: &str, changes: &[(&str, &str)]) -> (u16, Value) {
        let mut pairs = vec![
            ("grant_type", "authorization_code"),
            ("client_id", client),
            ("code", code),
            ("redirect_uri", REDIRECT),
            ("code_verifier", VERIFIER),
        ];
        pairs.retain(|(name, _)| !changes.iter().any(|(changed, _)| changed == name));
        pairs.extend(changes.iter().filter(|(_, value)| !value.is_empty()));
        read(self.form("/token", &pairs).await).await
    }

    pub async fn refresh(&self, client: &str, token: &str, more: &[(&str, &str)]) -> (u16, Value) {
        let mut pairs = vec![("grant_type", "refresh_token"), ("client_id", client), ("refresh_token", token)];
        pairs.extend(more);
        read(self.form("/token", &pairs).await).await
    }

    /// A client that is signed in: its id and its tokens.
    pub async fn signed_in(&self, token: &str) -> (String, Value) {
        let client = self.client(&[REDIRECT]).await;
        let code = self.code(&self.request(&client, &[]), token).await;
        let (status, tokens) = self.redeem(&client, &code, &[]).await;
        assert_eq!(status, 200, "{tokens}");
        (client, tokens)
    }

    /// The status of a call of `/mcp`.
    pub async fn call(&self, access: &Value) -> u16 {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"});
        let request = self.http.post(format!("{}/mcp", self.base)).json(&body);
        let request = request.bearer_auth(access.as_str().expect("a token"));
        request.send().await.expect("an answer").status().as_u16()
    }
}

pub struct Page {
    pub cookie: String,
    pub request: String,
    pub seal: String,
    pub headers: HeaderMap,
    pub html: String,
}

pub fn challenge(verifier: &str) -> String {
    use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier))
}

/// What an address that a browser is sent to says.
pub fn answer(response: &Response) -> HashMap<String, String> {
    let location = response.headers()["location"].to_str().expect("text");
    let query = location.split_once('?').expect("a query").1;
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

async fn read(response: Response) -> (u16, Value) {
    let status = response.status().as_u16();
    (status, response.json().await.expect("JSON"))
}

fn text<'a>(response: &'a Response, header: &str) -> &'a str {
    response.headers()[header].to_str().expect("text")
}

async fn off_means_that_nothing_is_there(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let visitor = Visitor::of(&server).await;
    for path in [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
        "/.well-known/oauth-authorization-server/mcp",
        "/.well-known/openid-configuration",
        "/.well-known/openid-configuration/mcp",
        "/mcp/.well-known/openid-configuration",
        "/authorize",
        "/authorize/callback",
    ] {
        assert_eq!(visitor.get(path).await.status(), 404, "{path}");
    }
    for path in ["/register", "/token", "/revoke"] {
        assert_eq!(visitor.form(path, &[]).await.status(), 404, "{path}");
    }
    assert_eq!(text(&visitor.get("/mcp").await, "www-authenticate"), "Bearer");
    server.stop().await;
}

async fn metadata_leads_from_the_challenge_to_the_endpoints(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let base = &visitor.base;
    let known = format!("{base}/.well-known/oauth-protected-resource/mcp?names=dotted&tools=run");
    let challenge = format!("Bearer resource_metadata=\"{known}\", scope=\"run files\"");
    for path in ["/mcp", "/mcp/"] {
        let refused = visitor.get(&format!("{path}?names=dotted&x=%22&tools=run")).await;
        assert_eq!((refused.status().as_u16(), text(&refused, "www-authenticate")), (401, &*challenge), "{path}");
    }
    let wrong = visitor.http.get(format!("{base}/mcp")).bearer_auth("wrong").send().await.expect("an answer");
    assert!(text(&wrong, "www-authenticate").starts_with("Bearer error=\"invalid_token\", resource_metadata="));
    for (path, query) in [("", ""), ("/mcp", ""), ("/mcp/", ""), ("/mcp", "?names=dotted")] {
        let (_, found) = read(visitor.get(&format!("/.well-known/oauth-protected-resource{path}{query}")).await).await;
        assert_eq!(found["resource"], format!("{base}/mcp{query}"));
        assert_eq!(found["authorization_servers"], json!([base]));
        assert_eq!(found["scopes_supported"], json!(["run", "files"]));
    }
    let (_, found) = read(visitor.get("/.well-known/oauth-authorization-server").await).await;
    assert_eq!(found["issuer"], *base);
    assert_eq!(found["code_challenge_methods_supported"], json!(["S256"]));
    for (name, path) in [
        ("authorization_endpoint", "/authorize"),
        ("token_endpoint", "/token"),
        ("registration_endpoint", "/register"),
        ("revocation_endpoint", "/revoke"),
    ] {
        assert_eq!(found[name], format!("{base}{path}"));
    }
    // Clients that ask for a refresh token by a scope look for it here, and it is no scope of the resource.
    assert_eq!(found["scopes_supported"], json!(["run", "files", "offline_access"]));
    // Assistants in the cloud name themselves by a document only where both of these are there.
    assert_eq!(found["client_id_metadata_document_supported"], true);
    assert_eq!(found["token_endpoint_auth_methods_supported"], json!(["none", "client_secret_post"]));
    assert_eq!(found["authorization_response_iss_parameter_supported"], true);
    server.stop().await;
}

async fn pages_elsewhere_may_use_what_needs_no_cookie(kind: Kind) {
    let server = FakeServer::by(kind, &[ON, ("SANDBOX_SERVER__CORS_ORIGINS", "https://app.example.org")]).await;
    let visitor = Visitor::of(&server).await;
    let get = async |path: &str, origin: &str| {
        let request = visitor.http.get(format!("{}{path}", visitor.base)).header("origin", origin);
        request.send().await.expect("an answer")
    };
    let described = ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-authorization-server"];
    for path in described.into_iter().chain(["/register", "/token", "/revoke"]) {
        let request = visitor.http.request(reqwest::Method::OPTIONS, format!("{}{path}", visitor.base));
        let request = request.header("origin", "http://inspector.example:6274");
        let request = request.header("access-control-request-method", "POST");
        let request = request.header("access-control-request-headers", "mcp-protocol-version");
        let response = request.send().await.expect("an answer");
        assert!(response.status().is_success(), "{path}");
        assert_eq!(text(&response, "access-control-allow-origin"), "*", "{path}");
        assert_eq!(text(&response, "access-control-allow-headers"), "mcp-protocol-version", "{path}");
        assert!(!response.headers().contains_key("access-control-allow-credentials"), "{path}");
        let response = get(path, "http://inspector.example:6274").await;
        assert_eq!(text(&response, "access-control-expose-headers"), "www-authenticate,retry-after", "{path}");
    }
    let challenged = get("/mcp", "https://app.example.org").await;
    assert_eq!(challenged.status(), 401);
    assert!(text(&challenged, "access-control-expose-headers").contains("www-authenticate"));
    assert_eq!(get("/authorize", "http://inspector.example").await.status(), 403);
    server.stop().await;
}

async fn client_signs_in_refreshes_and_signs_out(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let (client, first) = visitor.signed_in(TOKEN).await;
    assert_eq!(
        (&first["token_type"], &first["expires_in"], &first["scope"]),
        (&json!("Bearer"), &json!(3600), &json!("run files"))
    );
    assert_eq!(visitor.call(&first["access_token"]).await, 200);
    // The scope of the configured token is not handed on.
    let url = format!("{}/v1/connections", visitor.base);
    let access = first["access_token"].as_str().expect("a token");
    assert_eq!(visitor.http.get(&url).bearer_auth(access).send().await.expect("an answer").status(), 403);

    let refresh = first["refresh_token"].as_str().expect("a token");
    let (status, second) = visitor.refresh(&client, refresh, &[]).await;
    assert_eq!(status, 200, "{second}");
    assert_ne!(first["refresh_token"], second["refresh_token"]);
    // Several processes of a client refresh at once.
    let (status, sibling) = visitor.refresh(&client, refresh, &[("resource", &format!("{}/mcp", visitor.base))]).await;
    assert_eq!(status, 200, "{sibling}");
    for tokens in [&first, &second, &sibling] {
        assert_eq!(visitor.call(&tokens["access_token"]).await, 200);
    }
    let listed: Value =
        visitor.http.get(&url).bearer_auth(TOKEN).send().await.expect("sent").json().await.expect("JSON");
    let connections = listed["connections"].as_array().expect("a list");
    assert_eq!(connections.len(), 1, "{listed}");
    assert_eq!(connections[0]["name"], "Tester (claude.ai)");
    assert_eq!(connections[0]["scopes"], json!(["run", "files"]));

    let token = second["refresh_token"].as_str().expect("a token");
    let response = visitor.form("/revoke", &[("token", token), ("client_id", &client)]).await;
    assert_eq!(response.status(), 200);
    for tokens in [&first, &second, &sibling] {
        assert_eq!(visitor.call(&tokens["access_token"]).await, 401);
        let token = tokens["refresh_token"].as_str().expect("a token");
        assert_eq!(visitor.refresh(&client, token, &[]).await.1["error"], "invalid_grant");
    }
    assert_eq!(visitor.form("/revoke", &[("token", "unknown")]).await.status(), 200);
    server.stop().await;
}

async fn operator_ends_a_connection_and_its_stream(kind: Kind) {
    let folder = tempfile::tempdir().expect("a folder");
    let audit = folder.path().join("audit.log");
    let server = FakeServer::by(kind, &[ON, ("SANDBOX_AUDIT__FILE", audit.to_str().expect("text"))]).await;
    let visitor = Visitor::of(&server).await;
    let (client, tokens) = visitor.signed_in(TOKEN).await;
    let access = tokens["access_token"].as_str().expect("a token");
    let events = visitor.http.get(format!("{}/mcp/events", visitor.base)).bearer_auth(access).send().await;
    let events = events.expect("a stream");
    assert_eq!(events.status(), 200);
    let url = format!("{}/v1/connections", visitor.base);
    let listed: Value =
        visitor.http.get(&url).bearer_auth(TOKEN).send().await.expect("sent").json().await.expect("JSON");
    let id = listed["connections"][0]["id"].as_str().expect("an id");
    let url = format!("{url}/{id}");
    for status in [204, 404] {
        let response = visitor.http.delete(&url).bearer_auth(TOKEN).send().await.expect("an answer");
        assert_eq!(response.status(), status);
    }
    drop(events.text().await);
    assert_eq!(visitor.call(&tokens["access_token"]).await, 401);
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    assert_eq!(visitor.refresh(&client, refresh, &[]).await.0, 400);
    server.stop().await;
    let told = ("connection_ended".to_owned(), String::new(), "default".to_owned(), id.to_owned());
    assert_eq!(administered(&audit), [told]);
}

/// The requests that assistants in the cloud and an editor are reported to send.
async fn assistants_in_the_cloud_are_served(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let (status, secret) = visitor
        .register(&json!({"client_name": "Claude", "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
        "token_endpoint_auth_method": "client_secret_post", "scope": "run files"}))
        .await;
    assert_eq!((status, &secret["token_endpoint_auth_method"]), (201, &json!("client_secret_post")), "{secret}");
    let client = secret["client_id"].as_str().expect("an id");
    let code = visitor.code(&visitor.request(client, &[("scope", " offline_access")]), TOKEN).await;
    assert_eq!(visitor.redeem(client, &code, &[]).await.0, 401, "without the secret");
    let given = secret["client_secret"].as_str().expect("a secret");
    let (status, tokens) = visitor.redeem(client, &code, &[("client_secret", given)]).await;
    assert_eq!((status, &tokens["scope"]), (200, &json!("run files")), "{tokens}");

    let again = json!({"client_name": "Claude", "redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"});
    let (_, public) = visitor.register(&again).await;
    assert!(public.get("client_secret").is_none(), "{public}");
    assert_eq!(visitor.register(&again).await.1["client_id"], public["client_id"], "registered once");

    let chatgpt = "https://chatgpt.com/connector/oauth/abc";
    let client = visitor.client(&[chatgpt]).await;
    let request = visitor.request(&client, &[("redirect_uri", chatgpt)]);
    let code = visitor.code(&request, TOKEN).await;
    assert_eq!(visitor.redeem(&client, &code, &[("redirect_uri", chatgpt)]).await.0, 200);

    let (status, cursor) = visitor
        .register(&json!({"client_name": "Cursor", "redirect_uris": [
        "cursor://anysphere.cursor-mcp/oauth/callback", "https://www.cursor.com/agents/mcp/oauth/callback",
        "http://localhost:8787/callback", "other://elsewhere"]}))
        .await;
    assert_eq!((status, cursor["redirect_uris"].as_array().map(Vec::len)), (201, Some(3)), "{cursor}");
    server.stop().await;
}
