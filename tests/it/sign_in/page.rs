//! The consent page in a real browser.

use serde_json::json;

use super::{ON, Visitor};
use crate::support::{FakeServer, browser::Browser, server::TOKEN, until::until};

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
    let browser = Browser::open().await;
    browser.driver.goto(&address).await.expect("the page");
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
