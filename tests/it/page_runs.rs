//! Runs on the page: live output, stopping, following a run again after a reload, and reports of lost connections.

use std::time::Instant;

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::support::{Server, cable::Cable, server::TOKEN, sheet::Sheet, until};

/// A Python function that waits until the test creates a file of that name in the folder.
const WAITS: &str = "import os, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.02)
";
/// A long limit for a busy machine, and no standbys, so that remaining containers can be counted.
const SETTINGS: [(&str, &str); 3] =
    [("SANDBOX_LIMITS__WALL_MS", "300000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0"), ("SANDBOX_RUNS__KEPT_MAX", "4")];

/// Creates the file that a program waits for.
async fn create_file(server: &Server, sheet: &Sheet, name: &str) {
    let folder = server.root.join(sheet.conversation().await).join("files");
    std::fs::write(folder.join(name), "").expect("a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_stopped_and_followed_again_after_reload() {
    let server = Server::with(&SETTINGS).await;
    let sheet = Sheet::open(&server.url("/")).await;
    output_appears_while_the_program_runs(&server, &sheet).await;
    stop_kills_a_program_that_ignores_signals(&server, &sheet).await;
    reload_follows_the_running_run(&server, &sheet).await;
    list_shows_finished_runs(&sheet).await;
    hostile_output_has_no_effect(&sheet).await;
    large_output_is_bounded(&sheet).await;
    sheet.browser.close().await;
    server.stop().await;
}

async fn output_appears_while_the_program_runs(server: &Server, sheet: &Sheet) {
    let watch = "const out = document.querySelector('[data-testid=terminal]'); \
                 new MutationObserver(() => { if (out.textContent.includes('first')) \
                 window.firstSeen ??= Date.now(); }) \
                 .observe(out, {childList: true, subtree: true, characterData: true});";
    sheet.browser.script(watch).await;
    let code = format!(
        "{WAITS}print('first', int(time.time() * 1000), flush=True)\nwait('go-2')\nprint('second', flush=True)\n\
         wait('go-3')\nprint('third', flush=True)"
    );
    sheet.write("python", &code).await;
    sheet.start().await;
    // The second and third line cannot be printed yet: the program waits for the test.
    sheet.says("terminal", |text| text.starts_with("first ") && text.ends_with('\n')).await;
    let printed: f64 = sheet.text("terminal").await.trim_start_matches("first ").trim().parse().expect("a time");
    let seen = sheet.browser.script("return window.firstSeen").await.as_f64().expect("a time");
    eprintln!("the first line was on the page {} ms after it was printed", seen - printed);
    assert_eq!(sheet.attribute("verdict", "data-ended").await, "running");
    sheet.says("wall", |text| text.ends_with(" s") || text.contains("min")).await;
    create_file(server, sheet, "go-2").await;
    sheet.says("terminal", |text| text.ends_with("second\n")).await;
    create_file(server, sheet, "go-3").await;
    assert_eq!(sheet.ended().await, "exited");
    assert!(sheet.text("terminal").await.ends_with("\nsecond\nthird\n"));
}

async fn stop_kills_a_program_that_ignores_signals(server: &Server, sheet: &Sheet) {
    let code = "import os, signal, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print('deaf', flush=True)
    time.sleep(100000)
time.sleep(100000)";
    sheet.write("python", code).await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "deaf\n").await;
    // That of the program before may be on its way out.
    until("one container is left", async || server.containers().await == 1).await;
    let clicked = Instant::now();
    sheet.click("stop").await;
    until("the container is gone", async || server.containers().await == 0).await;
    eprintln!("the container was gone {} ms after the click on Stop", clicked.elapsed().as_millis());
    assert_eq!(sheet.ended().await, "cancelled");
    assert_eq!(sheet.text("verdict-text").await, "Cancelled");
    assert_eq!(sheet.text("terminal").await, "deaf\n", "earlier output stays");
}

async fn reload_follows_the_running_run(server: &Server, sheet: &Sheet) {
    let code = format!("{WAITS}print('before', flush=True)\nwait('go-on')\nprint('after', flush=True)");
    sheet.write("python", &code).await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "before\n").await;
    let conversation = sheet.conversation().await;
    let known = runs(server, &conversation).await[0]["wallMs"].as_f64().expect("a figure");
    sheet.reload("running").await;
    sheet.says("terminal", |text| text == "before\n").await;
    sheet.says("wall", |text| text.contains('s')).await;
    // The clock continues from the start of the program, not of the page; the page rounds down to a tenth of a second.
    let shown = sheet.text("wall").await;
    let seconds = shown.split_whitespace().collect::<Vec<_>>();
    let shown_ms = match seconds[..] {
        [s, "s"] => s.parse::<f64>().expect("seconds") * 1000.0,
        [min, "min", s, "s"] => {
            min.parse::<f64>().expect("minutes") * 60_000.0 + s.parse::<f64>().expect("seconds") * 1000.0
        }
        _ => panic!("no clock: {shown}"),
    };
    assert!(shown_ms + 1000.0 >= known, "{shown} after {known} ms");
    until("it is listed", async || sheet.history().await.first().is_some_and(|word| word == "running")).await;
    create_file(server, sheet, "go-on").await;
    assert_eq!(sheet.ended().await, "exited");
    assert_eq!(sheet.text("terminal").await, "before\nafter\n");
}

