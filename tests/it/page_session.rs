//! Sessions on the page: the switch beside Run, what a cell shows, its input, and how a session ends.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::{
    page_access::{LOOKS, findings, look_as},
    support::{FakeServer, calls, sheet::Sheet, until},
};

/// A table as a data frame's, with what no page should take over.
const TABLE: &str = "<style>body { display: none }</style><script>window.hit = 1</script><p>Rows <b>here</b></p>\
    <img src=x onerror=window.hit=2><a href='javascript:window.hit=3'>link</a><iframe src=/docs></iframe>\
    <form action=/v1/runs><input name=a></form><svg onload=window.hit=4></svg>\
    <table border=1 onclick=window.hit=5 id=run><thead><tr><th></th><th>name</th><th>count</th></tr></thead>\
    <tbody><tr><th>0</th><td>&lt;i&gt;a\u{202e}b</td><td>12</td></tr></tbody></table>";

pub(crate) async fn with_session(server: &FakeServer) -> Sheet {
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    sheet.write("python", "set x 41").await;
    sheet.click("session").await;
    sheet
}

async fn is_hidden(sheet: &Sheet, name: &str) -> bool {
    sheet.attribute(name, "hidden").await != Value::Null
}

/// Waits until the indicator says this.
async fn state(sheet: &Sheet, wanted: &str) {
    let reached =
        until::within(until::PATIENCE, async || sheet.attribute("session-state", "data-state").await == wanted);
    assert!(reached.await.is_ok(), "it is not {wanted}");
}

/// Stops or resumes the page's regular questions to the server.
async fn look_away(sheet: &Sheet, away: bool) {
    let script = format!("Object.defineProperty(document, 'hidden', {{configurable: true, get: () => {away}}})");
    sheet.browser.script(&script).await;
}

/// The open sessions of the server, in the form of `/v1`.
async fn sessions(server: &FakeServer) -> Vec<Value> {
    calls::get(server, "/v1/sessions").await["sessions"].as_array().expect("a list").clone()
}

async fn close_session(server: &FakeServer) {
    let id = sessions(server).await[0]["sessionId"].as_str().expect("a session").to_owned();
    assert_eq!(calls::ask(server, Method::DELETE, &format!("/v1/sessions/{id}"), None).await.0, 200);
}

/// What is said of the displays: their text, and the elements in them.
async fn displays(sheet: &Sheet) -> (String, Vec<String>) {
    let script = "const box = document.querySelector('[data-testid=displays]'); return [box.innerText, \
                  [...box.querySelectorAll('*')].map(e => e.localName)]";
    serde_json::from_value(sheet.browser.script(script).await).expect("a text and a list")
}

