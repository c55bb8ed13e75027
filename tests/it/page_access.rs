//! The page without a mouse, on a phone, in both themes: no state has a finding of axe, and everything is reached by
//! keyboard.

use std::path::Path;

use serde_json::{Value, json};
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use crate::support::{FakeServer, browser::Browser, server::TOKEN, sheet::Sheet, until};

/// The findings of axe in what is on the page now.
pub(crate) async fn findings(browser: &Browser, what: &str) -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("target/test-tools/npm/node_modules/axe-core/axe.min.js");
    let source = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run ./test.sh, which installs it", path.display()));
    // axe throws when the page changes while it looks; then it looks again.
    let script = format!(
        "if (!window.axe) {{ {source} }} const done = arguments[arguments.length - 1]; \
         const wait = Promise.allSettled(document.getAnimations().map((one) => one.finished)); \
         const look = (left) => axe.run(document, {{iframes: false}}).then( \
         ({{violations}}) => done(violations.map((v) => ({{id: v.id, \
         nodes: v.nodes.map((n) => n.html.slice(0, 200) + n.failureSummary)}}))), \
         (e) => left > 0 ? look(left - 1) : done([String(e)])); \
         wait.then(() => look(5))"
    );
    let found = browser.driver.execute_async(&script, vec![]).await.expect("an answer");
    let found: Vec<Value> = serde_json::from_value(found.json().clone()).expect("a list");
    found.into_iter().map(|finding| json!([what, finding])).collect()
}

struct Tour<'a> {
    sheet: &'a Sheet,
    what: &'a str,
    found: Vec<Value>,
}

