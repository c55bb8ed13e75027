//! Tools on the pages, in a real browser: a person is asked and answers, on the page and among the operator's views.

use std::path::Path;

use serde_json::json;

use super::{Sdk, server};
use crate::support::{calls, server::Server, sheet::Sheet, until};

const DELETE: &str = r"
import mcptools
for path in ('/a\u202e', '/b'):
    try: print(mcptools.call('files', 'delete_file', {'path': path}).text.encode())
    except mcptools.ToolDenied as error: print('denied')
print(mcptools.call('files', 'echo', {'text': 'said'}).text)
";

async fn screenshot(sheet: &Sheet, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&folder).expect("a folder");
    sheet.browser.screenshot(&folder.join(name)).await;
    // While a program runs the page changes, which axe does not bear.
    if sheet.browser.script("return document.documentElement.dataset.state").await == "running" {
        return;
    }
    let found = crate::page_access::findings(&sheet.browser, name).await;
    assert!(found.is_empty(), "{found:?}");
}

async fn connected() -> (Server, Sdk) {
    (server(&[]).await, Sdk::start("mcp2").await)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_connects_a_server_and_people_answer_questions() {
    let (server, sdk) = connected().await;
    let sheet = Sheet::open(&server.url("/")).await;
    let browser = &sheet.browser;
    browser.driver.goto(server.url("/admin#tools")).await.expect("the page for operators");
    browser.state("ready").await;
    sheet.click("server-new").await;
    for (field, text) in [("server-name", "files"), ("server-url", &sdk.url), ("server-rules", "[{")] {
        browser.element(field).await.send_keys(text).await.expect("typed");
    }
    sheet.click("server-yes").await;
    sheet.says("server-error", |text| text.contains("not valid JSON")).await;
    // A number that JavaScript has no equal of.
    let id = 9_007_199_254_740_993_u64;
    let when = json!({"properties": {"id": {"const": id}}});
    let rules = json!([{"tool": "echo", "action": "allow", "when": when}]).to_string();
    browser.element("server-rules").await.clear().await.expect("empty");
    browser.element("server-rules").await.send_keys(rules).await.expect("typed");
    screenshot(&sheet, "tools-dialog.png").await;
    sheet.click("server-yes").await;
    sheet.says("tool-servers", |text| text.contains("files") && text.contains("allow echo")).await;
    let made = calls::get(&server, "/v1/tool-servers").await;
    assert_eq!(made["servers"][0]["server"]["rules"][0]["when"]["properties"]["id"]["const"], id, "{made}");
    sheet.click("server-new").await;
    sheet.click("server-sandbox").await;
    for (field, text) in [("server-name", "box"), ("server-image", "python"), ("server-command", "python3\n/data/a.py")]
    {
        browser.element(field).await.send_keys(text).await.expect("typed");
    }
    screenshot(&sheet, "tools-dialog-sandbox.png").await;
    sheet.click("server-yes").await;
    sheet.says("tool-servers", |text| text.contains("in python: python3 /data/a.py")).await;

    browser.driver.goto(server.url("/")).await.expect("the page");
    browser.state("ready").await;
    sheet.write("python", DELETE).await;
    sheet.start().await;
    let asked = async |part: &str| {
        let text = "return document.querySelector('[data-testid=question-arguments]')?.textContent ?? ''";
        let shown = async || browser.script(text).await.as_str().expect("text").to_owned();
        until("it asks", async || shown().await.contains(part)).await;
        shown().await
    };
    // What hides text is shown as a picture.
    assert!(!asked("\"path\": \"/a").await.contains('\u{202e}'));
    screenshot(&sheet, "tools-question.png").await;
    let press = |word: &str| {
        let button = format!("document.querySelector('[data-answer={word}]')");
        let script = format!("const button = {button}; button.focus(); button.click(); return null");
        async move { browser.script(&script).await }
    };
    press("once").await;
    asked("\"path\": \"/b").await;
    // Nor on the next question's buttons, which one more Enter would press.
    assert_eq!(browser.script("return document.activeElement.id").await, "output-body", "the focus is not lost");
    press("no").await;
    assert_eq!(sheet.ended().await, "exited");
    sheet.says("terminal", |text| text.contains("denied") && text.contains("said")).await;
    assert_eq!(sheet.text("connections-summary").await, "Tools: 2 calls, 1 refused");
    assert_eq!(sdk.deleted(), ["/a\u{202e}"]);

    browser.driver.goto(server.url("/admin#tools")).await.expect("the page for operators");
    browser.state("ready").await;
    sheet.says("approvals", |text| text.contains("once") && text.contains("default by api")).await;
    screenshot(&sheet, "tools-admin.png").await;
    browser
        .script("document.querySelector('[data-testid=tool-servers] [data-testid=act-trash]').click(); return null")
        .await;
    sheet.click("confirm-yes").await;
    sheet.says("tool-servers", |text| text.contains("There are no tool servers")).await;
    sheet.browser.close().await;
    server.stop().await;
}
