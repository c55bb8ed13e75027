//! What a person types to a program that runs, on the page: lines, the end of the input, and what becomes of a line that
//! is not taken.

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::support::{FakeServer, Server, server::TOKEN, sheet::Sheet, until};

/// Long enough for a machine that is busy, and no standbys, so that what is left can be counted.
const SETTINGS: [(&str, &str); 2] = [("SANDBOX_LIMITS__WALL_MS", "300000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0")];
const LINES: &str =
    "import sys\nprint('up', flush=True)\nfor line in sys.stdin:\n    print('got', line, end='', flush=True)";

async fn there(sheet: &Sheet) -> bool {
    sheet.attribute("input-line", "hidden").await == Value::Null
}

async fn row(sheet: &Sheet, wanted: bool) {
    let what = if wanted { "the line for input" } else { "no line for input" };
    until(what, async || there(sheet).await == wanted).await;
}

async fn typed(sheet: &Sheet, keys: impl Into<TypingData>) {
    sheet.browser.element("input-field").await.send_keys(keys).await.expect("typed");
}

/// The `data-testid` of what has the keyboard, or of what is around it.
async fn focused(sheet: &Sheet) -> Value {
    sheet.browser.script("return document.activeElement.closest('[data-testid]')?.dataset.testid").await
}

async fn field(sheet: &Sheet) -> String {
    let value = sheet.browser.script("return document.querySelector('[data-testid=input-field]').value").await;
    value.as_str().expect("a text").to_owned()
}

/// The newest run of the conversation, as the server tells of it.
async fn newest(http: &reqwest::Client, base: &str, conversation: &str) -> Value {
    let request = http.get(format!("{base}/v1/runs")).query(&[("conversationId", conversation)]).bearer_auth(TOKEN);
    let list: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    list["runs"][0].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_asks_is_answered() {
    let server = Server::with(&SETTINGS).await;
    let sheet = Sheet::open(&server.url("/")).await;
    a_question_is_answered(&sheet).await;
    a_question_on_standard_error_is_answered_there(&sheet).await;
    the_end_of_the_input_is_told(&sheet).await;
    who_reads_nothing_ends_as_ever(&sheet).await;
    the_line_is_there_again(&sheet).await;
    a_run_that_takes_no_more_is_no_error(&server, &sheet).await;
    what_does_not_fit_stays(&server, &sheet).await;
    sheet.browser.close().await;
    server.stop().await;
}

async fn a_question_is_answered(sheet: &Sheet) {
    sheet.write("python", "name = input('Name? ')\nprint(f'Hello, {name}!')").await;
    let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
    editor.send_keys(Key::Control + Key::Enter).await.expect("typed");
    sheet.says("stdout", |text| text == "Name? ").await;
    row(sheet, true).await;
    assert_eq!(focused(sheet).await, "editor", "who writes goes on writing");
    sheet.says("live", |text| text.contains("input")).await;
    sheet.browser.script("document.querySelector('[data-testid=stdout]').focus()").await;
    for next in ["input-field", "input-end"] {
        let here = sheet.browser.driver.active_element().await.expect("something has the keyboard");
        here.send_keys(Key::Tab).await.expect("typed");
        assert_eq!(focused(sheet).await, next);
    }
    typed(sheet, "Ada" + Key::Enter).await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("stdout").await, "Name? Ada\nHello, Ada!\n", "what was typed stands where it was typed");
    assert!(!there(sheet).await);
    assert_ne!(focused(sheet).await, "run", "an Enter too many begins nothing");
    let copy = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; \
                document.getElementById('stdout-copy').click(); return window.copied";
    assert_eq!(sheet.browser.script(copy).await, "Name? Hello, Ada!\n", "a copy holds what the program printed");
    let note = sheet.text("stdout-note").await;
    assert_eq!(note, "18 B", "and so does the count");
}

async fn a_question_on_standard_error_is_answered_there(sheet: &Sheet) {
    sheet.write("bash", "echo begin; printf 'Name? ' >&2; read -r name; echo \"Hello, $name!\" >&2").await;
    sheet.start().await;
    sheet.says("stderr", |text| text == "Name? ").await;
    row(sheet, true).await;
    typed(sheet, "Ada" + Key::Enter).await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("stderr").await, "Name? Ada\nHello, Ada!\n");
    assert_eq!(sheet.text("stdout").await, "begin\n");
}

async fn the_end_of_the_input_is_told(sheet: &Sheet) {
    let code = "import sys\nprint(repr(sys.stdin.read()))";
    sheet.write("python", code).await;
    sheet.start().await;
    row(sheet, true).await;
    // Lines that are pasted are sent as they are; what is in the field when the input is ended is its last line.
    sheet.browser.script("document.querySelector('[data-testid=input-field]').value = 'a\\nb <i>\\n'").await;
    typed(sheet, Key::Enter + "").await;
    typed(sheet, "c").await;
    sheet.click("input-end").await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("stdout").await, "a\nb <i>\nc\n'a\\nb <i>\\nc\\n'\n");

    sheet.start().await;
    row(sheet, true).await;
    typed(sheet, Key::Control + "d").await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("stdout").await, "''\n");
    assert!(!there(sheet).await);
}

async fn who_reads_nothing_ends_as_ever(sheet: &Sheet) {
    for (language, code) in [("python", "print('x')"), ("javascript", "console.log('x')"), ("bash", "echo x")] {
        assert_eq!(sheet.run(language, code).await, "exited");
        assert_eq!(sheet.text("stdout").await, "x\n", "{language}");
        assert!(!there(sheet).await, "{language}");
    }
}

