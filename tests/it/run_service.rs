//! The one model of a run, on the fake engine: who sees it, what a reader gets, what is remembered.

use std::time::Duration;

use futures_util::{FutureExt, StreamExt, future::join_all};
use mcp_sandbox_server::{
    domain::{
        error::Code,
        event::{Event, EventKind},
        id::RunId,
        outcome::Ended,
        owner::{ConversationKey, Principal},
    },
    services::runs::{FeedItem, RunHandle, RunRequest, RunState, Runs},
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{fake_server::FakeServer, until};

const LONG: Duration = Duration::from_mins(1);

fn owner() -> Principal {
    Principal::default()
}

fn begin_with(runs: &Runs, conversation: &str, code: &str, detach: Option<bool>) -> RunHandle {
    let (conversation, language) = (conversation.parse().expect("an id"), "python".parse().expect("a language"));
    let request = RunRequest::new(ConversationKey::new(owner(), conversation), language, code.to_owned().into());
    runs.begin(RunRequest { detach, ..request }).expect("a run")
}

fn begin(runs: &Runs, conversation: &str, code: &str) -> RunHandle {
    begin_with(runs, conversation, code, Some(true))
}

fn words(events: &[Event]) -> Vec<&'static str> {
    let word = |event: &Event| match &event.kind {
        EventKind::Queued { .. } => "queued",
        EventKind::Started => "started",
        EventKind::Output(..) => "output",
        EventKind::Cut { .. } => "cut",
        EventKind::Progress { .. } => "progress",
        EventKind::Display(_) => "display",
        EventKind::Error { .. } => "error",
        EventKind::Clear { .. } => "clear",
        EventKind::InputRequest { .. } => "input_request",
        EventKind::InputAnswered => "input_answered",
        EventKind::Tool(_) => "tool",
        EventKind::Approval(_) => "approval",
        EventKind::Network(_) => "network",
        EventKind::File(_) => "file",
        EventKind::Finished(_) => "finished",
        EventKind::Failed(_) => "failed",
    };
    events.iter().map(word).collect()
}

