//! Programs and files on the page: one becomes the other; what other tabs do to files, and what is asked about them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::Value;
use thirtyfour::prelude::*;

use crate::{
    page_program::undo,
    page_state::{PNG, open},
    support::{FakeServer, browser::Browser, calls, server::TOKEN, sheet::Sheet, until},
};

/// Answers the question for a name.
async fn name(sheet: &Sheet, keys: impl Into<TypingData>) {
    sheet.until_open("ask-dialog", true).await;
    sheet.browser.element("ask-input").await.send_keys(keys).await.expect("typed");
}

pub(crate) async fn put(server: &FakeServer, conversation: &str, path: &str, content: impl Into<reqwest::Body>) {
    let url = format!("http://{}/v1/conversations/{conversation}/files/{path}", server.address);
    let answer = server.http.put(url).bearer_auth(TOKEN).body(content).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{path}");
}

/// Waits until a file is listed, and opens it.
pub(crate) async fn view(sheet: &Sheet, path: &str) {
    let button = format!("document.querySelector('li[data-key=\"{path}\"] [data-act=open]')");
    let is_listed = format!("return {button} !== null");
    until(path, async || sheet.browser.script(&is_listed).await == true).await;
    sheet.browser.script(&format!("{button}.click(); return null")).await;
    sheet.until_open("viewer", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_saved_as_a_file_and_a_file_is_used_as_the_program() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let conversation = sheet.conversation().await;
    let file = server.root.join(&conversation).join("files/main.py");
    let has = async |wanted: &str| {
        let read = async || std::fs::read_to_string(&file).is_ok_and(|text| text == wanted);
        until(wanted, read).await;
    };
    sheet.write("python", "print saved").await;
    let editor = sheet.browser.driver.find(By::Css(".cm-content")).await.expect("the editor");
    editor.send_keys(Key::Control + "s").await.expect("typed");
    name(&sheet, Key::Enter + "").await;
    has("print saved").await;
    // By the button the second time, and only after a question.
    sheet.write("python", "print changed").await;
    sheet.click("save-program").await;
    name(&sheet, Key::Enter + "").await;
    sheet.until_open("confirm-dialog", true).await;
    sheet.click("confirm-yes").await;
    has("print changed").await;

    sheet.write("bash", "print mine").await;
    view(&sheet, "main.py").await;
    until("the button", async || sheet.attribute("viewer-use", "hidden").await == Value::Null).await;
    sheet.click("viewer-use").await;
    sheet.until_open("viewer", false).await;
    until("its text", async || sheet.program().await == "print changed").await;
    assert_eq!(sheet.language().await, "python");
    undo(&sheet).await;
    assert_eq!(sheet.program().await, "print mine");
    assert_eq!(sheet.language().await, "bash");

    // Data is no program.
    put(&server, &conversation, "data.json", "{}".to_owned()).await;
    sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
    view(&sheet, "data.json").await;
    until("its text", async || sheet.attribute("viewer-save", "hidden").await == Value::Null).await;
    assert_eq!(sheet.attribute("viewer-use", "hidden").await, "");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pictures_and_documents_are_shown_and_a_broken_picture_is_told() {
    let server = FakeServer::start().await;
    let sheet = Sheet::in_browser(Browser::whole_at(&format!("http://{}/", server.address)).await).await;
    let conversation = sheet.conversation().await;
    let files: [(&str, Vec<u8>, &str); 3] = [
        ("pixel.png", BASE64_STANDARD.decode(PNG).expect("bytes"), "body.querySelector('img')?.naturalWidth === 1"),
        (
            "broken.png",
            b"x".to_vec(),
            "body.querySelector('.refusal')?.textContent.startsWith('This image cannot be shown')",
        ),
        // A frame that a policy keeps from it has another document in its place.
        (
            "d.pdf",
            b"%PDF-1.4\n%%EOF\n".to_vec(),
            "body.querySelector('iframe')?.contentDocument?.contentType === 'application/pdf'",
        ),
    ];
    for (path, content, shown) in files {
        put(&server, &conversation, path, content).await;
        sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
        view(&sheet, path).await;
        let shown = format!("const body = document.getElementById('viewer-body'); return {shown}");
        until(path, async || sheet.browser.script(&shown).await == true).await;
        sheet.click("viewer-close").await;
        sheet.until_open("viewer", false).await;
    }
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_tab_did_to_files_is_seen_in_front() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    put(&server, &sheet.conversation().await, "data.json", "{}".to_owned()).await;
    sheet.browser.script("document.dispatchEvent(new Event('visibilitychange')); return null").await;
    view(&sheet, "data.json").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_deleted_while_it_is_open_is_told() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let conversation = sheet.conversation().await;
    let list_again = "document.dispatchEvent(new Event('visibilitychange')); return null";
    put(&server, &conversation, "a.txt", "old").await;
    sheet.browser.script(list_again).await;
    view(&sheet, "a.txt").await;
    until("its text", async || sheet.attribute("viewer-save", "hidden").await == Value::Null).await;
    // The file is there in the next list.
    put(&server, &conversation, "b.txt", "other").await;
    sheet.browser.script(list_again).await;
    sheet.says("files", |text| text.contains("b.txt")).await;
    assert_eq!(sheet.text("viewer-note").await, "");
    let path = format!("/v1/conversations/{conversation}/files/a.txt");
    let (status, answer) = calls::ask(&server, Method::DELETE, &path, None).await;
    assert!((200..300).contains(&status), "{answer}");
    sheet.browser.script(list_again).await;
    sheet.says("viewer-note", |note| note == "The file was deleted.").await;
    let write = "document.getElementById('viewer-body').cmView.dispatch({changes: {from: 0, insert: 'new and '}})";
    sheet.browser.script(&format!("{write}; return null")).await;
    sheet.click("viewer-save").await;
    sheet.until_open("confirm-dialog", true).await;
    let title = "return document.getElementById('confirm-title').textContent";
    assert_eq!(sheet.browser.script(title).await, "The file was deleted");
    sheet.click("confirm-yes").await;
    sheet.says("viewer-note", |note| note == "Saved").await;
    let file = server.root.join(&conversation).join("files/a.txt");
    assert_eq!(std::fs::read_to_string(file).expect("it is there again"), "new and old");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_file_is_of_the_conversation_that_was_open_when_it_was_named() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let first = sheet.conversation().await;
    sheet.click("new-conversation").await;
    let second = sheet.conversation().await;
    sheet.click("file-new").await;
    sheet.until_open("ask-dialog", true).await;
    sheet.browser.script("history.back(); return null").await;
    until("the first conversation", async || sheet.conversation().await == first).await;
    name(&sheet, "here.txt" + Key::Enter).await;
    until("the editor", async || sheet.attribute("viewer-save", "hidden").await == Value::Null).await;
    sheet.click("viewer-save").await;
    sheet.says("viewer-note", |note| note == "Saved").await;
    let exists = |conversation: &str| server.root.join(conversation).join("files/here.txt").exists();
    assert_eq!((exists(&first), exists(&second)), (false, true));
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_says_that_it_is_the_beginning_of_a_file() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    // Longer than what is read of a table, in fewer rows than are shown.
    let table = format!("a\n{}", format!("{}\n", "x".repeat(4095)).repeat(600));
    put(&server, &sheet.conversation().await, "long.csv", table).await;
    sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
    view(&sheet, "long.csv").await;
    let note = "return document.querySelector('.table-note')?.textContent ?? ''";
    until("the note", async || sheet.browser.script(note).await == "The first 511 rows of the file.").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_is_broken_off_does_not_say_that_the_server_is_away() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    // As where the server closes the connection before it has read all.
    let broken = "XMLHttpRequest.prototype.send = function () { \
                  queueMicrotask(() => this.dispatchEvent(new ProgressEvent('error'))); }; \
                  window.realFetch = window.fetch; window.fetch = (path, init) => window.isAway && \
                  init?.method === 'HEAD' ? Promise.reject(new TypeError('away')) : window.realFetch(path, init); \
                  return null";
    sheet.browser.script(broken).await;
    for (is_away, said) in [(false, "the server still answers"), (true, "The server did not answer")] {
        sheet.browser.script(&format!("window.isAway = {is_away}; return null")).await;
        sheet.drop_file("a.bin", "x").await;
        sheet.says("uploads", |text| text.contains(said)).await;
    }
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_kept_when_another_view_is_opened_or_the_browser_closes_the_file() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let conversation = sheet.conversation().await;
    put(&server, &conversation, "a.md", "old").await;
    sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
    view(&sheet, "a.md").await;
    let show = async |view: &str, element: &str| {
        let choose = format!("document.querySelector('#viewer-views [data-view={view}]')");
        until(view, async || sheet.browser.script(&format!("return {choose} !== null")).await == true).await;
        sheet.browser.script(&format!("{choose}.click(); return null")).await;
        let shown = format!("return document.querySelector('#viewer-body {element}') !== null");
        until(element, async || sheet.browser.script(&shown).await == true).await;
    };
    let write = async |text: &str| {
        let script = format!(
            "const view = document.getElementById('viewer-body').cmView; \
             view.dispatch({{changes: {{from: 0, to: view.state.doc.length, insert: '{text}'}}}}); return null"
        );
        sheet.browser.script(&script).await;
    };
    let text = "return document.getElementById('viewer-body').cmView.state.doc.toString()";
    let has = async |wanted: &str| {
        let file = server.root.join(&conversation).join("files/a.md");
        until(wanted, async || std::fs::read_to_string(&file).is_ok_and(|content| content == wanted)).await;
    };

    // More is written while the server is asked to save, and then the other view is opened; and what was saved before
    // is written again.
    show("text", ".cm-content").await;
    let hold = "window.realSend ??= XMLHttpRequest.prototype.send; window.release = null; \
                XMLHttpRequest.prototype.send = function (body) { \
                window.release = () => window.realSend.call(this, body); }; return null";
    for (saved, size, after) in [("first", "5 B", "first and more"), ("second", "6 B", "first and more")] {
        sheet.browser.script(hold).await;
        write(saved).await;
        sheet.click("viewer-save").await;
        until("it is sent", async || sheet.browser.script("return Boolean(window.release)").await == true).await;
        write(after).await;
        show("markdown", ".markdown").await;
        sheet.browser.script("XMLHttpRequest.prototype.send = window.realSend; window.release(); return null").await;
        let shown = "return document.getElementById('viewer-size').textContent";
        until("it is saved", async || sheet.browser.script(shown).await == size).await;
        has(saved).await;
        assert_eq!(sheet.text("viewer-note").await, "Not saved");
        show("text", ".cm-content").await;
        assert_eq!(sheet.browser.script(text).await, after);
        sheet.click("viewer-save").await;
        has(after).await;
        sheet.says("viewer-note", |note| note == "Saved").await;
    }

    // A change that was taken back after the other view had shown it.
    write("changed").await;
    show("markdown", ".markdown").await;
    show("text", ".cm-content").await;
    write("first and more").await;
    show("markdown", ".markdown").await;
    show("text", ".cm-content").await;
    assert_eq!(sheet.browser.script(text).await, "first and more");

    write("last").await;
    sheet.force_close("viewer").await;
    sheet.until_open("confirm-dialog", true).await;
    sheet.click("confirm-no").await;
    sheet.until_open("confirm-dialog", false).await;
    assert!(sheet.is_open("viewer").await);
    assert_eq!(sheet.browser.script(text).await, "last");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_name_in_a_question_is_wrapped() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    put(&server, &sheet.conversation().await, &"x".repeat(255), "x").await;
    sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
    sheet.says("files", |text| text.contains("xxx")).await;
    sheet.browser.script("document.querySelector('[data-testid=file-rename]').click(); return null").await;
    sheet.until_open("ask-dialog", true).await;
    let wide = "const dialog = document.getElementById('ask-dialog'); return dialog.scrollWidth - dialog.clientWidth";
    assert_eq!(sheet.browser.script(wide).await, 0, "it scrolls sideways");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_to_change_is_selected_without_its_folders_and_its_ending() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let conversation = sheet.conversation().await;
    let names = [("v1.0/readme", "readme"), ("a/.env", ".env"), ("b.c/notes.txt", "notes")];
    for (path, _) in names {
        put(&server, &conversation, path, "x").await;
    }
    sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
    for (path, wanted) in names {
        let rename = format!("document.querySelector('li[data-key=\"{path}\"] [data-act=rename]')");
        until(path, async || sheet.browser.script(&format!("return {rename} !== null")).await == true).await;
        sheet.browser.script(&format!("{rename}.click(); return null")).await;
        sheet.until_open("ask-dialog", true).await;
        let selected = "const field = document.getElementById('ask-input'); \
                        return field.value.slice(field.selectionStart, field.selectionEnd)";
        assert_eq!(sheet.browser.script(selected).await, wanted, "{path}");
        sheet.browser.script("document.getElementById('ask-no').click(); return null").await;
        sheet.until_open("ask-dialog", false).await;
    }
    sheet.browser.close().await;
    server.stop().await;
}
