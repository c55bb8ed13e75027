//! What is typed into the forms of the page for operators, and addresses that name no view.

use serde_json::json;
use thirtyfour::prelude::*;

use super::{
    get,
    page::{open, page, tab_to},
};
use crate::{
    page_access::findings,
    support::{FakeServer, server::TOKEN, sheet::Sheet},
};

#[tokio::test(flavor = "multi_thread")]
async fn escape_asks_before_it_drops_what_was_typed() {
    let server = FakeServer::start().await;
    let sheet = page(&server, TOKEN, "ready").await;
    for (view, button, form) in
        [("tokens", "token-new", "create"), ("network", "policy-new", "policy"), ("tools", "server-new", "server")]
    {
        let (dialog, name) = (format!("{form}-dialog"), format!("{form}-name"));
        let value = format!("return document.querySelector('[data-testid={name}]').value");
        let press = async |keys: TypingData| sheet.browser.element(&name).await.send_keys(keys).await.expect("typed");
        open(&sheet, view).await;
        sheet.click(button).await;
        sheet.until_open(&dialog, true).await;
        press("web".into()).await;
        press(Key::Escape.into()).await;
        sheet.until_open("confirm-dialog", true).await;
        sheet.click("confirm-no").await;
        sheet.until_open("confirm-dialog", false).await;
        sheet.until_open(&dialog, true).await;
        assert_eq!(sheet.browser.script(&value).await, "web", "{form}");
        sheet.force_close(&dialog).await;
        sheet.until_open("confirm-dialog", true).await;
        sheet.click("confirm-no").await;
        sheet.until_open("confirm-dialog", false).await;
        assert!(sheet.is_open(&dialog).await, "{form}");
        assert_eq!(sheet.browser.script(&value).await, "web", "{form}");
        press(Key::Escape.into()).await;
        sheet.until_open("confirm-dialog", true).await;
        sheet.click("confirm-yes").await;
        sheet.until_open(&dialog, false).await;
        // An empty form is closed without a question.
        sheet.click(button).await;
        sheet.until_open(&dialog, true).await;
        assert_eq!(sheet.browser.script(&value).await, "", "{form}");
        press(Key::Escape.into()).await;
        sheet.until_open(&dialog, false).await;
        sheet.until_open("confirm-dialog", false).await;
    }
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_names_what_every_object_has_is_no_view() {
    let server = FakeServer::start().await;
    let sheet = page(&server, TOKEN, "ready").await;
    open(&sheet, "tokens").await;
    let shown = "return [...document.querySelectorAll('[id^=view-]')].filter((view) => !view.hidden).map(({id}) => id)";
    sheet.browser.script("location.hash = '#constructor'; return null").await;
    sheet.reload("ready").await;
    assert_eq!(sheet.browser.script(shown).await, json!(["view-overview"]));
    sheet.browser.close().await;
    server.stop().await;
}

/// Opens the form of a new token and enters a name.
async fn begin_token(sheet: &Sheet, name: &str) {
    tab_to(sheet, "[data-testid=token-new]").await;
    sheet.press(Key::Enter + "").await;
    sheet.until_open("create-dialog", true).await;
    sheet.press(name).await;
}

/// Whether the boxes of policies are there to be chosen.
async fn has_policies(sheet: &Sheet) -> bool {
    let script = "return document.querySelector('[data-testid=create-policies]').checkVisibility()";
    sheet.browser.script(script).await == true
}

/// Sends the form and closes the dialog that shows the token.
async fn make_token(sheet: &Sheet) {
    tab_to(sheet, "[data-testid=create-yes]").await;
    sheet.press(Key::Enter + "").await;
    sheet.until_open("secret-dialog", true).await;
    tab_to(sheet, "[data-testid=secret-done]").await;
    sheet.press(Key::Enter + "").await;
    sheet.until_open("secret-dialog", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn network_policies_of_a_token_are_chosen_by_keyboard() {
    let server = FakeServer::with(&[("SANDBOX_NETWORK__SET", "set.example")]).await;
    let newest = async || get(&server, "/v1/tokens").await["tokens"][0].clone();
    let sheet = page(&server, TOKEN, "ready").await;
    open(&sheet, "tokens").await;
    begin_token(&sheet, "some").await;
    assert!(!has_policies(&sheet).await);
    tab_to(&sheet, "[data-testid=create-network]").await;
    sheet.press(" ").await;
    assert!(has_policies(&sheet).await);
    tab_to(&sheet, "[name=network][value=set]").await;
    sheet.press(" ").await;
    tab_to(&sheet, "[name=network][value=packages]").await;
    make_token(&sheet).await;
    sheet.says("tokens", |text| text.contains("network: set")).await;
    let made = newest().await;
    assert_eq!((&made["name"], &made["network"]), (&json!("some"), &json!(["set"])), "{made}");

    begin_token(&sheet, "none").await;
    assert!(!has_policies(&sheet).await, "what was chosen before is gone");
    tab_to(&sheet, "[data-testid=create-network]").await;
    sheet.press(" ").await;
    make_token(&sheet).await;
    sheet.says("tokens", |text| text.contains("no network")).await;
    let made = newest().await;
    assert_eq!((&made["name"], &made["network"]), (&json!("none"), &json!([])), "{made}");

    begin_token(&sheet, "every").await;
    make_token(&sheet).await;
    sheet.says("tokens", |text| text.contains("every")).await;
    let made = newest().await;
    assert_eq!((&made["name"], made.get("network")), (&json!("every"), None), "those for every token");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn more_network_policies_than_a_token_may_name_are_refused_by_the_name_of_the_field() {
    let policies: Vec<_> = (0..64).map(|at| format!("SANDBOX_NETWORK__P{at}")).collect();
    let settings: Vec<_> = policies.iter().map(|name| (name.as_str(), "set.example")).collect();
    let server = FakeServer::with(&settings).await;
    let sheet = page(&server, TOKEN, "ready").await;
    open(&sheet, "tokens").await;
    begin_token(&sheet, "many").await;
    sheet.click("create-network").await;
    let all = "document.querySelectorAll('[name=network]').forEach((box) => box.click()); \
               return document.querySelectorAll('[name=network]:checked').length";
    assert_eq!(sheet.browser.script(all).await, 65, "the right to packages is one of them");
    sheet.click("create-yes").await;
    sheet.says("create-error", |text| text == "network: name at most 64 policies").await;
    assert_eq!(sheet.browser.script("return document.activeElement.id").await, "create-yes", "the focus stays");
    let found = findings(&sheet.browser, "refused policies").await;
    assert!(found.is_empty(), "{found:?}");
    assert_eq!(get(&server, "/v1/tokens").await["tokens"], json!([]));
    sheet.browser.script("document.querySelector('[name=network]').click(); return null").await;
    sheet.click("create-yes").await;
    sheet.until_open("secret-dialog", true).await;
    assert_eq!(get(&server, "/v1/tokens").await["tokens"][0]["network"].as_array().map(Vec::len), Some(64));
    sheet.browser.close().await;
    server.stop().await;
}
