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
    services::{
        execution::RunRequest,
        runs::{FeedItem, Policy, RunHandle, RunState, Runs},
    },
};
use tokio::time::timeout;

use crate::support::fake_server::FakeServer;

const LONG: Duration = Duration::from_mins(1);

fn owner() -> Principal {
    Principal::default()
}

fn begin_as(runs: &Runs, principal: &Principal, conversation: &str, code: &str, policy: Policy) -> RunHandle {
    let (conversation, language) = (conversation.parse().expect("an id"), "python".parse().expect("a language"));
    let request =
        RunRequest::new(ConversationKey::new(principal.clone(), conversation), language, code.to_owned().into());
    runs.create(request, policy).expect("a run")
}

fn begin(runs: &Runs, conversation: &str, code: &str) -> RunHandle {
    begin_as(runs, &owner(), conversation, code, Policy::Detached)
}

fn words(events: &[Event]) -> Vec<&'static str> {
    let word = |event: &Event| match &event.kind {
        EventKind::Queued { .. } => "queued",
        EventKind::Started => "started",
        EventKind::Output(..) => "output",
        EventKind::Cut { .. } => "cut",
        EventKind::Progress { .. } => "progress",
        EventKind::File(_) => "file",
        EventKind::Finished(_) => "finished",
        EventKind::Failed(_) => "failed",
    };
    events.iter().map(word).collect()
}

async fn ended(runs: &Runs, run: RunId) -> Ended {
    let view = runs.wait(&owner(), run, LONG).await.expect("a run");
    view.result.expect("it is over").expect("a report").outcome.ended
}

