//! What the page knows about conversations, runs elsewhere, links to programs and what it remembers.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use thirtyfour::{By, Key};

use crate::support::{FakeServer, server::TOKEN, sheet::Sheet, until};

pub(crate) async fn open(server: &FakeServer) -> Sheet {
    Sheet::open(&format!("http://{}/", server.address)).await
}

async fn address(sheet: &Sheet) -> String {
    sheet.browser.script("return location.href").await.as_str().expect("text").to_owned()
}

/// The names in the list of conversations, and what is said about each.
async fn conversations(sheet: &Sheet) -> Vec<(String, String)> {
    let script = "return [...document.querySelectorAll('[data-testid=conversation-row]')].map(row => \
                  [row.dataset.conversation, row.querySelector('.conversation-facts').textContent])";
    serde_json::from_value(sheet.browser.script(script).await).expect("a list")
}

/// Whether they end with when the conversation was used.
fn is_dated(facts: &str) -> bool {
    facts.ends_with("just now") || facts.ends_with(" ago")
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_in_the_address_and_listed_and_deleted() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let first = sheet.conversation().await;
    assert!(address(&sheet).await.ends_with(&format!("?c={first}")));
    assert_eq!(sheet.run("python", "print in the first").await, "exited");
    sheet.click("new-conversation").await;
    let second = sheet.conversation().await;
    assert_eq!(sheet.run("python", "print in the second").await, "exited");
    sheet.browser.driver.back().await.expect("back");
    sheet.says("terminal", |text| text == "in the first\n").await;
    assert_eq!(sheet.conversation().await, first);

    // An address opens its conversation, in another tab too.
    sheet.browser.driver.goto(format!("http://{}/?c=of-an-assistant", server.address)).await.expect("the page");
    sheet.browser.state("ready").await;
    assert_eq!(sheet.conversation().await, "of-an-assistant");
    // A run that this page did not start is listed by itself, and the files it wrote.
    let body = json!({"conversationId": "of-an-assistant", "language": "python", "code": "write a.txt x\nprint hello"});
    let url = format!("http://{}/v1/runs", server.address);
    let answer = server.http.post(url).bearer_auth(TOKEN).json(&body).send().await.expect("an answer");
    assert_eq!(answer.status(), 200);
    until("the run is listed", async || sheet.history().await == ["exited"]).await;
    until("its file is listed", async || sheet.text("files").await.contains("a.txt")).await;

    sheet.click("conversations").await;
    // The browser's own list is shown first, and what the server knows of each is added when it has answered.
    until("all are listed", async || {
        let listed = conversations(&sheet).await;
        listed.len() == 3 && listed.iter().all(|(_, facts)| is_dated(facts))
    })
    .await;
    // The size stands before the time.
    let listed = conversations(&sheet).await;
    let (_, facts) = listed.iter().find(|(id, _)| id == "of-an-assistant").expect("it is listed");
    assert!(facts.contains("B · ") && facts.starts_with(|c: char| c.is_ascii_digit()), "{facts}");
    let row = |id: &str, act: &str| format!("document.querySelector('li[data-conversation=\"{id}\"] {act}').click()");
    sheet.browser.script(&row(&first, "[data-act=delete]")).await;
    sheet.click("confirm-yes").await;
    until("it is not listed", async || conversations(&sheet).await.len() == 2).await;
    assert!(!server.root.join(&first).exists());
    sheet.browser.script(&row(&second, ".conversation-open")).await;
    sheet.says("terminal", |text| text == "in the second\n").await;
    assert!(address(&sheet).await.ends_with(&format!("?c={second}")));
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_of_an_assistant_is_opened() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let conversation = sheet.conversation().await;
    sheet.write("bash", "print mine").await;
    let result = server.run(&conversation, "print of an assistant").await;
    assert_eq!(result["isError"], false);
    until("the run is listed", async || sheet.history().await == ["exited"]).await;
    sheet.choose(0).await;
    sheet.says("terminal", |text| text == "of an assistant\n").await;
    until("its program is offered", async || sheet.attribute("reuse", "hidden").await == Value::Null).await;
    sheet.click("reuse").await;
    until("its program", async || sheet.program().await == "print of an assistant").await;
    assert_eq!(sheet.language().await, "python");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_elsewhere_keeps_its_stop_button() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = open(&server).await;
    let first = sheet.conversation().await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "up\n").await;
    sheet.click("new-conversation").await;
    sheet.browser.state("ready").await;
    sheet.says("elsewhere", |text| text.contains(&first)).await;
    sheet.reload("ready").await;
    sheet.says("elsewhere", |text| text.contains(&first)).await;
    // Another program runs here meanwhile.
    assert_eq!(sheet.run("python", "print here").await, "exited");
    sheet.click("elsewhere-stop").await;
    until("nothing runs elsewhere", async || sheet.attribute("elsewhere", "hidden").await == "").await;
    let focused = "return document.activeElement.id";
    assert_eq!(sheet.browser.script(focused).await, "output-body", "the focus is not lost with the button");
    until("its sandbox is gone", async || server.engine.live().is_empty()).await;
    sheet.browser.driver.back().await.expect("back");
    sheet.says("verdict-text", |text| text == "Cancelled").await;

    // Where it runs, it is followed again, and Escape stops it from the editor.
    sheet.write("python", "print again\nhang").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "again\n").await;
    sheet.click("new-conversation").await;
    sheet.browser.state("ready").await;
    sheet.browser.driver.back().await.expect("back");
    sheet.browser.state("running").await;
    assert_eq!(sheet.attribute("elsewhere", "hidden").await, "");
    sheet.says("terminal", |text| text == "again\n").await;
    let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
    editor.send_keys(Key::Escape + "").await.expect("typed");
    assert_eq!(sheet.ended().await, "cancelled");
    sheet.browser.close().await;
    server.stop().await;
}

