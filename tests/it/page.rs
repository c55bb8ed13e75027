//! The page, driven in a real browser against a real server.

use std::path::{Path, PathBuf};

use thirtyfour::prelude::*;

use crate::support::{Server, browser::Browser, server::TOKEN, until};

/// Where pictures go: into `docs/` when they are to be renewed (`UPDATE_SCREENSHOTS=1`), below `target/` otherwise.
fn picture(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = if std::env::var_os("UPDATE_SCREENSHOTS").is_some() { "docs" } else { "target/screenshots" };
    std::fs::create_dir_all(root.join(folder)).expect("a folder");
    root.join(folder).join(name)
}

async fn enter(browser: &Browser, server: &Server) {
    browser.driver.goto(server.url("/")).await.expect("the page");
    browser.state("needs-token").await;
    browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
    browser.element("token-save").await.click().await.expect("clicked");
    browser.state("ready").await;
}

/// Chooses an example by its place in the menu and runs it; the page's words for how it ended.
async fn run_example(browser: &Browser, value: &str) -> String {
    let script = format!(
        "const menu = document.querySelector('[data-testid=examples]'); menu.value = '{value}'; \
         menu.dispatchEvent(new Event('change', {{bubbles: true}}));"
    );
    browser.script(&script).await;
    run(browser).await
}

async fn run(browser: &Browser) -> String {
    browser.script("delete document.querySelector('[data-testid=verdict]').dataset.ended").await;
    browser.element("run").await.click().await.expect("clicked");
    until("a verdict", async || {
        let state = browser.script("return document.documentElement.dataset.state").await;
        let ended = browser.script("return document.querySelector('[data-testid=verdict]').dataset.ended").await;
        state == "ready" && ended.is_string() && ended != "running"
    })
    .await;
    browser.element("verdict").await.text().await.expect("text")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_runs_every_example_and_handles_files() {
    let server = Server::start().await;
    let browser = Browser::open().await;
    enter(&browser, &server).await;

    let script =
        "return [...document.querySelectorAll('[data-testid=examples] option')].map(o => o.value).filter(v => v)";
    let examples: Vec<String> = serde_json::from_value(browser.script(script).await).expect("a menu");
    assert!(examples.len() >= 5, "{examples:?}");
    for example in &examples {
        let verdict = run_example(&browser, example).await;
        let stderr = browser.script("return document.querySelector('[data-testid=stderr]')?.textContent ?? ''").await;
        let row = format!("{example}: {verdict}: {stderr}");
        let ended = browser.script("return document.querySelector('[data-testid=verdict]').dataset.ended").await;
        assert_eq!(ended, "exited", "{row}");
        assert!(browser.script("return document.querySelector('[data-testid=wall]').textContent").await != "", "{row}");
        let shown = "return document.querySelector('[data-testid=stdout]').textContent.length \
                     + document.querySelectorAll('[data-testid=images] img').length";
        assert!(browser.script(shown).await.as_u64() > Some(0), "{row}");
    }
    the_chart_is_shown(&browser, &examples).await;
    a_file_is_downloaded(&browser, &examples).await;
    a_file_is_uploaded(&browser, &server).await;
    nothing_printed_becomes_markup(&browser).await;
    pictures(&browser).await;

    let log = browser.script("return performance.getEntriesByType('resource').map(e => e.name)").await;
    for name in log.as_array().expect("names") {
        let name = name.as_str().unwrap_or_default();
        let ours = name.starts_with(&server.url("")) || name.starts_with("blob:") || name.starts_with("data:");
        assert!(ours, "the page asked somebody else: {name}");
    }
    assert_eq!(browser.script("return localStorage.getItem('token') ?? ''").await, "");
    let kept = browser.script(&format!("return JSON.stringify({{...localStorage}}).includes('{TOKEN}')")).await;
    assert_eq!(kept, false, "the token is kept beyond the session");
    browser.close().await;
    server.stop().await;
}

async fn the_chart_is_shown(browser: &Browser, examples: &[String]) {
    let chart = examples.iter().find(|name| name.to_lowercase().contains("chart")).expect("an example draws a chart");
    run_example(browser, chart).await;
    until("the chart is drawn", async || {
        let width = "return document.querySelector('[data-testid=images] img')?.naturalWidth ?? 0";
        browser.script(width).await.as_u64() > Some(100)
    })
    .await;
}

async fn a_file_is_downloaded(browser: &Browser, examples: &[String]) {
    let writes = examples
        .iter()
        .find(|name| ["data", "pandas"].iter().any(|word| name.to_lowercase().contains(word)))
        .expect("an example writes a file");
    run_example(browser, writes).await;
    let script = "return [...document.querySelectorAll('[data-testid=file-row]')].map(row => row.textContent)";
    let rows = browser.script(script).await;
    assert!(rows.to_string().contains(".csv"), "{rows}");
    let click = "for (const row of document.querySelectorAll('[data-testid=file-row]')) \
                 if (row.textContent.includes('.csv')) { row.querySelector('[data-testid=file-download]').click(); break }";
    browser.script(click).await;
    until("the file is downloaded", async || {
        let found = std::fs::read_dir(&browser.downloads).expect("the folder").filter_map(Result::ok);
        found.map(|entry| entry.path()).any(|path| {
            path.extension().is_some_and(|ending| ending == "csv")
                && std::fs::metadata(&path).is_ok_and(|data| data.len() > 10)
        })
    })
    .await;
}

async fn a_file_is_uploaded(browser: &Browser, server: &Server) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("from me.txt");
    std::fs::write(&path, "uploaded by hand").expect("written");
    let input = browser.driver.find(By::Css("[data-testid=upload-input]")).await.expect("the input");
    input.send_keys(path.display().to_string()).await.expect("chosen");
    until("the file is listed", async || {
        let script =
            "return [...document.querySelectorAll('[data-testid=file-row]')].map(row => row.textContent).join()";
        browser.script(script).await.to_string().contains("from me.txt")
    })
    .await;
    let conversations = std::fs::read_dir(&server.root).expect("the root").filter_map(Result::ok);
    let found = conversations.filter_map(|entry| std::fs::read_to_string(entry.path().join("files/from me.txt")).ok());
    assert_eq!(found.collect::<Vec<_>>(), ["uploaded by hand"]);
}

