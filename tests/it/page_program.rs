//! The program on the page: links that are opened in place, and text that is kept when another program comes.

use serde_json::json;

use crate::{
    page_state::{link, open},
    support::{FakeServer, cable::Cable, server::TOKEN, sheet::Sheet, until},
};

/// Takes back what the notice says.
pub(crate) async fn undo(sheet: &Sheet) {
    sheet.browser.script("document.getElementById('toast-action').click(); return null").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_opened_where_only_the_fragment_changes() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("bash", "print shared").await;
    let link = link(&sheet).await;
    let (_, fragment) = link.split_once('#').expect("a fragment");
    sheet.write("python", "print mine").await;
    let address = sheet.browser.script("window.isSame = true; return location.href").await;
    sheet.browser.script(&format!("location.hash = '{fragment}'; return null")).await;
    until("its program", async || sheet.program().await == "print shared").await;
    assert_eq!(sheet.language().await, "bash");
    assert_eq!(sheet.browser.script("return window.isSame ?? null").await, true, "the page was not loaded again");
    assert_eq!(sheet.browser.script("return location.href").await, address, "the fragment is taken away");
    undo(&sheet).await;
    assert_eq!(sheet.program().await, "print mine");
    assert_eq!(sheet.language().await, "python");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_holds_the_program_of_a_link() {
    let server = FakeServer::start().await;
    let cable = Cable::to(server.address).await;
    let sheet = Sheet::open(&format!("http://{}/", cable.address)).await;
    sheet.write("bash", "print between-us").await;
    let link = link(&sheet).await;
    let (_, packed) = link.split_once("#program=").expect("a fragment");
    sheet.write("bash", "").await;
    sheet.browser.driver.goto("about:blank").await.expect("away");
    sheet.browser.driver.goto(&link).await.expect("the page");
    sheet.browser.state("ready").await;
    until("its program", async || sheet.program().await == "print between-us").await;
    sheet.write("bash", "").await;
    sheet.browser.script(&format!("location.hash = 'program={packed}'; return null")).await;
    until("its program again", async || sheet.program().await == "print between-us").await;
    assert_eq!(sheet.history().await, [""; 0], "nothing has run");
    let sent = cable.sent();
    assert!(sent.contains("GET /v1/runners "), "the requests are seen");
    for part in ["between-us", "program=", packed, "POST ", "PUT "] {
        assert!(!sent.contains(part), "{part} was sent");
    }
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_to_a_language_that_is_not_here_says_so() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("bash", "").await;
    let link = "const text = JSON.stringify({language: 'cobol', code: 'STOP RUN.'}); \
                const packed = new Blob([text]).stream().pipeThrough(new CompressionStream('deflate-raw')); \
                return new Response(packed).arrayBuffer().then((bytes) => { \
                location.hash = 'program=' + btoa(String.fromCharCode(...new Uint8Array(bytes))) \
                .replaceAll('+', '-').replaceAll('/', '_').replace(/=+$/, ''); return null; })";
    sheet.browser.script(link).await;
    sheet.says("live", |text| text == "The server has no runner for cobol.").await;
    assert_eq!(sheet.program().await, "STOP RUN.");
    assert_eq!(sheet.language().await, "bash");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_and_input_that_are_replaced_come_back() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("python", "print same").await;
    let link = link(&sheet).await;
    let (_, fragment) = link.split_once('#').expect("a fragment");
    let given = "const fields = ['args', 'stdin'].map((name) => document.querySelector(`[data-testid=${name}]`)); ";
    sheet.browser.script(&format!("{given} fields[0].value = \"a 'open\"; fields[1].value = 'typed'")).await;
    sheet.browser.script(&format!("location.hash = '{fragment}'; return null")).await;
    let values = format!("{given} return fields.map(({{ value }}) => value)");
    until("those of the link", async || sheet.browser.script(&values).await == json!(["", ""])).await;
    undo(&sheet).await;
    assert_eq!(sheet.browser.script(&values).await, json!(["a 'open", "typed"]));
    assert_eq!(sheet.program().await, "print same");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_written_without_a_token_is_kept() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    sheet.write("bash", "print mine").await;
    sheet.click("token").await;
    sheet.click("token-forget").await;
    sheet.reload("needs-token").await;
    let edit = "const view = document.querySelector('[data-testid=editor]').cmView; \
                view.dispatch({changes: {from: view.state.doc.length, insert: ' and more'}}); \
                document.querySelector('[data-testid=args]').value = \"a 'quote\"; return null";
    sheet.browser.script(edit).await;
    sheet.reload("needs-token").await;
    assert_eq!(sheet.program().await, "print mine and more");
    sheet.browser.element("token-input").await.send_keys(TOKEN).await.expect("typed");
    sheet.click("token-save").await;
    sheet.browser.state("ready").await;
    assert_eq!(sheet.program().await, "print mine and more");
    assert_eq!(sheet.language().await, "bash");
    let arguments = "return document.querySelector('[data-testid=args]').value";
    assert_eq!(sheet.browser.script(arguments).await, "a 'quote", "also where a quote is not closed");
    sheet.browser.close().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn text_is_copied_also_without_a_clipboard() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    assert_eq!(sheet.run("python", "print here").await, "exited");
    // As on a page that came over plain HTTP from another machine.
    let without = "Object.defineProperty(navigator, 'clipboard', {value: undefined}); document.execCommand = (name) => \
                   { window.copied = [name, document.activeElement.value]; return !window.isRefused; }; return null";
    sheet.browser.script(without).await;
    let toast = "const toast = document.getElementById('toast'); return toast.hidden ? '' : \
                 document.getElementById('toast-text').textContent";
    for (name, said) in [("terminal-copy", "Copied 5 characters."), ("share", "A link to this program is copied.")] {
        sheet.click(name).await;
        until(said, async || sheet.browser.script(toast).await.as_str().is_some_and(|text| text.starts_with(said)))
            .await;
        let focused = "return document.activeElement.dataset.testid";
        assert_eq!(sheet.browser.script(focused).await, name, "the focus is where it was");
    }
    let copied = sheet.browser.script("return window.copied").await;
    assert!(copied[0] == "copy" && copied[1].as_str().is_some_and(|link| link.contains("#program=")), "{copied}");
    sheet.browser.script("window.isRefused = true; return null").await;
    sheet.click("terminal-copy").await;
    until("a refusal", async || sheet.browser.script(toast).await == "The browser did not allow copying.").await;
    assert_eq!(sheet.browser.script("return window.copied").await, json!(["copy", "here\n"]));
    sheet.browser.close().await;
    server.stop().await;
}