async fn list_shows_finished_runs(sheet: &Sheet) {
    sheet.reload("ready").await;
    until("the list", async || sheet.history().await == ["exited", "cancelled", "exited"]).await;
    sheet.says("terminal", |text| text == "before\nafter\n").await;
    sheet.choose(1).await;
    sheet.says("terminal", |text| text == "deaf\n").await;
    sheet.says("verdict-text", |text| text == "Cancelled").await;
    sheet.click("reuse").await;
    sheet.says("editor", |text| text.contains("deaf") && !text.contains("go-on")).await;
    sheet.choose(0).await;
    sheet.says("terminal", |text| text == "before\nafter\n").await;
    sheet.says("verdict-text", |text| text == "Exited 0").await;
}

async fn hostile_output_has_no_effect(sheet: &Sheet) {
    let code = r#"import sys
print("<img src=x onerror=\"document.title='pwned'\"> \x1b[31mred\x1b[0m \x1b]0;pwned\x07 \u202etxt.exe \x00 end")
sys.stdout.flush()
sys.stdout.buffer.write(b"\xff\xfe\x89PNG\n")"#;
    let title = sheet.browser.driver.title().await.expect("a title");
    assert_eq!(sheet.run("python", code).await, "exited");
    let text = sheet.text("terminal").await;
    assert!(text.contains("<img src=x onerror") && text.contains("> red  \u{27e8}U+202E"), "{text}");
    assert!(!text.contains(['\u{1b}', '\u{7}', '\u{202e}', '\0']), "{text}");
    assert!(text.contains("\u{fffd}"), "{text}");
    sheet.says("stdout-note", |note| note.contains("partly binary")).await;
    assert_eq!(sheet.browser.driver.title().await.expect("a title"), title);
    assert_eq!(sheet.browser.script("return document.querySelectorAll('[data-testid=terminal] img').length").await, 0);
}

async fn large_output_is_bounded(sheet: &Sheet) {
    let code = "import sys\nsys.stdout.write('the beginning\\n')\nfor _ in range(48): \
                sys.stdout.write(('x' * 99 + '\\n') * 655)\n\
                sys.stdout.write('the end\\n')";
    assert_eq!(sheet.run("python", code).await, "exited");
    let text = sheet.text("terminal").await;
    assert!(text.starts_with("the beginning\n") && text.ends_with("the end\n"));
    assert!(text.contains("left out here"));
    assert!(text.len() < 2 << 20, "{} characters are on the page", text.len());
    let elements = sheet.browser.script("return document.querySelectorAll('[data-testid=terminal] *').length").await;
    assert!(elements.as_u64().is_some_and(|count| count < 200), "{elements}");
    sheet.says("terminal-cut", |note| note.contains("Cut short: the program printed 3.0 MiB")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_is_reported_and_restored() {
    let server = Server::with(&SETTINGS).await;
    let cable = Cable::to(server.address).await;
    let sheet = Sheet::open(&format!("http://{}/", cable.address)).await;
    let code = format!("{WAITS}print('before', flush=True)\nwait('go-on')\nprint('after', flush=True)\nwait('ever')");
    sheet.write("python", &code).await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "before\n").await;

    cable.pull();
    until("the loss is reported", async || sheet.attribute("link", "hidden").await == Value::Null).await;
    create_file(&server, &sheet, "go-on").await;
    cable.plug();
    sheet.says("terminal", |text| text == "before\nafter\n").await;
    until("the connection is restored", async || sheet.attribute("link", "hidden").await != Value::Null).await;

    // While the page is disconnected the run ends, and newer runs displace it.
    cable.pull();
    until("the loss is reported", async || sheet.attribute("link", "hidden").await == Value::Null).await;
    let conversation = sheet.conversation().await;
    let run = runs(&server, &conversation).await[0]["runId"].as_str().expect("a run").to_owned();
    let cancel = server.http.post(server.url(&format!("/v1/runs/{run}/cancel"))).bearer_auth(TOKEN);
    assert_eq!(cancel.send().await.expect("an answer").status(), 200);
    while !runs(&server, &conversation).await.is_empty() {
        server.run("another", "bash", ":").await;
    }
    cable.plug();
    let ended = sheet.ended().await;
    let page = sheet.browser.script("return document.body.innerText").await;
    assert_eq!(ended, "error", "{page}");
    sheet.says("sentence", |text| text.contains("no longer kept")).await;
    assert_eq!(sheet.text("terminal").await, "before\nafter\n", "displayed output stays");

    // The page still works, and the keyboard stops a run too.
    sheet.write("bash", "echo here; sleep 100000").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "here\n").await;
    let body = sheet.browser.driver.find(By::Tag("body")).await.expect("the page");
    body.send_keys(Key::Escape).await.expect("typed");
    assert_eq!(sheet.ended().await, "cancelled");
    sheet.browser.close().await;
    server.stop().await;
}

/// The runs of a conversation in the form of `/v1`, newest first.
async fn runs(server: &Server, conversation: &str) -> Vec<Value> {
    let request = server.http.get(server.url("/v1/runs")).query(&[("conversationId", conversation)]).bearer_auth(TOKEN);
    let mut list: Value = request.send().await.expect("an answer").json().await.expect("JSON");
    serde_json::from_value(list["runs"].take()).unwrap_or_else(|_| panic!("{}", json!(list)))
}