async fn shows(sheet: &Sheet, wanted: &str) {
    let mut seen = String::new();
    let shown = until::within(until::PATIENCE, async || {
        let text = displays(sheet).await.0;
        seen = text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
        seen == wanted
    });
    let shown = shown.await.is_ok();
    assert!(shown, "{seen:?} and not {wanted:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn cells_keep_variables_and_the_switch_is_remembered() {
    let server = FakeServer::with_kernel(&[]).await;
    let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
    let first = sheet.conversation().await;
    assert_eq!(sheet.run("bash", "print plain").await, "exited");
    assert!(is_hidden(&sheet, "session").await, "bash has no sessions here");
    sheet.write("python", "set x 41").await;
    assert!(!is_hidden(&sheet, "session").await && is_hidden(&sheet, "session-bar").await);

    // By keyboard alone.
    sheet.browser.element("session").await.send_keys(" ").await.expect("typed");
    assert_eq!(sheet.attribute("session", "aria-checked").await, "true");
    state(&sheet, "none").await;
    assert_eq!(sessions(&server).await.len(), 0, "a switch opens nothing");
    let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
    editor.send_keys(Key::Control + Key::Enter).await.expect("typed");
    state(&sheet, "idle").await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.run("python", "get x").await, "exited");
    assert_eq!(sheet.text("terminal").await, "41\n", "the last expression is shown");
    assert_eq!(sessions(&server).await.len(), 1, "one session for all cells");
    let chips = "return [...document.querySelectorAll('[data-testid=history-run]')].map(e => e.children[1].innerText)";
    assert_eq!(sheet.browser.script(chips).await, json!(["Python cell", "Python cell", "Bash"]));
    assert_eq!(sheet.run("python", "raise ValueError bad").await, "exited");
    assert_eq!(sheet.text("sentence").await, "ValueError: bad");
    assert_eq!(sheet.text("terminal").await, "Traceback: ValueError: bad\n", "once, and with its colours");
    assert_eq!(sheet.browser.script("return document.querySelector('#terminal .fg1')?.textContent").await, "Traceback");
    // Another language and another conversation have their own choice; a reload keeps both.
    assert_eq!(sheet.run("bash", "print plain").await, "exited");
    assert!(is_hidden(&sheet, "session-bar").await);
    sheet.write("python", "get x").await;
    state(&sheet, "idle").await;
    sheet.click("new-conversation").await;
    sheet.browser.state("ready").await;
    assert_eq!(sheet.attribute("session", "aria-checked").await, "false");
    sheet.browser.driver.back().await.expect("back");
    until("the first conversation", async || sheet.conversation().await == first).await;
    sheet.reload("ready").await;
    assert_eq!(sheet.attribute("session", "aria-checked").await, "true");
    state(&sheet, "idle").await;
    assert_eq!(sheet.run("python", "get x").await, "exited");
    assert_eq!(sheet.text("terminal").await, "41\n");

    // Without the switch, nothing is kept.
    sheet.click("session").await;
    assert_eq!(sheet.run("python", "print alone").await, "exited");
    assert_eq!(sessions(&server).await[0]["cells"], 4);
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_interrupted_restarted_and_gone() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = with_session(&server).await;
    assert_eq!(sheet.run("python", "set x 41").await, "exited");
    for (button, ended) in [("session-interrupt", "exited"), ("stop", "cancelled")] {
        sheet.write("python", "print up\nhang").await;
        sheet.start().await;
        sheet.says("terminal", |text| text == "up\n").await;
        state(&sheet, "busy").await;
        assert_eq!(sheet.attribute("session-interrupt", "aria-disabled").await, "false");
        sheet.click(button).await;
        assert_eq!(sheet.ended().await, ended);
        state(&sheet, "idle").await;
        assert_eq!(sheet.attribute("session-interrupt", "aria-disabled").await, "true");
        assert_eq!(sheet.run("python", "get x").await, "exited");
        assert_eq!(sheet.text("terminal").await, "41\n", "{button} keeps the variables");
    }

    let id = sessions(&server).await[0]["sessionId"].clone();
    sheet.click("session-restart").await;
    sheet.click("confirm-no").await;
    sheet.click("session-restart").await;
    sheet.click("confirm-yes").await;
    sheet.says("live", |text| text.contains("restarted")).await;
    state(&sheet, "idle").await;
    assert_eq!(sessions(&server).await[0]["sessionId"], id);
    assert_eq!(sheet.run("python", "get x").await, "exited");
    assert!(sheet.text("sentence").await.starts_with("NameError"));

    // A kernel that ends takes its cell with it, and the page says why.
    sheet.run("python", "exit 3").await;
    state(&sheet, "gone").await;
    assert!(sheet.text("session-why").await.contains("status 3"), "{}", sheet.text("session-why").await);
    assert_eq!(sheet.run("python", "set y 1").await, "exited");
    state(&sheet, "idle").await;
    assert!(is_hidden(&sheet, "session-why").await);

    // One that was closed elsewhere: seen by itself.
    close_session(&server).await;
    state(&sheet, "gone").await;
    assert!(sheet.text("session-why").await.contains("it was closed"));

    // Or by the next cell, which is not executed in a session that knows nothing.
    look_away(&sheet, true).await;
    assert_eq!(sheet.run("python", "set y 1").await, "exited");
    state(&sheet, "idle").await;
    let edit = "const view = document.querySelector('[data-testid=editor]').cmView; \
                view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: 'write made.txt x'}})";
    sheet.browser.script(edit).await;
    close_session(&server).await;
    sheet.start().await;
    assert_eq!(sheet.ended().await, "error");
    state(&sheet, "gone").await;
    assert!(sheet.text("sentence").await.contains("it was closed"));
    assert_eq!(sessions(&server).await.len(), 0);
    assert!(!server.root.join(sheet.conversation().await).join("files/made.txt").exists());
    look_away(&sheet, false).await;
    assert_eq!(sheet.run("python", "print again").await, "exited");
    assert_eq!(sheet.text("terminal").await, "again\n");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_markdown_and_pictures_are_shown_and_nothing_of_them_acts() {
    let server = FakeServer::with_kernel(&[]).await;
    let sheet = with_session(&server).await;
    let listen = "window.refused = []; addEventListener('securitypolicyviolation', (e) => refused.push(e.blockedURI))";
    sheet.browser.script(listen).await;
    assert_eq!(sheet.run("python", &format!("show text/html {TABLE}")).await, "exited");
    until("the table", async || displays(&sheet).await.1.contains(&"table".to_owned())).await;
    let (text, elements) = displays(&sheet).await;
    assert!(text.starts_with("Rows here"), "{text}");
    assert!(text.contains("name\tcount") && text.contains("0\t<i>a⟨U+202E⟩b\t12"), "{text}");
    let strange = ["script", "style", "img", "iframe", "form", "input", "svg", "a"];
    assert!(strange.iter().all(|name| !elements.contains(&(*name).to_owned())), "{elements:?}");
    let attributes = "return [...new Set([...document.querySelectorAll('[data-testid=displays] *')].flatMap(e => \
                      e.getAttributeNames()))].sort()";
    assert_eq!(sheet.browser.script(attributes).await, json!(["aria-label", "class", "role", "tabindex"]));
    assert_eq!(sheet.browser.script("return window.hit ?? null").await, Value::Null);

    assert_eq!(sheet.run("python", "show text/markdown **bold** <b>raw</b>").await, "exited");
    shows(&sheet, "bold <b>raw</b>").await;
    assert!(displays(&sheet).await.1.contains(&"strong".to_owned()));
    assert_eq!(sheet.run("python", "show text/html <script>1</script>").await, "exited");
    shows(&sheet, "A page with scripts. Open it from the list of files.").await;
    until("its file", async || sheet.text("files").await.contains(".html")).await;

    // A picture is shown once, although it is a file too.
    assert_eq!(sheet.run("python", "figure\nfigure").await, "exited");
    until("the pictures", async || {
        let script = "return [...document.querySelectorAll('[data-testid=displays] img')].map(e => e.naturalWidth)";
        sheet.browser.script(script).await == json!([1, 1])
    })
    .await;
    until("its files", async || sheet.text("files").await.matches(".png").count() == 2).await;
    assert!(is_hidden(&sheet, "images").await);
    // The parser's document refuses handlers and styles; nothing was loaded.
    assert_eq!(sheet.browser.script("return refused.filter((what) => what !== 'inline')").await, json!([]));
    // And again after a reload, from the run's log.
    sheet.reload("ready").await;
    until("the pictures", async || displays(&sheet).await.1 == ["div", "img", "div", "img"]).await;
    assert!(is_hidden(&sheet, "images").await);
    sheet.browser.close().await;
    server.stop().await;
}

/// Makes the page's next runs have these events in place of their own.
async fn play(sheet: &Sheet, events: Value) {
    let script = "window.realFetch ??= window.fetch; const events = arguments[0]; \
                  const lines = events.map((one, at) => `data: ${JSON.stringify({number: at + 1, ...one})}\\n\\n`); \
                  const bytes = new TextEncoder().encode(lines.join('')); \
                  const start = (stream) => { stream.enqueue(bytes); \
                  if (events.at(-1).kind === 'finished') stream.close(); }; \
                  window.fetch = async (path, ...rest) => String(path).endsWith('/events') \
                  ? new Response(new ReadableStream({start})) : window.realFetch(path, ...rest)";
    sheet.browser.driver.execute(script, vec![events]).await.expect("installed");
}

fn finished() -> Value {
    json!({"kind": "finished", "outcome": {"ended": "exited", "exitCode": 0},
        "figures": {"wallMs": 1, "stdoutBytes": 0, "stderrBytes": 0}})
}

#[tokio::test(flavor = "multi_thread")]
async fn updates_replace_clears_remove_and_passwords_stay_secret() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = with_session(&server).await;
    let html = |text: &str| json!({"text/html": format!("<p>{text}</p>"), "text/plain": text});
    let show = |kind: &str, id: &str, text: &str| json!({"kind": kind, "displayId": id, "data": html(text)});
    let print = |text: &str| json!({"kind": "stdout", "text": text});
    let clear = |wait: bool| json!({"kind": "clear", "wait": wait});
    let cases = [
        (
            json!([show("display", "a", "1"), show("display", "b", "2"), show("update", "a", "3"), finished()]),
            "3\n2",
            "",
        ),
        // One that is not here was shown by an earlier cell, and its text is in no terminal.
        (json!([{"kind": "update", "displayId": "__proto__", "data": {"text/plain": "<i>"}}, finished()]), "<i>", ""),
        (json!([print("old\n"), show("display", "a", "1"), clear(false), print("new\n"), finished()]), "", "new\n"),
        (json!([print("old\n"), show("display", "a", "1"), clear(true), finished()]), "1", "old\n"),
        (json!([print("old\n"), clear(true), show("result", "a", "2"), finished()]), "2", ""),
        (json!([{"kind": "display", "data": {"application/json": "{\"a\": 1}"}}, finished()]), "{\"a\": 1}", ""),
        (
            json!([{"kind": "display", "data": {"image/png": "!", "text/plain": "x"}}, {"kind": "display"},
            {"kind": "unheard-of"}, finished()]),
            "",
            "",
        ),
        (json!([{"kind": "display", "data": {"image/png": "AAAA"}}, finished()]), "This picture cannot be shown.", ""),
    ];
    for (events, shown, printed) in cases {
        play(&sheet, events).await;
        assert_eq!(sheet.run("python", "print x").await, "exited");
        shows(&sheet, shown).await;
        assert_eq!(sheet.text("terminal").await, printed, "{shown}");
    }
    // Deeper and longer than anything that should be built.
    let deep = format!("{}x", "<div>".repeat(20_000));
    let long = "<tr><td>1</td></tr>".repeat(12_000);
    for text in [deep, format!("<table>{long}</table>")] {
        play(&sheet, json!([{"kind": "display", "data": {"text/html": text}}, finished()])).await;
        assert_eq!(sheet.run("python", "print x").await, "exited");
        until("it is shown", async || !displays(&sheet).await.0.trim().is_empty()).await;
        let count = displays(&sheet).await.1.len();
        assert!(count <= 20_010, "{count}");
    }

    let asked = json!({"kind": "input_request", "prompt": "Key \u{202e}: ", "password": true, "number": 1000});
    play(&sheet, json!([{"kind": "started"}, asked])).await;
    sheet.write("python", "hang").await;
    sheet.start().await;
    sheet.says("input-prompt", |text| text == "Key ⟨U+202E⟩:").await;
    let field = sheet.browser.element("input-field").await;
    field.send_keys("hunter2").await.expect("typed");
    let look = "return getComputedStyle(document.querySelector('[data-testid=input-field]')).webkitTextSecurity";
    assert_eq!(sheet.browser.script(look).await, "disc");
    field.send_keys(Key::Enter + "").await.expect("typed");
    sheet.says("live", |text| text == "Sent.").await;
    let all = sheet.browser.script("return document.body.textContent").await;
    assert!(!all.as_str().expect("text").contains("hunter2"));
    sheet.browser.script("window.fetch = window.realFetch").await;
    sheet.reload("running").await;
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_asks_for_input() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = with_session(&server).await;
    sheet.write("python", "ask name? \nask and then?\nprint end").await;
    sheet.start().await;
    sheet.says("input-prompt", |text| text == "name?").await;
    until("the prompt gets the focus", async || {
        sheet.browser.script("return document.activeElement.id").await == "input-field"
    })
    .await;
    let field = sheet.browser.element("input-field").await;
    field.send_keys("Ada" + Key::Enter).await.expect("typed");
    sheet.says("input-prompt", |text| text == "and then?").await;
    assert!(sheet.text("terminal").await.starts_with("name?Ada\n"), "{}", sheet.text("terminal").await);
    // It is there again after a reload.
    sheet.reload("running").await;
    sheet.says("input-prompt", |text| text == "and then?").await;
    state(&sheet, "busy").await;
    sheet.browser.element("input-field").await.send_keys("Bob" + Key::Enter).await.expect("typed");
    assert_eq!(sheet.ended().await, "exited");
    assert!(sheet.text("terminal").await.ends_with("Bob\nend\n"), "{}", sheet.text("terminal").await);
    assert!(is_hidden(&sheet, "input-line").await);
    // Given before, it is not asked for. Arguments have no place in a cell.
    sheet.browser.script("document.getElementById('given').open = true").await;
    assert_eq!(sheet.browser.script("return document.getElementById('args').offsetParent").await, Value::Null);
    sheet.browser.element("stdin").await.send_keys("one\ntwo").await.expect("typed");
    assert_eq!(sheet.run("python", "ask a\nask b").await, "exited");
    assert!(sheet.text("terminal").await.contains("one\n") && sheet.text("terminal").await.contains("two\n"));
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_in_a_session() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = with_session(&server).await;
    let mut found = Vec::new();
    for (what, phone) in LOOKS {
        look_as(&sheet, phone).await;
        let rows = format!("show text/html {TABLE}\nshow text/markdown **a** `b`\nfigure\nprint x\nraise Error why");
        sheet.run("python", &rows).await;
        until("the table", async || displays(&sheet).await.1.contains(&"table".to_owned())).await;
        state(&sheet, "idle").await;
        found.extend(look(&sheet, what, "idle").await);
        sheet.write("python", "ask name?").await;
        sheet.start().await;
        sheet.says("input-prompt", |text| text == "name?").await;
        state(&sheet, "busy").await;
        found.extend(look(&sheet, what, "busy").await);
        sheet.click("session-interrupt").await;
        sheet.ended().await;
        sheet.run("python", "exit 3").await;
        state(&sheet, "gone").await;
        found.extend(look(&sheet, what, "gone").await);
        let wide = sheet.browser.script("return document.documentElement.scrollWidth - innerWidth").await;
        assert_eq!(wide, 0, "{what} scrolls sideways");
    }
    assert!(found.is_empty(), "{}", serde_json::to_string_pretty(&found).expect("JSON"));
    sheet.browser.close().await;
    server.stop().await;
}

/// What axe finds, and a picture for a person to look at, below `target/`.
async fn look(sheet: &Sheet, what: &str, state: &str) -> Vec<Value> {
    // Nothing changes while axe looks.
    look_away(sheet, true).await;
    let found = findings(&sheet.browser, &format!("{what}, {state}")).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
    std::fs::create_dir_all(&folder).expect("a folder");
    sheet.browser.screenshot(&folder.join(format!("session-{what}-{state}.png"))).await;
    look_away(sheet, false).await;
    found
}
