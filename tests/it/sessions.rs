//! Sessions on the fake engine: variables, ends, limits, two callers, and many that must not meet.

mod between;
mod cells;
mod ends;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all};
use mcp_sandbox_server::{
    domain::{
        error::{Code, Failure},
        event::{Event, EventKind},
        id::{Language, SessionId},
        outcome::Ended,
        owner::{ConversationKey, Principal},
    },
    ports::observer::SessionsLoad,
    services::runs::{CellSession, Report, RunHandle, RunRequest},
};

use crate::support::{fake_server::FakeServer, scale::how_many, until};

fn owner() -> Principal {
    Principal::default()
}

fn conversation(name: &str) -> ConversationKey {
    ConversationKey::new(owner(), name.parse().expect("an id"))
}

fn python() -> Language {
    "python".parse().expect("a language")
}

fn request(name: &str, code: &str) -> RunRequest {
    let request = RunRequest::new(conversation(name), python(), code.to_owned().into());
    RunRequest { session: Some(CellSession::Any), detach: Some(true), ..request }
}

fn begin(server: &FakeServer, request: RunRequest) -> RunHandle {
    server.mcp.runs.begin(request).expect("a run")
}

async fn cell(server: &FakeServer, name: &str, code: &str) -> Report {
    let report = begin(server, request(name, code)).finished().await.expect("a report");
    Report::clone(&report)
}

async fn open(server: &FakeServer, name: &str) -> SessionId {
    server.sessions.open(&conversation(name), &python()).await.expect("a session").session
}

fn shown(report: &Report) -> (&str, &str, Ended) {
    (&report.stdout.text, &report.stderr.text, report.outcome.ended)
}

const OK: Ended = Ended::Exited { code: 0 };

