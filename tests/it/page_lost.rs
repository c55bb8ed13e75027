//! Runs on the page whose server was away or refused them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    page_state::{hold, is_true, open},
    support::{FakeServer, calls, server::TOKEN, until},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_followed_again_when_the_server_is_back() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = open(&server).await;
    // The page tries again at once when the browser is online again, so its attempts are used up soon.
    let away = "window.realFetch = window.fetch; window.isAway = true; \
                window.fetch = (path, init) => window.isAway && init?.method !== 'POST' \
                ? Promise.reject(new TypeError('away')) : window.realFetch(path, init); \
                window.hurry = setInterval(() => dispatchEvent(new Event('online')), 5); return null";
    sheet.browser.script(away).await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    assert_eq!(sheet.ended().await, "error");
    sheet.says("sentence", |text| text.contains("followed again when the server answers")).await;
    sheet.browser.script("window.isAway = false; clearInterval(window.hurry); return null").await;
    sheet.browser.state("running").await;
    sheet.says("terminal", |text| text == "up\n").await;
    assert_eq!(sheet.browser.driver.title().await.expect("a title"), "Running – Code Sandbox");
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
    assert_eq!(sheet.browser.driver.title().await.expect("a title"), "Code Sandbox");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_refused_late_leaves_the_chosen_one_as_it_is() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    assert_eq!(sheet.run("python", "print one").await, "exited");
    sheet.says("history", |text| text.contains("Python")).await;
    let refused = json!({"status": 429, "text": r#"{"code": "queue_full", "detail": "The queue is full."}"#});
    sheet.browser.driver.execute("window.answer = arguments[0]", vec![refused]).await.expect("set");
    hold(&sheet, "init?.method === 'POST' && path === 'v1/runs'").await;
    sheet.start().await;
    is_true(&sheet, "held").await;
    sheet.choose(0).await;
    sheet.says("terminal", |text| text == "one\n").await;
    sheet.browser.script("window.release(); return null").await;
    sheet.says("live", |text| text.ends_with("The queue is full.")).await;
    sheet.browser.state("ready").await;
    assert_eq!(sheet.attribute("verdict", "data-ended").await, "exited");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_refused_is_shown_until_another_one_is_chosen() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    assert_eq!(sheet.run("python", "print one").await, "exited");
    until("it is listed", async || sheet.history().await == ["exited"]).await;
    let refused = json!({"status": 429, "text": r#"{"code": "queue_full", "detail": "The queue is full."}"#});
    sheet.browser.driver.execute("window.answer = arguments[0]", vec![refused]).await.expect("set");
    hold(&sheet, "init?.method === 'POST' && path === 'v1/runs'").await;
    sheet.start().await;
    sheet.browser.script("window.release(); return null").await;
    sheet.says("sentence", |text| text == "The queue is full.").await;
    // The list of runs is read again.
    sheet.browser.script("window.answer = undefined; return null").await;
    hold(&sheet, "path.startsWith('v1/runs?')").await;
    is_true(&sheet, "held").await;
    sheet.browser.script("window.release(); return null").await;
    is_true(&sheet, "passed").await;
    assert_eq!(sheet.attribute("verdict", "data-ended").await, "error");
    assert_eq!(sheet.attribute("sentence", "hidden").await, Value::Null);
    sheet.choose(0).await;
    sheet.says("terminal", |text| text == "one\n").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_and_sessions_are_seen_also_where_each_answer_comes_after_the_next_request() {
    let server = FakeServer::with_kernel(&[]).await;
    let sheet = open(&server).await;
    sheet.write("python", "set x 41").await;
    sheet.click("session").await;
    assert_eq!(sheet.run("python", "set x 41").await, "exited");
    until("it is listed", async || sheet.history().await == ["exited"]).await;
    let late = r"window.realFetch = window.fetch; const next = {}; window.fetch = async (path, init) => {
                   const [, kind] = /^v1\/(runs|sessions)\?/.exec(path) ?? [];
                   if (!kind) return window.realFetch(path, init);
                   next[kind]?.();
                   const newer = new Promise((done) => (next[kind] = done));
                   const answer = await window.realFetch(path, init);
                   await newer;
                   return answer;
                 }; return null";
    sheet.browser.script(late).await;
    server.run(&sheet.conversation().await, "print x").await;
    until("the run is listed", async || sheet.history().await == ["exited", "exited"]).await;
    let id = calls::get(&server, "/v1/sessions").await["sessions"][0]["sessionId"].as_str().expect("one").to_owned();
    assert_eq!(calls::ask(&server, Method::DELETE, &format!("/v1/sessions/{id}"), None).await.0, 200);
    until("it is gone", async || sheet.attribute("session-state", "data-state").await == "gone").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_elsewhere_leave_the_browser_connections_for_other_requests() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let many = "const one = (n) => ({ runId: `run-${n}`, conversationId: `c-${n}`, language: 'python' }); \
                sessionStorage.setItem('sandbox.elsewhere', JSON.stringify([...Array(8).keys()].map(one))); \
                window.realFetch = window.fetch; window.asked = []; window.fetch = (path, init) => { \
                if (!/^v1.runs.run-/.test(path)) return window.realFetch(path, init); \
                window.asked.push(path); \
                return path.includes('wait=') ? new Promise(() => {}) \
                : Promise.resolve(new Response(JSON.stringify({ state: 'running' }))); }; return null";
    sheet.browser.script(many).await;
    sheet.click("token").await;
    sheet.browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
    sheet.click("token-save").await;
    until("all are asked for", async || sheet.browser.script("return window.asked.length >= 8").await == true).await;
    let waiting = "return window.asked.filter((path) => path.includes('wait=')).length";
    assert_eq!(sheet.browser.script(waiting).await, 2);
    let shown = "return document.querySelectorAll('[data-testid=elsewhere-stop]').length";
    assert_eq!(sheet.browser.script(shown).await, 8);
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_chosen_while_another_one_ran_is_stopped_when_that_has_ended() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = open(&server).await;
    sheet.write("python", "print up\nhang").await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "up\n").await;
    // As another client begins it; it waits for the first one.
    let next = json!({"conversationId": sheet.conversation().await, "language": "python", "code": "print next\nhang",
        "wait": 0, "detach": true});
    calls::post(&server, "/v1/runs", next).await;
    until("it is listed", async || sheet.history().await.len() == 2).await;
    sheet.choose(0).await;
    sheet.says("terminal", str::is_empty).await;
    sheet.click("stop").await;
    sheet.says("terminal", |text| text == "next\n").await;
    until("the next one is stopped", async || {
        sheet.browser.script("document.querySelector('[data-testid=stop]').click(); return null").await;
        sheet.history().await == ["cancelled", "cancelled"]
    })
    .await;
    assert_eq!(sheet.ended().await, "cancelled");
    sheet.browser.close().await;
    server.stop().await;
}
