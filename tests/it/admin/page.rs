//! The page `/admin` in a real browser: every view, both themes, a phone, the keyboard alone.

use std::{collections::BTreeSet, path::Path, time::Duration};

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        id::{InstanceId, RunId},
        outcome::Figures,
        owner::ConversationKey,
    },
    ports::history::{HistoryLine, HistoryStore, LineEnd},
};
use reqwest::Method;
use serde_json::json;
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use super::{call, create, get, run, write};
use crate::{
    page::screenshot_path,
    page_access::{LOOKS, findings, set_theme},
    support::{FakeServer, browser::Browser, server::TOKEN, sheet::Sheet, until},
};

const VIEWS: [&str; 9] =
    ["overview", "owners", "tokens", "connections", "network", "tools", "conversations", "runs", "doctor"];
/// Markup, and a sign that turns the direction of what follows.
const HOSTILE: &str = "<img src=x onerror=\"document.title='pwned'\">\u{202e}gnp.exe";

/// Opens a view and waits until it is filled.
pub async fn open(sheet: &Sheet, view: &str) {
    sheet.click(&format!("to-{view}")).await;
    until(view, async || {
        let script = format!(
            "const view = document.getElementById('view-{view}'); \
             return !view.hidden && !view.hasAttribute('aria-busy') && document.activeElement.id === 'head-{view}'"
        );
        sheet.browser.script(&script).await == true
    })
    .await;
}

/// The page with a token.
pub async fn page(server: &FakeServer, token: &str, state: &str) -> Sheet {
    let browser = Browser::open().await;
    browser.focus().await;
    browser.driver.goto(format!("http://{}/admin", server.address)).await.expect("the page");
    browser.state("needs-token").await;
    browser.element("token-input").await.send_keys(token).await.expect("typed");
    browser.element("token-save").await.click().await.expect("clicked");
    browser.state(state).await;
    Sheet { browser }
}

/// An hour of runs by an owner of another server with the same database.
async fn plant(url: &str) {
    let now = u64::try_from(RunId::new().unix_ms()).expect("after 1970");
    let lines = (0..220_u64).map(|number| {
        let word = match number % 23 {
            4 => "timed_out",
            9 => "out_of_memory",
            13 => "cancelled",
            17 => "failed",
            _ => "exited",
        };
        let wall = Duration::from_millis(90 + number * 7919 % 400 + if number % 31 == 0 { 2500 } else { 0 });
        let begun = now - (60 - number * number % 59) * 60_000;
        let end = LineEnd {
            unix_ms: i64::try_from(begun).expect("a moment") + i64::try_from(wall.as_millis()).expect("short"),
            word: word.parse().expect("a word"),
            exit_code: (word == "exited").then_some(0),
            signal: None,
            oom_killed: word == "out_of_memory",
            failure: None,
            sentence: "The program ran to its end (exit status 0).".to_owned(),
            figures: Figures { wall, ..Figures::default() },
            cpu_max: None,
            files: Vec::new(),
        };
        HistoryLine {
            run: format!("run-{begun:012x}7000{number:016x}").parse().expect("an id"),
            conversation: ConversationKey::new("carl".parse().expect("a name"), "nightly".parse().expect("an id")),
            token: None,
            is_cell: false,
            language: "python".parse().expect("a language"),
            image: "sha256:abc".to_owned(),
            program_sha256: String::new(),
            source: None,
            instance: InstanceId::new(),
            end: Some(end),
        }
    });
    let database = Database::connect(url).expect("an address");
    database.prepare().await.expect("tables");
    database.write(&lines.collect::<Vec<_>>()).await.expect("stored");
    database.close().await;
}

