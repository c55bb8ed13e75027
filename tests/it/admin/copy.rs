//! The secret of a new token, copied from the page for operators.

use super::page::{open, page};
use crate::support::{FakeServer, server::TOKEN};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_token_is_copied_also_without_a_clipboard() {
    let server = FakeServer::start().await;
    let sheet = page(&server, TOKEN, "ready").await;
    open(&sheet, "tokens").await;
    sheet.click("token-new").await;
    sheet.until_open("create-dialog", true).await;
    sheet.browser.element("create-name").await.send_keys("CI").await.expect("typed");
    sheet.click("create-yes").await;
    sheet.until_open("secret-dialog", true).await;
    // As on a page that came over plain HTTP from another machine.
    let without = "Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = () => { \
                   window.copied = document.activeElement.value; return !window.isRefused; }; return null";
    sheet.browser.script(without).await;
    sheet.click("secret-copy").await;
    sheet.says("secret-copy", |text| text.trim() == "Copied").await;
    let secret = sheet.browser.script("return document.querySelector('[data-testid=secret]').value").await;
    assert!(secret.as_str().is_some_and(|token| token.starts_with("mcps_")), "{secret}");
    assert_eq!(sheet.browser.script("return window.copied").await, secret);
    sheet.browser.script("window.isRefused = true; return null").await;
    sheet.click("secret-copy").await;
    sheet.says("secret-copy", |text| text.trim() == "Press Ctrl+C").await;
    let selected = "const { value, selectionStart, selectionEnd } = document.activeElement; \
                    return value.slice(selectionStart, selectionEnd)";
    assert_eq!(sheet.browser.script(selected).await, secret);
    sheet.browser.close().await;
    server.stop().await;
}