#[tokio::test(flavor = "multi_thread")]
async fn events_come_while_the_program_runs_and_again_from_any_number() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let handle = begin(runs, "events", "print first\nsleep 200ms\nstderr oh\nwrite a.txt x");
    let mut live = runs.events(&owner(), handle.id(), 0).expect("a stream");
    let mut events = Vec::new();
    while let Some(event) = live.next().await {
        if matches!(event.kind, EventKind::Output(..)) && events.len() == 2 {
            assert_eq!(handle.view().state, RunState::Running, "the first line comes before the end");
        }
        events.push(event);
    }
    assert_eq!(words(&events), ["queued", "started", "output", "output", "file", "finished"]);
    assert!(events.iter().zip(1..).all(|(event, number)| event.number == number));
    let view = runs.get(&owner(), handle.id()).expect("a run");
    assert_eq!((view.state, view.newest), (RunState::Finished, 6), "who read of the end finds it");
    for from in 0..9 {
        let again: Vec<_> = runs.events(&owner(), handle.id(), from).expect("a stream").collect().await;
        let numbers: Vec<_> = again.iter().map(|event| event.number).collect();
        assert_eq!(numbers, (from.max(1)..=6).collect::<Vec<_>>());
    }
    let (stdout, stderr) = runs.output(&owner(), handle.id(), 3).expect("output");
    assert_eq!((stdout.text.as_str(), stderr.text.as_str()), ("", "oh\n"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_does_what_the_policy_says() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let left = begin_as(runs, &owner(), "left", "hang", Policy::CancelWhenLeft);
    let kept = begin_as(runs, &owner(), "kept", "sleep 100ms\nprint done", Policy::CancelWhenLeft);
    let (left_id, kept_id) = (left.id(), kept.id());
    kept.detach();
    drop(left);
    assert_eq!(ended(runs, left_id).await, Ended::Cancelled);
    assert_eq!(ended(runs, kept_id).await, Ended::Exited { code: 0 });
    let asked = begin(runs, "asked", "hang");
    runs.cancel(&owner(), asked.id()).expect("a run");
    assert_eq!(ended(runs, asked.id()).await, Ended::Cancelled);
    runs.cancel(&owner(), kept_id).expect("a run that is over stays as it is");
    assert_eq!(ended(runs, kept_id).await, Ended::Exited { code: 0 });
    let waited = begin(runs, "waited", "hang");
    let view = runs.wait(&owner(), waited.id(), Duration::from_millis(20)).await.expect("a run");
    assert!(view.result.is_none());
    // The stop of the server cancels the detached run, and its reader comes to an end.
    let events = runs.events(&owner(), waited.id(), 0).expect("a stream");
    server.stop().await;
    let events: Vec<_> = events.collect().await;
    assert_eq!(words(&events).last(), Some(&"finished"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_sees_the_runs_of_another() {
    let server = FakeServer::start().await;
    let runs = &server.mcp.runs;
    let other = "other".parse::<Principal>().expect("a principal");
    let handle = begin(runs, "mine", "print secret");
    handle.finished().await.expect("a report");
    let mut feed = runs.feed(&other);
    begin(runs, "mine", "print secret").finished().await.expect("a report");
    for run in [handle.id(), RunId::new()] {
        assert_eq!(runs.get(&other, run).expect_err("foreign").code, Code::RunNotFound);
        assert_eq!(runs.cancel(&other, run).expect_err("foreign").code, Code::RunNotFound);
        assert_eq!(runs.wait(&other, run, LONG).await.expect_err("foreign").code, Code::RunNotFound);
        assert_eq!(runs.output(&other, run, 0).expect_err("foreign").code, Code::RunNotFound);
        assert!(runs.events(&other, run, 0).is_err());
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
async fn what_is_over_is_remembered_within_bounds_and_what_runs_always() {
    let server = FakeServer::with(&[("SANDBOX_RUNS__KEPT_MAX", "3"), ("SANDBOX_RUNS__KEPT_BYTES", "300000")]).await;
    let runs = &server.mcp.runs;
    let running = begin(runs, "running", "hang");
    let mut over = Vec::new();
    for n in 0..5 {
        let handle = begin(runs, "over", &format!("print {n}"));
        ended(runs, handle.id()).await;
        over.push(handle.id());
    }
    let remembered = async || runs.list(&owner(), None, None, 100).runs.len() == 4;
    crate::support::until("three are remembered, and the one that runs", remembered).await;
    assert_eq!(runs.get(&owner(), over[0]).expect_err("gone").code, Code::RunNotFound);
    assert!(runs.get(&owner(), over[4]).is_ok() && runs.get(&owner(), running.id()).is_ok());
    let large = begin(runs, "large", "flood 200000");
    ended(runs, large.id()).await;
    crate::support::until("the small ones made room", async || runs.list(&owner(), None, None, 100).runs.len() == 2)
        .await;
    assert!(runs.get(&owner(), large.id()).is_ok(), "the newest stays, however large");
    assert_eq!(runs.under_way(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_cost_the_run_nothing_and_one_that_sleeps_is_told_what_it_missed() {
    let server = FakeServer::with(&[("SANDBOX_LIMITS__WALL_MS", "600000")]).await;
    let runs = server.mcp.runs.clone();
    let lines = "print 0123456789\n".repeat(6_000);
    let handle = begin(&runs, "many", &format!("sleep 50ms\n{lines}print end"));
    let mut sleeper = runs.events(&owner(), handle.id(), 0).expect("a stream");
    let mut silent = runs.feed(&owner());
    let readers = (0..200).map(|_| {
        let events = runs.events(&owner(), handle.id(), 0).expect("a stream");
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
        assert!(gaps.into_iter().all(|pair| matches!(pair[1].kind, EventKind::Cut { .. })), "a gap without a cut");
    }
    let mut slept = Vec::new();
    while let Some(event) = sleeper.next().await {
        slept.push(event);
    }
    assert!(words(&slept).contains(&"cut") && words(&slept).last() == Some(&"finished"));
    // The feed that nobody read was bounded too: it goes on with what there still is, up to the end.
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
async fn a_queued_run_tells_its_place_and_can_be_cancelled_there() {
    let server = FakeServer::with(&[("SANDBOX_ADMISSION__SLOTS", "1")]).await;
    let runs = &server.mcp.runs;
    let first = begin(runs, "a", "hang");
    crate::support::until("it runs", async || first.view().state == RunState::Running).await;
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
