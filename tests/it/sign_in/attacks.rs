//! What attackers send (RFC 9700), and what they get.

use std::collections::HashMap;

use mcp_sandbox_server::config::{self, Sources};
use serde_json::{Value, json};

use super::{ON, REDIRECT, VERIFIER, Visitor, answer, challenge};
use crate::support::{
    FakeServer,
    fake_server::{Kind, on_each_database},
    server::{FILE_SECRET, TOKEN},
};

on_each_database! {
    redirect_addresses_are_exact_but_for_the_port_of_loopback
    what_cannot_be_served_safely_is_not_registered
    errors_before_consent_send_no_browser_away
    code_is_for_one_client_one_address_and_one_verifier_and_once
    refresh_token_is_for_one_client_and_what_was_granted
    consent_is_bound_to_the_browser_and_the_request
    addresses_and_the_cookie_follow_the_settings_and_not_the_request
    names_of_clients_are_escaped_and_bounded
    floods_and_guesses_are_refused_and_known_clients_go_on
    text_that_no_database_keeps_is_a_wrong_one
}

async fn redirect_addresses_are_exact_but_for_the_port_of_loopback(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT, "http://localhost/callback", "http://127.0.0.1:1/callback?a=1"]).await;
    for bad in [
        "https://claude.ai/api/mcp/auth_callback/x",
        "https://claude.ai/api/mcp/auth_callback?x",
        "https://claude.ai/api/mcp/../mcp/auth_callback",
        "https://claude.ai@evil.test/api/mcp/auth_callback",
        "https://CLAUDE.ai/api/mcp/auth_callback",
        "https://claude.ai:444/api/mcp/auth_callback",
        "http://claude.ai/api/mcp/auth_callback",
        "https://evil.test/",
        "http://localhost:5/other",
        "http://localhost.evil:5/callback",
        "http://localhost:5@evil.test/callback",
        "http://localhost:x/callback",
        "https://localhost:5/callback",
        "http://127.0.0.1:5/callback",
        "http://[::1]:5/callback",
    ] {
        let response = visitor.get(&visitor.request(&client, &[("redirect_uri", bad)])).await;
        assert_eq!(response.status(), 400, "{bad}");
        assert!(!response.headers().contains_key("location"), "{bad}");
    }
    for good in ["http://localhost:5/callback", "http://localhost/callback", "http://127.0.0.1:65535/callback?a=1"] {
        let page = visitor.consent(&visitor.request(&client, &[("redirect_uri", good)])).await;
        assert!(page.html.contains("this computer"), "{good}");
    }
    let ambiguous = visitor.get(&visitor.request(&client, &[("redirect_uri", "")])).await;
    assert_eq!(ambiguous.status(), 400);
    let unknown = visitor.get(&visitor.request("0123456789abcdef0123456789abcdef", &[])).await;
    assert!(unknown.status() == 400 && !unknown.headers().contains_key("location"));
    for doubled in ["client_id=x", "redirect_uri=https://evil.test/"] {
        let response = visitor.get(&format!("{}&{doubled}", visitor.request(&client, &[]))).await;
        assert!(response.status() == 400 && !response.headers().contains_key("location"), "{doubled}");
    }
    server.stop().await;
}

