//! One cell: what it used, and which of its events are passed on.

use std::{future::ready, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use mcp_sandbox_server::{
    domain::event::{DisplayKind, EventKind},
    services::runs::RunRequest,
};

use super::{FakeServer, OK, Report, begin, cell, events, open, owner, request, shown};

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

#[tokio::test(start_paused = true)]
async fn a_display_that_changes_often_ends_in_its_last_state() {
    let server = FakeServer::with_kernel(&[]).await;
    let changes: Vec<_> = (1..=2000).map(|n| format!("update bar {n}\n")).collect();
    let code = format!("display bar 0\n{}display late first\nupdate late second", changes.concat());
    let run = begin(&server, request("a", &code));
    let events = events(&run).await;
    let displays: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Display(display) => Some((display.kind, display.data[0].1.as_str())),
            _ => None,
        })
        .collect();
    assert_eq!(displays.len(), 502);
    assert_eq!((displays[0].1, displays[499].1), ("0", "499"));
    assert_eq!(displays[500..], [(DisplayKind::Update, "2000"), (DisplayKind::Display, "second")]);
    let report = run.finished().await.expect("a report");
    assert_eq!(shown(&report), ("0\nfirst\n", "", OK), "nothing is missing, so nothing is told");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn input_and_errors_are_told_however_much_was_shown_before() {
    let server = FakeServer::with_kernel(&[]).await;
    let code = format!("{}ask go?\nraise ValueError no", "show text/html x\n".repeat(600));
    let run = begin(&server, RunRequest { stdin_open: true, ..request("a", &code) });
    let asked = run.events(1).filter_map(|event| async move {
        if let EventKind::InputRequest { prompt, .. } = event.kind { Some(prompt) } else { None }
    });
    assert_eq!(pin!(asked).next().await.as_deref(), Some("go?"));
    run.send_input(Bytes::from_static(b"yes\n"), false).await.expect("taken");
    let events = events(&run).await;
    let names = events.iter().filter_map(|event| match &event.kind {
        EventKind::Error { name, .. } => Some(name.as_str()),
        _ => None,
    });
    assert_eq!(names.collect::<Vec<_>>(), ["ValueError"]);
    let report = run.finished().await.expect("a report");
    assert_eq!(report.stdout.text, "yes\n");
    assert_eq!(report.stderr.text.matches("[Displays left out: 99.").count(), 1, "{}", report.stderr.text);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_late_request_for_input_is_told_when_it_waits() {
    let server = FakeServer::with_kernel(&[]).await;
    let asks = request("a", &"ask more?\n".repeat(600));
    let run = begin(&server, RunRequest { stdin: "line\n".repeat(599).into(), stdin_open: true, ..asks });
    let requests = run.events(1).filter(|event| ready(matches!(event.kind, EventKind::InputRequest { .. })));
    // Each of the first 500, and the one for which no line is at hand.
    assert_eq!(requests.take(501).count().await, 501);
    run.send_input(Bytes::from_static(b"last\n"), true).await.expect("taken");
    let report = run.finished().await.expect("a report");
    assert!(report.stdout.text.ends_with("line\nlast\n"), "{}", report.stdout.text.len());
    server.stop().await;
}
