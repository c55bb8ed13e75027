//! Files on the page: the tree, previews, editing with its conflicts, renaming, uploads and downloads.

use std::path::PathBuf;

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::support::{FakeServer, server::TOKEN, sheet::Sheet, until};

/// Two rows: Ada 1815, Grace 1906; compressed by Snappy, as pandas does.
pub(crate) const PARQUET: &[u8] = include_bytes!("../fixtures/snappy.parquet");
/// The same rows, compressed by Zstandard, as Polars does.
const POLARS: &[u8] = include_bytes!("../fixtures/zstd.parquet");
const MARKDOWN: &str = "# Title\n\nSome **bold** [link](https://example.org) [bad](javascript:alert(1)) <b>x</b>\n\n\
                        | a | b |\n|---|---|\n| 1 | 2 |\n\n<script>parent.pwned = 1</script>\n\n\
                        ![p](https://example.org/p)\n";
const HTML: &str = "<p id=out></p><script>const out = document.getElementById('out'); \
                    const t = (f) => { try { return f(); } catch (e) { return e.name; } }; \
                    out.append(origin + ' ', t(() => parent.document.title) + ' '); \
                    out.append(t(() => localStorage.length) + ' '); \
                    fetch('/v1/runners').then(() => out.append('fetched'), (e) => out.append(e.name + ' end'));\
                    </script>";
const SVG: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='120' height='80'><rect width='9' height='9'/>\
                   <script>parent.pwned = 1</script></svg>";

struct Scene {
    server: FakeServer,
    sheet: Sheet,
    folder: PathBuf,
}

impl Scene {
    async fn open() -> Self {
        let server = FakeServer::start().await;
        let sheet = Sheet::open(&format!("http://{}/", server.address)).await;
        let folder = server.root.join(sheet.conversation().await).join("files");
        Self { server, sheet, folder }
    }

    /// Writes files through the API, then shows the new list.
    async fn put(&self, files: &[(&str, &[u8])]) {
        let conversation = self.sheet.conversation().await;
        for (path, content) in files {
            let url = format!("http://{}/v1/conversations/{conversation}/files/{path}", self.server.address);
            let answer = self.server.http.put(url).bearer_auth(TOKEN).body(content.to_vec()).send().await;
            assert!(answer.expect("an answer").status().is_success(), "{path}");
        }
        self.script("document.getElementById('files-refresh').click()").await;
        for (path, _) in files {
            until("the file is listed", async || self.listed().await.iter().any(|name| name == path)).await;
        }
    }

    async fn script(&self, script: &str) -> Value {
        self.sheet.browser.script(script).await
    }

    /// The keys of the listed files.
    async fn listed(&self) -> Vec<String> {
        let rows = "return [...document.querySelectorAll('[data-testid=file-row]')].map(row => row.dataset.key)";
        serde_json::from_value(self.script(rows).await).expect("a list")
    }

    async fn press(&self, path: &str, act: &str) {
        self.script(&format!("document.querySelector('li[data-key=\"{path}\"] [data-act={act}]').click()")).await;
    }

    /// Opens a file and waits until something is there that the selector finds.
    async fn view(&self, path: &str, selector: &str) {
        self.press(path, "open").await;
        let found = format!("return document.querySelector('[data-testid=viewer-body] {selector}') !== null");
        until(&format!("{path} is shown"), async || self.script(&found).await == true).await;
    }

    async fn close_viewer(&self) {
        self.sheet.click("viewer-close").await;
        self.sheet.until_open("viewer", false).await;
    }

    /// Replaces the text of the open file.
    async fn edit(&self, text: &str) {
        let script = "const view = document.querySelector('[data-testid=viewer-body]').cmView; \
                      view.dispatch({changes: {from: 0, to: view.state.doc.length, insert: arguments[0]}})";
        self.sheet.browser.driver.execute(script, vec![json!(text)]).await.expect("typed");
    }

    async fn asked(&self, wanted: bool) {
        self.sheet.until_open("confirm-dialog", wanted).await;
    }

    fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.folder.join(path)).unwrap_or_default()
    }

    async fn close(self) {
        self.sheet.browser.close().await;
        self.server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_previewed_without_effect() {
    let scene = Scene::open().await;
    let csv = format!("name;note\nAda;\"a;\"\"b\"\"\nc\"\n{}", "x;<b>\n".repeat(1500));
    // This byte says that the first column is compressed by Snappy (1, as a zigzag number); here by Brotli (4).
    let packed = [&PARQUET[..197], &[8], &PARQUET[198..]].concat();
    let long = format!("a\n{}x\n", " ".repeat(1_000_000));
    let files: [(&str, &[u8]); 11] = [
        ("long.csv", long.as_bytes()),
        ("deep/er/m.md", MARKDOWN.as_bytes()),
        ("deep/p.html", HTML.as_bytes()),
        ("t.csv", csv.as_bytes()),
        ("t.parquet", PARQUET),
        ("polars.parquet", POLARS),
        ("brotli.parquet", &packed),
        ("s.svg", SVG.as_bytes()),
        ("d.pdf", b"%PDF-1.4\n%%EOF\n"),
        ("b.bin", b"a\0b"),
        ("latin.txt", b"caf\xe9"),
    ];
    scene.put(&files).await;

    let folders = "return [...document.querySelectorAll('[data-folder]')].map(e => e.dataset.folder)";
    assert_eq!(scene.script(folders).await, json!(["deep/", "deep/er/"]));
    let visible = "return document.querySelector('li[data-key=\"deep/er/m.md\"]').checkVisibility()";
    scene.script("document.querySelector('[data-folder=\"deep/\"]').click()").await;
    assert_eq!(scene.script(visible).await, false);
    scene.script("document.querySelector('[data-folder=\"deep/\"]').click()").await;
    assert_eq!(scene.script(visible).await, true);

    markdown(&scene).await;
    html(&scene).await;
    scene.view("long.csv", "table").await;
    scene.close_viewer().await;
    scene.view("t.csv", "table").await;
    let cells = "const rows = [...document.querySelectorAll('.viewer-body tr')]; return [rows.length, \
                 rows.slice(0, 3).map(row => [...row.cells].map(cell => cell.textContent))]";
    let expected = json!([1001, [["", "name", "note"], ["1", "Ada", "a;\"b\"\nc"], ["2", "x", "<b>"]]]);
    assert_eq!(scene.script(cells).await, expected);
    scene.close_viewer().await;
    let expected = json!([3, [["", "name", "born"], ["1", "Ada", "1815"], ["2", "Grace", "1906"]]]);
    for path in ["t.parquet", "polars.parquet"] {
        scene.view(path, "table").await;
        assert_eq!(scene.script(cells).await, expected, "{path}");
        scene.close_viewer().await;
    }
    scene.view("s.svg", "img").await;
    let width = "return document.querySelector('.viewer-body img').naturalWidth";
    until("the picture is drawn", async || scene.script(width).await == 120).await;
    scene.close_viewer().await;
    scene.view("d.pdf", "iframe[src^=\"blob:\"]").await;
    scene.close_viewer().await;
    for (path, why) in [("b.bin", "not text"), ("latin.txt", "not text"), ("brotli.parquet", "compressed by BROTLI")] {
        scene.view(path, ".refusal").await;
        scene.sheet.says("viewer-body", |text| text.contains(why)).await;
        scene.close_viewer().await;
    }
    assert_eq!(scene.script("return window.pwned ?? null").await, Value::Null);
    scene.close().await;
}

async fn markdown(scene: &Scene) {
    scene.view("deep/er/m.md", ".markdown").await;
    let found = "const e = document.querySelector('.markdown'); const all = (s) => [...e.querySelectorAll(s)]; \
                 return [e.querySelector('h3').textContent, all('strong').length, all('a').map(a => a.href), \
                 all('td').map(td => td.textContent), all('script, img, b').length, \
                 e.textContent.includes('<script>')]";
    let expected = json!(["Title", 1, ["https://example.org/"], ["1", "2"], 0, true]);
    assert_eq!(scene.script(found).await, expected);
    scene.close_viewer().await;
}

async fn html(scene: &Scene) {
    // Another view is chosen before the frame is loaded; no listener for its messages stays.
    let leave = "window.listeners = 0; for (const [name, sign] of [['add', 1], ['remove', -1]]) { \
                 const real = window[`${name}EventListener`]; window[`${name}EventListener`] = (kind, ...rest) => \
                 { if (kind === 'message') window.listeners += sign; real.call(window, kind, ...rest); }; } \
                 const body = document.getElementById('viewer-body'); new MutationObserver((_, self) => { \
                 if (!body.querySelector('iframe')) return; self.disconnect(); \
                 document.querySelector('button[data-view=text]').click(); }).observe(body, {childList: true});";
    scene.script(leave).await;
    scene.view("deep/p.html", ".cm-content").await;
    assert_eq!(scene.script("return window.listeners").await, 0);
    scene.close_viewer().await;
    scene.view("deep/p.html", "iframe").await;
    let frame = scene.sheet.browser.driver.find(By::Css(".viewer-body iframe")).await.expect("a frame");
    frame.enter_frame().await.expect("inside");
    let text =
        async || scene.script("return document.body?.innerText ?? ''").await.as_str().unwrap_or_default().to_owned();
    until("its script has run", async || text().await.ends_with("end") || text().await.ends_with("fetched")).await;
    assert_eq!(text().await, "null SecurityError SecurityError TypeError end");
    scene.sheet.browser.driver.enter_default_frame().await.expect("outside");
    scene.close_viewer().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_edited_renamed_and_replaced_only_after_a_question() {
    let scene = Scene::open().await;
    scene.put(&[("notes.txt", b"first\r\nsecond\r\n"), ("other.txt", b"other")]).await;
    edits_are_saved_unless_the_file_changed(&scene).await;
    saved_once_and_with_its_line_ends(&scene).await;

    // A new file, in a folder that does not exist yet.
    scene.sheet.click("file-new").await;
    scene.sheet.browser.element("ask-input").await.send_keys("made/by hand.txt" + Key::Enter).await.expect("typed");
    until("the editor", async || scene.sheet.attribute("viewer-save", "hidden").await == Value::Null).await;
    scene.edit("new").await;
    scene.sheet.click("viewer-save").await;
    scene.sheet.says("viewer-note", |note| note == "Saved").await;
    assert_eq!(scene.read("made/by hand.txt"), "new");
    scene.close_viewer().await;

    // Renamed, with a question where another file would be lost.
    let name = async |to: &str| {
        let field = scene.sheet.browser.element("ask-input").await;
        field.clear().await.expect("cleared");
        field.send_keys(to.to_owned() + Key::Enter).await.expect("typed");
    };
    let rename = async |to: &str| {
        scene.press("other.txt", "rename").await;
        name(to).await;
    };
    rename("notes.txt").await;
    scene.asked(true).await;
    scene.sheet.click("confirm-no").await;
    scene.asked(false).await;
    assert_eq!((scene.read("notes.txt").as_str(), scene.read("other.txt").as_str()), ("forced", "other"));
    rename("sub/50% #.txt").await;
    until("the list", async || scene.listed().await.iter().any(|name| name == "sub/50% #.txt")).await;
    assert_eq!((scene.read("sub/50% #.txt").as_str(), scene.folder.join("other.txt").exists()), ("other", false));

    // A folder, with what is in it.
    scene.script("document.querySelector('li[data-of=sub] [data-act=rename-folder]').click()").await;
    name("moved/sub").await;
    until("the list", async || scene.listed().await.iter().any(|name| name == "moved/sub/50% #.txt")).await;
    assert_eq!((scene.read("moved/sub/50% #.txt").as_str(), scene.folder.join("sub").exists()), ("other", false));

    uploads_ask_before_they_replace(&scene).await;
    questions_wait_for_each_other(&scene).await;
    answers_are_for_the_conversation_that_was_asked_about(&scene).await;
    everything_is_downloaded(&scene).await;
    scene.close().await;
}

async fn edits_are_saved_unless_the_file_changed(scene: &Scene) {
    scene.view("notes.txt", ".cm-content").await;
    scene.edit("mine\nsecond\n").await;
    scene.sheet.says("viewer-note", |note| note == "Not saved").await;
    scene.sheet.click("viewer-save").await;
    scene.sheet.says("viewer-note", |note| note == "Saved").await;
    assert_eq!(scene.read("notes.txt"), "mine\r\nsecond\r\n", "line ends stay");
    // A program writes the file meanwhile.
    std::fs::write(scene.folder.join("notes.txt"), "theirs, which is longer").expect("written");
    scene.edit("forced").await;
    scene.sheet.click("viewer-save").await;
    scene.asked(true).await;
    scene.sheet.click("confirm-no").await;
    scene.sheet.says("viewer-note", |note| note == "Not saved").await;
    assert_eq!(scene.read("notes.txt"), "theirs, which is longer");
    scene.sheet.click("viewer-save").await;
    scene.asked(true).await;
    scene.sheet.click("confirm-yes").await;
    scene.sheet.says("viewer-note", |note| note == "Saved").await;
    assert_eq!(scene.read("notes.txt"), "forced");
    // What is not saved is not lost without a question.
    scene.edit("unsaved").await;
    scene.script("window.view = document.querySelector('[data-testid=viewer-body]').cmView; return null").await;
    scene.sheet.click("viewer-close").await;
    scene.asked(true).await;
    scene.sheet.click("confirm-yes").await;
    scene.sheet.until_open("viewer", false).await;
    assert_eq!(scene.script("return window.view.destroyed").await, true, "its editor listens no longer");
    assert_eq!(scene.read("notes.txt"), "forced");
}

/// By the key, and by two clicks at once. Carriage returns stay where they are.
async fn saved_once_and_with_its_line_ends(scene: &Scene) {
    scene.put(&[("mixed.txt", b"10%\r20%\r\nend\n")]).await;
    let append = "const view = document.querySelector('[data-testid=viewer-body]').cmView; \
                  view.dispatch({changes: {from: view.state.doc.length, insert: 'x'}}); window.sent = []; \
                  window.send ??= window.fetch; \
                  window.fetch = (url, init) => (window.sent.push(init?.method ?? 'GET'), window.send(url, init));";
    let saved = async || {
        scene.sheet.says("viewer-note", |note| note == "Saved").await;
        let sent = scene.script("return window.sent.filter((method) => method !== 'GET')").await;
        assert_eq!(sent, json!(["HEAD"]), "the file itself is sent by another interface, whose progress is told");
        assert_eq!(scene.sheet.attribute("confirm-dialog", "open").await, Value::Null);
    };
    scene.view("mixed.txt", ".cm-content").await;
    scene.script(append).await;
    let text = scene.sheet.browser.driver.find(By::Css("[data-testid=viewer-body] .cm-content")).await.expect("text");
    text.send_keys(Key::Control + "s").await.expect("typed");
    saved().await;
    assert_eq!(scene.read("mixed.txt"), "10%\r20%\r\nend\nx");
    scene.script(append).await;
    scene.script("for (let i = 0; i < 2; i++) document.querySelector('[data-testid=viewer-save]').click()").await;
    saved().await;
    assert_eq!(scene.read("mixed.txt"), "10%\r20%\r\nend\nxx");
    scene.close_viewer().await;
    scene.press("mixed.txt", "delete").await;
    scene.asked(true).await;
    scene.sheet.click("confirm-yes").await;
    until("it is deleted", async || !scene.folder.join("mixed.txt").exists()).await;
}

/// Of a file that is dropped while another question is open.
async fn questions_wait_for_each_other(scene: &Scene) {
    let title = async || scene.script("return document.getElementById('confirm-title').textContent").await;
    scene.press("notes.txt", "delete").await;
    scene.asked(true).await;
    scene.sheet.drop_file("notes.txt", "dropped").await;
    let waits = "return document.querySelector('[data-testid=upload-line]') !== null";
    until("the upload waits", async || scene.script(waits).await == true).await;
    assert_eq!(title().await, "Delete this file?");
    scene.sheet.click("confirm-no").await;
    until("the next question", async || title().await == "Replace this file?").await;
    scene.asked(true).await;
    scene.sheet.click("confirm-no").await;
    let over = "return document.getElementById('uploads').hidden";
    until("the upload is over", async || scene.script(over).await == true).await;
    assert_eq!(scene.read("notes.txt"), "uploaded");
}

/// Which is not the one that is open when the browser went back meanwhile.
async fn answers_are_for_the_conversation_that_was_asked_about(scene: &Scene) {
    let first = scene.sheet.conversation().await;
    scene.sheet.click("new-conversation").await;
    scene.put(&[("notes.txt", b"second")]).await;
    let second = scene.server.root.join(scene.sheet.conversation().await).join("files/notes.txt");
    assert!(second.exists());
    scene.press("notes.txt", "delete").await;
    scene.asked(true).await;
    scene.script("history.back()").await;
    until("the first conversation", async || scene.sheet.conversation().await == first).await;
    scene.sheet.click("confirm-yes").await;
    until("it is deleted", async || !second.exists()).await;
    assert_eq!(scene.read("notes.txt"), "uploaded");
    scene.script("document.getElementById('files-refresh').click()").await;
    until("the list", async || scene.listed().await.iter().any(|name| name == "notes.txt")).await;
}

async fn uploads_ask_before_they_replace(scene: &Scene) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("notes.txt");
    std::fs::write(&path, "uploaded").expect("written");
    let input = scene.sheet.browser.driver.find(By::Css("[data-testid=upload-input]")).await.expect("the input");
    for (answer, left) in [("confirm-no", "forced"), ("confirm-yes", "uploaded")] {
        input.send_keys(path.display().to_string()).await.expect("chosen");
        scene.asked(true).await;
        scene.sheet.click(answer).await;
        until("the upload is over", async || {
            scene.script("return document.getElementById('uploads').hidden").await == true
        })
        .await;
        until("the file is as it was chosen", async || scene.read("notes.txt") == left).await;
    }
}

async fn everything_is_downloaded(scene: &Scene) {
    scene.sheet.click("files-download").await;
    let path = scene.sheet.browser.downloads.join(format!("{}.tar", scene.sheet.conversation().await));
    let files = || -> Option<Vec<String>> {
        let mut archive = tar::Archive::new(std::fs::File::open(&path).ok()?);
        let paths = archive.entries().ok()?.map(|entry| Some(entry.ok()?.path().ok()?.display().to_string()));
        let mut names = paths.collect::<Option<Vec<_>>>()?;
        names.retain(|name| !name.ends_with('/'));
        names.sort();
        Some(names)
    };
    let expected = ["made/by hand.txt", "moved/sub/50% #.txt", "notes.txt"];
    // The browser may still write it.
    until("the archive is saved", async || files().is_some_and(|names| names == expected)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_upload_shows_how_far_it_is() {
    const BYTES: u64 = 64 << 20;
    let scene = Scene::open().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.bin");
    std::fs::File::create(&path).and_then(|file| file.set_len(BYTES)).expect("a large file");
    let watch = "window.told = new Set(); const look = () => { \
                 const line = document.querySelector('[data-testid=upload-line][data-upload=sending]'); \
                 const bar = line?.querySelector('progress'); \
                 if (bar) window.told.add(`${line.querySelector('.upload-state').textContent} ${bar.max}`); }; \
                 new MutationObserver(look).observe(document.getElementById('uploads'), \
                 {childList: true, subtree: true, characterData: true, attributes: true});";
    scene.script(watch).await;
    let input = scene.sheet.browser.driver.find(By::Css("[data-testid=upload-input]")).await.expect("the input");
    input.send_keys(path.display().to_string()).await.expect("chosen");
    until("the file is listed", async || scene.listed().await == ["large.bin"]).await;
    scene.sheet.says("live", |text| text.contains("Uploaded 1 file.")).await;
    assert_eq!(std::fs::metadata(scene.folder.join("large.bin")).map(|about| about.len()).ok(), Some(BYTES));
    let told: Vec<String> = serde_json::from_value(scene.script("return [...window.told]").await).expect("a list");
    assert!(told.len() >= 2, "it was shown once only: {told:?}");
    assert!(told.iter().all(|text| text.ends_with(&format!(" of 64.0 MiB {BYTES}"))), "{told:?}");
    assert_eq!(scene.script("return document.getElementById('uploads').hidden").await, true);
    scene.close().await;
}
