//! One cell: what it used.

use std::time::Duration;

use super::{FakeServer, Report, cell, open, owner};

/// Of a cell of the fake kernel that does nothing.
const LEAST: Option<Duration> = Some(Duration::from_millis(10));

fn cpu(report: &Report) -> Option<Duration> {
    report.outcome.figures.cpu
}

#[tokio::test(start_paused = true)]
async fn a_cell_used_what_it_used_itself_and_not_what_loading_the_interpreter_did() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, "a").await;
    assert_eq!(cpu(&cell(&server, "a", "print first").await), LEAST);
    assert_eq!(cpu(&cell(&server, "a", "burn 2s").await), Some(Duration::from_millis(2010)));
    assert_eq!(cpu(&cell(&server, "a", "raise ValueError no").await), LEAST);
    server.sessions.restart(&owner(), session).await.expect("a session");
    assert_eq!(cpu(&cell(&server, "a", "print again").await), LEAST, "of another interpreter");
    server.stop().await;
}
