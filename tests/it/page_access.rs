//! The page without a mouse, on a phone, in both themes: no state has a finding of axe, and everything is reached by
//! keyboard.

use std::path::Path;

use serde_json::{Value, json};
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use crate::{
    page_files::PARQUET,
    page_viewer::put,
    support::{FakeServer, browser::Browser, sheet::Sheet, until},
};

/// The findings of axe in what is on the page now, in both themes. The dark one differs from the light one in its
/// colours alone, so there only the rules about colours are asked.
pub(crate) async fn findings(browser: &Browser, what: &str) -> Vec<Value> {
    set_theme(browser, "dark").await;
    let mut found =
        findings_in_theme(browser, &format!("{what}, dark"), json!(["color-contrast", "link-in-text-block"])).await;
    set_theme(browser, "light").await;
    found.extend(findings_in_theme(browser, what, Value::Null).await);
    found
}

/// As [`findings`], by some of axe's rules, or all.
async fn findings_in_theme(browser: &Browser, what: &str, rules: Value) -> Vec<Value> {
    if browser.script("return Boolean(window.axe)").await == false {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let path = root.join("target/test-tools/npm/node_modules/axe-core/axe.min.js");
        let source = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}; run ./test.sh, which installs it", path.display()));
        browser.script(&format!("{source}; return null")).await;
    }
    // axe throws when the page changes while it looks; then it looks again.
    let script = "const done = arguments[arguments.length - 1]; \
         const options = {iframes: false, resultTypes: ['violations']}; \
         if (arguments[0]) options.runOnly = arguments[0]; \
         const wait = Promise.allSettled(document.getAnimations().map((one) => one.finished)); \
         const look = (left) => axe.run(document, options).then( \
         ({violations}) => done(violations.map((v) => ({id: v.id, \
         nodes: v.nodes.map((n) => n.html.slice(0, 200) + n.failureSummary)}))), \
         (e) => left > 0 ? look(left - 1) : done([String(e)])); \
         wait.then(() => look(5))";
    let found = browser.driver.execute_async(script, vec![rules]).await.expect("an answer");
    let found: Vec<Value> = serde_json::from_value(found.json().clone()).expect("a list");
    found.into_iter().map(|finding| json!([what, finding])).collect()
}

/// Whether a dialog is open.
const DIALOG: &str = "document.querySelector('dialog[open]') !== null";

/// How the page is looked at: a name, and whether on a phone, which it then stays.
pub(crate) const LOOKS: [(&str, bool); 2] = [("desktop", false), ("phone", true)];

/// Changes the theme that the system prefers, which pages follow at once. Without transitions, which axe and clicks
/// would catch halfway.
pub(crate) async fn set_theme(browser: &Browser, theme: &str) {
    let tools = ChromeDevTools::new(browser.driver.handle.clone());
    let features = json!([{"name": "prefers-reduced-motion", "value": "reduce"},
        {"name": "prefers-color-scheme", "value": theme}]);
    let media = json!({"features": features});
    tools.execute_cdp_with_params("Emulation.setEmulatedMedia", media).await.expect("a preference");
}

