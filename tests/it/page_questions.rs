//! Questions of programs on the page: for the call of a tool, and for a line of input.

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::{
    page_session::with_session,
    page_state::{is_true, open},
    support::{FakeServer, sheet::Sheet, until},
};

/// The events of runs are those of `window.say(event)`, and each answer to a question is taken.
const SCRIPTED: &str = "window.realFetch = window.fetch; window.fetch = async (path, init) => { \
                          if (path.startsWith('v1/approvals/')) return new Response('{}'); \
                          if (!path.endsWith('/events')) return window.realFetch(path, init); \
                          return new Response(new ReadableStream({ start(events) { \
                            const write = (text) => events.enqueue(new TextEncoder().encode(text)); \
                            window.say = (event) => write(`data: ${JSON.stringify(event)}\\n\\n`); \
                            window.hasEvents = true; \
                          } })); \
                        }; return null";
/// The digests of the arguments `{"n":1}` and `{"n":2}`.
const FIRST: &str = "2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd";
const SECOND: &str = "363379742f80b51bdb9206579af7754911543079b9399cb3fc315fb199f476e8";

async fn say(sheet: &Sheet, event: Value) {
    sheet.browser.driver.execute("window.say(arguments[0])", vec![event]).await.expect("said");
}

/// The arguments that are asked about.
async fn asked(sheet: &Sheet) -> Value {
    let script = "return [...document.querySelectorAll('[data-testid=question-arguments]')] \
                  .map((given) => JSON.parse(given.textContent).n)";
    sheet.browser.script(script).await
}

/// A program runs, and its events are those that the test says.
async fn scripted(server: &FakeServer) -> Sheet {
    let sheet = open(server).await;
    sheet.browser.script(SCRIPTED).await;
    sheet.write("python", "print x").await;
    sheet.start().await;
    is_true(&sheet, "hasEvents").await;
    say(&sheet, json!({"number": 1, "kind": "started"})).await;
    sheet
}

/// A question about a call with `n`, asked as many seconds after noon as its event's number.
fn question(number: u32, n: u32) -> Value {
    let (id, at) = (number.to_string().repeat(32), format!("2026-01-01T12:00:0{number}Z"));
    let arguments = json!({"n": n}).to_string();
    let approval = json!({"id": id, "server": "files", "tool": "delete", "arguments": arguments, "askedAt": at});
    json!({"number": number, "kind": "approval", "approval": approval})
}

/// A call with the arguments of this digest is over.
fn over(number: u32, digest: &str) -> Value {
    ended(number, digest, "answered")
}

fn ended(number: u32, digest: &str, word: &str) -> Value {
    let tool = json!({"server": "files", "tool": "delete", "ended": word, "argumentsSha256": digest, "ms": 1});
    json!({"number": number, "kind": "tool", "tool": tool})
}