async fn the_line_is_there_again(sheet: &Sheet) {
    sheet.write("python", LINES).await;
    sheet.start().await;
    sheet.says("stdout", |text| text == "up\n").await;
    row(sheet, true).await;
    typed(sheet, "one" + Key::Enter).await;
    sheet.says("stdout", |text| text == "up\none\ngot one\n").await;
    typed(sheet, "not sent").await;
    until("it is listed", async || sheet.history().await[0] == "running").await;
    // A run of the past takes nothing; with the one that goes on, everything is there again.
    sheet.choose(1).await;
    sheet.says("stdout", |text| text == "x\n").await;
    assert!(!there(sheet).await);
    sheet.choose(0).await;
    row(sheet, true).await;
    sheet.says("stdout", |text| text == "up\none\ngot one\n").await;
    assert_eq!(field(sheet).await, "not sent");

    sheet.reload("running").await;
    row(sheet, true).await;
    sheet.says("stdout", |text| text == "up\ngot one\n").await;
    // Faster than the answers come.
    typed(sheet, "two\nthree\nfour\n").await;
    sheet.says("stdout", |text| text.ends_with("\ngot four\n")).await;
    let text = sheet.text("stdout").await;
    let got: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("got ")).collect();
    assert_eq!(got, ["one", "two", "three", "four"]);
    sheet.click("input-end").await;
    assert_eq!(sheet.ended().await, "exited");
    assert!(!there(sheet).await);

    // Stop ends one that waits for its input.
    sheet.start().await;
    row(sheet, true).await;
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    assert!(!there(sheet).await);
}

async fn a_run_that_takes_no_more_is_no_error(server: &Server, sheet: &Sheet) {
    let code = format!("{LINES}\nimport time\nprint('end', flush=True)\ntime.sleep(100000)");
    sheet.write("python", &code).await;
    sheet.start().await;
    row(sheet, true).await;
    let run = newest(&server.http, &server.url(""), &sheet.conversation().await).await;
    assert_eq!(run["stdinOpen"], true, "{run}");
    let path = format!("/v1/runs/{}/stdin?eof=true", run["runId"].as_str().expect("a run"));
    let ended = server.http.post(server.url(&path)).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(ended.status(), 202);
    sheet.says("stdout", |text| text == "up\nend\n").await;
    typed(sheet, "late" + Key::Enter).await;
    row(sheet, false).await;
    assert_eq!(sheet.text("stdout").await, "up\nend\n", "what nobody took was not sent");
    assert_eq!(sheet.text("input-error").await, "");
    // The server tells a page that is loaded anew that there is nothing to send to.
    sheet.reload("running").await;
    sheet.says("stdout", |text| text == "up\nend\n").await;
    let run = newest(&server.http, &server.url(""), &sheet.conversation().await).await;
    assert_eq!(run["stdinOpen"], false, "{run}");
    assert!(!there(sheet).await);
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
}

async fn what_does_not_fit_stays(server: &Server, sheet: &Sheet) {
    const LONG: usize = 900_000;
    let code = "import os, sys, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n\
                print([(line[0], len(line)) for line in sys.stdin])";
    sheet.write("python", code).await;
    sheet.start().await;
    row(sheet, true).await;
    let mut lines = 0;
    let put = "document.querySelector('[data-testid=input-field]').value = arguments[0] + 'x'.repeat(arguments[1] - 1)";
    let full = loop {
        sheet.browser.driver.execute(put, vec![json!(lines.to_string()), json!(LONG)]).await.expect("written");
        typed(sheet, Key::Enter + "").await;
        until("it is taken or refused", async || {
            let taken = sheet.text("live").await.starts_with(&format!("Sent: {lines}"));
            taken || sheet.attribute("input-error", "hidden").await == Value::Null
        })
        .await;
        lines += 1;
        let told = sheet.text("input-error").await;
        if !told.is_empty() {
            break told;
        }
        assert!(lines < 16, "a program that never reads was sent {lines} lines");
    };
    assert!(full.contains("wait until it reads"), "{full}");
    assert_eq!(field(sheet).await.len(), LONG, "the line is where it was");
    let folder = server.root.join(sheet.conversation().await).join("files");
    std::fs::write(folder.join("go"), "").expect("a file");
    until("it is taken", async || {
        if field(sheet).await.is_empty() {
            return sheet.text("live").await.starts_with(&format!("Sent: {}", lines - 1));
        }
        typed(sheet, Key::Enter + "").await;
        false
    })
    .await;
    sheet.click("input-end").await;
    assert_eq!(sheet.ended().await, "exited");
    let expected = (0..lines).map(|line| format!("('{line}', {})", LONG + 1)).collect::<Vec<_>>().join(", ");
    let text = sheet.text("stdout").await;
    assert!(text.ends_with(&format!("[{expected}]\n")), "{}", &text[text.len().saturating_sub(400)..]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_runner_is_not_asked_to_take_input() {
    let server = FakeServer::start().await;
    let base = format!("http://{}", server.address);
    let sheet = Sheet::open(&format!("{base}/")).await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    // One that asks for an open input is refused.
    sheet.says("stdout", |text| text == "up\n").await;
    let run = newest(&server.http, &base, &sheet.conversation().await).await;
    assert_eq!((&run["state"], &run["stdinOpen"]), (&json!("running"), &json!(false)), "{run}");
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    assert!(!there(&sheet).await);
    sheet.browser.close().await;
    server.stop().await;
}
