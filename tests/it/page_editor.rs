//! The editor of the page: words that it offers, Vim's keys, its search.

use serde_json::{Value, json};
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use crate::{
    page_state::{hold, is_true},
    support::{FakeServer, sheet::Sheet, until},
};

const VIM_IS_ON: &str = "return document.querySelector('[data-testid=editor] .cm-vim-panel') !== null";

async fn open(server: &FakeServer) -> Sheet {
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    sheet.browser.focus().await;
    sheet
}

/// Types into the editor, which has the focus then.
async fn type_keys(sheet: &Sheet, keys: impl Into<TypingData>) {
    sheet.browser.script("document.querySelector('[data-testid=editor]').cmView.focus()").await;
    let editor = sheet.browser.driver.find(By::Css("[data-testid=editor] .cm-content")).await.expect("the editor");
    editor.send_keys(keys).await.expect("typed");
}

async fn has_text(sheet: &Sheet, wanted: &str) {
    until(wanted, async || sheet.program().await == wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_are_offered_while_one_types() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("python", "").await;
    // The part that offers words comes after the page.
    let is_loaded = "return document.querySelector('.cm-content[aria-autocomplete=list]') !== null";
    until("the part is loaded", async || sheet.browser.script(is_loaded).await == true).await;
    type_keys(&sheet, "prin").await;
    let offered = "return [...document.querySelectorAll('.cm-tooltip-autocomplete li')].map(li => li.textContent)";
    until("words are offered", async || {
        let words: Vec<String> = serde_json::from_value(sheet.browser.script(offered).await).expect("a list");
        words.first().is_some_and(|word| word == "print")
    })
    .await;
    let radius = "return getComputedStyle(document.querySelector('.cm-tooltip-autocomplete')).borderRadius";
    assert_eq!(sheet.browser.script(radius).await, "8px", "it has the page's look");
    let choose = "document.querySelector('.cm-tooltip-autocomplete li') \
                  .dispatchEvent(new MouseEvent('mousedown', {bubbles: true, cancelable: true}))";
    sheet.browser.script(choose).await;
    has_text(&sheet, "print").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn vim_keys_are_a_choice_that_stays() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("bash", "one\ntwo").await;
    assert_eq!(sheet.browser.script(VIM_IS_ON).await, false);
    // Taken back before the part was there.
    let twice = "for (let i = 0; i < 2; i++) document.querySelector('[data-testid=vim]').click(); return null";
    sheet.browser.script(twice).await;
    let is_loaded = "return performance.getEntriesByType('resource').some((one) => one.name.endsWith('/vim.js'))";
    until("the part is loaded", async || sheet.browser.script(is_loaded).await == true).await;
    sheet.browser.script("return new Promise((done) => requestAnimationFrame(() => done(null)))").await;
    assert_eq!(sheet.browser.script(VIM_IS_ON).await, false);
    sheet.click("vim").await;
    until("Vim's keys", async || sheet.browser.script(VIM_IS_ON).await == true).await;
    assert_eq!(sheet.attribute("vim", "aria-pressed").await, "true");
    type_keys(&sheet, "ggdd").await;
    has_text(&sheet, "two").await;
    type_keys(&sheet, "ix".to_owned() + Key::Escape).await;
    has_text(&sheet, "xtwo").await;

    sheet.reload("ready").await;
    until("Vim's keys again", async || sheet.browser.script(VIM_IS_ON).await == true).await;
    assert_eq!(sheet.attribute("vim", "aria-pressed").await, "true");
    sheet.click("vim").await;
    until("ordinary keys", async || sheet.browser.script(VIM_IS_ON).await == false).await;
    sheet.write("bash", "").await;
    type_keys(&sheet, "dd").await;
    has_text(&sheet, "dd").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_the_editor_that_cannot_be_loaded_is_told() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let tools = ChromeDevTools::new(sheet.browser.driver.handle.clone());
    for (command, given) in [("Network.enable", json!({})), ("Network.setBlockedURLs", json!({"urls": ["*/vim.js"]}))] {
        tools.execute_cdp_with_params(command, given).await.expect("Chromium's protocol");
    }
    sheet.click("vim").await;
    let told = "const text = document.getElementById('toast-text'); \
                return text.checkVisibility() && text.textContent.includes('keys could not be loaded')";
    until("the failure is shown", async || sheet.browser.script(told).await == true).await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_vims_keys_escape_does_not_stop_a_program() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = open(&server).await;
    sheet.click("vim").await;
    until("Vim's keys", async || sheet.browser.script(VIM_IS_ON).await == true).await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "up\n").await;
    hold(&sheet, "path.endsWith('/cancel')").await;
    type_keys(&sheet, Key::Escape + Key::Escape).await;
    assert_eq!(sheet.browser.script("return window.held").await, false);
    type_keys(&sheet, Key::Control + ".").await;
    is_true(&sheet, "held").await;
    sheet.browser.script("window.release(); return null").await;
    assert_eq!(sheet.ended().await, "cancelled");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn search_opens_with_the_look_of_the_page() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("bash", "echo one\necho two").await;
    type_keys(&sheet, Key::Control + "f").await;
    let panel = "const panel = document.querySelector('[data-testid=editor] .cm-search'); \
                 return panel && [getComputedStyle(panel).display, \
                 getComputedStyle(panel.querySelector('.cm-textfield')).borderRadius]";
    until("the search", async || sheet.browser.script(panel).await != Value::Null).await;
    assert_eq!(sheet.browser.script(panel).await, json!(["flex", "6px"]));
    let field = sheet.browser.driver.find(By::Css(".cm-search [name=search]")).await.expect("the field");
    field.send_keys("echo").await.expect("typed");
    let found = "return document.querySelectorAll('[data-testid=editor] .cm-searchMatch').length";
    until("both are marked", async || sheet.browser.script(found).await == 2).await;
    field.send_keys(Key::Escape + "").await.expect("typed");
    until("it is closed", async || sheet.browser.script(panel).await == Value::Null).await;
    sheet.browser.close().await;
    server.stop().await;
}
