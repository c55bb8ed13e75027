//! Input typed on the page for a running program: lines, the end of the input, and lines that the server refuses.

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::{
    page_session::with_session,
    support::{FakeServer, Server, server::TOKEN, sheet::Sheet, until},
};

/// A long limit for a busy machine, and no standbys, so that remaining containers can be counted.
const SETTINGS: [(&str, &str); 2] = [("SANDBOX_LIMITS__WALL_MS", "300000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
const LINES: &str =
    "import sys\nprint('up', flush=True)\nfor line in sys.stdin:\n    print('got', line, end='', flush=True)";

async fn line_is_visible(sheet: &Sheet) -> bool {
    sheet.attribute("input-line", "hidden").await == Value::Null
}

async fn wait_for_line(sheet: &Sheet, wanted: bool) {
    let what = if wanted { "the input line" } else { "no input line" };
    until(what, async || line_is_visible(sheet).await == wanted).await;
}

async fn type_input(sheet: &Sheet, keys: impl Into<TypingData>) {
    sheet.browser.element("input-field").await.send_keys(keys).await.expect("typed");
}

/// The `data-testid` of the focused element or of its closest ancestor that has one.
async fn focused_element(sheet: &Sheet) -> Value {
    sheet.browser.script("return document.activeElement.closest('[data-testid]')?.dataset.testid").await
}

async fn field_text(sheet: &Sheet) -> String {
    let value = sheet.browser.script("return document.querySelector('[data-testid=input-field]').value").await;
    value.as_str().expect("a text").to_owned()
}

/// The newest run of the conversation in the form of `/v1`.
async fn newest_run(http: &reqwest::Client, base: &str, conversation: &str) -> Value {
    let request = http.get(format!("{base}/v1/runs")).query(&[("conversationId", conversation)]).bearer_auth(TOKEN);
    let list: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    list["runs"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn input_reaches_a_running_program() {
    let server = Server::with(&SETTINGS).await;
    let sheet = Sheet::open(&server.url("/")).await;
    prompt_is_answered(&sheet).await;
    input_appears_after_its_prompt(&sheet).await;
    input_is_ended(&sheet).await;
    arguments_and_input_are_given_before_the_run(&sheet).await;
    programs_without_input_show_no_line(&sheet).await;
    line_returns_after_reload_and_selection(&sheet).await;
    closed_input_hides_the_line_without_error(&server, &sheet).await;
    refused_input_stays_in_the_field(&server, &sheet).await;
    sheet.browser.close().await;
    server.stop().await;
}

async fn prompt_is_answered(sheet: &Sheet) {
    sheet.write("python", "name = input('Name? ')\nprint(f'Hello, {name}!')").await;
    let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
    editor.send_keys(Key::Control + Key::Enter).await.expect("typed");
    sheet.says("terminal", |text| text == "Name? ").await;
    wait_for_line(sheet, true).await;
    sheet.says("live", |text| text.contains("input")).await;
    until("the prompt gets the focus", async || focused_element(sheet).await == "input-field").await;
    let here = sheet.browser.driver.active_element().await.expect("a focused element");
    here.send_keys(Key::Tab).await.expect("typed");
    assert_eq!(focused_element(sheet).await, "input-end");
    type_input(sheet, "Ada" + Key::Enter).await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("terminal").await, "Name? Ada\nHello, Ada!\n", "input appears where it was typed");
    assert!(!line_is_visible(sheet).await);
    assert_ne!(focused_element(sheet).await, "run", "one more Enter starts nothing");
    let copy = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; \
                document.getElementById('terminal-copy').click(); return window.copied";
    assert_eq!(sheet.browser.script(copy).await, "Name? Hello, Ada!\n", "a copy contains only printed text");
    let note = sheet.text("stdout-note").await;
    assert_eq!(note, "stdout 18 B", "the size counts only printed text");
}

async fn input_appears_after_its_prompt(sheet: &Sheet) {
    sheet.write("bash", "echo begin; printf 'Name? ' >&2; read -r name; echo \"Hello, $name!\" >&2").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "begin\nName? ").await;
    wait_for_line(sheet, true).await;
    type_input(sheet, "Ada" + Key::Enter).await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("terminal").await, "begin\nName? Ada\nHello, Ada!\n");
}

async fn input_is_ended(sheet: &Sheet) {
    let code = "import sys\nprint(repr(sys.stdin.read()))";
    sheet.write("python", code).await;
    sheet.start().await;
    wait_for_line(sheet, true).await;
    // Pasted lines are sent unchanged; text in the field when the input is ended is its last line.
    sheet.browser.script("document.querySelector('[data-testid=input-field]').value = 'a\\nb <i>\\n'").await;
    type_input(sheet, Key::Enter + "").await;
    type_input(sheet, "c").await;
    sheet.click("input-end").await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("terminal").await, "a\nb <i>\nc\n'a\\nb <i>\\nc\\n'\n");

    sheet.start().await;
    wait_for_line(sheet, true).await;
    type_input(sheet, Key::Control + "d").await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("terminal").await, "''\n");
    assert!(!line_is_visible(sheet).await);
}

