//! What is typed into the forms of the page for operators, and addresses that name no view.

use serde_json::json;
use thirtyfour::prelude::*;

use super::page::{open, page};
use crate::support::{FakeServer, server::TOKEN};

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