#[tokio::test(start_paused = true)]
async fn variables_stay_between_cells_and_not_between_conversations() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(shown(&cell(&server, "a", "set x 41\nprint ok").await), ("ok\n", "", OK));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    let other = cell(&server, "b", "get x").await;
    let error = ("", "Traceback: NameError: name 'x' is not defined\n", Ended::Exited { code: 1 });
    assert_eq!(shown(&other), error);
    // A run of the same conversation does not meet it either, but shares its files.
    cell(&server, "a", "write file text").await;
    let run = RunRequest { session: None, ..request("a", "print run") };
    let report = begin(&server, run).finished().await.expect("a report");
    assert_eq!((report.stdout.text.as_str(), report.files.files.len()), ("run\n", 1));
    let sessions = server.sessions.list(&owner(), None);
    assert_eq!(sessions.iter().map(|view| view.cells).collect::<Vec<_>>(), [1, 3]);
    server.janitor.idle().await;
    assert_eq!(server.engine.live().len(), 2);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn another_owner_finds_no_session_and_gets_one_of_its_own() {
    let server = FakeServer::with_kernel(&[]).await;
    cell(&server, "a", "set x 1").await;
    let session = open(&server, "a").await;
    let stranger: Principal = "stranger".parse().expect("a name");
    let refused = server.sessions.get(&stranger, session).expect_err("another owner's");
    assert_eq!(refused.code, Code::SessionNotFound);
    assert!(server.sessions.list(&stranger, None).is_empty());
    let theirs = ConversationKey::new(stranger.clone(), "a".parse().expect("an id"));
    let mut wanted = RunRequest::new(theirs, python(), Bytes::from_static(b"get x"));
    wanted.session = Some(CellSession::Any);
    let report = begin(&server, wanted.clone()).finished().await.expect("a report");
    assert!(report.stderr.text.contains("NameError"));
    wanted.session = Some(CellSession::Open(session));
    let refused = begin(&server, wanted).finished().await.expect_err("another owner's");
    assert_eq!(refused.code, Code::SessionNotFound);
    server.sessions.close(&owner(), session).expect("closed");
    assert_eq!(server.sessions.get(&stranger, session).expect_err("as if it never was").code, Code::SessionNotFound);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_at_its_time_limit_is_interrupted_and_the_variables_live_on() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "2000")]).await;
    cell(&server, "a", "set x 41").await;
    let late = cell(&server, "a", "print before\nhang").await;
    assert_eq!((late.stdout.text.as_str(), late.outcome.ended), ("before\n", Ended::TimedOut));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    let run = begin(&server, request("a", "hang"));
    until("it runs", async || run.view().state.word() == "running").await;
    run.cancel();
    assert_eq!(run.finished().await.expect("a report").outcome.ended, Ended::Cancelled);
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_ignores_interrupts_is_ended_and_the_next_caller_is_told() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "2000")]).await;
    cell(&server, "a", "set x 41\nstubborn").await;
    let late = cell(&server, "a", "hang").await;
    assert_eq!(late.outcome.ended, Ended::TimedOut);
    assert!(late.stderr.text.contains("its variables are gone"), "{}", late.stderr.text);
    let next = cell(&server, "a", "get x").await;
    assert!(next.stderr.text.starts_with("[The session ended because a cell did not react"), "{}", next.stderr.text);
    assert!(next.stderr.text.contains("NameError"));
    assert!(!cell(&server, "a", "get x").await.stderr.text.contains("The session ended"), "only once");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_kernel_is_the_end_of_its_cell() {
    let server = FakeServer::with_kernel(&[]).await;
    for (code, ended, told) in [
        ("exit 3", Ended::Exited { code: 3 }, "status 3"),
        ("exit 0", OK, "status 0"),
        ("signal 11", Ended::Signaled { signal: 11 }, "signal 11"),
        ("oom", Ended::OutOfMemory, "memory limit"),
    ] {
        let session = open(&server, "a").await;
        let report = cell(&server, "a", &format!("print before\n{code}")).await;
        assert_eq!((report.stdout.text.as_str(), report.outcome.ended), ("before\n", ended));
        let gone = server.sessions.get(&owner(), session).expect_err("it ended");
        assert!(gone.code == Code::SessionEnded && gone.message.contains(told), "{gone}");
        let next = RunRequest { session: Some(CellSession::Open(session)), ..request("a", "print no") };
        assert_eq!(begin(&server, next).finished().await.expect_err("it ended").code, Code::SessionEnded);
        let report = cell(&server, "a", "print again").await;
        assert!(report.stderr.text.contains(told) && report.stdout.text == "again\n", "{}", report.stderr.text);
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_another_cell_says_is_not_taken_for_this_one() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(shown(&cell(&server, "a", "print one\nforge\nprint two").await), ("one\ntwo\n", "", OK));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_bridge_that_breaks_its_contract_or_its_connection_ends_the_session() {
    let server = FakeServer::with_kernel(&[]).await;
    cell(&server, "a", "set x 41").await;
    let lost = begin(&server, request("a", "print before\ngarbage\nhang")).finished().await.expect_err("it is lost");
    assert_eq!(lost.code, Code::EngineLost);
    let next = cell(&server, "a", "get x").await;
    assert!(next.stderr.text.starts_with("[The session ended because its sandbox was lost"), "{}", next.stderr.text);
    assert!(next.stderr.text.contains("NameError"), "the cell was not executed again");
    server.engine.faults().streams_to_break += 1;
    let refused = server.sessions.open(&conversation("b"), &python()).await.expect_err("its output breaks");
    assert_eq!(refused.code, Code::RunnerFailed);
    assert_eq!(shown(&cell(&server, "b", "print again").await), ("again\n", "", OK));
    server.stop().await;
}

async fn events(run: &RunHandle) -> Vec<Event> {
    run.events(1).collect().await
}

#[tokio::test(start_paused = true)]
async fn rich_output_is_text_events_and_files() {
    let server = FakeServer::with_kernel(&[]).await;
    let run = begin(&server, request("a", "figure\nshow text/html <b>page</b>\nset x 1\nget x\nraise ValueError no"));
    let events = events(&run).await;
    let report = run.finished().await.expect("a report");
    assert_eq!(report.stdout.text, "1\n");
    assert_eq!(report.stderr.text, "Traceback: ValueError: no\n");
    let traceback = events.iter().find_map(|event| match &event.kind {
        EventKind::Error { traceback, .. } => Some(traceback.as_str()),
        _ => None,
    });
    assert_eq!(traceback, Some("\u{1b}[31mTraceback\u{1b}[0m: ValueError: no"), "as the kernel sends it");
    let forms: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Display(display) => Some(display.data[0].0.clone()),
            EventKind::Error { name, value, .. } => Some(format!("{name} {value}")),
            _ => None,
        })
        .collect();
    assert_eq!(forms, ["image/png", "text/html", "text/plain", "ValueError no"]);
    let mut names: Vec<_> = report.files.files.iter().map(|file| file.path.display()).collect();
    names.sort();
    assert!(names[0].ends_with("-1.png") && names[1].ends_with("-2.html"), "{names:?}");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn input_is_asked_for_and_given_as_lines() {
    let server = FakeServer::with_kernel(&[]).await;
    let with = RunRequest { stdin: Bytes::from_static(b"Ada\nBob\r\n"), ..request("a", "ask name?\nask other?") };
    let run = begin(&server, with);
    assert_eq!(run.finished().await.expect("a report").stdout.text, "Ada\nBob\n");
    let run = begin(&server, RunRequest { stdin_open: true, ..request("a", "ask name?") });
    let asked = run.events(1).filter_map(|event| async move {
        if let EventKind::InputRequest { prompt, .. } = event.kind { Some(prompt) } else { None }
    });
    assert_eq!(std::pin::pin!(asked).next().await.as_deref(), Some("name?"));
    run.send_input(Bytes::from_static(b"Eve\n"), false).await.expect("taken");
    assert_eq!(run.finished().await.expect("a report").stdout.text, "Eve\n");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn idle_and_old_sessions_end_and_the_files_stay() {
    let settings = [("SANDBOX_SESSIONS__IDLE_S", "60"), ("SANDBOX_SESSIONS__AGE_S", "600")];
    let server = FakeServer::with_kernel(&settings).await;
    cell(&server, "a", "set x 1\nwrite kept text").await;
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert_eq!(cell(&server, "a", "get x").await.stdout.text, "1\n");
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert!(server.sessions.list(&owner(), None).is_empty());
    let after = cell(&server, "a", "print again").await;
    assert!(after.stderr.text.contains("not used for too long"), "{}", after.stderr.text);
    assert!(after.files.files.iter().any(|file| file.path.display() == "kept"));
    for _ in 0..15 {
        tokio::time::sleep(Duration::from_secs(45)).await;
        cell(&server, "a", "print busy").await;
    }
    let created = server.sessions.list(&owner(), None)[0].cells;
    assert!(created < 15, "it was renewed at its greatest age");
    server.stop().await;
}

/// A thousand are asked for where sixteen fit: none is refused, the least recently used ends, memory stays within.
#[tokio::test(start_paused = true)]
async fn sessions_share_their_memory() {
    let memory = (16_u64 << 28).to_string();
    let server = FakeServer::with_kernel(&[("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", &memory)]).await;
    for n in 0..how_many(100, 1000) {
        open(&server, &format!("c-{n}")).await;
        let SessionsLoad { open: count, memory_bytes: bytes, .. } = server.sessions.load();
        assert!(count <= 16 && bytes <= 16 << 28, "{count} {bytes}");
    }
    // Those that run a cell are not ended for another.
    let busy: Vec<_> = (0..16).map(|n| begin(&server, request(&format!("busy-{n}"), "sleep 2s"))).collect();
    until("they run", async || busy.iter().any(|run| run.view().state.word() == "running")).await;
    for run in &busy {
        assert_eq!(run.finished().await.expect("a report").outcome.ended, OK);
    }
    server.janitor.idle().await;
    assert!(server.engine.live().len() <= 16);
    server.stop().await;

    let server = FakeServer::with_kernel(&[("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "0")]).await;
    let refused = server.sessions.open(&conversation("a"), &python()).await.expect_err("no room at all");
    assert_eq!(refused.code, Code::SessionsFull);
    server.stop().await;
}

/// Many sessions at once, each with a secret; every cell reads its own.
#[tokio::test(start_paused = true)]
async fn no_secret_is_seen_in_another_session() {
    let settings = [("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "1000000000000"), ("SANDBOX_ADMISSION__QUEUE_MAX", "10000")];
    let server = FakeServer::with_kernel(&settings).await;
    let many = how_many(200, 1000);
    for round in 0..3 {
        let cells = (0..many).map(|n| {
            let server = &server;
            let code = if round == 0 { format!("set secret s-{n}") } else { "get secret".to_owned() };
            async move { (n, cell(server, &format!("c-{n}"), &code).await) }
        });
        for (n, report) in join_all(cells).await {
            let expected = if round == 0 { String::new() } else { format!("s-{n}\n") };
            assert_eq!(report.stdout.text, expected, "session {n}");
        }
    }
    assert_eq!(server.sessions.load().open, many);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn two_callers_open_one_session_and_take_turns() {
    let server = FakeServer::with_kernel(&[]).await;
    let opened = join_all((0..8).map(|_| open(&server, "a"))).await;
    assert!(opened.iter().all(|session| *session == opened[0]));
    let work = join_all((0..8).map(|n| {
        let server = &server;
        let code = format!("append log {n}\nsleep 10ms\nappend log {n}");
        // Cells and programs by turns.
        let session = (n % 2 == 0).then_some(CellSession::Any);
        async move { begin(server, RunRequest { session, ..request("a", &code) }).finished().await }
    }));
    assert!(work.await.iter().all(|report| report.as_ref().is_ok_and(|report| report.outcome.ended == OK)));
    let log = std::fs::read_to_string(server.root.join("a/files/log")).expect("a log");
    assert!(log.len() == 16 && log.as_bytes().chunks(2).all(|pair| pair[0] == pair[1]), "{log}");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_flood_ends_at_the_output_limit_and_the_session_lives() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "100000")]).await;
    cell(&server, "a", "set x 1").await;
    let flood = cell(&server, "a", "flood 5000000\nhang").await;
    assert_eq!(flood.outcome.ended, Ended::OutputLimit);
    assert_eq!(cell(&server, "a", "get x").await.stdout.text, "1\n");
    let events = "show text/html x\n".repeat(2000);
    let run = begin(&server, request("a", &events));
    let displays = self::events(&run).await;
    let displays = displays.iter().filter(|event| matches!(event.kind, EventKind::Display(_))).count();
    assert_eq!(displays, 501, "those for which there is room, and the last");
    let report = run.finished().await.expect("a report");
    assert_eq!(report.stderr.text.matches("[Events left out: 1499.").count(), 1, "{}", report.stderr.text);
    assert_eq!(report.files.changed, 20, "files of one cell are bounded");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_a_restart_and_introspection() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, "a").await;
    cell(&server, "a", "set alpha 1").await;
    let completed = server.sessions.complete(&owner(), session, "al", 2).await.expect("an answer");
    assert_eq!(completed["matches"], serde_json::json!(["alpha"]));
    let inspected = server.sessions.inspect(&owner(), session, "alpha", 2, false).await.expect("an answer");
    assert_eq!(inspected["data"]["text/plain"], "alpha");
    let run = begin(&server, request("a", "hang"));
    until("it runs", async || run.view().state.word() == "running").await;
    let busy = server.sessions.complete(&owner(), session, "al", 2).await.expect_err("a cell runs");
    assert_eq!(busy.code, Code::SessionBusy);
    server.sessions.interrupt(&owner(), session).await.expect("interrupted");
    let report = run.finished().await.expect("a report");
    assert!(report.stderr.text.contains("KeyboardInterrupt") && report.outcome.ended == Ended::Exited { code: 1 });
    let again = server.sessions.restart(&owner(), session).await.expect("a session");
    assert_eq!((again.session, again.cells), (session, 0));
    let report = cell(&server, "a", "get alpha").await;
    assert!(report.stderr.text.starts_with("Traceback: NameError"), "a restart is no news: {}", report.stderr.text);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deleted_conversation_has_no_session() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, "a").await;
    let lock = server.mcp.runs.lock_if_idle(&conversation("a")).expect("nothing runs");
    assert_eq!(server.sessions.get(&owner(), session).expect_err("closed").code, Code::SessionEnded);
    drop(lock);
    let plain: Result<_, Failure> =
        server.sessions.open(&conversation("a"), &"bash".parse().expect("a language")).await;
    assert_eq!(plain.expect_err("a plain runner").argument.as_deref(), Some("language"));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_opened_while_its_conversation_is_deleted_ends() {
    let server = FakeServer::with_kernel(&[]).await;
    open(&server, "other").await;
    server.engine.faults().start_delay = Duration::from_secs(1);
    let before = server.engine.attempts();
    let deleted = async {
        until("its kernel is starting", async || server.engine.attempts() > before).await;
        drop(server.mcp.runs.lock_if_idle(&conversation("a")).expect("nothing runs"));
    };
    let key = conversation("a");
    let (opened, ()) = tokio::join!(async { server.sessions.open(&key, &python()).await }, deleted);
    assert_eq!(opened.expect_err("its files are gone").code, Code::SessionEnded);
    assert_eq!(server.sessions.list(&owner(), None).len(), 1);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_standby_becomes_a_session_and_serves_many_cells() {
    let settings = [("SANDBOX_STANDBY__TOTAL_MAX", "2"), ("SANDBOX_STANDBY__NAMELESS_MAX", "1")];
    let server = FakeServer::with_kernel(&settings).await;
    let run = RunRequest { session: None, ..request("first", "print x") };
    begin(&server, run).finished().await.expect("a report");
    until("one stands by", async || !server.engine.live().is_empty()).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let standing_by = server.engine.live();
    open(&server, "new").await;
    // A session that started a sandbox of its own would leave it to the next program.
    begin(&server, RunRequest { session: None, ..request("other", "print x") }).finished().await.expect("a report");
    server.janitor.idle().await;
    assert!(standing_by.iter().any(|listed| server.engine.live().contains(listed)), "it was taken for the session");
    for n in 0..how_many(500, 10_000) {
        assert_eq!(cell(&server, "new", &format!("set x {n}\nget x")).await.stdout.text, format!("{n}\n"));
    }
    server.stop().await;
}
