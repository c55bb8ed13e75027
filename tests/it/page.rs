//! The page, driven in a real browser against a real server.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thirtyfour::{extensions::cdp::ChromeDevTools, prelude::*};

use crate::support::{Server, browser::Browser, server::TOKEN, sheet::Sheet, until};

/// The path of a screenshot: in `docs/` with `UPDATE_SCREENSHOTS=1`, otherwise below `target/`.
pub(crate) fn screenshot_path(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = if std::env::var_os("UPDATE_SCREENSHOTS").is_some() { "docs" } else { "target/screenshots" };
    std::fs::create_dir_all(root.join(folder)).expect("a folder");
    root.join(folder).join(name)
}

/// Chooses an example by its value in the menu and runs it; returns the outcome's `ended`.
async fn run_example(sheet: &Sheet, value: &str) -> String {
    let script = format!(
        "const menu = document.querySelector('[data-testid=examples]'); menu.value = '{value}'; \
         menu.dispatchEvent(new Event('change', {{bubbles: true}}));"
    );
    sheet.browser.script(&script).await;
    sheet.start().await;
    sheet.ended().await
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_run_and_files_are_uploaded_downloaded_and_deleted() {
    // A chart takes long on a busy machine.
    let server = Server::with(&[("SANDBOX_LIMITS__WALL_MS", "300000"), ("SANDBOX_QUOTA__BYTES_MAX", "16MiB")]).await;
    let sheet = Sheet::open(&server.url("/")).await;
    let browser = &sheet.browser;

    let script =
        "return [...document.querySelectorAll('[data-testid=examples] option')].map(o => o.value).filter(v => v)";
    let examples: Vec<String> = serde_json::from_value(browser.script(script).await).expect("a menu");
    assert!(examples.len() >= 5, "{examples:?}");
    for example in &examples {
        let ended = run_example(&sheet, example).await;
        let row = format!("{example}: {ended}: {}", sheet.text("terminal").await);
        assert_eq!(ended, "exited", "{row}");
        assert!(browser.script("return document.querySelector('[data-testid=wall]').textContent").await != "", "{row}");
        let shown = "return document.querySelector('[data-testid=terminal]').textContent.length \
                     + document.querySelectorAll('[data-testid=images] img').length";
        until(&row, async || browser.script(shown).await.as_u64() > Some(0)).await;
    }
    chart_is_shown(&sheet, &examples).await;
    file_is_downloaded(&sheet, &examples).await;
    file_is_uploaded(browser, &server).await;
    too_large_upload_shows_its_failure(browser).await;
    files_of_any_name_are_deleted(&sheet, &server).await;
    runner_is_described(&sheet).await;
    printed_markup_has_no_effect(&sheet).await;

    // The page was not loaded again until here, which would forget its requests.
    let log = browser.script("return performance.getEntriesByType('resource').map(e => e.name)").await;
    for name in log.as_array().expect("names") {
        let name = name.as_str().unwrap_or_default();
        let ours = name.starts_with(&server.url("")) || name.starts_with("blob:") || name.starts_with("data:");
        assert!(ours, "the page sent a request to another server: {name}");
        assert!(!name.ends_with("/mcp"), "the page uses /v1 only: {name}");
    }
    take_screenshots(&sheet).await;
    assert_eq!(browser.script("return localStorage.getItem('token') ?? ''").await, "");
    let kept = browser.script(&format!("return JSON.stringify({{...localStorage}}).includes('{TOKEN}')")).await;
    assert_eq!(kept, false, "the token is stored beyond the session");
    sheet.browser.close().await;
    server.stop().await;
}

async fn chart_is_shown(sheet: &Sheet, examples: &[String]) {
    let chart = examples.iter().find(|name| name.to_lowercase().contains("chart")).expect("an example draws a chart");
    run_example(sheet, chart).await;
    until("the chart is drawn", async || {
        let width = "return document.querySelector('[data-testid=images] img')?.naturalWidth ?? 0";
        sheet.browser.script(width).await.as_u64() > Some(100)
    })
    .await;
}

async fn file_is_downloaded(sheet: &Sheet, examples: &[String]) {
    let browser = &sheet.browser;
    let writing = examples
        .iter()
        .find(|name| ["data", "pandas"].iter().any(|word| name.to_lowercase().contains(word)))
        .expect("an example writes a file");
    run_example(sheet, writing).await;
    let script = "return [...document.querySelectorAll('[data-testid=file-row]')].map(row => row.textContent)";
    until("the file is listed", async || browser.script(script).await.to_string().contains(".csv")).await;
    let click = "for (const row of document.querySelectorAll('[data-testid=file-row]')) \
                 if (row.textContent.includes('.csv')) { \
                 row.querySelector('[data-testid=file-download]').click(); break }";
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

async fn file_is_uploaded(browser: &Browser, server: &Server) {
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

/// Names that need encoding in an address, one of them not UTF-8, and one that shows markup.
async fn files_of_any_name_are_deleted(sheet: &Sheet, server: &Server) {
    let browser = &sheet.browser;
    sheet.click("new-conversation").await;
    let code = "import os\nos.mkdir('a b')\nfor name in (b'a b/50% #?&+.txt', b'\\xff\\xfe.txt', b'<b>.txt'):\n    \
                open(name, 'w').close()";
    assert_eq!(sheet.run("python", code).await, "exited");
    let count = "return document.querySelectorAll('[data-testid=file-row]').length";
    for left in (0..3).rev() {
        until("the list", async || browser.script(count).await == left + 1).await;
        sheet.click("file-delete").await;
        sheet.click("confirm-yes").await;
        until("the file leaves the list", async || browser.script(count).await == left).await;
    }
    let files = server.root.join(sheet.conversation().await).join("files");
    let names = |folder: &Path| std::fs::read_dir(folder).expect("a folder").count();
    assert_eq!((names(&files), names(&files.join("a b"))), (1, 0), "only the empty folder remains");
}

/// Both are above the quota of the conversation, whose room the server checks before it reads.
async fn too_large_upload_shows_its_failure(browser: &Browser) {
    let folder = tempfile::tempdir().expect("a folder");
    let input = browser.driver.find(By::Css("[data-testid=upload-input]")).await.expect("the input");
    for mebibytes in [24, 70] {
        let path = folder.path().join(format!("{mebibytes}.bin"));
        std::fs::File::create(&path).and_then(|file| file.set_len(mebibytes << 20)).expect("a large file");
        input.send_keys(path.display().to_string()).await.expect("chosen");
        until("the failure is shown", async || {
            let script = "return document.querySelector('[data-testid=upload-line][data-upload=failed]')?.textContent";
            let text = browser.script(script).await;
            text.as_str().is_some_and(|text| text.contains(&format!("{mebibytes}.bin")))
        })
        .await;
    }
}

/// Its packages and the limits of its programs.
async fn runner_is_described(sheet: &Sheet) {
    sheet.write("python", "").await;
    sheet.click("runner-info").await;
    let parts = ["Python 3.13", "pandas", "ffmpeg", "5 min 0 s", "256 MiB", "0.5 of a core", "16.0 MiB"];
    sheet.says("runner-dialog", |text| parts.iter().all(|part| text.contains(part))).await;
    sheet.click("runner-close").await;
}

async fn printed_markup_has_no_effect(sheet: &Sheet) {
    let browser = &sheet.browser;
    let payload = r#"<img src=x onerror="document.title='pwned'"><script>document.title='pwned'</script>"#;
    let code = format!(
        "import sys\np = '''{payload}'''\nprint(p)\nprint(p, file=sys.stderr)\n\
         open('<img src=x onerror=document.title=1>', 'w').write(p)"
    );
    assert_eq!(sheet.run("python", &code).await, "exited");
    let printed = sheet.text("terminal").await;
    assert_eq!(printed.matches("<script>").count(), 2, "{printed}");
    let title = browser.driver.title().await.expect("a title");
    assert!(title != "pwned" && title != "1", "{title}");
    let images = "return document.querySelectorAll('img[src=\"x\"]').length + \
                  document.querySelectorAll('script:not([src])').length";
    assert_eq!(browser.script(images).await, 0);
}

/// The screenshots of README, in a new conversation: three finished programs, and a dialogue on a phone.
async fn take_screenshots(sheet: &Sheet) {
    let browser = &sheet.browser;
    let tools = ChromeDevTools::new(browser.driver.handle.clone());
    // Without transitions, which a screenshot would catch halfway.
    let calm = json!({"features": [{"name": "prefers-reduced-motion", "value": "reduce"}]});
    tools.execute_cdp_with_params("Emulation.setEmulatedMedia", calm).await.expect("a preference");
    run_example(sheet, "python-hello").await;
    // A reload removes the notice that an example replaced a program.
    sheet.reload("ready").await;
    sheet.click("new-conversation").await;
    for example in ["typescript-fibonacci", "python-progress", "python-chart"] {
        run_example(sheet, example).await;
    }
    until("the chart is drawn", async || {
        let width = "return document.querySelector('[data-testid=images] img')?.naturalWidth ?? 0";
        browser.script(width).await.as_u64() > Some(100)
    })
    .await;
    until("the list", async || sheet.history().await == ["exited"; 3]).await;
    browser.screenshot(&screenshot_path("page-light.png")).await;
    sheet.choose(1).await;
    sheet.click("reuse").await;
    sheet.reload("ready").await;
    sheet.choose(1).await;
    sheet.says("terminal", |text| text.contains("standard error")).await;
    sheet.click("theme").await;
    browser.screenshot(&screenshot_path("page-dark.png")).await;
    sheet.click("theme").await;
    let phone = json!({"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": true});
    tools.execute_cdp_with_params("Emulation.setDeviceMetricsOverride", phone).await.expect("a size");
    let code = "number, guess = 42, 0\n\nwhile guess != number:\n    guess = int(input(\"Guess: \"))\n    \
                if guess < number:\n        print(\"More than that.\")\n    elif guess > number:\n        \
                print(\"Less than that.\")\n\nprint(\"You have it.\")\n";
    sheet.write("python", code).await;
    sheet.start().await;
    sheet.says("terminal", |text| text == "Guess: ").await;
    until("the line for input", async || sheet.attribute("input-line", "hidden").await == Value::Null).await;
    for (guess, answer) in [("50\n", "Less than that.\nGuess: "), ("25\n", "More than that.\nGuess: ")] {
        browser.element("input-field").await.send_keys(guess).await.expect("typed");
        sheet.says("terminal", |text| text.ends_with(answer)).await;
    }
    browser.script("document.activeElement.blur()").await;
    browser.screenshot(&screenshot_path("page-phone.png")).await;
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
}