async fn arguments_and_input_are_given_before_the_run(sheet: &Sheet) {
    sheet.browser.script("document.getElementById('given').open = true").await;
    sheet.browser.element("args").await.send_keys(r#"a "b c" 'd "e' f\ g --x=1 "" "#).await.expect("typed");
    sheet.browser.element("stdin").await.send_keys("one\ntwo").await.expect("typed");
    let code = "import sys\nprint(sys.argv[1:], repr(sys.stdin.read()))";
    assert_eq!(sheet.run("python", code).await, "exited");
    let expected = "['a', 'b c', 'd \"e', 'f g', '--x=1', ''] 'one\\ntwo'\n";
    assert_eq!(sheet.text("terminal").await, expected);
    // They survive a reload with the draft, and a quote that is not closed starts nothing.
    sheet.reload("ready").await;
    sheet.browser.element("args").await.send_keys(" 'open").await.expect("typed");
    let before = sheet.history().await.len();
    sheet.click("run").await;
    until("the mistake is said", async || {
        sheet.browser.script("return document.getElementById('args-error').textContent").await
            == r"A quote is not closed: close it, or write \ before it."
    })
    .await;
    assert_eq!((focused_element(sheet).await, sheet.history().await.len()), (json!("args"), before));
    for name in ["args", "stdin"] {
        sheet.browser.element(name).await.clear().await.expect("cleared");
    }
}

async fn programs_without_input_show_no_line(sheet: &Sheet) {
    for (language, code) in [("python", "print('x')"), ("javascript", "console.log('x')"), ("bash", "echo x")] {
        assert_eq!(sheet.run(language, code).await, "exited");
        assert_eq!(sheet.text("terminal").await, "x\n", "{language}");
        assert!(!line_is_visible(sheet).await, "{language}");
    }
}

async fn line_returns_after_reload_and_selection(sheet: &Sheet) {
    sheet.write("python", LINES).await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "up\n").await;
    wait_for_line(sheet, true).await;
    type_input(sheet, "one" + Key::Enter).await;
    sheet.says("terminal", |text| text == "up\none\ngot one\n").await;
    sheet.says("live", |text| text == "Sent: one").await;
    type_input(sheet, "not sent").await;
    until("it is listed", async || sheet.history().await[0] == "running").await;
    // A finished run has no line; selecting the running one restores line and text.
    sheet.choose(1).await;
    sheet.says("terminal", |text| text == "x\n").await;
    assert!(!line_is_visible(sheet).await);
    sheet.choose(0).await;
    wait_for_line(sheet, true).await;
    sheet.says("terminal", |text| text == "up\none\ngot one\n").await;
    assert_eq!(field_text(sheet).await, "not sent");

    sheet.reload("running").await;
    wait_for_line(sheet, true).await;
    sheet.says("terminal", |text| text == "up\none\ngot one\n").await;
    // Faster than the server answers.
    type_input(sheet, "two\nthree\nfour\n").await;
    sheet.says("terminal", |text| text.ends_with("\ngot four\n")).await;
    let text = sheet.text("terminal").await;
    let got: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("got ")).collect();
    assert_eq!(got, ["one", "two", "three", "four"]);
    sheet.click("input-end").await;
    assert_eq!(sheet.ended().await, "exited");
    assert!(!line_is_visible(sheet).await);

    // Stop ends a program that waits for input.
    sheet.start().await;
    wait_for_line(sheet, true).await;
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    assert!(!line_is_visible(sheet).await);
}

async fn closed_input_hides_the_line_without_error(server: &Server, sheet: &Sheet) {
    let code = format!("{LINES}\nimport time\nprint('end', flush=True)\ntime.sleep(100000)");
    sheet.write("python", &code).await;
    sheet.start().await;
    wait_for_line(sheet, true).await;
    let run = newest_run(&server.http, &server.url(""), &sheet.conversation().await).await;
    assert_eq!(run["stdinOpen"], true, "{run}");
    let path = format!("/v1/runs/{}/stdin?eof=true", run["runId"].as_str().expect("a run"));
    let ended = server.http.post(server.url(&path)).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(ended.status(), 202);
    sheet.says("terminal", |text| text == "up\nend\n").await;
    type_input(sheet, "late" + Key::Enter).await;
    wait_for_line(sheet, false).await;
    assert_eq!(sheet.text("terminal").await, "up\nend\n", "refused input is not shown as sent");
    assert_eq!(sheet.text("input-error").await, "");
    // After a reload the run says that it accepts no input.
    sheet.reload("running").await;
    sheet.says("terminal", |text| text == "up\nend\n").await;
    let run = newest_run(&server.http, &server.url(""), &sheet.conversation().await).await;
    assert_eq!(run["stdinOpen"], false, "{run}");
    assert!(!line_is_visible(sheet).await);
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
}

