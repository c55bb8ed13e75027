//! An engine that resets, stalls, truncates and lies: every run is answered in time and truthfully, no program runs
//! twice, and afterwards every place, slot, lease and sandbox is free.
//!
//! On the fake engine, in tokio's own time. A failure names its seed: `STORM_SEED=7 cargo test --test it storm::`.

use std::{collections::BTreeMap, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, future::join_all, stream};
use mcp_sandbox_server::{
    domain::{
        id::ConversationId,
        outcome::Ended,
        owner::{ConversationKey, Principal},
    },
    services::runs::{Report, RunHandle, RunRequest, RunState},
};
use tokio::time::{Instant, sleep, timeout};

use crate::support::{FakeServer, scale::how_many, until};

const AT_ONCE: usize = 8;
const SLOTS: usize = 4;
const QUEUE: usize = 12;
/// The time limit of a program, and of everything that the server may wait for around it.
const ANSWER_MAX: Duration = Duration::from_mins(2);
/// In which the janitor makes at least one whole round.
const JANITOR_ROUNDS: Duration = Duration::from_mins(1);

async fn server() -> FakeServer {
    let (slots, queue) = (SLOTS.to_string(), QUEUE.to_string());
    FakeServer::with(&[
        ("SANDBOX_ADMISSION__SLOTS", &slots),
        ("SANDBOX_ADMISSION__QUEUE_MAX", &queue),
        ("SANDBOX_LIMITS__WALL_MS", "2000"),
        ("SANDBOX_STANDBY__TOTAL_MAX", "4"),
        ("SANDBOX_STANDBY__NAMELESS_MAX", "1"),
    ])
    .await
}

/// Seven at a time; new ones every two hundred runs, since each run lists all the files of its conversation.
fn conversation(n: usize) -> ConversationId {
    format!("storm-{}-{}", n / 200, n % 7).parse().expect("an id")
}

fn begin(server: &FakeServer, n: usize, program: String) -> RunHandle {
    let language = "python".parse().expect("a language");
    let request =
        RunRequest::new(ConversationKey::new(Principal::default(), conversation(n)), language, program.into());
    server.mcp.runs.begin(RunRequest { detach: Some(true), ..request }).expect("there is a place")
}

/// What the program of run `n` has written, whatever its outcome.
fn written(server: &FakeServer, n: usize) -> String {
    let path = server.root.join(conversation(n).as_str()).join("files").join(format!("log-{n}"));
    std::fs::read_to_string(path).unwrap_or_default()
}

fn check_success(report: &Report, n: usize, written: &str) {
    assert_eq!(written, "12", "run {n} is reported as successful");
    assert_eq!((report.stdout.text.as_str(), report.stdout.truncated), ("begin\nend\n", false), "run {n}");
    assert!(
        report.files.files.iter().any(|file| file.path.display() == format!("log-{n}")),
        "run {n}: {:?}",
        report.files
    );
}

#[tokio::test(start_paused = true)]
async fn every_run_is_answered_truthfully_without_leaks() {
    let seed = std::env::var("STORM_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_121);
    let runs = how_many(500, 10_000);
    println!("seed {seed}, {runs} runs");
    let server = server().await;
    server.engine.inject_faults(seed);
    let one = |n: usize| {
        let server = &server;
        async move {
            let program = format!("append log-{n} 1\nprint begin\nsleep 20ms\nappend log-{n} 2\nprint end");
            let begun = Instant::now();
            let handle = begin(server, n, program);
            let result = timeout(ANSWER_MAX, handle.finished()).await;
            let result = result.unwrap_or_else(|_| panic!("seed {seed}: run {n} hangs: {:?}", handle.view()));
            let word = match &result {
                Ok(report) => report.outcome.ended.word(),
                Err(failure) => failure.code.as_str(),
            };
            if let Ok(report) = result
                && report.outcome.ended == (Ended::Exited { code: 0 })
            {
                check_success(&report, n, &written(server, n));
            }
            (word, begun.elapsed())
        }
    };
    let ends: Vec<_> = stream::iter((0..runs).map(one)).buffer_unordered(AT_ONCE).collect().await;
    server.engine.stop_faults();
    let mut words = BTreeMap::new();
    for (word, _) in &ends {
        *words.entry(*word).or_insert(0) += 1;
    }
    println!("{words:?}, slowest answer {:?}", ends.iter().map(|(_, took)| took).max());
    // A storm that breaks nothing, or everything, would prove nothing.
    for word in ["exited", "engine_lost", "engine_unavailable", "engine_failed"] {
        assert!(words.contains_key(word), "seed {seed}: no run ended as {word}");
    }
    // None of the programs takes so long: the engine did not report their ends.
    assert!(!words.contains_key("timed_out"), "seed {seed}: reported as the program's failure: {words:?}");
    for n in 0..runs {
        let written = written(&server, n);
        assert!(
            ["", "1", "12"].contains(&written.as_str()),
            "seed {seed}: the program of run {n} ran twice: {written}"
        );
    }
    everything_is_back(&server).await;
    server.stop().await;
}

/// An engine that is away gets a bounded number of starts for standbys, and they are refilled when it is back.
#[tokio::test(start_paused = true)]
async fn unreachable_engine_gets_few_start_requests() {
    let server = FakeServer::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "2"), ("SANDBOX_STANDBY__NAMELESS_MAX", "1")]).await;
    let run = async |n: usize| timeout(ANSWER_MAX, begin(&server, n, "print x".to_owned()).finished()).await;
    for n in [0, 1] {
        run(n).await.expect("an answer").expect("it ran");
    }
    server.engine.faults().away = true;
    let before = server.engine.attempts();
    for n in [0, 1, 0] {
        // One of them may be served by what stood by.
        drop(run(n).await.expect("an answer"));
    }
    sleep(Duration::from_mins(1)).await;
    let asked = server.engine.attempts() - before;
    assert!(asked < 60, "asked {asked} times in a minute");
    server.engine.faults().away = false;
    until("sandboxes stand by again", async || server.engine.live().len() >= 2).await;
    server.stop().await;
}

/// Every slot runs a program, every place is taken and no more; then sandboxes and leases are gone.
async fn everything_is_back(server: &FakeServer) {
    // A run that was answered keeps its place until its sandbox is seen to be gone.
    until("every slot is free", async || server.mcp.runs.load().slots_taken == 0).await;
    let all: Vec<_> = (0..SLOTS + QUEUE).map(|n| begin(server, 1000 + n, "sleep 1s".to_owned())).collect();
    let full = server.mcp.runs.check_capacity(&Principal::default());
    assert!(full.is_err(), "more places than there were");
    until("every slot runs a program", async || {
        all.iter().filter(|run| run.view().state == RunState::Running).count() == SLOTS
    })
    .await;
    // Whatever their outcome: a standby that was started in the storm keeps its faults.
    drop(timeout(ANSWER_MAX, join_all(all.iter().map(|run| run.finished().boxed()))).await.expect("all are answered"));
    // The janitor's next round finds what a false answer has left; the rest is leased by standbys. The counts alone do
    // not say so: the lease of a standby that is being started has no sandbox yet.
    sleep(JANITOR_ROUNDS).await;
    until("nothing unwanted is left", async || {
        server.janitor.idle().await;
        server.engine.live().len() <= server.janitor.leased()
    })
    .await;
}
