//! The page by keyboard: what has the focus after an act, and what the arrow keys move.

use serde_json::{Value, json};
use thirtyfour::prelude::*;

use crate::{
    page_access::{focused, look_as, set_theme},
    page_state::{link, open},
    page_viewer::put,
    support::{FakeServer, until},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_focus_is_not_lost_with_a_control() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.browser.focus().await;
    put(&server, &sheet.conversation().await, "a.txt", "text").await;
    sheet.browser.script("document.getElementById('files-refresh').click(); return null").await;
    until("the file", async || sheet.text("files").await.contains("a.txt")).await;
    let go = "const row = document.querySelector('[data-testid=file-row]'); row.dataset.old = ''; \
              row.querySelector('[data-act=open]').focus(); return null";
    sheet.browser.script(go).await;
    sheet.press(Key::Enter + "").await;
    until("the text", async || sheet.attribute("viewer-save", "hidden").await == Value::Null).await;
    sheet.press("x").await;
    sheet.says("viewer-note", |note| note == "Not saved").await;
    sheet.browser.script("document.getElementById('viewer-save').focus(); return null").await;
    sheet.press(Key::Enter + "").await;
    sheet.says("viewer-note", |note| note == "Saved").await;
    assert_eq!(focused(&sheet).await, "viewer-body", "Save is off, and the text has the focus");
    let is_new = "return !('old' in document.querySelector('[data-testid=file-row]').dataset)";
    until("the list is drawn again", async || sheet.browser.script(is_new).await == true).await;
    // In a text, the first Escape lets Tab leave it.
    until("it is closed", async || {
        sheet.press(Key::Escape + "").await;
        !sheet.is_open("viewer").await
    })
    .await;
    assert_eq!(focused(&sheet).await, "file-open");

    let held = "XMLHttpRequest.prototype.send = function () { \
                this.abort = () => this.dispatchEvent(new ProgressEvent('abort')); }; return null";
    sheet.browser.script(held).await;
    sheet.drop_file("a.bin", "x").await;
    sheet.browser.element("upload-stop").await;
    sheet.browser.script("document.querySelector('[data-testid=upload-stop]').focus(); return null").await;
    sheet.press(Key::Enter + "").await;
    sheet.says("uploads", |text| text.contains("Cancelled.")).await;
    assert_eq!(focused(&sheet).await, "upload-input");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_focus_is_not_lost_with_the_button_of_a_notice_that_another_one_replaces() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.browser.focus().await;
    sheet.write("bash", "print shared").await;
    let link = link(&sheet).await;
    let (_, fragment) = link.split_once('#').expect("a fragment");
    sheet.write("python", "print mine").await;
    sheet.browser.script(&format!("location.hash = '{fragment}'; return null")).await;
    let undo = "const undo = document.getElementById('toast-action'); undo.focus(); \
                return document.activeElement === undo";
    until("Undo has the focus", async || sheet.browser.script(undo).await == true).await;
    sheet.browser.script("document.getElementById('share').click(); return null").await;
    let here = "return document.activeElement.id";
    until("the page has it", async || sheet.browser.script(here).await == "main").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arrow_keys_move_the_edges_of_panes() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    let edges = [
        ("split-columns", Key::Left, Key::Right, ["56", "52", "80", "20", "52"]),
        ("split-rows", Key::Up, Key::Down, ["66", "62", "80", "20", "62"]),
    ];
    for (edge, less, more, sizes) in edges {
        let handle = sheet.browser.element(edge).await;
        for (key, size) in [more, less, Key::End, Key::Home, Key::Enter].into_iter().zip(sizes) {
            handle.send_keys(key + "").await.expect("typed");
            assert_eq!(sheet.attribute(edge, "aria-valuenow").await, size, "{edge}");
        }
    }
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arrow_keys_go_through_the_runs() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.browser.focus().await;
    for text in ["one", "two", "three"] {
        assert_eq!(sheet.run("python", &format!("print {text}")).await, "exited");
    }
    until("all are listed", async || sheet.history().await == ["exited"; 3]).await;
    let runs = "[...document.querySelectorAll('[data-testid=history-run]')]";
    let stops = format!("return {runs}.map((run) => run.tabIndex)");
    assert_eq!(sheet.browser.script(&stops).await, json!([0, -1, -1]), "one stop for all");
    sheet.browser.script(&format!("{runs}[0].focus(); return null")).await;
    let at = format!("return {runs}.indexOf(document.activeElement)");
    for (key, place) in [(Key::Right, 1), (Key::End, 2), (Key::Home, 0), (Key::Right, 1), (Key::Left, 0)] {
        sheet.press(key + "").await;
        assert_eq!(sheet.browser.script(&at).await, place);
    }
    sheet.press(Key::Right + Key::Enter).await;
    sheet.says("terminal", |text| text == "two\n").await;
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_drawn_again_does_not_scroll_back_to_the_focus() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.browser.focus().await;
    set_theme(&sheet.browser, "light").await;
    look_as(&sheet, true).await;
    assert_eq!(sheet.run("python", "print one").await, "exited");
    until("it is listed", async || sheet.history().await == ["exited"]).await;
    let away = "const below = document.createElement('div'); below.style.height = '9000px'; \
                document.body.append(below); window.chip = document.querySelector('[data-testid=history-run]'); \
                window.chip.focus(); scrollTo({top: 6000, behavior: 'instant'}); return scrollY";
    assert_eq!(sheet.browser.script(away).await, 6000);
    server.run(&sheet.conversation().await, "print two").await;
    until("the list is drawn again", async || sheet.history().await.len() == 2).await;
    let now = "return [window.chip.isConnected, scrollY > 5000]";
    assert_eq!(sheet.browser.script(now).await, json!([false, true]));
    assert_eq!(focused(&sheet).await, "history-run");
    sheet.browser.close().await;
    server.stop().await;
}
