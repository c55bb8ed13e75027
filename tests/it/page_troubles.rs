//! What axe finds where something went wrong, and in what is on the page for a moment only.

use serde_json::Value;
use thirtyfour::prelude::*;

use crate::{
    page_access::{LOOKS, findings, look_as},
    page_state::open,
    page_viewer::{put, view},
    support::{FakeServer, server::TOKEN, sheet::Sheet, until},
};

/// A file that is dragged over the page; the event's name is to come.
const DRAG: &str = "const data = new DataTransfer(); data.items.add(new File(['x'], 'a')); \
                    const drag = (name) => { const event = new Event(name, {bubbles: true}); \
                    Object.defineProperty(event, 'dataTransfer', {value: data}); \
                    document.body.dispatchEvent(event); return null; }; ";

struct Visit<'a> {
    server: &'a FakeServer,
    sheet: &'a Sheet,
    what: &'a str,
    found: Vec<Value>,
}

impl Visit<'_> {
    async fn look(&mut self, state: &str) {
        self.found.extend(findings(&self.sheet.browser, &format!("{}, {state}", self.what)).await);
    }

    async fn script(&self, script: &str) -> Value {
        self.sheet.browser.script(script).await
    }

    /// Waits until something that is seen matches the selector.
    async fn seen(&self, selector: &str) {
        let script = format!("return document.querySelector('{selector}')?.checkVisibility() === true");
        until(selector, async || self.script(&script).await == true).await;
    }

    async fn outcomes(&mut self) {
        for code in ["exit 3", "signal 11", "oom"] {
            self.sheet.run("python", code).await;
            self.look(code).await;
        }
        assert_eq!(self.sheet.run("python", &"print x\n".repeat(900)).await, "exited");
        let gesture = "const e = document.getElementById('terminal'); e.dispatchEvent(new WheelEvent('wheel')); \
                       e.scrollTop = 0; return null";
        self.script(gesture).await;
        self.seen("#terminal-end").await;
        self.look("scrolled").await;
    }

    async fn mistakes(&mut self) {
        let field = self.sheet.browser.element("conversation").await;
        field.send_keys(" no name" + Key::Enter).await.expect("typed");
        self.seen("#conversation-error").await;
        self.look("conversation").await;
        field.send_keys(Key::Escape + "").await.expect("typed");
        put(self.server, &self.sheet.conversation().await, "broken.png", "x").await;
        self.script("document.getElementById('files-refresh').click(); return null").await;
        view(self.sheet, "broken.png").await;
        self.seen(".refusal").await;
        self.look("refusal").await;
        self.sheet.click("viewer-close").await;
        self.sheet.until_open("viewer", false).await;
    }

    async fn moments(&mut self) {
        self.script(&format!("{DRAG} return drag('dragenter')")).await;
        self.seen("#drop").await;
        self.look("drag").await;
        self.script(&format!("{DRAG} return drag('dragleave')")).await;
        self.sheet.write("python", "").await;
        self.seen(".cm-content[aria-autocomplete=list]").await;
        self.script("document.getElementById('editor').cmView.focus(); return null").await;
        let editor = self.sheet.browser.driver.find(By::Css("#editor .cm-content")).await.expect("the editor");
        editor.send_keys("prin").await.expect("typed");
        self.seen(".cm-tooltip-autocomplete li").await;
        self.look("words").await;
        editor.send_keys(Key::Escape + "").await.expect("typed");
    }

    /// Asked for a token, refused, and left without one; with the right one again at the end.
    async fn without_a_token(&mut self) {
        self.script("sessionStorage.clear(); return null").await;
        self.sheet.reload("needs-token").await;
        self.look("needs-token").await;
        let field = self.sheet.browser.element("token-input").await;
        field.send_keys("wrong" + Key::Enter).await.expect("typed");
        self.seen("#token-error").await;
        self.look("refused token").await;
        field.send_keys(Key::Escape + "").await.expect("typed");
        self.sheet.until_open("token-dialog", false).await;
        self.look("no token").await;
        self.sheet.click("token").await;
        self.sheet.browser.element("token-input").await.send_keys(TOKEN + Key::Enter).await.expect("typed");
        self.sheet.browser.state("ready").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_where_something_went_wrong() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = open(&server).await;
    sheet.browser.focus().await;
    let mut found = Vec::new();
    for (what, phone) in LOOKS {
        look_as(&sheet, phone).await;
        let mut visit = Visit { server: &server, sheet: &sheet, what, found: Vec::new() };
        visit.outcomes().await;
        visit.mistakes().await;
        visit.moments().await;
        visit.without_a_token().await;
        found.extend(visit.found);
        let wide = sheet.browser.script("return document.documentElement.scrollWidth - innerWidth").await;
        assert_eq!(wide, 0, "{what} scrolls sideways");
    }
    assert!(found.is_empty(), "{}", serde_json::to_string_pretty(&found).expect("JSON"));
    sheet.browser.close().await;
    server.stop().await;
}