async fn refused_input_stays_in_the_field(server: &Server, sheet: &Sheet) {
    const LONG: usize = 900_000;
    let code = "import os, sys, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n\
                print([(line[0], len(line)) for line in sys.stdin])";
    sheet.write("python", code).await;
    sheet.start().await;
    wait_for_line(sheet, true).await;
    let mut lines = 0;
    let put = "document.querySelector('[data-testid=input-field]').value = arguments[0] + 'x'.repeat(arguments[1] - 1)";
    let full = loop {
        sheet.browser.driver.execute(put, vec![json!(lines.to_string()), json!(LONG)]).await.expect("written");
        type_input(sheet, Key::Enter + "").await;
        until("it is accepted or refused", async || {
            let taken = sheet.text("live").await.starts_with(&format!("Sent: {lines}"));
            taken || sheet.attribute("input-error", "hidden").await == Value::Null
        })
        .await;
        lines += 1;
        let error = sheet.text("input-error").await;
        if !error.is_empty() {
            break error;
        }
        assert!(lines < 16, "the server accepted {lines} lines for a program that never reads");
    };
    assert!(full.contains("wait until it reads"), "{full}");
    assert_eq!(field_text(sheet).await.len(), LONG, "the line stays in the field");
    let folder = server.root.join(sheet.conversation().await).join("files");
    std::fs::write(folder.join("go"), "").expect("a file");
    until("it is accepted", async || {
        if field_text(sheet).await.is_empty() {
            return sheet.text("live").await.starts_with(&format!("Sent: {}", lines - 1));
        }
        type_input(sheet, Key::Enter + "").await;
        false
    })
    .await;
    sheet.click("input-end").await;
    assert_eq!(sheet.ended().await, "exited");
    let expected = (0..lines).map(|line| format!("('{line}', {})", LONG + 1)).collect::<Vec<_>>().join(", ");
    let text = sheet.text("terminal").await;
    assert!(text.ends_with(&format!("[{expected}]\n")), "{}", &text[text.len().saturating_sub(400)..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_runner_gets_no_open_input() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let base = format!("http://{}", server.address);
    let sheet = Sheet::open(&format!("{base}/")).await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    // The server would refuse an open input for this runner.
    sheet.says("terminal", |text| text == "up\n").await;
    let run = newest_run(&server.http, &base, &sheet.conversation().await).await;
    assert_eq!((&run["state"], &run["stdinOpen"]), (&json!("running"), &json!(false)), "{run}");
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    assert!(!line_is_visible(&sheet).await);
    sheet.browser.close().await;
    server.stop().await;
}

/// Sends a line to the running cell as a client of `/v1` does.
async fn answer(server: &FakeServer, conversation: &str, line: &'static str) {
    let base = format!("http://{}", server.address);
    let run = newest_run(&server.http, &base, conversation).await;
    let address = format!("{base}/v1/runs/{}/stdin", run["runId"].as_str().expect("a run"));
    let sent = server.http.post(address).bearer_auth(TOKEN).body(line).send().await.expect("an answer");
    assert_eq!(sent.status(), 202);
}

#[tokio::test(flavor = "multi_thread")]
async fn answered_request_of_a_cell_leaves_every_page() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let first = with_session(&server).await;
    let conversation = first.conversation().await;
    let second = Sheet::open(&format!("http://{}/?c={conversation}", server.address)).await;
    first.write("python", "ask name?\nwait-file go\nask and then?\nask last?\nprint end\nhang").await;
    first.start().await;
    for sheet in [&first, &second] {
        sheet.says("input-prompt", |text| text == "name?").await;
        wait_for_line(sheet, true).await;
    }
    type_input(&first, "Ada" + Key::Enter).await;
    for sheet in [&first, &second] {
        wait_for_line(sheet, false).await;
    }
    second.says("terminal", |text| text == "name?Ada\n").await;

    std::fs::write(server.root.join(&conversation).join("files/go"), "").expect("a file");
    for sheet in [&first, &second] {
        sheet.says("input-prompt", |text| text == "and then?").await;
        wait_for_line(sheet, true).await;
    }
    until("the focus is where it was", async || focused_element(&first).await == "input-field").await;
    // The next request takes the place of one that is answered, and of the last one nothing stays.
    answer(&server, &conversation, "Bob\n").await;
    for sheet in [&first, &second] {
        sheet.says("input-prompt", |text| text == "last?").await;
        wait_for_line(sheet, true).await;
    }
    answer(&server, &conversation, "Cid\n").await;
    for sheet in [&first, &second] {
        wait_for_line(sheet, false).await;
    }
    second.reload("running").await;
    second.says("terminal", |text| text.ends_with("last?Cid\nend\n")).await;
    assert!(!line_is_visible(&second).await);
    first.click("stop").await;
    for sheet in [first, second] {
        assert_eq!(sheet.ended().await, "cancelled");
        sheet.browser.close().await;
    }
    server.stop().await;
}
