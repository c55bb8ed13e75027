//! The page's token beside that of another tab, and beside the one before it.

use serde_json::{Value, json};

use crate::{
    page_state::{hold, is_true, open},
    support::{
        FakeServer,
        calls::{create, get},
        sheet::Sheet,
        until,
    },
};

async fn enter(sheet: &Sheet, token: &str) {
    sheet.click("token").await;
    sheet.browser.element("token-input").await.send_keys(token).await.expect("typed");
    sheet.click("token-save").await;
    sheet.until_open("token-dialog", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_to_be_remembered_does_not_replace_that_of_another_tab() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    // As another tab does whose token is to be remembered.
    sheet.browser.script("localStorage.setItem('sandbox.token', 'of-another-tab'); return null").await;
    sheet.reload("ready").await;
    assert_eq!(sheet.browser.script("return localStorage.getItem('sandbox.token')").await, "of-another-tab");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_refusal_of_the_token_before_is_none_of_the_new_one() {
    let server = FakeServer::start().await;
    let (_, second) = create(&server, json!({"name": "second", "owner": "ann"})).await;
    let sheet = open(&server).await;
    let refused = json!({"status": 401, "text": "{}"});
    sheet.browser.driver.execute("window.answer = arguments[0]", vec![refused]).await.expect("set");
    hold(&sheet, "!window.held && path.startsWith('v1/runs?')").await;
    is_true(&sheet, "held").await;
    enter(&sheet, &second).await;
    sheet.browser.script("window.release(); return null").await;
    is_true(&sheet, "passed").await;
    sheet.browser.state("ready").await;
    assert_eq!(sheet.attribute("token-dialog", "open").await, Value::Null);
    assert_eq!(sheet.run("python", "print still").await, "exited");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_for_the_token_before_does_not_bring_it_back() {
    let server = FakeServer::start().await;
    let (_, second) = create(&server, json!({"name": "second", "owner": "ann"})).await;
    let sheet = open(&server).await;
    server.engine.set_runners(Vec::new());
    let is_none = async || get(&server, "/v1/runners").await["runners"] == json!([]);
    until("no runner is left", is_none).await;
    // A page without runners has a button that tries again.
    sheet.reload("error").await;
    hold(&sheet, "!window.held && path === 'v1/runners'").await;
    sheet.browser.script("document.getElementById('banner-action').click(); return null").await;
    is_true(&sheet, "held").await;
    enter(&sheet, &second).await;
    sheet.browser.script("window.release(); return null").await;
    is_true(&sheet, "passed").await;
    assert_eq!(sheet.browser.script("return sessionStorage.getItem('sandbox.token')").await, second);
    sheet.browser.close().await;
    server.stop().await;
}
