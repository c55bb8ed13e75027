//! The consent page in a real browser.

use serde_json::{Value, json};
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use super::{ON, Visitor};
use crate::{
    page_access::findings,
    support::{FakeServer, browser::Browser, server::TOKEN, until::until},
};

/// Where the browser arrives; nothing listens there, and the address is what counts.
const CALLBACK: &str = "http://localhost:9/callback";

#[tokio::test(flavor = "multi_thread")]
async fn person_enters_a_token_and_is_sent_back() {
    let server = FakeServer::with(&[ON]).await;
    let visitor = Visitor::of(&server).await;
    let metadata = json!({"client_name": "Assistant <b>", "redirect_uris": [CALLBACK]});
    let (_, client) = visitor.register(&metadata).await;
    let id = client["client_id"].as_str().expect("an id");
    let address = format!("{}{}", visitor.base, visitor.request(id, &[("redirect_uri", CALLBACK)]));
    let browser = Browser::at(&address).await;
    if let Ok(folder) = std::env::var("PICTURES") {
        browser.screenshot(&std::path::Path::new(&folder).join("consent.png")).await;
    }
    browser.element("token").await.send_keys("a wrong token").await.expect("typed");
    browser.element("allow").await.click().await.expect("sent");
    until("the refusal is shown", async || {
        browser.script("return document.body.innerText").await.to_string().contains("Not allowed")
    })
    .await;
    let style = browser.script("return getComputedStyle(document.querySelector('button')).color").await;
    assert_eq!(style, "rgb(255, 255, 255)", "the policy allows the page's own style");
    browser.element("token").await.send_keys(TOKEN).await.expect("typed");
    browser.element("allow").await.click().await.expect("sent");
    let mut arrived = String::new();
    until("the browser is sent back", async || {
        arrived = browser.driver.current_url().await.expect("an address").to_string();
        arrived.starts_with(CALLBACK)
    })
    .await;
    let query = arrived.split_once('?').expect("a query").1;
    let code = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "code").expect("a code").1;
    let (status, tokens) = visitor.redeem(id, &code, &[("redirect_uri", CALLBACK)]).await;
    assert_eq!(status, 200, "{tokens}");
    browser.close().await;
    server.stop().await;
}

/// With a provider, which is never asked here, so that the page has all it can have.
#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_and_the_keyboard_reaches_everything() {
    let provider = [
        ON,
        ("SANDBOX_SIGN_IN__OPENID_ISSUER", "https://id.test"),
        ("SANDBOX_SIGN_IN__OPENID_CLIENT_ID", "sandbox"),
        ("SANDBOX_SIGN_IN__OPENID_ALLOWED", "*"),
    ];
    let server = FakeServer::with(&provider).await;
    let visitor = Visitor::of(&server).await;
    let name = "A client with a name that is as long as the server lets one be, xx";
    let (_, client) = visitor.register(&json!({"client_name": name, "redirect_uris": [CALLBACK]})).await;
    let id = client["client_id"].as_str().expect("an id");
    let address = format!("{}{}", visitor.base, visitor.request(id, &[("redirect_uri", CALLBACK)]));
    let browser = Browser::open().await;
    let tools = ChromeDevTools::new(browser.driver.handle.clone());
    let mut found: Vec<Value> = Vec::new();
    for (what, width) in [("desktop", 1280), ("phone", 320)] {
        let size = json!({"width": width, "height": 700, "deviceScaleFactor": 1, "mobile": width < 1000});
        tools.execute_cdp_with_params("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
        browser.driver.goto(&address).await.expect("the page");
        found.extend(findings(&browser, what).await);
        let wide = browser.script("return document.documentElement.scrollWidth > innerWidth").await;
        assert_eq!(wide, false, "{what}: nothing is cut off");
        browser.element("token").await.send_keys("a wrong token" + Key::Enter).await.expect("typed");
        until("the refusal is shown", async || {
            browser.script("return document.querySelector('[role=alert]') !== null").await == true
        })
        .await;
        found.extend(findings(&browser, &format!("{what}, refused")).await);
    }
    assert!(found.is_empty(), "{found:#?}");
    let mut reached = Vec::new();
    // Once around, from wherever it begins.
    for _ in 0..6 {
        let here = browser.driver.active_element().await.expect("an element");
        here.send_keys(Key::Tab + "").await.expect("typed");
        reached.push(browser.script("return document.activeElement.dataset.testid ?? null").await);
    }
    for id in ["provider", "token", "allow", "refuse"] {
        assert!(reached.contains(&json!(id)), "{id} is not among {reached:?}");
    }
    let refused = visitor.request(id, &[("redirect_uri", CALLBACK), ("response_type", "token")]);
    for path in ["/authorize?client_id=unknown", &refused] {
        browser.driver.goto(&format!("{}{path}", visitor.base)).await.expect("the page");
        assert_eq!(findings(&browser, path).await, Vec::<Value>::new());
    }
    browser.close().await;
    server.stop().await;
}