async fn what_cannot_be_served_safely_is_not_registered(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    for bad in [
        "javascript:alert(1)",
        "data:text/html,x",
        "http://evil.test/",
        "https://good.test/#part",
        "https://user@good.test/",
        "https://good.test/../x",
        "https://good.test/%2e%2E/x",
        "https:///x",
        "https://good.test/\"x",
        "other://x",
        "/relative",
        "",
    ] {
        let (status, refused) = visitor.register(&json!({"redirect_uris": [bad]})).await;
        assert_eq!((status, &refused["error"]), (400, &json!("invalid_redirect_uri")), "{bad}");
    }
    let metadata = json!({"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "client_secret_basic"});
    let (status, registered) = visitor.register(&metadata).await;
    assert_eq!((status, &registered["token_endpoint_auth_method"]), (201, &json!("client_secret_post")));
    for bad in ["private_key_jwt", "client_secret_jwt", "tls_client_auth"] {
        let metadata = json!({"redirect_uris": [REDIRECT], "token_endpoint_auth_method": bad});
        let (status, refused) = visitor.register(&metadata).await;
        assert_eq!((status, &refused["error"]), (400, &json!("invalid_client_metadata")), "{bad}");
        let why = refused["error_description"].as_str().expect("text");
        assert!(why.contains("token_endpoint_auth_method"), "{why}");
    }
    for bad in [json!({}), json!({"redirect_uris": "https://good.test/"}), json!({"redirect_uris": [1]})] {
        assert_eq!(visitor.register(&bad).await.0, 400, "{bad}");
    }
    server.stop().await;
}

async fn errors_before_consent_send_no_browser_away(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    for (name, value, error) in [
        ("response_type", "token", "unsupported_response_type"),
        ("code_challenge", "", "invalid_request"),
        ("code_challenge", "short", "invalid_request"),
        ("code_challenge_method", "plain", "invalid_request"),
        ("code_challenge_method", "", "invalid_request"),
        ("resource", "https://other.test/mcp", "invalid_target"),
    ] {
        let response = visitor.get(&visitor.request(&client, &[(name, value)])).await;
        assert_eq!(response.status(), 400, "{name} {value}");
        assert!(!response.headers().contains_key("location"), "{name} {value}");
        let page = response.text().await.expect("a page");
        assert!(page.contains("“Tester”") && page.contains("<strong>claude.ai</strong>"), "{page}");
        // The client learns of it when the person goes back there.
        let (link, _) = page.split_once("href=\"").expect("a link").1.split_once('"').expect("its end");
        let query = link.strip_prefix(REDIRECT).and_then(|rest| rest.strip_prefix('?')).expect("the client's address");
        let query = query.replace("&amp;", "&");
        let answer: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        assert_eq!((&*answer["error"], &*answer["state"]), (error, "a state & more"), "{name} {value}");
        assert_eq!(answer["iss"], visitor.base);
    }
    let page = visitor.consent(&visitor.request(&client, &[])).await;
    let refused = visitor.decision(&page, "refuse", "").send().await.expect("an answer");
    assert_eq!((refused.status().as_u16(), &*answer(&refused)["error"]), (303, "access_denied"));
    server.stop().await;
}

async fn code_is_for_one_client_one_address_and_one_verifier_and_once(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    let other = visitor.client(&[REDIRECT, "https://other.test/"]).await;
    let code = visitor.code(&visitor.request(&client, &[]), TOKEN).await;
    let short = &VERIFIER[..42];
    for (client, changes, error) in [
        (&client, ("code_verifier", "another-verifier-of-43-characters-or-more-01234"), "invalid_grant"),
        (&client, ("code_verifier", short), "invalid_grant"),
        (&client, ("code_verifier", ""), "invalid_grant"),
        (&client, ("redirect_uri", "https://other.test/"), "invalid_grant"),
        (&other, ("client_secret", ""), "invalid_grant"),
        (&client, ("resource", "https://other.test/"), "invalid_target"),
        (&client, ("grant_type", "password"), "unsupported_grant_type"),
        (&client, ("code", "mcpk_other"), "invalid_grant"),
    ] {
        let (status, refused) = visitor.redeem(client, &code, &[changes]).await;
        assert_eq!((status, &refused["error"]), (400, &json!(error)), "{changes:?}");
        let why = refused["error_description"].as_str().expect("a sentence");
        assert_eq!(why.contains("redirect_uri or code_verifier"), error == "invalid_grant", "{changes:?}: {why}");
    }
    let (status, unknown) = visitor.redeem("unknown", &code, &[]).await;
    assert_eq!((status, &unknown["error"]), (401, &json!("invalid_client")));
    let (status, tokens) = visitor.redeem(&client, &code, &[]).await;
    assert_eq!(status, 200, "{tokens}");
    assert_eq!(visitor.redeem(&client, &code, &[]).await.1["error"], "invalid_grant");
    assert_eq!(visitor.call(&tokens["access_token"]).await, 401, "a code that is used twice ends its connection");
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    assert_eq!(visitor.refresh(&client, refresh, &[]).await.1["error"], "invalid_grant");
    server.stop().await;
}

async fn refresh_token_is_for_one_client_and_what_was_granted(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let (client, tokens) = visitor.signed_in(TOKEN).await;
    let other = visitor.client(&["https://other.test/"]).await;
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    assert_eq!(visitor.refresh(&other, refresh, &[]).await.1["error"], "invalid_grant");
    assert_eq!(visitor.refresh(&client, refresh, &[("scope", "run admin")]).await.1["error"], "invalid_scope");
    let foreign = [("resource", "https://other.test/")];
    assert_eq!(visitor.refresh(&client, refresh, &foreign).await.1["error"], "invalid_target");
    let access = tokens["access_token"].as_str().expect("a token");
    assert_eq!(visitor.refresh(&client, access, &[]).await.1["error"], "invalid_grant");
    assert_eq!(visitor.refresh(&client, refresh, &[("scope", "run offline_access")]).await.0, 200);
    let foreign = visitor.form("/revoke", &[("token", refresh), ("client_id", &other)]).await;
    assert_eq!(foreign.status(), 200);
    assert_eq!(visitor.call(&tokens["access_token"]).await, 200, "another client cannot end it");
    for token in [refresh, "mcpk_x"] {
        assert_eq!(visitor.call(&json!(token)).await, 401, "neither a refresh token nor a code opens /mcp");
    }
    let path = format!("/mcp?access_token={access}");
    assert_eq!(visitor.get(&path).await.status(), 401, "a token in an address is none");
    server.stop().await;
}

async fn consent_is_bound_to_the_browser_and_the_request(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    let page = visitor.consent(&visitor.request(&client, &[])).await;
    let other = visitor.consent(&visitor.request(&client, &[("state", "other")])).await;
    assert_ne!(page.cookie, other.cookie);
    let form = |request: &str, seal: &str| {
        let (request, seal) = (request.to_owned(), seal.to_owned());
        visitor.form_request(
            "/authorize",
            &[("request", &request), ("seal", &seal), ("decision", "allow"), ("token", TOKEN)],
        )
    };
    let base = &visitor.base;
    for (what, request) in [
        ("no cookie", form(&page.request, &page.seal)),
        ("another browser", form(&page.request, &page.seal).header("cookie", &other.cookie)),
        ("another request", form(&other.request, &page.seal).header("cookie", &page.cookie)),
        ("no seal", form(&page.request, "").header("cookie", &page.cookie)),
        ("later", form(&page.request, &page.seal.replacen('1', "2", 1)).header("cookie", &page.cookie)),
        (
            "foreign origin",
            form(&page.request, &page.seal).header("cookie", &page.cookie).header("origin", "https://evil.test"),
        ),
        ("no origin", form(&page.request, &page.seal).header("cookie", &page.cookie).header("origin", "null")),
        (
            "other site",
            form(&page.request, &page.seal)
                .header("cookie", &page.cookie)
                .header("origin", base)
                .header("sec-fetch-site", "cross-site"),
        ),
    ] {
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 403, "{what}");
        assert!(!response.headers().contains_key("location"), "{what}");
    }
    let policy = page.headers["content-security-policy"].to_str().expect("text");
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(page.headers["x-frame-options"], "DENY");
    assert_eq!(page.headers["cache-control"], "no-store");
    assert!(!page.html.contains("<script"));
    let cookie = page.headers["set-cookie"].to_str().expect("text");
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax") && cookie.contains("Path=/"), "{cookie}");
    // A client that is known is asked for again, each time.
    visitor.code(&visitor.request(&client, &[]), TOKEN).await;
    assert!(visitor.consent(&visitor.request(&client, &[])).await.html.contains("Allow"));
    server.stop().await;
}

async fn addresses_and_the_cookie_follow_the_settings_and_not_the_request(kind: Kind) {
    let server = FakeServer::by(kind, &[ON, ("PUBLIC_BASE_URL", "https://sandbox.test")]).await;
    let visitor = Visitor::of(&server).await;
    let request = visitor.http.get(format!("{}/.well-known/oauth-authorization-server", visitor.base));
    let request = request.header("host", "evil.test").header("x-forwarded-host", "evil.test");
    let found: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(found["issuer"], "https://sandbox.test");
    let client = visitor.client(&[REDIRECT]).await;
    let foreign = [("resource", &*format!("{}/mcp", visitor.base))];
    let refused = visitor.get(&visitor.request(&client, &foreign)).await;
    assert_eq!(refused.status(), 400);
    assert!(refused.text().await.expect("a page").contains("error=invalid_target"));
    let page = visitor.consent(&visitor.request(&client, &[("resource", "https://sandbox.test/mcp")])).await;
    let cookie = page.headers["set-cookie"].to_str().expect("text");
    assert!(cookie.starts_with("__Host-sign-in=") && cookie.ends_with("; Secure"), "{cookie}");
    let foreign = visitor.decision(&page, "allow", TOKEN).send().await.expect("an answer");
    assert_eq!(foreign.status(), 403, "this machine's name is another origin");
    let own = visitor.decision(&page, "allow", TOKEN).headers(
        [(http::header::ORIGIN, http::HeaderValue::from_static("https://sandbox.test"))].into_iter().collect(),
    );
    assert_eq!(answer(&own.send().await.expect("an answer"))["iss"], "https://sandbox.test");
    server.stop().await;
}

/// Clients and browsers write addresses so, whatever the operator wrote, and compare them as texts.
#[tokio::test(flavor = "multi_thread")]
async fn addresses_are_written_as_browsers_write_them() {
    let server = FakeServer::with(&[ON, ("PUBLIC_BASE_URL", "https://Sandbox.Test:443/")]).await;
    let visitor = Visitor::of(&server).await;
    let found = async |path: &str| visitor.get(path).await.json::<Value>().await.expect("JSON");
    let metadata = found("/.well-known/oauth-authorization-server").await;
    assert_eq!(metadata["issuer"], "https://sandbox.test");
    assert_eq!(metadata["token_endpoint"], "https://sandbox.test/token");
    let resource = found("/.well-known/oauth-protected-resource/mcp").await;
    assert_eq!(resource["resource"], "https://sandbox.test/mcp");
    assert_eq!(resource["authorization_servers"], json!(["https://sandbox.test"]));
    let client = visitor.client(&[REDIRECT]).await;
    let page = visitor.consent(&visitor.request(&client, &[("resource", "https://sandbox.test/mcp")])).await;
    let own = [(http::header::ORIGIN, http::HeaderValue::from_static("https://sandbox.test"))];
    let allowed = visitor.decision(&page, "allow", TOKEN).headers(own.into_iter().collect());
    assert_eq!(answer(&allowed.send().await.expect("an answer"))["iss"], "https://sandbox.test");
    server.stop().await;
}

#[test]
fn sign_in_over_plain_http_is_refused_at_start() {
    let load = |mode: &str, url: &str| {
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let environment = vec![
            set("MCP_API_TOKEN", TOKEN),
            set("FILE_SECRET", FILE_SECRET),
            set("PUBLIC_BASE_URL", url),
            set("SANDBOX_SIGN_IN__MODE", mode),
        ];
        config::load(&Sources::environment_only(environment)).map(drop).map_err(|error| error.to_string())
    };
    for (mode, url) in
        [("embedded", "http://sandbox.test"), ("embedded", "https://sandbox.test/path"), ("on", "https://x")]
    {
        let error = load(mode, url).expect_err(url);
        assert!(error.contains("SANDBOX_SIGN_IN__MODE"), "{error}");
    }
    for (mode, url) in
        [("embedded", "https://sandbox.test"), ("embedded", "http://[::1]:1"), ("off", "http://sandbox.test")]
    {
        load(mode, url).expect(url);
    }
}

async fn names_of_clients_are_escaped_and_bounded(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let hidden = ['\u{202e}', '\u{ad}', '\u{200d}', '\u{2028}', '\u{e0041}'];
    let name = format!("<script>alert(1)</script>{}{}", String::from_iter(hidden), "x".repeat(10_000));
    let (_, client) = visitor.register(&json!({"client_name": name, "redirect_uris": [REDIRECT]})).await;
    let id = client["client_id"].as_str().expect("an id");
    let page = visitor.consent(&visitor.request(id, &[("state", "\"><script>")])).await;
    assert!(!page.html.contains("<script") && !page.html.contains(hidden) && page.html.len() < 10_000);
    assert!(page.html.contains("&lt;script&gt;") && page.html.contains("claude.ai"));
    let large = json!({"client_name": "x".repeat(70 << 10), "redirect_uris": [REDIRECT]});
    assert_eq!(visitor.register(&large).await.0, 413);
    server.stop().await;
}

async fn floods_and_guesses_are_refused_and_known_clients_go_on(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let (client, tokens) = visitor.signed_in(TOKEN).await;
    let mut refused = 0;
    for n in 0..1000 {
        let redirect = format!("https://flood-{n}.test/");
        refused += u32::from(visitor.register(&json!({"redirect_uris": [redirect]})).await.0 == 429);
    }
    assert!(refused > 500, "1000 registrations are too many, and {refused} were refused");
    let mut statuses = Vec::new();
    for _ in 0..20 {
        let page = visitor.consent(&visitor.request(&client, &[])).await;
        let response = visitor.decision(&page, "allow", "a-wrong-token-of-the-owner").send().await.expect("an answer");
        statuses.push(response.status().as_u16());
        assert!(!response.headers().contains_key("location"));
    }
    assert!(statuses.contains(&429) && statuses.iter().all(|status| matches!(status, 403 | 429)), "{statuses:?}");
    visitor.code(&visitor.request(&client, &[]), TOKEN).await;
    let access = tokens["access_token"].as_str().expect("a token");
    let page = visitor.consent(&visitor.request(&client, &[])).await;
    let by_access = visitor.decision(&page, "allow", access).send().await.expect("an answer");
    assert!(!by_access.headers().contains_key("location"), "what a client got opens nothing more");
    let refresh = tokens["refresh_token"].as_str().expect("a token");
    assert_eq!(visitor.refresh(&client, refresh, &[]).await.0, 200);
    server.stop().await;
}

async fn text_that_no_database_keeps_is_a_wrong_one(kind: Kind) {
    let server = FakeServer::by(kind, &[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    let unknown = visitor.get(&visitor.request("a\0b", &[])).await;
    assert_eq!(unknown.status(), 400, "the database is not said to be away");
    assert!(!unknown.headers().contains_key("location"));
    let code = visitor.code(&visitor.request(&client, &[]), TOKEN).await;
    for (client, changes, status, error) in [
        ("a\0b", [("code", &*code)], 401, "invalid_client"),
        ("https://a.test/\0", [("code", &*code)], 400, "invalid_grant"),
        (&*client, [("redirect_uri", "https://a.test/\0")], 400, "invalid_grant"),
    ] {
        let (answered, refused) = visitor.redeem(client, &code, &changes).await;
        assert_eq!((answered, &refused["error"]), (status, &json!(error)), "{client:?} {changes:?}");
    }
    let of_none = visitor.form("/revoke", &[("token", &*code), ("client_id", "https://a.test/\0")]).await;
    assert_eq!(of_none.status(), 200, "a client without tokens has nothing to revoke");
    assert_eq!(visitor.redeem(&client, &code, &[]).await.0, 200, "the code is not spent");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_stored_as_digests_only() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let client = visitor.client(&[REDIRECT]).await;
    let code = visitor.code(&visitor.request(&client, &[]), TOKEN).await;
    let (_, tokens) = visitor.redeem(&client, &code, &[]).await;
    let folder = server.root.join(".state");
    let stored: Vec<u8> = std::fs::read_dir(folder)
        .expect("the folder of the database")
        .flat_map(|entry| std::fs::read(entry.expect("an entry").path()).expect("a file"))
        .collect();
    let is_stored = |text: &str| stored.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(is_stored(&client) && is_stored(&challenge(VERIFIER)), "the database is where the test looks");
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    for secret in [code, text(&tokens["access_token"]), text(&tokens["refresh_token"]), TOKEN.to_owned()] {
        assert!(!is_stored(&secret));
    }
    server.stop().await;
}