/// Owners, tokens, files, runs that ended in several ways, one that goes on and one that waits, a session, refusals.
async fn furnish(server: &FakeServer) {
    let limits = json!({"runsPerMinute": 60, "cpuSecondsPerDay": 3600});
    let wanted = json!({"name": "Ann's laptop", "owner": "ann", "languages": ["python"], "limits": limits});
    let (_, ann) = create(server, wanted).await;
    let (_, bob) = create(server, json!({"name": HOSTILE, "owner": "bob"})).await;
    let (gone, _) = create(server, json!({"name": "old phone", "owner": "bob"})).await;
    assert_eq!(call(server, TOKEN, Method::DELETE, &format!("/v1/tokens/{gone}"), None).await.0, 204);
    for (token, conversation, bytes) in [(&ann, "sales-report", 3_400_000), (&bob, "notes", 90_000), (&ann, "draft", 9)]
    {
        write(server, token, conversation, bytes).await;
    }
    for code in ["print x", "print y", "exit 3", "stderr z\nexit 1"] {
        run(server, &ann, "sales-report", code, 60).await;
    }
    let unknown = json!({"conversationId": "c", "language": "cobol", "code": "x"});
    assert_eq!(call(server, TOKEN, Method::POST, "/v1/runs", Some(unknown)).await.0, 422);
    let tools = json!({"server": {"url": "https://tools.example/mcp", "owners": ["ann"]}});
    assert_eq!(call(server, TOKEN, Method::PUT, "/v1/tool-servers/files", Some(tools)).await.0, 204);
    let session = json!({"conversationId": "notes", "language": "python"});
    assert!(call(server, &bob, Method::POST, "/v1/sessions", Some(session)).await.0 < 300);
    run(server, &ann, "sales-report", "hang", 0).await;
    run(server, &ann, "sales-report", "print z", 0).await;
    until("the runs are stored", async || {
        get(server, "/v1/history?owner=ann&ended=exited").await["runs"].as_array().map(Vec::len) == Some(4)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_in_any_view_and_foreign_names_are_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite://{}/state.db", folder.path().display());
    let policy = ("SANDBOX_NETWORK__PACKAGES", "pypi.org,*.example.com:8443");
    let settings = [policy, ("SANDBOX_LIMITS__WALL_MS", "300000"), ("DATABASE_URL", url.as_str())];
    let server = FakeServer::with_kernel(&settings).await;
    let sheet = page(&server, TOKEN, "ready").await;
    let tools = ChromeDevTools::new(sheet.browser.driver.handle.clone());
    let mut found = Vec::new();
    for view in VIEWS {
        open(&sheet, view).await;
        found.extend(findings(&sheet.browser, &format!("empty, {view}")).await);
    }
    sheet.says("view-connections", |text| text.contains("No client is signed in")).await;
    furnish(&server).await;
    plant(&url).await;
    for (what, phone) in LOOKS {
        let size = if phone { (390, 844) } else { (1280, 1150) };
        let size =
            json!({"width": size.0, "height": size.1, "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone});
        tools.execute_cdp_with_params("Emulation.setDeviceMetricsOverride", size).await.expect("a size");
        for view in VIEWS {
            sheet.reload("ready").await;
            open(&sheet, view).await;
            if view == "overview" {
                sheet.says("live-runs", |text| text.contains("sales-report")).await;
                sheet.says("chart-runs", |text| text.contains("reached a limit")).await;
            }
            if view == "doctor" && !phone {
                sheet.click("doctor-run").await;
                sheet.says("findings", |text| text.contains("isolation")).await;
            }
            found.extend(findings(&sheet.browser, &format!("{what}, {view}")).await);
            let wide = sheet
                .browser
                .script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                .await;
            assert_eq!(wide, 0, "{what}, {view} scrolls sideways");
            sheet.browser.script("scrollTo(0, 0)").await;
            if view == "overview" {
                let light = if phone { "admin-phone.png" } else { "admin-light.png" };
                sheet.browser.screenshot(&screenshot_path(light)).await;
            }
            // The others are for those who change the page.
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
            std::fs::create_dir_all(&root).expect("a folder");
            set_theme(&sheet.browser, "dark").await;
            sheet.browser.screenshot(&root.join(format!("admin-{view}-{what}-dark.png"))).await;
            if view == "overview" && !phone {
                sheet.browser.screenshot(&screenshot_path("admin-dark.png")).await;
            }
            set_theme(&sheet.browser, "light").await;
        }
        open(&sheet, "tokens").await;
        sheet.click("token-new").await;
        sheet.says("create-dialog", |text| text.contains("python")).await;
        sheet.click("create-network").await;
        let wide = "const form = document.getElementById('create-form'); return form.scrollWidth - form.clientWidth";
        assert_eq!(sheet.browser.script(wide).await, 0, "{what}, the dialog scrolls sideways");
        found.extend(findings(&sheet.browser, &format!("{what}, the dialog")).await);
        sheet.browser.element("create-name").await.send_keys("new").await.expect("typed");
        sheet.click("create-yes").await;
        sheet.until_open("secret-dialog", true).await;
        found.extend(findings(&sheet.browser, &format!("{what}, the secret")).await);
        sheet.reload("ready").await;
        open(&sheet, "network").await;
        sheet.click("policy-new").await;
        sheet.until_open("policy-dialog", true).await;
        found.extend(findings(&sheet.browser, &format!("{what}, the policy")).await);
    }
    assert!(found.is_empty(), "{}", serde_json::to_string_pretty(&found).expect("JSON"));
    let names = sheet.text("tokens").await;
    assert!(names.contains("<img src=x") && !names.contains('\u{202e}'), "{names}");
    let markup = "return document.querySelectorAll('img, script:not([src])').length";
    assert_eq!(sheet.browser.script(markup).await, 0);
    assert!(sheet.browser.driver.title().await.expect("a title").contains("Admin"));
    sheet.browser.close().await;
    server.stop().await;
}

/// How many rows a table has.
pub(super) async fn rows(sheet: &Sheet, table: &str) -> u64 {
    let script = format!("return document.querySelectorAll('[data-testid={table}] tbody tr').length");
    sheet.browser.script(&script).await.as_u64().expect("a number")
}

/// Presses Tab until the focused element matches.
pub(super) async fn tab_to(sheet: &Sheet, wanted: &str) {
    let script = format!("return document.activeElement.matches({wanted:?})");
    let mut passed = BTreeSet::new();
    for _ in 0..80 {
        if sheet.browser.script(&script).await == true {
            return;
        }
        let outline = "return document.activeElement.outerHTML.slice(0, 90)";
        passed.insert(sheet.browser.script(outline).await.as_str().unwrap_or_default().to_owned());
        sheet.press(Key::Tab + "").await;
    }
    panic!("{wanted} is not reached: {passed:#?}");
}

/// Goes to a view by its link.
async fn go(sheet: &Sheet, view: &str) {
    sheet.browser.script("document.querySelector('.skip').focus()").await;
    tab_to(sheet, &format!("[data-testid=to-{view}]")).await;
    sheet.press(Key::Enter + "").await;
    until(view, async || {
        let script = format!("return document.activeElement.id === 'head-{view}'");
        sheet.browser.script(&script).await == true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn by_keyboard_a_token_is_made_and_revoked_a_run_cancelled_and_a_conversation_deleted() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = page(&server, TOKEN, "ready").await;
    go(&sheet, "tokens").await;
    tab_to(&sheet, "[data-testid=token-new]").await;
    sheet.press(Key::Enter + "").await;
    sheet.until_open("create-dialog", true).await;
    sheet.press("CI").await;
    tab_to(&sheet, "[data-testid=create-owner]").await;
    let all = sheet.browser.driver.action_chain().key_down(Key::Control).send_keys("a").key_up(Key::Control);
    all.perform().await.expect("typed");
    sheet.press("ann").await;
    tab_to(&sheet, "[data-limit=runsPerMinute]").await;
    sheet.press("5").await;
    tab_to(&sheet, "[data-testid=create-yes]").await;
    sheet.press(Key::Enter + "").await;
    sheet.until_open("secret-dialog", true).await;
    let secret = sheet.browser.script("return document.querySelector('[data-testid=secret]').value").await;
    let token = secret.as_str().expect("a token").to_owned();
    assert!(token.starts_with("mcps_") && token.len() == 48, "{token}");
    tab_to(&sheet, "[data-testid=secret-done]").await;
    sheet.press(Key::Enter + "").await;
    sheet.says("tokens", |text| text.contains("CI") && text.contains("5 programs a minute")).await;
    let kept = "return document.documentElement.outerHTML + document.querySelector('[data-testid=secret]').value \
                + JSON.stringify({...sessionStorage, ...localStorage})";
    assert!(!sheet.browser.script(kept).await.as_str().expect("text").contains(&token), "it is shown once");

    // The token works for its owner; what it does is seen, ended and deleted.
    let hanging = run(&server, &token, "c", "write f text\nhang", 0).await;
    go(&sheet, "overview").await;
    sheet.says("live-runs", |text| text.contains("ann")).await;
    tab_to(&sheet, "[data-testid=live-runs] [data-testid=act-stop]").await;
    confirm(&sheet).await;
    until("no run is listed", async || rows(&sheet, "live-runs").await == 0).await;
    let path = format!("/v1/runs/{}", hanging["runId"].as_str().expect("an id"));
    until("it is cancelled", async || {
        call(&server, &token, Method::GET, &path, None).await.1["outcome"]["ended"] == "cancelled"
    })
    .await;
    go(&sheet, "conversations").await;
    sheet.says("conversations", |text| text.contains("ann")).await;
    tab_to(&sheet, "[data-testid=act-trash]").await;
    // It asks first, and Escape is no.
    sheet.press(Key::Enter + "").await;
    sheet.until_open("confirm-dialog", true).await;
    sheet.press(Key::Escape + "").await;
    sheet.until_open("confirm-dialog", false).await;
    assert_eq!(get(&server, "/v1/admin/conversations").await["total"], 1);
    tab_to(&sheet, "[data-testid=act-trash]").await;
    confirm(&sheet).await;
    until("none is listed", async || rows(&sheet, "conversations").await == 0).await;
    assert_eq!(get(&server, "/v1/admin/conversations").await["total"], 0);

    go(&sheet, "tokens").await;
    tab_to(&sheet, "[data-testid=act-trash]").await;
    confirm(&sheet).await;
    sheet.says("tokens", |text| text.contains("revoked")).await;
    assert_eq!(call(&server, &token, Method::GET, "/v1/runs", None).await.0, 401);
    sheet.browser.close().await;
    server.stop().await;
}

/// Presses the focused button and agrees to its question.
async fn confirm(sheet: &Sheet) {
    sheet.press(Key::Enter + "").await;
    sheet.until_open("confirm-dialog", true).await;
    tab_to(sheet, "[data-testid=confirm-yes]").await;
    sheet.press(Key::Enter + "").await;
    sheet.until_open("confirm-dialog", false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_the_scope_and_a_database_that_is_away_are_told_in_a_sentence() {
    let server = FakeServer::start().await;
    let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann"})).await;
    let sheet = page(&server, &ann, "needs-token").await;
    sheet.says("token-error", |text| text.contains("it lacks the scope `admin`")).await;
    // The same with a token that the main page has stored.
    sheet.browser.script(&format!("sessionStorage.setItem('sandbox.token', '{ann}')")).await;
    sheet.reload("needs-token").await;
    sheet.says("token-error", |text| text.contains("it lacks the scope `admin`")).await;
    sheet.browser.close().await;
    server.stop().await;

    let server = FakeServer::with(&[("DATABASE_URL", "postgres://127.0.0.1:1/nothing")]).await;
    let sheet = page(&server, TOKEN, "ready").await;
    sheet.says("charts", |text| text.contains("The database does not answer")).await;
    open(&sheet, "owners").await;
    sheet.says("error-owners", |text| text.contains("database does not answer")).await;
    let found = findings(&sheet.browser, "an error").await;
    assert!(found.is_empty(), "{found:?}");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_act_stays_to_be_read_and_late_answers_are_dropped() {
    let server = FakeServer::start().await;
    write(&server, TOKEN, "c", 10).await;
    let sheet = page(&server, TOKEN, "ready").await;
    let refuse = "window.realFetch = window.fetch; window.loads = 0; \
                  const refused = { code: 'no_space', detail: 'The disk is away.' }; \
                  const answer = (body, status) => new Response(JSON.stringify(body), { status }); \
                  window.fetch = async (path, init) => { \
                    if (init.method === 'DELETE' || path === 'v1/owners') return answer(refused, 503); \
                    if (path.startsWith('v1/admin/conversations')) window.loads += 1; \
                    if (!path.includes('which=slowest')) return window.realFetch(path, init); \
                    if (path.includes('from=')) return answer({ runs: [{ owner: 'early' }] }, 200); \
                    await new Promise((done) => (window.release = done)); \
                    window.isLate = true; \
                    return answer({ runs: [{ owner: 'late' }] }, 200); \
                  }; return null";
    open(&sheet, "conversations").await;
    sheet.browser.script(refuse).await;
    sheet.click("act-trash").await;
    sheet.click("confirm-yes").await;
    sheet.says("error-conversations", |text| text == "The disk is away.").await;
    sheet.browser.script("window.loads = 0; return null").await;
    // The second refresh begins when the first has been shown.
    until("the list is refreshed", async || sheet.browser.script("return window.loads > 1").await == true).await;
    assert_eq!(sheet.text("error-conversations").await, "The disk is away.");

    // A dialog would hide it.
    open(&sheet, "tokens").await;
    sheet.click("token-new").await;
    sheet.says("error-tokens", |text| text == "The disk is away.").await;
    assert!(!sheet.is_open("create-dialog").await);

    open(&sheet, "runs").await;
    sheet.says("slowest", |text| text.contains("early")).await;
    let choose = |value: &str| {
        format!(
            "const menu = document.querySelector('[data-testid=runs-since]'); menu.value = '{value}'; \
             menu.dispatchEvent(new Event('change')); return null"
        )
    };
    sheet.browser.script(&choose("")).await;
    sheet.browser.script(&choose("1")).await;
    until("both are asked for", async || sheet.browser.script("return Boolean(window.release)").await == true).await;
    sheet.browser.script("window.release(); return null").await;
    until("the late answer", async || sheet.browser.script("return window.isLate").await == true).await;
    // By then the page has read it: an answer that is made here needs no turn of the network.
    sheet.browser.script("return new Promise((done) => requestAnimationFrame(() => done(null)))").await;
    assert!(!sheet.text("slowest").await.contains("late"));
    sheet.browser.close().await;
    server.stop().await;
}
