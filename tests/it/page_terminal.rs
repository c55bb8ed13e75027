//! What programs print, on the page: escape sequences, order, following, bounds, and how much is loaded for it.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::support::{FakeServer, sheet::Sheet, until};

/// A step of the fake engine that prints these bytes.
fn bytes(text: &str) -> String {
    let mut line = "bytes".to_owned();
    for byte in text.bytes() {
        write!(line, " {byte:02x}").expect("a string");
    }
    line
}

async fn open(server: &FakeServer) -> Sheet {
    Sheet::open(&format!("http://{}/", server.address)).await
}

async fn printed(sheet: &Sheet, steps: &[String]) -> String {
    assert_eq!(sheet.run("python", &steps.join("\n")).await, "exited");
    sheet.text("terminal").await
}

#[tokio::test(flavor = "multi_thread")]
async fn printed_text_is_shown_as_on_a_terminal() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "300000")]).await;
    let sheet = open(&server).await;
    carriage_returns_and_cursor_moves_overwrite(&sheet).await;
    colours_are_styles_and_survive_cut_sequences(&sheet).await;
    sequences_cannot_become_markup(&sheet).await;
    long_lines_are_wrapped_or_scrolled(&sheet).await;
    streams_are_in_order_and_told_apart(&sheet).await;
    following_ends_only_by_a_gesture(&server, &sheet).await;
    hostile_output_is_bounded(&sheet).await;
    overwritten_cells_of_a_wide_row_leave_the_page_its_turns(&sheet).await;
    sheet.browser.close().await;
    server.stop().await;
}