async fn ended(runs: &Runs, run: RunId) -> Ended {
    let view = runs.get(&owner(), run).expect("a run").wait(LONG).await;
    view.result.expect("it is over").expect("a report").outcome.ended
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_streamed_live_and_again_from_any_number() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let handle = begin(runs, "events", "print first\nwait-file go\nstderr oh\nwrite a.txt x");
    let mut live = handle.events(0);
    let mut events = Vec::new();
    while let Some(event) = live.next().await {
        if matches!(event.kind, EventKind::Output(..)) && events.len() == 2 {
            assert_eq!(handle.view().state, RunState::Running, "the first line comes before the end");
            std::fs::write(server.root.join("events/files/go"), "").expect("written");
        }
        events.push(event);
    }
    assert_eq!(words(&events), ["queued", "started", "output", "output", "file", "finished"]);
    assert!(events.iter().zip(1..).all(|(event, number)| event.number == number));
    let run = runs.get(&owner(), handle.id()).expect("a run");
    let view = run.view();
    assert_eq!((view.state, view.newest), (RunState::Finished, 6), "who read of the end finds it");
    for from in 0..9 {
        let again: Vec<_> = run.events(from).collect().await;
        let numbers: Vec<_> = again.iter().map(|event| event.number).collect();
        assert_eq!(numbers, (from.max(1)..=6).collect::<Vec<_>>());
    }
    let (stdout, stderr) = run.output(3, u64::MAX);
    let (early, none) = run.output(0, 3);
    assert_eq!((early.text.as_str(), none.text.as_str()), ("first\n", ""));
    assert_eq!((stdout.text.as_str(), stderr.text.as_str()), ("", "oh\n"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_handle_cancels_a_run_that_is_not_detached() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let left = begin_with(runs, "left", "hang", Some(false));
    let kept = begin_with(runs, "kept", "sleep 100ms\nprint done", None);
    let (left_id, kept_id) = (left.id(), kept.id());
    kept.detach();
    drop(left);
    assert_eq!(ended(runs, left_id).await, Ended::Cancelled);
    assert_eq!(ended(runs, kept_id).await, Ended::Exited { code: 0 });
    let asked = begin(runs, "asked", "hang");
    runs.get(&owner(), asked.id()).expect("a run").cancel();
    assert_eq!(ended(runs, asked.id()).await, Ended::Cancelled);
    // A run that is over stays as it is.
    runs.get(&owner(), kept_id).expect("a run").cancel();
    assert_eq!(ended(runs, kept_id).await, Ended::Exited { code: 0 });
    let waited = begin(runs, "waited", "hang");
    let view = waited.wait(Duration::from_millis(20)).await;
    assert!(view.result.is_none());
    // The stop of the server cancels the detached run, and its reader comes to an end.
    let events = waited.events(0);
    server.stop().await;
    let events: Vec<_> = events.collect().await;
    assert_eq!(words(&events).last(), Some(&"finished"));
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_another_owner_are_not_found() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let other = "other".parse::<Principal>().expect("a principal");
    let handle = begin(runs, "mine", "print secret");
    handle.finished().await.expect("a report");
    let mut feed = runs.feed(&other);
    begin(runs, "mine", "print secret").finished().await.expect("a report");
    for run in [handle.id(), RunId::new()] {
        assert_eq!(runs.get(&other, run).err().map(|failure| failure.code), Some(Code::RunNotFound));
    }
    assert!(runs.list(&other, None, None, 10).runs.is_empty());
    assert!(feed.next().now_or_never().is_none(), "the feed is silent");
    server.stop().await;
    assert!(feed.next().await.is_none(), "the feed ends with the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_newest_first_page_by_page() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let mut begun = Vec::new();
    for n in 0..7 {
        let handle = begin(runs, if n % 2 == 0 { "even" } else { "odd" }, "print x");
        handle.finished().await.expect("a report");
        begun.insert(0, handle.id());
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = runs.list(&owner(), None, after, 3);
        seen.extend(page.runs.iter().map(|view| view.run));
        after = page.after;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, begun);
    let even = runs.list(&owner(), Some(&"even".parse().expect("an id")), None, 100);
    assert!(even.runs.len() == 4 && even.after.is_none());
    assert!(runs.list(&owner(), None, Some(begun[6]), 3).runs.is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_runs_are_kept_within_bounds() {
    let server = FakeServer::with(&[("SANDBOX_RUNS__KEPT_MAX", "3"), ("SANDBOX_RUNS__KEPT_BYTES", "300000")]).await;
    let runs = &server.mcp.runs;
    let running = begin(runs, "running", "hang");
    let mut over = Vec::new();
    for n in 0..5 {
        let handle = begin(runs, "over", &format!("print {n}"));
        ended(runs, handle.id()).await;
        over.push(handle.id());
    }
    let kept = async || runs.list(&owner(), None, None, 100).runs.len() == 4;
    until("three are kept, and the one that runs", kept).await;
    assert_eq!(runs.get(&owner(), over[0]).err().map(|failure| failure.code), Some(Code::RunNotFound));
    assert!(runs.get(&owner(), over[4]).is_ok() && runs.get(&owner(), running.id()).is_ok());
    let large = begin(runs, "large", "flood 200000");
    ended(runs, large.id()).await;
    until("the small ones made room", async || runs.list(&owner(), None, None, 100).runs.len() == 2).await;
    assert!(runs.get(&owner(), large.id()).is_ok(), "the newest stays, however large");
    until("one goes on", async || runs.under_way() == 1).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_do_not_slow_the_run_and_receive_a_cut() {
    let limits = [("SANDBOX_LIMITS__WALL_MS", "600000"), ("SANDBOX_LIMITS__OUTPUT_KEPT_BYTES", "16384")];
    let server = FakeServer::with(&limits).await;
    let runs = server.mcp.runs.clone();
    let lines = "print 0123456789\n".repeat(6_000);
    let handle = begin(&runs, "many", &format!("sleep 50ms\n{lines}print end"));
    let mut sleeper = handle.events(0);
    let mut silent = runs.feed(&owner());
    let readers = (0..200).map(|_| {
        let events = handle.events(0);
        tokio::spawn(events.collect::<Vec<_>>())
    });
    let readers: Vec<_> = readers.collect();
    let report = timeout(LONG, handle.finished()).await.expect("in time").expect("a report");
    assert_eq!(report.outcome.figures.stdout_bytes, 66_004);
    for events in join_all(readers).await {
        let events = events.expect("a reader");
        assert_eq!(words(&events).last(), Some(&"finished"));
        assert!(events.windows(2).all(|pair| pair[0].number < pair[1].number));
        let gaps = events.windows(2).filter(|pair| pair[0].number + 1 < pair[1].number);
        let explained = |kind: &EventKind| matches!(kind, EventKind::Cut { .. } | EventKind::Output(..));
        assert!(gaps.into_iter().all(|pair| explained(&pair[1].kind)), "a gap without a cut");
        let (mut read, mut cut) = (0, 0);
        for event in &events {
            match &event.kind {
                EventKind::Output(_, bytes) => read += bytes.len() as u64,
                EventKind::Cut { stdout_bytes, .. } => cut = *stdout_bytes,
                _ => {}
            }
        }
        assert!(read <= 66_004 && read + cut >= 66_004, "{read} read, {cut} cut");
    }
    let mut slept = Vec::new();
    while let Some(event) = sleeper.next().await {
        slept.push(event);
    }
    assert!(words(&slept).contains(&"cut") && words(&slept).last() == Some(&"finished"));
    // The unread feed was bounded too: it goes on with what there still is, up to the end.
    let mut last = None;
    while let Some(item) = timeout(LONG, silent.next()).await.expect("in time") {
        if let FeedItem::Event { event, .. } = item {
            let over = event.kind.is_last();
            last = Some(event);
            if over {
                break;
            }
        }
    }
    assert!(last.is_some_and(|event| event.kind.is_last()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queued_run_reports_its_position_and_can_be_cancelled() {
    let server = FakeServer::with(&[("SANDBOX_ADMISSION__SLOTS", "1")]).await;
    let runs = &server.mcp.runs;
    let first = begin(runs, "a", "hang");
    until("it runs", async || first.view().state == RunState::Running).await;
    let (second, third) = (begin(runs, "b", "print b"), begin(runs, "c", "print c"));
    assert_eq!(second.view().state, RunState::Queued { position: Some(1) });
    assert_eq!(third.view().state, RunState::Queued { position: Some(2) });
    let told = third.events(0).next().await.expect("an event");
    assert!(matches!(told.kind, EventKind::Queued { position: 2 }));
    second.cancel();
    assert_eq!(ended(runs, second.id()).await, Ended::Cancelled);
    assert_eq!(third.view().state, RunState::Queued { position: Some(1) });
    first.cancel();
    assert_eq!(ended(runs, third.id()).await, Ended::Exited { code: 0 });
    assert_eq!(server.engine.started().len(), 2, "what was cancelled in the line was never started");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn cancel_ends_a_run_that_waits_for_a_starting_standby() {
    let server = FakeServer::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "1"), ("SANDBOX_STANDBY__NAMELESS_MAX", "0")]).await;
    let runs = &server.mcp.runs;
    let start = Duration::from_secs(50);
    let first = begin(runs, "a", "sleep 1s");
    until("the program runs", async || first.view().state == RunState::Running).await;
    server.engine.faults().start_delay = start;
    first.finished().await.expect("a report");
    until("its standby is starting", async || server.engine.attempts() == 2).await;
    let waiting = begin(runs, "a", "print x");
    until("it waits for the standby", async || waiting.view().state == RunState::Queued { position: None }).await;
    sleep(Duration::from_secs(1)).await;
    let cancelled = Instant::now();
    waiting.cancel();
    let report = waiting.finished().await.expect("a report");
    assert_eq!((report.outcome.ended, server.engine.attempts()), (Ended::Cancelled, 2));
    assert!(cancelled.elapsed() < Duration::from_secs(1), "{:?}", cancelled.elapsed());
    assert_eq!(runs.load().slots_taken, 1);
    // The start goes on to its end, and its sandbox is destroyed.
    let late = server.engine.started()[1];
    sleep(start).await;
    until("the late sandbox is gone", async || !server.engine.live().contains(&late)).await;
    assert_eq!(runs.load().slots_taken, 0);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn run_that_is_cancelled_while_its_sandbox_starts_keeps_its_slot_until_that_is_started() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    server.engine.faults().start_delay = Duration::from_secs(5);
    let left = begin(runs, "a", "print a");
    until("its sandbox is starting", async || server.engine.attempts() == 1).await;
    left.cancel();
    assert_eq!(ended(runs, left.id()).await, Ended::Cancelled);
    let key = ConversationKey::new(owner(), "a".parse().expect("an id"));
    assert!(runs.is_idle(&key), "its conversation is free");
    assert_eq!(runs.load().slots_taken, 1);
    until("its sandbox was started", async || runs.load().slots_taken == 0).await;
    server.until_live(0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversation_stays_locked_while_a_killed_program_may_live() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "3000")]).await;
    let runs = &server.mcp.runs;
    let stuck = begin(runs, "stuck", "hang");
    until("it has begun", async || server.engine.started().len() == 1).await;
    let sandbox = server.engine.started()[0];
    server.engine.faults().indestructible.insert(sandbox);
    // Its own run is answered, since nothing more is to be learned of it.
    assert_eq!(ended(runs, stuck.id()).await, Ended::TimedOut);
    let next = begin(runs, "stuck", "print x");
    assert_eq!(ended(runs, begin(runs, "other", "print x").id()).await, Ended::Exited { code: 0 });
    assert_eq!(server.engine.started().len(), 2, "only the other conversation's program was started");
    assert!(next.view().result.is_none());
    server.engine.faults().indestructible.remove(&sandbox);
    assert_eq!(ended(runs, next.id()).await, Ended::Exited { code: 0 });
    server.stop().await;
}
