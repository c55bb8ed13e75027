//! What goes on now: standbys by the route, and the tables of the first view, which follow what happens while they are
//! seen, and questions that wait.

use reqwest::Method;
use serde_json::json;

use super::{
    call, create, get,
    page::{open, page, rows},
    run,
};
use crate::support::{FakeServer, server::TOKEN, until};

/// One standby, for the conversation that ran last.
const ONE_STANDBY: [(&str, &str); 2] = [("SANDBOX_STANDBY__TOTAL_MAX", "1"), ("SANDBOX_STANDBY__NAMELESS_MAX", "0")];

#[tokio::test(flavor = "multi_thread")]
async fn standbys_are_counted_by_language_and_stage() {
    let server = FakeServer::with_kernel(&ONE_STANDBY).await;
    let standbys = async || get(&server, "/v1/admin/overview").await["standbys"].clone();
    assert_eq!(standbys().await, json!([]));
    server.engine.faults().loading.send_replace(true);
    run(&server, TOKEN, "c", "print x", 60).await;
    for (stage, is_loading) in [("ready", true), ("warm", false)] {
        server.engine.faults().loading.send_replace(is_loading);
        let expected = json!([{"language": "python", "stage": stage, "count": 1}]);
        until(stage, async || standbys().await == expected).await;
    }
    let taken = server.shared.standbys.taken();
    run(&server, TOKEN, "c", "print y", 60).await;
    assert_eq!(server.shared.standbys.taken(), taken + 1, "what was counted served the program");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_sessions_and_standbys_are_followed_on_the_page() {
    let more = [("SANDBOX_ADMISSION__SLOTS", "1"), ("SANDBOX_LIMITS__WALL_MS", "300000")];
    let settings = [&ONE_STANDBY[..], &more].concat();
    let server = FakeServer::with_kernel(&settings).await;
    let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann"})).await;
    let (_, bob) = create(&server, json!({"name": "bob", "owner": "bob"})).await;
    let sheet = page(&server, TOKEN, "ready").await;
    let tables = ["queue", "live-sessions", "standbys"];
    for table in tables {
        assert_eq!(rows(&sheet, table).await, 0, "{table}");
    }
    // The texts of the cells of a table's only row.
    let row = async |table: &str| {
        let script = format!(
            "return [...document.querySelectorAll('[data-testid={table}] tbody td')].map((td) => td.textContent)"
        );
        sheet.browser.script(&script).await
    };

    run(&server, &ann, "c", "print x", 60).await;
    until("the standby", async || row("standbys").await == json!(["python", "warm", "1"])).await;
    let wanted = json!({"conversationId": "notes", "language": "python"});
    let (_, session) = call(&server, &bob, Method::POST, "/v1/sessions", Some(wanted)).await;
    until("the session", async || row("live-sessions").await[0] == "bob").await;
    let hanging = run(&server, &ann, "d", "hang", 0).await;
    until("it runs", async || row("queue").await == json!(["ann", "1", "0"])).await;
    run(&server, &ann, "d", "print z", 0).await;
    until("another one waits", async || row("queue").await == json!(["ann", "1", "1"])).await;
    assert_eq!(row("live-sessions").await[1], "notes");

    // The session is ended here, and the run by its owner.
    let end = "document.querySelector('[data-testid=live-sessions] [data-testid=act-close]').click()";
    sheet.browser.script(end).await;
    sheet.until_open("confirm-dialog", true).await;
    sheet.click("confirm-yes").await;
    until("no session is listed", async || rows(&sheet, "live-sessions").await == 0).await;
    let path = format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"));
    assert_eq!(call(&server, &bob, Method::GET, &path, None).await.0, 410);
    let path = format!("/v1/runs/{}/cancel", hanging["runId"].as_str().expect("an id"));
    assert_eq!(call(&server, &ann, Method::POST, &path, None).await.0, 200);
    until("no owner waits", async || rows(&sheet, "queue").await == 0).await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_waits_by_the_clock_of_the_server() {
    let server = FakeServer::start().await;
    let sheet = page(&server, TOKEN, "ready").await;
    // The first one waits and is over by the browser's clock, the second one the other way round.
    let ask = "window.realFetch = window.fetch; \
               const question = (id, year) => ({ id, owner: 'ann', conversationId: 'c', server: 'files', tool: id, \
                 arguments: '{}', askedAt: '2020-01-01T00:00:00Z', expiresAt: `${year}-01-01T00:00:00Z` }); \
               const all = [question('first', 2020), question('second', 2999)]; \
               window.fetch = async (path, init) => { \
                 if (!path.startsWith('v1/approvals')) return window.realFetch(path, init); \
                 const approvals = path.includes('open=true') ? all.slice(0, 1) : all; \
                 return new Response(JSON.stringify({ approvals })); \
               }; return null";
    sheet.browser.script(ask).await;
    open(&sheet, "tools").await;
    until("both", async || rows(&sheet, "approvals").await == 2).await;
    let shown = "return [...document.querySelectorAll('[data-testid=approvals] tbody tr')].map((row) => \
                 [row.cells[3].textContent, row.cells[5].textContent, row.querySelectorAll('button').length])";
    let expected = json!([["files/first", "waits", 2], ["files/second", "no answer", 0]]);
    assert_eq!(sheet.browser.script(shown).await, expected);
    sheet.browser.close().await;
    server.stop().await;
}