async fn carriage_returns_and_cursor_moves_overwrite(sheet: &Sheet) {
    let table = [
        ("  0%|     |\r 50%|##   |\r100%|#####|\n", "100%|#####|\n"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("downloading\r\x1b[Kdone\n", "done\n"),
        ("1/2\n2/2\n\x1b[2A\x1b[2Kone\x1b[2B\rend\n", "one\n2/2\nend\n"),
        ("abc\x08\x08X\n", "aXc\n"),
        ("one two\r\x1b[4C\x1b[K2\n", "one 2\n"),
        ("old\nlines\n\x1b[2J\x1b[Hnew\n", "new\n"),
        ("\x1b[3;5Hthere\n", "\n\n    there\n"),
        ("héllo 🎉🎉\r🎉\n", "🎉éllo 🎉🎉\n"),
        ("a\tb \x07bell\n", "a\tb bell\n"),
    ];
    for (text, expected) in table {
        assert_eq!(printed(sheet, &[bytes(text)]).await, expected, "{text:?}");
    }
    // A row has a last column, and the rest of the text begins another one.
    let shown = printed(sheet, &[bytes("\x1b[999999999A\x1b[9999999999Cend\n")]).await;
    assert_eq!(shown.trim_start(), "end\n");
    assert_eq!(shown.len(), 4095 + "end\n".len());
}

async fn colours_are_styles_and_survive_cut_sequences(sheet: &Sheet) {
    // The server may cut an event anywhere.
    let steps = [
        bytes("\x1b[3"),
        bytes("1mred\x1b[0m \x1b[1;4mbold\x1b[22;24m \x1b[38;5;196mcube\x1b[39m \x1b[38;2;1;2;"),
        bytes("3mmixed\x1b[m \x1b[44;97mground\x1b[0m \x1b[7minverse\x1b[0m plain\n"),
    ];
    assert_eq!(printed(sheet, &steps).await, "red bold cube mixed ground inverse plain\n");
    let script = "return [...document.querySelectorAll('[data-testid=terminal] .row span')].map(e => \
                  [e.textContent, e.className, e.style.getPropertyValue('--fg'), e.style.backgroundColor])";
    let expected = json!([
        ["red", "fg1", "", ""],
        ["bold", "bold underline", "", ""],
        ["cube", "fg", "rgb(255 0 0)", ""],
        ["mixed", "fg", "rgb(1 2 3)", ""],
        ["ground", "", "", "rgb(36, 114, 200)"],
        ["inverse", "inverse", "", ""],
    ]);
    assert_eq!(sheet.browser.script(script).await, expected);
}

async fn sequences_cannot_become_markup(sheet: &Sheet) {
    let title = sheet.browser.driver.title().await.expect("a title");
    let text = "\x1b]0;pwned\x07\x1b]8;;javascript:alert(1)\x1b\\link\x1b]8;;\x1b\\ <a href=x>\x1b[31;\"onload=1m \
                \x1bP<b>\x1b\\\x1b[?25l\u{9b}31m \x1b(B\x1b]never closed";
    let shown = printed(sheet, &[bytes(text)]).await;
    let expected = "link <a href=x>nload=1m ⟨U+009B⟩31m \u{241b}]never closed";
    assert_eq!(shown, expected);
    let inner = "return document.querySelectorAll('[data-testid=terminal] :not(span, kbd)').length";
    assert_eq!(sheet.browser.script(inner).await, 0);
    assert_eq!(sheet.browser.driver.title().await.expect("a title"), title);
}

async fn long_lines_are_wrapped_or_scrolled(sheet: &Sheet) {
    printed(sheet, &[format!("print {}", "long".repeat(500))]).await;
    let scrolls = async || {
        let wider = "const e = document.getElementById('terminal'); return e.scrollWidth > e.clientWidth + 1";
        (sheet.browser.script(wider).await, sheet.attribute("wrap", "aria-pressed").await)
    };
    assert_eq!(scrolls().await, (json!(false), json!("true")));
    sheet.click("wrap").await;
    assert_eq!(scrolls().await, (json!(true), json!("false")));
    sheet.reload("ready").await;
    assert_eq!(sheet.attribute("wrap", "aria-pressed").await, "false", "the choice is kept");
    sheet.click("wrap").await;
    assert_eq!(sheet.attribute("wrap", "aria-pressed").await, "true");
}

async fn streams_are_in_order_and_told_apart(sheet: &Sheet) {
    let steps = ["print one", "stderr two", "print three", "stderr four"].map(str::to_owned);
    assert_eq!(printed(sheet, &steps).await, "one\ntwo\nthree\nfour\n");
    let script = "return [...document.querySelectorAll('#terminal .row')].filter(e => e.textContent).map(e \
                  => [e.textContent, e.classList.contains('stderr'), e.getAttribute('aria-label')])";
    let name = "Standard error";
    let expected =
        json!([["one\n", false, null], ["two\n", true, name], ["three\n", false, null], ["four\n", true, name]]);
    assert_eq!(sheet.browser.script(script).await, expected);
    sheet.click("stdout-note").await;
    let visible =
        sheet.browser.script("return document.querySelector('[data-testid=terminal]').innerText.trim()").await;
    assert_eq!(visible.as_str().expect("text").split_whitespace().collect::<Vec<_>>(), ["two", "four"]);
    let copy = "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }; \
                document.getElementById('terminal-copy').click(); return window.copied";
    assert_eq!(sheet.browser.script(copy).await, "two\nfour\n", "hidden text is not copied");
}

async fn following_ends_only_by_a_gesture(server: &FakeServer, sheet: &Sheet) {
    let lines = |name: &str| (0..200).map(|at| format!("print {name} {at}")).collect::<Vec<_>>().join("\n");
    let code = format!("{}\nwait-file go\n{}\nwait-file go\n{}\nhang", lines("first"), lines("second"), lines("third"));
    sheet.write("python", &code).await;
    sheet.start().await;
    let go = server.root.join(sheet.conversation().await).join("files/go");
    let distance = "const e = document.querySelector('[data-testid=terminal]'); return Math.round(e.scrollHeight - \
                    e.scrollTop - e.clientHeight)";
    sheet.says("terminal", |text| text.contains("first 199\n")).await;
    until("the end is in view", async || sheet.browser.script(distance).await.as_i64() < Some(5)).await;
    // As a change of the layout scrolls: following goes on.
    let scroll = "document.querySelector('[data-testid=terminal]').scrollTop = 0; return new Promise((done) => \
                  requestAnimationFrame(() => requestAnimationFrame(() => done(null))))";
    sheet.browser.script(scroll).await;
    std::fs::write(&go, "").expect("written");
    sheet.says("terminal", |text| text.contains("second 199\n")).await;
    until("the end is in view again", async || sheet.browser.script(distance).await.as_i64() < Some(5)).await;
    let gesture = "const e = document.getElementById('terminal'); e.dispatchEvent(new WheelEvent('wheel')); \
                   e.scrollTop = 0";
    sheet.browser.script(gesture).await;
    until("following ends", async || sheet.attribute("terminal-end", "hidden").await == Value::Null).await;
    std::fs::write(&go, "").expect("written");
    sheet.says("terminal", |text| text.ends_with("third 199\n")).await;
    assert_eq!(sheet.browser.script("return document.querySelector('[data-testid=terminal]').scrollTop").await, 0);
    assert_eq!(sheet.attribute("terminal-end", "hidden").await, Value::Null);
    sheet.click("terminal-end").await;
    until("the end is in view by the button", async || sheet.browser.script(distance).await.as_i64() < Some(5)).await;
    sheet.click("stop").await;
    assert_eq!(sheet.ended().await, "cancelled");
}

/// One line without an end, a style for each character, and lines of one character.
async fn hostile_output_is_bounded(sheet: &Sheet) {
    let styled = (0..1500).fold(String::new(), |text, at| format!("{text}\x1b[38;5;{}mx", at % 256));
    let short = "x\n".repeat(12_000);
    let steps = [
        vec!["flood 2500000".to_owned(), "print".to_owned()],
        (0..8).map(|_| bytes(&styled)).collect(),
        (0..6).map(|_| bytes(&short)).collect(),
    ];
    for steps in steps {
        printed(sheet, &steps).await;
        let script = "const e = document.querySelector('[data-testid=terminal]'); \
                      return [e.querySelectorAll('*').length, e.textContent.length]";
        let (elements, characters): (u64, u64) =
            serde_json::from_value(sheet.browser.script(script).await).expect("two counts");
        eprintln!("{} bytes of steps: {elements} elements, {characters} characters", steps.join("\n").len());
        assert!(elements < 40_000 && characters < 2 << 20, "{elements} elements, {characters} characters");
    }
}

/// Each write replaces the first cell of a row of characters that JavaScript counts as two.
async fn overwritten_cells_of_a_wide_row_leave_the_page_its_turns(sheet: &Sheet) {
    // A beat counts when events were taken since the one before it.
    let beat = "const read = JSON.parse; const { port1, port2 } = new MessageChannel(); let [taken, seen] = [0, 0]; \
                JSON.parse = (text, ...rest) => { taken += `${text}`.length; return read(text, ...rest); }; \
                window.beats = 0; port1.onmessage = () => { if (taken > seen) window.beats += 1; seen = taken; \
                port2.postMessage(null); }; port2.postMessage(null); \
                window.endBeats = () => { port1.close(); JSON.parse = read; return window.beats; }";
    sheet.browser.script(beat).await;
    let overwrites = bytes(&"\rx".repeat(10_000));
    let steps: Vec<_> = [bytes(&"😀".repeat(4000))].into_iter().chain((0..10).map(|_| overwrites.clone())).collect();
    let shown = printed(sheet, &steps).await;
    assert!(shown == format!("x{}", "😀".repeat(3999)), "{} characters", shown.chars().count());
    // An event holds at most 16 KiB, and a turn follows each of that length.
    let beats = sheet.browser.script("return window.endBeats()").await;
    assert!(beats.as_u64() >= Some(10), "{beats} beats");
}

/// What a browser loads until the page is ready, with the requests of the page itself.
#[tokio::test(flavor = "multi_thread")]
async fn first_load_is_small_and_the_second_takes_the_parts_from_the_cache() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let loaded = "const of = (kind) => performance.getEntriesByType(kind); \
                  return [...of('navigation'), ...of('resource')].map(e => [new URL(e.name).pathname, e.transferSize])";
    let sum = async || {
        until("the page is quiet", async || {
            let before = sheet.browser.script("return performance.getEntriesByType('resource').length").await;
            tokio::time::sleep(std::time::Duration::from_millis(700)).await;
            before == sheet.browser.script("return performance.getEntriesByType('resource').length").await
        })
        .await;
        let rows: Vec<(String, u64)> = serde_json::from_value(sheet.browser.script(loaded).await).expect("a list");
        rows
    };
    let first = sum().await;
    let (requests, size) = (first.len(), first.iter().map(|row| row.1).sum::<u64>());
    eprintln!("the first load: {requests} requests, {size} bytes");
    assert!(requests <= 15 && (20_000..=250_000).contains(&size), "{requests} requests, {size} bytes: {first:?}");
    // A browser that takes no brotli, as over plain HTTP to another machine.
    let mut gzip = 0;
    for (path, _) in first.iter().filter(|row| row.0.starts_with("/assets/")) {
        let request = server.http.get(format!("http://{}{path}", server.address)).header("accept-encoding", "gzip");
        gzip += request.send().await.expect("an answer").bytes().await.expect("bytes").len();
    }
    eprintln!("its parts by gzip: {gzip} bytes");
    assert!((20_000..=240_000).contains(&gzip), "{gzip}");
    sheet.reload("ready").await;
    let second = sum().await;
    let again = second.iter().filter(|row| row.0.starts_with("/assets/")).map(|row| row.1).sum::<u64>();
    assert_eq!(again, 0, "{second:?}");
    sheet.browser.close().await;
    server.stop().await;
}