/// Loads the page again in one of the looks.
pub(crate) async fn look_as(sheet: &Sheet, phone: bool) {
    set_theme(&sheet.browser, "light").await;
    if phone {
        let tools = ChromeDevTools::new(sheet.browser.driver.handle.clone());
        let size = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
        tools.execute_cdp_with_params("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
    }
    sheet.reload("ready").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_behind_a_dialog_is_announced_in_it() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "up\n").await;
    sheet.click("conversations").await;
    sheet.until_open("conversations-dialog", true).await;
    // Everything outside the dialog is inert, the other live region too.
    sheet.browser.script("document.getElementById('stop').click(); return null").await;
    let said = "return document.querySelector('#conversations-dialog > [role=status]')?.textContent ?? ''";
    let heard = async || sheet.browser.script(said).await.as_str().is_some_and(|text| text.starts_with("Cancelled"));
    until("the end is announced", heard).await;
    // It is not read again when the dialog is opened again.
    sheet.press(Key::Escape + "").await;
    sheet.until_open("conversations-dialog", false).await;
    until("the dialog's region is empty", async || sheet.browser.script(said).await == "").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phone_with_text_of_twice_the_size_has_every_button() {
    let server = FakeServer::start().await;
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    put(&server, &sheet.conversation().await, "measurements.py", "print x").await;
    let tools = ChromeDevTools::new(sheet.browser.driver.handle.clone());
    let size = json!({"width": 195, "height": 422, "deviceScaleFactor": 4, "mobile": true});
    tools.execute_cdp_with_params("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
    sheet.reload("ready").await;
    sheet.says("files", |text| text.contains("measurements.py")).await;
    let holds = async |what: &str, condition: &str| {
        let script = format!(
            "const box = (found) => document.querySelector(found).getBoundingClientRect(); \
             const ends = (inner, outer) => box(inner).right <= box(outer).right; return {condition}"
        );
        assert_eq!(sheet.browser.script(&script).await, true, "{what}");
    };
    holds("Run is within its card", "ends('#run', '#program-card')").await;
    holds("Vim keys is within its card", "ends('#vim', '#program-card')").await;
    let free = "['rename', 'download', 'delete'].every((act) => \
                box(`[data-testid=file-${act}]`).top >= box('.file-open .file-size').bottom)";
    holds("the buttons of a file are below its name", free).await;
    sheet.browser.script("document.querySelector('[data-testid=file-open]').click(); return null").await;
    until("its text", async || sheet.attribute("viewer-save", "hidden").await == Value::Null).await;
    holds("Save is within its dialog", "ends('#viewer-save', '#viewer')").await;
    sheet.browser.close().await;
    server.stop().await;
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
        self.sheet.press(Key::Escape + "").await;
        self.until("document.querySelector('dialog[open]') === null").await;
    }

    /// Waits until this is true on the page.
    async fn until(&self, condition: &str) {
        let script = format!("return {condition}");
        until(condition, async || self.sheet.browser.script(&script).await == true).await;
    }

    /// Every state that a user meets.
    async fn walk(&mut self) {
        let sheet = self.sheet;
        self.look("ready").await;
        for id in ["token", "runner-info", "conversations", "file-new"] {
            sheet.click(id).await;
            self.until(DIALOG).await;
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
        self.until("document.querySelectorAll('[data-testid=file-row]').length === 6").await;
        for path in ["a.md", "t.csv", "p.html", "s.svg", "t.parquet", "d.pdf"] {
            sheet
                .browser
                .script(&format!("document.querySelector('li[data-key=\"{path}\"] .file-open').click()"))
                .await;
            self.until("document.querySelector('.viewer-body').childElementCount > 0").await;
            self.look(path).await;
            // The browser's view of a PDF may have the focus, and Escape then.
            sheet.click("viewer-close").await;
            self.until("document.querySelector('dialog[open]') === null").await;
        }
        sheet.browser.script("document.querySelector('[data-testid=file-delete]').click()").await;
        self.until(DIALOG).await;
        self.look("question").await;
        self.escape().await;
        sheet.browser.script("document.getElementById('given').open = true").await;
        let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
        editor.send_keys(Key::Control + "f").await.expect("typed");
        self.look("search").await;
        self.walk_on().await;
    }

    /// Vim's keys, a run in another conversation, a program with a problem, a lost connection, an upload.
    async fn walk_on(&mut self) {
        let sheet = self.sheet;
        sheet.click("vim").await;
        self.until("document.querySelector('.cm-vim-panel') !== null").await;
        self.look("vim").await;
        sheet.click("vim").await;
        let first = sheet.conversation().await;
        sheet.write("python", "print up\nhang").await;
        sheet.start().await;
        sheet.says("terminal", |text| text == "up\n").await;
        sheet.click("new-conversation").await;
        sheet.says("elsewhere", |text| text.contains(&first)).await;
        self.look("elsewhere").await;
        sheet.click("elsewhere-stop").await;
        until("nothing runs elsewhere", async || sheet.attribute("elsewhere", "hidden").await == "").await;
        sheet.write("python", "x=1").await;
        // The notice of the run that has ended may be over the button.
        sheet.browser.script("document.querySelector('[data-testid=format]').click()").await;
        self.until("document.querySelector('.cm-lintRange-warning') !== null").await;
        self.look("problem").await;

        // The notice of the run that has ended may be over the buttons.
        let away = "document.getElementById('toast').hidden = true; window.realFetch = window.fetch; \
                    window.fetch = (path, init) => path.includes('/events') \
                    ? Promise.reject(new TypeError('away')) : window.realFetch(path, init); return null";
        sheet.browser.script(away).await;
        sheet.write("python", "print up\nhang").await;
        sheet.start().await;
        self.until("!document.querySelector('[data-testid=link]').hidden").await;
        self.look("lost").await;
        sheet.browser.script("window.fetch = window.realFetch; dispatchEvent(new Event('online')); return null").await;
        sheet.says("terminal", |text| text == "up\n").await;
        sheet.click("stop").await;
        assert_eq!(sheet.ended().await, "cancelled");

        let held = "XMLHttpRequest.prototype.send = function () { window.upload = this; }; return null";
        sheet.browser.script(held).await;
        sheet.drop_file("a.bin", "x").await;
        self.until("document.querySelector('[data-upload=sending] progress') !== null && Boolean(window.upload)").await;
        self.look("upload").await;
        sheet.browser.script("window.upload.dispatchEvent(new ProgressEvent('abort')); return null").await;
        self.until("document.querySelector('[data-upload=failed]') !== null").await;
        self.look("failed upload").await;
    }
}

/// Each look is a test of its own: all in one could reach the time limit of a test on a busy machine.
async fn axe_finds_nothing_in_any_state((what, phone): (&str, bool)) {
    // A busy machine takes its time between a start and a stop.
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let problem = json!({"line": 1, "column": 1, "endLine": 1, "endColumn": 2, "rule": "F841", "message": "unused",
        "severity": "warning"});
    server.engine.answer("by ruff", &json!({"code": "x = 1\n", "problems": [problem]}).to_string());
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    look_as(&sheet, phone).await;
    sheet.click("new-conversation").await;
    let svg = b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><rect width='9' height='9'/></svg>";
    for (path, content) in [("s.svg", &svg[..]), ("t.parquet", PARQUET), ("d.pdf", &b"%PDF-1.4\n%%EOF\n"[..])] {
        put(&server, &sheet.conversation().await, path, content).await;
    }
    let mut tour = Tour { sheet: &sheet, what, found: Vec::new() };
    tour.walk().await;
    assert!(tour.found.is_empty(), "{}", serde_json::to_string_pretty(&tour.found).expect("JSON"));
    let wide = sheet.browser.script("return document.documentElement.scrollWidth - innerWidth").await;
    assert_eq!(wide, 0, "{what} scrolls sideways");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_on_a_desktop() {
    axe_finds_nothing_in_any_state(LOOKS[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_on_a_phone() {
    axe_finds_nothing_in_any_state(LOOKS[1]).await;
}

/// The `data-testid` of the focused element, or of its closest ancestor that has one.
pub(crate) async fn focused(sheet: &Sheet) -> String {
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
        let in_editor = focused(&sheet).await == "editor";
        // Tab indents in the editor; Escape releases it.
        sheet.press(if in_editor { Key::Escape + Key::Tab } else { Key::Tab + "" }).await;
        let next = focused(&sheet).await;
        if passed.last() != Some(&next) {
            passed.push(next);
        }
        if passed.last().is_some_and(|name| name == "file-delete") {
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
        "format",
        "run",
        "editor",
        "given",
        "runner-info",
        "save-program",
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
        "files-refresh",
        "upload-input",
        "file-open",
        "file-rename",
        "file-download",
        "file-delete",
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
        sheet.until_open(next, true).await;
        // In a text, the first Escape lets Tab leave it.
        until("closed", async || {
            sheet.press(Key::Escape + "").await;
            !sheet.is_open(next).await
        })
        .await;
        assert!(focused(&sheet).await.starts_with("file-"), "the focus is back: {}", focused(&sheet).await);
    }
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn panes_are_dragged_and_their_sizes_stay() {
    let server = FakeServer::start().await;
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    let share = async |edge: &str| -> i64 {
        let now = sheet.attribute(edge, "aria-valuenow").await;
        now.as_str().expect("a text").parse().expect("a number")
    };
    let mut sizes = Vec::new();
    for (edge, x, y) in [("split-columns", -150, 0), ("split-rows", 0, 90)] {
        let (before, handle) = (share(edge).await, sheet.browser.element(edge).await);
        let drag = sheet.browser.driver.action_chain().drag_and_drop_element_by_offset(&handle, x, y).release();
        drag.perform().await.expect("dragged");
        let after = share(edge).await;
        assert!((5..30).contains(&(after - before).abs()) && (after > before) == (y > 0), "{edge}: {before}, {after}");
        sizes.push((edge, after));
    }
    sheet.reload("ready").await;
    for (edge, kept) in sizes {
        assert_eq!(share(edge).await, kept, "{edge}");
        let handle = sheet.browser.element(edge).await;
        let reset = sheet.browser.driver.action_chain().double_click_element(&handle);
        reset.perform().await.expect("clicked twice");
        assert_ne!(share(edge).await, kept, "{edge}");
    }
    sheet.browser.close().await;
    server.stop().await;
}
