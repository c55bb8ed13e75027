//! What ends a session, and what its cells are told of it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use mcp_sandbox_server::{
    domain::{SafePath, clock::SystemClock, error::Code, id::SessionId, outcome::Ended},
    ports::engine::Engine as _,
    services::{
        peers::Occupancy as _,
        retention::{Retention, RetentionOptions},
        runs::{CellSession, RunRequest},
    },
};
use tokio::time::timeout;

use super::{FakeServer, OK, begin, cell, conversation, open, owner, python, request, shown, until};

/// Sends more messages than are queued for a sandbox that does not read.
async fn fill(server: &FakeServer, session: SessionId) {
    let (who, code) = (owner(), "x".repeat(4000));
    let requests = join_all((0..200).map(|_| server.sessions.complete(&who, session, &code, 0)));
    for answer in timeout(Duration::from_secs(30), requests).await.expect("each has a limit") {
        assert_eq!(answer.expect_err("a cell runs").code, Code::SessionBusy);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cell_whose_bridge_reads_nothing_ends_at_its_limit_with_its_session() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "20000")]).await;
    let session = open(&server, "a").await;
    let run = begin(&server, request("a", "print before\ndeaf"));
    until("it runs", async || run.view().state.word() == "running").await;
    fill(&server, session).await;
    let late = timeout(Duration::from_mins(1), run.finished()).await.expect("in time").expect("a report");
    assert_eq!((late.stdout.text.as_str(), late.outcome.ended), ("before\n", Ended::TimedOut));
    let told = "[The session ended because its interpreter took no messages any more: its variables are gone";
    assert!(late.stderr.text.starts_with(told), "{}", late.stderr.text);
    let next = cell(&server, "a", "print again").await;
    assert!(next.stderr.text.starts_with(told) && next.stdout.text == "again\n", "{}", next.stderr.text);
    server.stop().await;
}

/// As one that SIGINT ends.
#[tokio::test(start_paused = true)]
async fn a_cell_whose_kernel_ends_after_its_interrupt_says_so() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "2000")]).await;
    let late = cell(&server, "a", "set x 41\nstubborn\nsleep 3s\nexit 3").await;
    assert_eq!(late.outcome.ended, Ended::TimedOut);
    let told = "[The session ended because its interpreter ended with status 3: its variables are gone";
    assert!(late.stderr.text.starts_with(told), "{}", late.stderr.text);
    let next = cell(&server, "a", "get x").await;
    assert!(next.stderr.text.starts_with(told) && next.stderr.text.contains("NameError"), "{}", next.stderr.text);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_is_stopped_says_that_its_session_was_restarted() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, "a").await;
    let run = begin(&server, request("a", "stubborn\nhang"));
    until("it runs", async || run.view().state.word() == "running").await;
    run.cancel();
    server.sessions.restart(&owner(), session).await.expect("a session");
    let report = run.finished().await.expect("a report");
    let told = "[The session ended because it was restarted: its variables are gone";
    assert!(report.stderr.text.starts_with(told), "{}", report.stderr.text);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_whose_sandbox_does_not_take_its_files_ends_without_executing_the_cell() {
    let server = FakeServer::with_kernel(&[("SANDBOX_ENGINE__FILES", "streamed")]).await;
    let session = open(&server, "a").await;
    let lost = timeout(Duration::from_mins(1), begin(&server, request("a", "print on")).finished()).await;
    assert_eq!(lost.expect("in time").expect_err("it takes no files").code, Code::EngineLost);
    assert_eq!(server.sessions.get(&owner(), session).expect_err("it ended").code, Code::SessionEnded);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_ends_between_two_cells_is_told_to_the_next_caller_once() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, "a").await;
    assert_eq!(shown(&cell(&server, "a", "set x 41").await), ("", "", OK));
    for sandbox in server.engine.live() {
        server.engine.destroy(sandbox).await.expect("destroyed");
    }
    until("the session has ended", async || server.sessions.get(&owner(), session).is_err()).await;
    let next = cell(&server, "a", "get x").await;
    let told = "[The session ended because its sandbox was lost";
    assert!(next.stderr.text.starts_with(told) && next.stderr.text.contains("NameError"), "{}", next.stderr.text);
    assert_eq!(shown(&cell(&server, "a", "print again").await), ("again\n", "", OK));
    server.stop().await;
}