async fn nothing_printed_becomes_markup(browser: &Browser) {
    let payload = r#"<img src=x onerror="document.title='pwned'"><script>document.title='pwned'</script>"#;
    let code = format!(
        "import sys\np = '''{payload}'''\nprint(p)\nprint(p, file=sys.stderr)\nopen('<img src=x onerror=document.title=1>', 'w').write(p)"
    );
    let script = "document.querySelector('[data-testid=language]').value = 'python'; \
                  document.querySelector('[data-testid=language]').dispatchEvent(new Event('change', {bubbles: true})); \
                  const view = document.querySelector('[data-testid=editor]').cmView; \
                  view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: arguments[0]}});";
    browser.driver.execute(script, vec![serde_json::json!(code)]).await.expect("typed");
    run(browser).await;
    let stdout = browser.script("return document.querySelector('[data-testid=stdout]').textContent").await;
    assert!(stdout.as_str().is_some_and(|text| text.contains("<script>")), "{stdout}");
    let title = browser.driver.title().await.expect("a title");
    assert!(title != "pwned" && title != "1", "{title}");
    let images = "return document.querySelectorAll('img[src=\"x\"]').length + document.querySelectorAll('script:not([src])').length";
    assert_eq!(browser.script(images).await, 0);
}

/// For README: the chart, in a conversation of its own, without the notice that an example replaced a program.
async fn pictures(browser: &Browser) {
    run_example(browser, "python-chart").await;
    browser.driver.refresh().await.expect("the page again");
    browser.state("ready").await;
    browser.element("new-conversation").await.click().await.expect("clicked");
    run(browser).await;
    until("the chart is drawn", async || {
        let width = "return document.querySelector('[data-testid=images] img')?.naturalWidth ?? 0";
        browser.script(width).await.as_u64() > Some(100)
    })
    .await;
    browser.screenshot(&picture("page-light.png")).await;
    browser.element("theme").await.click().await.expect("clicked");
    browser.screenshot(&picture("page-dark.png")).await;
    browser.element("theme").await.click().await.expect("clicked");
    browser.driver.set_window_rect(0, 0, 500, 900).await.expect("a size");
    browser.screenshot(&picture("page-phone.png")).await;
}
