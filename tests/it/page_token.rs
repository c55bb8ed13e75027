//! The page's token beside that of another tab, and beside the one before it.

use crate::{page_state::open, support::FakeServer};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_not_to_be_remembered_does_not_replace_that_of_another_tab() {
    let server = FakeServer::start().await;
    let sheet = open(&server).await;
    // As another tab does whose token is to be remembered.
    sheet.browser.script("localStorage.setItem('sandbox.token', 'of-another-tab'); return null").await;
    sheet.reload("ready").await;
    assert_eq!(sheet.browser.script("return localStorage.getItem('sandbox.token')").await, "of-another-tab");
    sheet.browser.close().await;
    server.stop().await;
}