/// It ends as a program does that is done, as where the connection to its kernel broke.
#[tokio::test(start_paused = true)]
async fn a_bridge_that_gives_its_kernel_up_loses_the_session() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(shown(&cell(&server, "a", "set x 41").await), ("", "", OK));
    let lost = begin(&server, request("a", "print before\nfail")).finished().await.expect_err("it is lost");
    assert_eq!(lost.code, Code::EngineLost);
    let next = cell(&server, "a", "get x").await;
    let told = "[The session ended because its sandbox was lost";
    assert!(next.stderr.text.starts_with(told) && next.stderr.text.contains("NameError"), "{}", next.stderr.text);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kernel_is_not_out_of_memory_for_what_an_earlier_cell_lost() {
    let server = FakeServer::with_kernel(&[]).await;
    let lost = cell(&server, "a", "oom-child\nprint on").await;
    assert_eq!((shown(&lost), lost.outcome.oom_killed), (("on\n", "", OK), true), "a child of the kernel");
    let later = cell(&server, "a", "print on").await;
    assert_eq!((shown(&later), later.outcome.oom_killed), (("on\n", "", OK), false));
    assert_eq!(cell(&server, "a", "exit 3").await.outcome.ended, Ended::Exited { code: 3 });
    assert_eq!(cell(&server, "a", "oom-child\nexit 3").await.outcome.ended, Ended::OutOfMemory, "in the same cell");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_of_one_cell_ends_also_when_the_cell_is_not_executed() {
    let server = FakeServer::with_kernel(&[]).await;
    let file = |path: &str| (SafePath::from_text(path).expect("a path"), Bytes::from_static(b"x"));
    let once = Some(CellSession::Once);
    let wrong = RunRequest { session: once, files: vec![file("x"), file("x/y")], ..request("a", "print on") };
    begin(&server, wrong).finished().await.expect_err("the second file has no folder");
    assert_eq!(server.sessions.list(&owner(), None).len(), 0);
    let right = RunRequest { session: once, ..request("a", "print on") };
    assert_eq!(shown(&begin(&server, right).finished().await.expect("a report")), ("on\n", "", OK));
    assert_eq!(server.sessions.list(&owner(), None).len(), 0);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_not_told_in_a_session_that_its_caller_opened_after_it() {
    let server = FakeServer::with_kernel(&[]).await;
    for is_restarted in [true, false] {
        let session = open(&server, "a").await;
        assert_eq!(cell(&server, "a", "exit 3").await.outcome.ended, Ended::Exited { code: 3 });
        if is_restarted {
            server.sessions.restart(&owner(), session).await.expect("a session");
        } else {
            open(&server, "a").await;
        }
        assert_eq!(shown(&cell(&server, "a", "print on").await), ("on\n", "", OK), "restarted: {is_restarted}");
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_waits_is_not_executed_after_its_session_was_restarted_or_ended() {
    let server = FakeServer::with_kernel(&[]).await;
    for why in ["it was restarted", "it was closed", "an operator ended it"] {
        let session = open(&server, "a").await;
        let running = begin(&server, request("a", "hang"));
        until("it runs", async || running.view().state.word() == "running").await;
        let named = RunRequest { session: Some(CellSession::Open(session)), ..request("a", "append log x") };
        let waiting = [named, request("a", "append log x")].map(|request| begin(&server, request));
        match why {
            "it was restarted" => drop(server.sessions.restart(&owner(), session).await.expect("a session")),
            "it was closed" => drop(server.sessions.close(&owner(), session).expect("closed")),
            _ => drop(server.sessions.close_any(session).expect("ended")),
        }
        let report = running.finished().await.expect("a report");
        assert_eq!(report.outcome.ended, Ended::Cancelled);
        assert!(report.stderr.text.contains(&format!("The session ended because {why}")), "{}", report.stderr.text);
        for run in waiting {
            let report = run.finished().await.expect("a report");
            assert_eq!(report.outcome.ended, Ended::Cancelled);
            assert!(report.stderr.text.contains("so it was not executed"), "{}", report.stderr.text);
        }
        let later = cell(&server, "a", "print on").await;
        let (printed, note, ended) = shown(&later);
        assert_eq!((printed, ended), ("on\n", OK), "one that was sent later");
        // A caller knows of its own acts.
        if why == "an operator ended it" {
            assert!(note.contains(why), "{note}");
        } else {
            assert_eq!(note, "", "{why}");
        }
    }
    assert!(!server.root.join("a/files/log").exists());
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_when_its_caller_goes_away_and_ends_with_the_server() {
    let server = FakeServer::with_kernel(&[]).await;
    let (who, session) = (owner(), open(&server, "a").await);
    server.engine.faults().start_delay = Duration::from_millis(300);
    let give_up = async || timeout(Duration::from_millis(10), server.sessions.restart(&who, session)).await.is_err();
    assert!(give_up().await);
    let closed = server.sessions.close(&who, session).expect_err("it is being restarted");
    assert_eq!(closed.code, Code::SessionBusy, "not that it has ended: it comes back");
    until("it is there again", async || server.sessions.get(&who, session).is_ok()).await;
    assert!(give_up().await);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_goes_on_when_its_caller_goes_away() {
    let server = FakeServer::with_kernel(&[]).await;
    let (who, session) = (owner(), open(&server, "a").await);
    let run = begin(&server, request("a", "wake"));
    until("it runs", async || run.view().state.word() == "running").await;
    assert!(timeout(Duration::from_millis(10), server.sessions.interrupt(&who, session)).await.is_err());
    let report = run.finished().await.expect("a report");
    assert_eq!(report.outcome.ended, Ended::Exited { code: 1 });
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_given_up_keeps_its_memory_until_its_sandbox_is_started() {
    let memory = (1_u64 << 28).to_string();
    let server = FakeServer::with_kernel(&[("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", &memory)]).await;
    server.engine.faults().start_delay = Duration::from_secs(5);
    let ([left, next], language) = (["a", "b"].map(conversation), python());
    tokio::select! {
        opened = server.sessions.open(&left, &language) => panic!("{opened:?}"),
        () = until("its sandbox is starting", async || server.engine.attempts() == 1) => {}
    }
    let refused = server.sessions.open(&next, &language).await.expect_err("its memory is taken");
    assert_eq!((refused.code, server.engine.attempts()), (Code::SessionsFull, 1));
    until("its sandbox is gone", async || server.engine.live().is_empty()).await;
    assert!(server.sessions.open(&next, &language).await.is_ok());
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_given_up_keeps_its_memory_until_its_standby_is_started() {
    let memory = (1_u64 << 28).to_string();
    let settings = [
        ("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", memory.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "1"),
        ("SANDBOX_STANDBY__NAMELESS_MAX", "0"),
    ];
    let server = FakeServer::with_kernel(&settings).await;
    let run = begin(&server, RunRequest { session: None, ..request("a", "sleep 1s") });
    until("the program runs", async || run.view().state.word() == "running").await;
    server.engine.faults().start_delay = Duration::from_secs(5);
    run.finished().await.expect("a report");
    until("its standby is starting", async || server.engine.attempts() == 2).await;
    let ([left, next], language) = (["a", "b"].map(conversation), python());
    assert!(timeout(Duration::from_secs(1), server.sessions.open(&left, &language)).await.is_err());
    let refused = server.sessions.open(&next, &language).await.expect_err("its memory is taken");
    assert_eq!((refused.code, server.engine.attempts()), (Code::SessionsFull, 2));
    until("its memory is free", async || server.sessions.open(&next, &language).await.is_ok()).await;
    server.stop().await;
}

/// Each is opened or refused, and no more sandboxes are there than have room.
#[tokio::test(start_paused = true)]
async fn a_thousand_sessions_asked_for_at_once_stay_within_their_memory() {
    let memory = (16_u64 << 28).to_string();
    let server = FakeServer::with_kernel(&[("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", &memory)]).await;
    let opened = join_all((0..1000).map(|n| {
        let server = &server;
        async move { server.sessions.open(&conversation(&format!("c-{n}")), &python()).await.map(drop) }
    }));
    let refused: Vec<_> = opened.await.into_iter().filter_map(Result::err).map(|failure| failure.code).collect();
    assert!(refused.len() <= 984 && refused.iter().all(|code| *code == Code::SessionsFull), "{refused:?}");
    assert!(server.sessions.load().memory_bytes <= 16 << 28);
    server.janitor.idle().await;
    assert!(server.engine.live().len() <= 16);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_outlives_the_time_after_which_disks_are_unmounted() {
    let server = FakeServer::with_kernel(&[]).await;
    let session = open(&server, "a").await;
    assert_eq!(shown(&cell(&server, "a", "set x 41").await), ("", "", OK));
    server.used_ago("a", Duration::from_mins(10));
    let in_use = Duration::from_mins(5);
    let options = RetentionOptions { unused_max: None, total_bytes_max: None, in_use, own_disks: true };
    let (files, runs) = (Arc::clone(&server.mcp.files), server.mcp.runs.clone());
    let retention = Retention::new(files, runs, Arc::new(SystemClock), options);
    assert_eq!(retention.round().await, Ok(0));
    assert!(server.sessions.get(&owner(), session).is_ok());
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    server.stop().await;
}

/// Its disk stays mounted as long.
#[tokio::test(start_paused = true)]
async fn a_session_is_in_its_conversation_from_the_start_of_its_sandbox_to_its_end() {
    let server = FakeServer::with_kernel(&[]).await;
    open(&server, "other").await;
    let key = conversation("a");
    assert!(!server.sessions.any_in(&key));
    server.engine.faults().start_delay = Duration::from_secs(1);
    let before = server.engine.attempts();
    let looked = async {
        until("its kernel is starting", async || server.engine.attempts() > before).await;
        assert_eq!(server.sessions.list(&owner(), None).len(), 1, "the other one");
        assert!(server.sessions.any_in(&key));
    };
    let (opened, ()) = tokio::join!(async { server.sessions.open(&key, &python()).await }, looked);
    let opened = opened.expect("a session").session;
    assert!(server.sessions.any_in(&key));
    server.sessions.close(&owner(), opened).expect("closed");
    assert!(!server.sessions.any_in(&key));
    server.stop().await;
}

/// Otherwise another server might open a second one, since a slow start takes longer than an idle conversation is held.
#[tokio::test(start_paused = true)]
async fn a_conversation_in_which_a_session_is_being_opened_is_not_idle() {
    let server = FakeServer::with_kernel(&[]).await;
    let key = conversation("a");
    assert!(server.containers.is_idle(&key));
    server.engine.faults().start_delay = Duration::from_secs(1);
    let starting = async {
        until("its kernel is starting", async || server.engine.attempts() > 0).await;
        server.containers.is_idle(&key)
    };
    let (opened, is_idle) = tokio::join!(async { server.sessions.open(&key, &python()).await }, starting);
    opened.expect("a session");
    assert!(!is_idle && !server.containers.is_idle(&key));
    server.stop().await;
}