/// Holds the answers to requests that fulfil a condition on `path` and `init`, until `window.release()`; the page sees
/// that of `window.answer` where there is one. `window.held` says that a request was made, `window.passed` that its
/// answer was read.
pub(crate) async fn hold(sheet: &Sheet, condition: &str) {
    let script = format!(
        "window.realFetch ??= window.fetch; window.held = window.passed = false; \
         const open = new Promise((done) => (window.release = done)); \
         window.fetch = async (path, init) => {{ \
           if (!({condition})) return window.realFetch(path, init); \
           window.held = true; \
           const {{ status, text }} = window.answer ?? await window.realFetch(path, init) \
             .then(async (real) => ({{ status: real.status, text: await real.text() }})); \
           await open; \
           const json = async () => ((window.passed = true), JSON.parse(text)); \
           return {{ ok: status < 400, status, headers: new Headers(), json }}; \
         }}; return null"
    );
    sheet.browser.script(&script).await;
}

pub(crate) async fn is_true(sheet: &Sheet, name: &str) {
    until(name, async || sheet.browser.script(&format!("return window.{name}")).await == true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_come_late_change_nothing_and_failures_elsewhere_are_told() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let first = sheet.conversation().await;
    assert_eq!(sheet.run("python", "print one").await, "exited");
    assert_eq!(sheet.run("python", "print two").await, "exited");
    until("both are listed", async || sheet.history().await.len() == 2).await;
    // The older one is chosen, and then the one that is shown.
    hold(&sheet, r"/^v1\/runs\/[^/?]+$/.test(path)").await;
    sheet.choose(1).await;
    is_true(&sheet, "held").await;
    sheet.choose(0).await;
    sheet.browser.script("window.release(); return null").await;
    is_true(&sheet, "passed").await;
    assert_eq!(sheet.text("terminal").await, "two\n");

    let refused = json!({"status": 429, "text": r#"{"code": "queue_full", "detail": "The queue is full."}"#});
    sheet.browser.driver.execute("window.answer = arguments[0]", vec![refused]).await.expect("set");
    hold(&sheet, "init?.method === 'POST' && path === 'v1/runs'").await;
    sheet.start().await;
    is_true(&sheet, "held").await;
    sheet.click("new-conversation").await;
    sheet.browser.state("ready").await;
    sheet.browser.script("window.release(); return null").await;
    sheet.says("live", |text| text == format!("{first}: The queue is full.")).await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_refused_after_cancel_is_not_asked_for_again() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.click("token").await;
    hold(&sheet, "path === 'v1/runners' && (window.signal = init.signal)").await;
    sheet.browser.element("token-input").await.send_keys("wrong").await.expect("typed");
    sheet.click("token-save").await;
    is_true(&sheet, "held").await;
    sheet.browser.script("document.getElementById('token-cancel').click(); return null").await;
    sheet.browser.script("window.release(); return null").await;
    let is_done = "return !document.querySelector('[data-testid=token-save]').disabled";
    until("the refusal is handled", async || sheet.browser.script(is_done).await == true).await;
    assert_eq!(sheet.attribute("token-dialog", "open").await, Value::Null);
    assert_eq!(sheet.browser.script("return window.signal.aborted").await, true, "a right one is given up too");
    assert_eq!(sheet.run("python", "print still").await, "exited", "the former token is used");
    sheet.browser.close().await;
    server.stop().await;
}

/// A link to the program in the editor, as the page copies it.
pub(crate) async fn link(sheet: &Sheet) -> String {
    let copy = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; \
                document.querySelector('[data-testid=share]').click()";
    sheet.browser.script(copy).await;
    until("a link", async || sheet.browser.script("return window.copied ?? null").await != Value::Null).await;
    sheet.browser.script("return window.copied").await.as_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_brings_the_program_back_where_there_is_no_runner() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("bash", "print shared").await;
    let link = link(&sheet).await;
    sheet.write("bash", "print mine").await;
    sheet.browser.script("document.querySelector('[data-testid=args]').value = 'a b'").await;
    server.engine.set_runners(Vec::new());
    let runners = format!("http://{}/v1/runners", server.address);
    until("no runner is left", async || {
        let answer = server.http.get(&runners).bearer_auth(TOKEN).send().await.expect("an answer");
        answer.json::<Value>().await.expect("JSON")["runners"] == json!([])
    })
    .await;
    sheet.browser.driver.goto(&link).await.expect("the page");
    sheet.browser.state("error").await;
    sheet.says("editor", |text| text.contains("print shared")).await;
    let undo = "document.getElementById('toast-action').click(); return [ \
                document.querySelector('[data-testid=editor]').cmView.state.doc.toString(), \
                document.querySelector('[data-testid=args]').value]";
    assert_eq!(sheet.browser.script(undo).await, json!(["print mine", "a b"]));
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_and_looks_are_remembered_by_choice_and_links_hold_programs() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let base = format!("http://{}/", server.address);
    let kept = format!("return JSON.stringify({{...localStorage}}).includes('{TOKEN}')");
    assert_eq!(sheet.browser.script(&kept).await, false);

    // A link to the program, from a page that has other work in it.
    sheet.write("bash", "print <shared> & ünïcode").await;
    let link = link(&sheet).await;
    assert!(link.starts_with(&format!("{base}#program=")), "{link}");
    sheet.write("python", "print mine").await;
    sheet.browser.driver.goto(&link).await.expect("the page");
    sheet.browser.state("ready").await;
    sheet.says("editor", |text| text.contains("<shared> & ünïcode")).await;
    assert!(!address(&sheet).await.contains('#'));
    assert_eq!(sheet.history().await, [""; 0], "nothing has run");
    assert_eq!(sheet.language().await, "bash");
    for broken in ["#program=x", "#program=q1Y", "#program=%00", "#program=q64FAA"] {
        sheet.browser.driver.goto("about:blank").await.expect("away");
        sheet.browser.driver.goto(format!("{base}{broken}")).await.expect("the page");
        sheet.browser.state("ready").await;
        sheet.says("live", |text| text.contains("could not be read")).await;
    }

    // Remembered by choice: the token in a new tab, and the size of a pane.
    sheet.click("token").await;
    sheet.browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
    sheet.click("token-remember").await;
    sheet.click("token-save").await;
    until("it is kept", async || sheet.browser.script(&kept).await == true).await;
    let edge = sheet.browser.element("split-columns").await;
    edge.send_keys(Key::Right + Key::Right).await.expect("typed");
    assert_eq!(sheet.attribute("split-columns", "aria-valuenow").await, "60");
    let width = "return Math.round(100 * document.getElementById('program-card').offsetWidth / \
                 document.getElementById('main').offsetWidth)";
    assert!((56..=60).contains(&sheet.browser.script(width).await.as_i64().expect("a number")));
    sheet.click("theme").await;
    let tab = sheet.browser.driver.new_tab().await.expect("a tab");
    sheet.browser.driver.switch_to_window(tab).await.expect("there");
    sheet.browser.driver.goto(&base).await.expect("the page");
    sheet.browser.state("ready").await;
    assert_eq!(sheet.attribute("split-columns", "aria-valuenow").await, "60");
    assert_eq!(sheet.browser.script("return document.documentElement.dataset.theme ?? null").await, "dark");
    sheet.click("token").await;
    sheet.click("token-forget").await;
    assert_eq!(sheet.browser.script(&kept).await, false);
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn format_changes_the_program_and_marks_its_problems() {
    let server = FakeServer::start().await;
    let problem = json!({"line": 2, "column": 5, "endLine": 2, "endColumn": 6, "rule": "F841",
        "message": "<b>unused</b>\u{202e}", "severity": "warning"});
    let answer = json!({"code": "def f():\n    x = 1\n", "problems": [problem]});
    server.engine.answer("by ruff", &answer.to_string());
    let sheet = open(&server).await;
    sheet.write("python", "def f( ):\n  x=1").await;
    let set = "document.querySelector('[data-testid=editor]').cmView.dispatch({selection: {anchor: 14}})";
    sheet.browser.script(set).await;
    sheet.click("format").await;
    sheet.says("live", |text| text.starts_with("Formatted. 1 problem, in line 2: <b>unused</b>\u{27e8}U+202E")).await;
    assert_eq!(sheet.program().await, "def f():\n    x = 1\n");
    let cursor = "const {state} = document.querySelector('[data-testid=editor]').cmView; \
                  return state.doc.lineAt(state.selection.main.head).number";
    assert_eq!(sheet.browser.script(cursor).await, 2, "the cursor stays in its line");
    let marks = "return [...document.querySelectorAll('.cm-lintRange-warning')].map(mark => mark.textContent)";
    until("a mark", async || sheet.browser.script(marks).await == json!(["x"])).await;

    // By keyboard the second time; one step back is the text as it was.
    let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
    editor.send_keys(Key::Shift + Key::Alt + "f").await.expect("typed");
    sheet.says("live", |text| text.starts_with("Already formatted. 1 problem")).await;
    editor.send_keys(Key::Control + "z").await.expect("typed");
    assert_eq!(sheet.program().await, "def f( ):\n  x=1");

    // Other languages have no tools.
    server.engine.add_runner("ruby");
    until("it is offered", async || {
        sheet.reload("ready").await;
        sheet.browser.script("return Boolean(document.querySelector('option[value=ruby]'))").await == true
    })
    .await;
    let disabled = "return document.querySelector('[data-testid=format]').disabled";
    assert_eq!(sheet.browser.script(disabled).await, false);
    sheet.write("ruby", "puts 1").await;
    assert_eq!(sheet.browser.script(disabled).await, true);
    sheet.browser.close().await;
    server.stop().await;
}

/// One pixel.
pub(crate) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

#[tokio::test(flavor = "multi_thread")]
async fn pictures_are_shown_where_files_have_an_origin_of_their_own() {
    let server = FakeServer::with(&[("SANDBOX_FILES__BASE_URL", "http://files.test")]).await;
    let sheet = open(&server).await;
    assert_eq!(sheet.run("python", "write chart.png x").await, "exited");
    until("the reason", async || sheet.text("images").await.contains("cannot be shown")).await;
    let file = server.root.join(sheet.conversation().await).join("files/chart.png");
    std::fs::write(file, BASE64_STANDARD.decode(PNG).expect("bytes")).expect("written");
    sheet.reload("ready").await;
    let width = "return document.querySelector('[data-testid=images] img')?.naturalWidth ?? 0";
    until("the picture", async || sheet.browser.script(width).await == 1).await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_storage_does_not_keep_the_page_in_the_old_conversation() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let first = sheet.conversation().await;
    let full = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); };";
    sheet.browser.script(full).await;
    sheet.click("new-conversation").await;
    let second = sheet.conversation().await;
    assert_ne!(first, second);
    assert!(address(&sheet).await.ends_with(&format!("?c={second}")));
    assert_eq!(sheet.run("python", "write a.txt x").await, "exited");
    assert!(server.root.join(second).join("files/a.txt").exists());
    sheet.browser.close().await;
    server.stop().await;
}
