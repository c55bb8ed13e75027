//! Answers that the page for operators gets late.

use crate::support::{FakeServer, server::TOKEN, until};

use super::page::{open, page, rows};

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_is_answered_late_is_made_again() {
    let server = FakeServer::start().await;
    let sheet = page(&server, TOKEN, "ready").await;
    let two_pages = "window.realFetch = window.fetch; window.loads = 0; \
                     const row = (conversationId) => ({ conversationId, owner: 'ann', bytes: 1 }); \
                     window.fetch = async (path, init) => { \
                       if (!path.startsWith('v1/admin/conversations')) return window.realFetch(path, init); \
                       const isSecond = path.includes('cursor='); \
                       if (!isSecond) window.loads += 1; \
                       if (!isSecond && window.holds) { \
                         window.holds = false; \
                         await new Promise((done) => (window.release = done)); \
                       } \
                       const body = { conversations: [row(isSecond ? 'b' : 'a')], total: 2 }; \
                       return new Response(JSON.stringify(isSecond ? body : { ...body, cursor: 'x' })); \
                     }; return null";
    sheet.browser.script(two_pages).await;
    open(&sheet, "conversations").await;
    assert_eq!(rows(&sheet, "conversations").await, 1);
    sheet.browser.script("window.holds = true; return null").await;
    until("a refresh", async || sheet.browser.script("return Boolean(window.release)").await == true).await;
    // No other refresh begins.
    let away = "Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => 'hidden' }); \
                document.querySelector('#view-conversations .table-more').click(); return null";
    sheet.browser.script(away).await;
    until("both pages", async || rows(&sheet, "conversations").await == 2).await;
    let loads = sheet.browser.script("return window.loads").await.as_u64().expect("a number");
    sheet.browser.script("window.release(); return null").await;
    until("one more load", async || sheet.browser.script("return window.loads").await == loads + 1).await;
    until("both pages again", async || rows(&sheet, "conversations").await == 2).await;
    sheet.browser.close().await;
    server.stop().await;
}