impl Tour<'_> {
    async fn look(&mut self, state: &str) {
        self.found.extend(findings(&self.sheet.browser, &format!("{}, {state}", self.what)).await);
    }

    async fn escape(&self) {
        let here = self.sheet.browser.driver.active_element().await.expect("a focused element");
        here.send_keys(Key::Escape + "").await.expect("typed");
        until("no dialog", async || {
            self.sheet.browser.script("return document.querySelector('dialog[open]') === null").await == true
        })
        .await;
    }

    /// Every state that a user meets.
    async fn walk(&mut self) {
        let sheet = self.sheet;
        self.look("ready").await;
        for id in ["token", "runner-info", "conversations", "file-new"] {
            sheet.click(id).await;
            self.look(id).await;
            self.escape().await;
        }
        let colours = (0..16).fold(String::new(), |text, n| {
            format!("{text} 1b 5b 33 38 3b 35 3b {:02x} {:02x} 6d 78", b'0' + n / 10, b'0' + n % 10)
        });
        let code = format!(
            "bytes{colours} 1b 5b 33 38 3b 32 3b 32 35 35 3b 32 35 35 3b 30 6d 79 1b 5b 30 6d 0a\nstderr an error\n\
                            write a.md #_title\nwrite t.csv a,b\nwrite p.html <p>hi\nhang"
        );
        sheet.write("python", &code).await;
        sheet.start().await;
        sheet.says("terminal", |text| text.contains("an error")).await;
        self.look("running").await;
        sheet.click("stop").await;
        assert_eq!(sheet.ended().await, "cancelled");
        self.look("ended").await;
        until("the files", async || {
            sheet.browser.script("return document.querySelectorAll('[data-testid=file-row]').length").await == 3
        })
        .await;
        for path in ["a.md", "t.csv", "p.html"] {
            sheet
                .browser
                .script(&format!("document.querySelector('li[data-key=\"{path}\"] .file-open').click()"))
                .await;
            until("the view", async || {
                sheet.browser.script("return document.querySelector('.viewer-body').childElementCount > 0").await
                    == true
            })
            .await;
            self.look(path).await;
            self.escape().await;
        }
        sheet.browser.script("document.querySelector('[data-testid=file-delete]').click()").await;
        self.look("question").await;
        self.escape().await;
        sheet.browser.script("document.getElementById('given').open = true").await;
        let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
        editor.send_keys(Key::Control + "f").await.expect("typed");
        self.look("search").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_in_any_state() {
    // A busy machine takes its time between a start and a stop.
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let browser = Browser::at(&format!("http://{}/", server.address)).await;
    browser.state("needs-token").await;
    let mut found = findings(&browser, "needs-token").await;
    browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
    browser.element("token-save").await.click().await.expect("clicked");
    browser.state("ready").await;
    let sheet = Sheet { browser };
    let tools = ChromeDevTools::new(sheet.browser.driver.handle.clone());
    // Without transitions, which axe and clicks would catch halfway.
    let calm = json!({"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]});
    tools.execute_cdp_with_params("Emulation.setEmulatedMedia", calm).await.expect("a preference");
    for (what, phone, theme) in [("light", false, "light"), ("dark", false, "dark"), ("phone", true, "light")] {
        sheet.browser.script(&format!("localStorage.setItem('sandbox.theme', '{theme}')")).await;
        if phone {
            let size = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
            tools.execute_cdp_with_params("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
        }
        sheet.reload("ready").await;
        sheet.click("new-conversation").await;
        let mut tour = Tour { sheet: &sheet, what, found: Vec::new() };
        tour.walk().await;
        found.extend(tour.found);
        let wide = sheet.browser.script("return document.documentElement.scrollWidth - innerWidth").await;
        assert_eq!(wide, 0, "{what} scrolls sideways");
    }
    assert!(found.is_empty(), "{}", serde_json::to_string_pretty(&found).expect("JSON"));
    sheet.browser.close().await;
    server.stop().await;
}

/// The `data-testid` of the focused element, or of its closest ancestor that has one.
async fn focused(sheet: &Sheet) -> String {
    let script = "return document.activeElement.closest('[data-testid]')?.dataset.testid ?? ''";
    sheet.browser.script(script).await.as_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_reached_by_keyboard() {
    let server = FakeServer::start().await;
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    sheet.run("python", "write a.txt text\nstderr x\nprint y").await;
    until("the file", async || sheet.text("files").await.contains("a.txt")).await;
    sheet.browser.script("document.activeElement.blur(); document.querySelector('.skip').focus()").await;
    let mut passed = Vec::new();
    for _ in 0..60 {
        let here = sheet.browser.driver.active_element().await.expect("a focused element");
        let in_editor = focused(&sheet).await == "editor";
        // Tab indents in the editor; Escape releases it.
        here.send_keys(if in_editor { Key::Escape + Key::Tab } else { Key::Tab + "" }).await.expect("typed");
        let next = focused(&sheet).await;
        if passed.last() != Some(&next) {
            passed.push(next);
        }
        if passed.last().is_some_and(|name| name == "upload-input") {
            break;
        }
    }
    let stops = [
        "conversation",
        "conversations",
        "new-conversation",
        "token",
        "theme",
        "language",
        "examples",
        "share",
        "run",
        "editor",
        "given",
        "runner-info",
        "vim",
        "split-columns",
        "reuse",
        "terminal-copy",
        "wrap",
        "history-run",
        "terminal",
        "stdout-note",
        "stderr-note",
        "split-rows",
        "file-new",
        "files-download",
        "upload-input",
    ];
    let mut left = passed.iter();
    for stop in stops {
        assert!(left.any(|name| name == stop), "{stop} is not reached in its order: {passed:?}");
    }
    // A file is opened, closed and deleted without a pointer, and the focus is never lost.
    for (key, selector, next) in
        [(Key::Enter, "[data-act=open]", "viewer"), (Key::Enter, "[data-act=delete]", "confirm-dialog")]
    {
        let element = sheet.browser.driver.find(By::Css(format!("li[data-key] {selector}"))).await.expect("a button");
        element.send_keys(key + "").await.expect("typed");
        until(next, async || sheet.attribute(next, "open").await != Value::Null).await;
        // In a text, the first Escape lets Tab leave it.
        until("closed", async || {
            let here = sheet.browser.driver.active_element().await.expect("a focused element");
            here.send_keys(Key::Escape + "").await.expect("typed");
            sheet.attribute(next, "open").await == Value::Null
        })
        .await;
        assert!(focused(&sheet).await.starts_with("file-"), "the focus is back: {}", focused(&sheet).await);
    }
    sheet.browser.close().await;
    server.stop().await;
}