async fn allow_once(sheet: &Sheet) {
    sheet.browser.script("document.querySelector('[data-answer=once]').click(); return null").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_over_leaves_the_questions_about_other_calls_of_its_tool() {
    let server = FakeServer::start().await;
    let sheet = scripted(&server).await;
    for n in [1, 2] {
        say(&sheet, question(n + 1, n)).await;
    }
    until("both are asked about", async || asked(&sheet).await == json!([1, 2])).await;
    allow_once(&sheet).await;
    until("the first is answered", async || asked(&sheet).await == json!([2])).await;
    say(&sheet, over(4, FIRST)).await;
    sheet.says("connections-summary", |text| text == "Tools: 1 call").await;
    assert_eq!(asked(&sheet).await, json!([2]), "it still waits");
    // Answered elsewhere.
    say(&sheet, over(5, SECOND)).await;
    until("none is asked about", async || asked(&sheet).await == json!([])).await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_over_leaves_the_question_about_an_equal_call() {
    let server = FakeServer::start().await;
    let sheet = scripted(&server).await;
    // Two equal calls wait for one answer, which allows one of them; the other one asks again.
    say(&sheet, question(2, 1)).await;
    until("it is asked about", async || asked(&sheet).await == json!([1])).await;
    allow_once(&sheet).await;
    until("it is answered", async || asked(&sheet).await == json!([])).await;
    say(&sheet, question(3, 1)).await;
    until("it is asked about again", async || asked(&sheet).await == json!([1])).await;
    say(&sheet, over(4, FIRST)).await;
    sheet.says("connections-summary", |text| text == "Tools: 1 call").await;
    assert_eq!(asked(&sheet).await, json!([1]), "it still waits");

    // The person sees when each was asked, as after a reload, where the answer is not known. Both end at once.
    say(&sheet, question(5, 1)).await;
    until("both are asked about", async || asked(&sheet).await == json!([1, 1])).await;
    let times = "return [3, 5].map((second, at) => document.querySelectorAll('[data-testid=question] p')[2 * at] \
                 .textContent.includes(new Date(`2026-01-01T12:00:0${second}Z`).toLocaleTimeString()))";
    assert_eq!(sheet.browser.script(times).await, json!([true, true]));
    let both = "arguments[0].forEach((event) => window.say(event)); return null";
    let ends = json!([over(6, FIRST), over(7, FIRST)]);
    sheet.browser.driver.execute(both, vec![ends]).await.expect("said");
    until("none is asked about", async || asked(&sheet).await == json!([])).await;
    sheet.browser.close().await;
    server.stop().await;
}

/// Equal calls share a question, and one that is made again has the question of the one that was given up.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_leaves_its_question_until_the_program_ends() {
    let server = FakeServer::start().await;
    let sheet = scripted(&server).await;
    say(&sheet, question(2, 1)).await;
    until("it is asked about", async || asked(&sheet).await == json!([1])).await;
    say(&sheet, ended(3, FIRST, "cancelled")).await;
    sheet.says("connections-summary", |text| text == "Tools: 0 calls, 1 failed").await;
    assert_eq!(asked(&sheet).await, json!([1]), "an equal call waits");
    // Of two questions one is answered here. Its call is given up, and the other one is answered elsewhere.
    allow_once(&sheet).await;
    until("it is answered", async || asked(&sheet).await == json!([])).await;
    say(&sheet, question(4, 1)).await;
    until("it is asked about again", async || asked(&sheet).await == json!([1])).await;
    say(&sheet, ended(5, FIRST, "cancelled")).await;
    sheet.says("connections-summary", |text| text == "Tools: 0 calls, 2 failed").await;
    say(&sheet, over(6, FIRST)).await;
    until("none is asked about", async || asked(&sheet).await == json!([])).await;

    say(&sheet, question(7, 2)).await;
    until("it is asked about", async || asked(&sheet).await == json!([2])).await;
    let figures = json!({"wallMs": 1, "stdoutBytes": 0, "stderrBytes": 0});
    let outcome = json!({"ended": "exited", "exitCode": 0});
    say(&sheet, json!({"number": 8, "kind": "finished", "outcome": outcome, "figures": figures})).await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(asked(&sheet).await, json!([]), "no program waits");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_shown_as_they_are_sent() {
    let server = FakeServer::start().await;
    let sheet = scripted(&server).await;
    let mut event = question(2, 1);
    // A number that JavaScript has no equal of, and a line end of Unicode before a turned direction.
    let sent = "{\"id\":9007199254740993,\"list\":[{},\"a: {\\\",\u{2028}\u{202e}b\"]}";
    event["approval"]["arguments"] = json!(sent);
    say(&sheet, event).await;
    let wanted = "{\n  \"id\": 9007199254740993,\n  \"list\": [\n    {},\n    \
                  \"a: {\\\",\u{27e8}U+2028\u{27e9}\u{27e8}U+202E\u{27e9}b\"\n  ]\n}";
    let shown = "return document.querySelector('[data-testid=question-arguments]')?.textContent ?? ''";
    until("it is asked about", async || sheet.browser.script(shown).await != "").await;
    assert_eq!(sheet.browser.script(shown).await, wanted);
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_long_name_of_a_tool_is_wrapped() {
    let server = FakeServer::start().await;
    let sheet = scripted(&server).await;
    let mut event = question(2, 1);
    event["approval"]["tool"] = json!("t".repeat(128));
    say(&sheet, event).await;
    until("it is asked about", async || asked(&sheet).await == json!([1])).await;
    let wide = "const box = document.getElementById('questions'); return box.scrollWidth - box.clientWidth";
    assert_eq!(sheet.browser.script(wide).await, 0, "it scrolls sideways");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_for_a_line_that_was_answered_is_not_asked_again_when_its_cell_is_shown_again() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = with_session(&server).await;
    assert_eq!(sheet.run("python", "print before").await, "exited");
    sheet.write("python", "ask name?\nhang").await;
    sheet.start().await;
    sheet.says("input-prompt", |text| text == "name?").await;
    until("both are listed", async || sheet.history().await.len() == 2).await;
    // It is still asked for after another run was shown.
    for chosen in [1, 0] {
        sheet.choose(chosen).await;
        sheet.says("terminal", |text| text == ["name?", "before\n"][chosen]).await;
    }
    until("it is asked for", async || sheet.attribute("input-line", "hidden").await == Value::Null).await;
    sheet.browser.element("input-field").await.send_keys("Ada" + Key::Enter).await.expect("typed");
    sheet.says("live", |text| text == "Sent: Ada").await;
    // What is typed, and what the kernel makes of it.
    for (chosen, shown) in [(0, "name?Ada\nAda\n"), (1, "before\n"), (0, "name?Ada\nAda\n")] {
        sheet.choose(chosen).await;
        sheet.says("terminal", |text| text == shown).await;
    }
    assert_ne!(sheet.attribute("input-line", "hidden").await, Value::Null);
    sheet.reload("running").await;
    sheet.says("terminal", |text| text == "name?Ada\nAda\n").await;
    assert_ne!(sheet.attribute("input-line", "hidden").await, Value::Null);
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    sheet.browser.close().await;
    server.stop().await;
}
