//! One cell: what it used, which of its events are passed on, and its end on a kernel that says too little.

use std::{future::ready, pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::StreamExt;
use mcp_sandbox_server::{
    domain::{
        error::Code,
        event::{DisplayKind, EventKind},
        outcome::Ended,
    },
    services::runs::RunRequest,
};

use super::{
    FakeServer, OK, Report, RunHandle, begin, cell, conversation, events, open, owner, python, request, shown, until,
};

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
async fn a_cell_that_ends_its_kernel_used_what_it_used() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(cpu(&cell(&server, "a", "burn 1s").await), Some(Duration::from_millis(1010)));
    for (end, ended) in [("exit 3", Ended::Exited { code: 3 }), ("signal 9", Ended::Signaled { signal: 9 })] {
        let last = cell(&server, "a", &format!("burn 2s\n{end}")).await;
        assert_eq!((cpu(&last), last.outcome.ended), (Some(Duration::from_millis(2010)), ended));
    }
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_that_no_kernel_sends_have_no_effect() {
    let server = FakeServer::with_kernel(&[]).await;
    let run = begin(&server, request("a", "set x 41\nbroken\nprint end"));
    let displays = events(&run).await.iter().filter(|event| matches!(event.kind, EventKind::Display(_))).count();
    assert_eq!((shown(&run.finished().await.expect("a report")), displays), (("end\n", "", OK), 0));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_widgets_without_end_become_no_events() {
    let server = FakeServer::with_kernel(&[]).await;
    let code = format!("set x 41\n{}print end", "comm state\n".repeat(5000));
    let run = begin(&server, request("a", &code));
    let count = events(&run).await.len();
    assert!(count < 50, "{count}");
    assert_eq!(shown(&run.finished().await.expect("a report")), ("end\n", "", OK));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
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
    assert_eq!(report.stderr.text.matches("[Events left out: 99.").count(), 1, "{}", report.stderr.text);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn of_many_errors_the_first_hundred_and_the_last_are_told() {
    let server = FakeServer::with_kernel(&[]).await;
    let code: Vec<_> = (0..150).map(|n| format!("complain Name {n}\n")).collect();
    let run = begin(&server, request("a", &code.concat()));
    let events = events(&run).await;
    let values = events.iter().filter_map(|event| match &event.kind {
        EventKind::Error { value, .. } => value.parse().ok(),
        _ => None,
    });
    assert_eq!(values.collect::<Vec<u32>>(), (0..100).chain([149]).collect::<Vec<u32>>());
    let report = run.finished().await.expect("a report");
    assert_eq!(report.stderr.text.matches("[Events left out: 49.").count(), 1, "{}", report.stderr.text);
    server.stop().await;
}

/// In JSON, in which they go to the kernel, a control character takes six bytes.
#[tokio::test(start_paused = true)]
async fn code_and_lines_that_no_message_carries_are_refused_and_the_session_lives() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__PROGRAM_BYTES_MAX", "8388608")]).await;
    assert_eq!(shown(&cell(&server, "a", "set x 41").await), ("", "", OK));
    let control = |count: usize| "\u{1}".repeat(count);
    let given = |stdin: String| RunRequest { stdin: stdin.into(), ..request("a", "ask line?") };
    for (argument, wanted) in [
        ("code", request("a", &format!("# {}", control(700_000)))),
        ("code", request("a", &format!("# {}", "x".repeat(5 << 20)))),
        ("stdin", given("x".repeat(5_000_000))),
        ("stdin", given(format!("short\n{}\nshort\n", control(700_000)))),
    ] {
        let refused = server.mcp.runs.begin(wanted).map(drop).expect_err("it is too long");
        assert_eq!((refused.code, refused.argument.as_deref()), (Code::InvalidArgument, Some(argument)), "{refused}");
    }
    let long = control(600_000);
    let code = format!("# {long}\nask line?\nget x");
    let run = begin(&server, RunRequest { stdin: long.into(), ..request("a", &code) });
    let report = run.finished().await.expect("a report");
    assert_eq!(report.outcome.ended, OK);
    assert!(report.stdout.text.ends_with("\u{1}\n41\n"), "{}", report.stdout.text.len());
    server.stop().await;
}

/// A cell that waits for a line.
async fn asking(server: &FakeServer, code: &str) -> RunHandle {
    let run = begin(server, RunRequest { stdin_open: true, ..request("a", code) });
    let asked = run.events(1).filter(|event| ready(matches!(event.kind, EventKind::InputRequest { .. })));
    assert!(pin!(asked).next().await.is_some());
    run
}

#[tokio::test(start_paused = true)]
async fn a_line_that_is_sent_in_pieces_is_bounded() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(shown(&cell(&server, "a", "set x 41").await), ("", "", OK));
    let run = asking(&server, "ask go?").await;
    let (piece, mut pieces) = (Bytes::from(vec![b'x'; 1 << 20]), 0);
    let refused = loop {
        match run.send_input(piece.clone(), false).await {
            Ok(()) if pieces < 64 => pieces += 1,
            sent => break sent.expect_err("64 MiB without an end of a line"),
        }
    };
    assert_eq!((refused.code, pieces), (Code::TooLarge, 3));
    run.send_input(Bytes::new(), true).await.expect("the end of the input ends the line");
    assert_eq!(run.finished().await.expect("a report").outcome.ended, OK);

    let run = asking(&server, "ask go?").await;
    let control = Bytes::from(vec![1_u8; 300_000]);
    for _ in 0..2 {
        run.send_input(control.clone(), false).await.expect("it fits");
    }
    assert_eq!(run.send_input(control, false).await.expect_err("no message carries it").code, Code::TooLarge);
    run.send_input(Bytes::from_static(b"end\n"), false).await.expect("it fits");
    let report = run.finished().await.expect("a report");
    assert_eq!((report.stdout.text.ends_with("\u{1}end\n"), report.outcome.ended), (true, OK));

    // The longest piece ends within a line, and as long a one ends that line.
    let run = asking(&server, "ask one?\nask two?").await;
    for (begin, end) in [("one\n", ""), ("", "\n")] {
        let piece = format!("{begin}{}{end}", "x".repeat((1 << 20) - begin.len() - end.len()));
        run.send_input(piece.into(), false).await.expect("it fits");
    }
    let report = run.finished().await.expect("a report");
    assert_eq!((report.outcome.figures.stdout_bytes, report.outcome.ended), (2 << 20, OK));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
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
    let answers = run.events(1).filter(|event| ready(matches!(event.kind, EventKind::InputAnswered)));
    assert_eq!(answers.count().await, 501, "of each request that became an event");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn input_does_not_wait_for_the_end_of_what_is_printed() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "1024")]).await;
    let asks = RunRequest { stdin: Bytes::from_static(b"go\n"), ..request("a", "shout go?\nset x 41") };
    let report = begin(&server, asks).finished().await.expect("a report");
    assert_eq!(report.outcome.ended, Ended::OutputLimit);
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK), "the line came before the limit");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_is_charged_for_output_that_was_left_out_on_its_way() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__OUTPUT_BYTES_MAX", "1024")]).await;
    assert_eq!(shown(&cell(&server, "a", "drop 1020\nset x 41\nprint end").await), ("end\n", "", OK));
    let over = cell(&server, "a", "drop 1021\nprint end").await;
    assert_eq!((over.outcome.ended, over.stdout.text.as_str()), (Ended::OutputLimit, "end"));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_whose_kernel_says_nothing_after_its_reply_has_ended() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(shown(&cell(&server, "a", "noidle\nset x 41\nprint end").await), ("end\n", "", OK));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    server.stop().await;
}

/// As where a kernel fails in the request itself.
#[tokio::test(start_paused = true)]
async fn a_cell_that_gets_an_idle_status_alone_has_failed_and_keeps_its_session() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "2000")]).await;
    let failed = cell(&server, "a", "noreply\nset x 41\nprint on").await;
    assert_eq!(shown(&failed), ("on\n", "", Ended::Exited { code: 1 }));
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    let late = cell(&server, "a", "noreply\nsleep 1500ms\nset x 42").await;
    assert_eq!(late.outcome.ended, Ended::TimedOut, "its kernel was not asked yet");
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("42\n", "", OK));
    server.stop().await;
}

/// Its idle status is awaited when its time is over.
#[tokio::test(start_paused = true)]
async fn a_cell_that_has_replied_in_time_is_not_late() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "2000")]).await;
    assert_eq!(shown(&cell(&server, "a", "noidle\nsleep 1500ms\nprint end").await), ("end\n", "", OK));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_that_forges_its_idle_status_goes_on_until_its_reply() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(shown(&cell(&server, "a", "idle\nsleep 3s\nprint end").await), ("end\n", "", OK));
    server.stop().await;
}

/// As of a script that Python's `%run` starts: its kernel shows the error and replies that the cell is fine.
#[tokio::test(start_paused = true)]
async fn an_error_that_is_only_shown_does_not_end_its_cell() {
    let server = FakeServer::with_kernel(&[]).await;
    let goes_on = cell(&server, "a", "complain ValueError no\nprint end").await;
    assert_eq!(shown(&goes_on), ("end\n", "Traceback: ValueError: no\n", OK));
    let ends = cell(&server, "a", "complain ValueError no\nraise KeyError a").await;
    assert_eq!(shown(&ends).2, Ended::Exited { code: 1 });
    assert!(ends.stderr.text.ends_with("Traceback: KeyError: a\n"), "{}", ends.stderr.text);
    server.stop().await;
}

/// A reply is enough: the idle status of a cell that prints much can be lost.
#[tokio::test(start_paused = true)]
async fn a_cell_that_replies_to_its_interrupt_keeps_its_session_without_an_idle_status() {
    let server = FakeServer::with_kernel(&[("SANDBOX_LIMITS__WALL_MS", "2000")]).await;
    let late = cell(&server, "a", "set x 41\nnoidle\nhang").await;
    assert_eq!(late.outcome.ended, Ended::TimedOut);
    assert_eq!(shown(&cell(&server, "a", "get x").await), ("41\n", "", OK));
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_cell_takes_a_slot_and_an_idle_session_takes_none() {
    let server = FakeServer::with_kernel(&[("SANDBOX_ADMISSION__SLOTS", "1")]).await;
    open(&server, "a").await;
    open(&server, "b").await;
    let program = || RunRequest { session: None, ..request("c", "print run") };
    let run = begin(&server, program()).finished().await.expect("a report");
    assert_eq!(run.stdout.text, "run\n", "both sessions are idle");
    let running = begin(&server, request("a", "hang"));
    until("it runs", async || running.view().state.word() == "running").await;
    let waiting = begin(&server, program());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(waiting.view().state.word(), "queued");
    running.cancel();
    assert_eq!(waiting.finished().await.expect("a report").stdout.text, "run\n");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_kernel_that_never_answers_is_said_to_have_failed_and_ends() {
    let server = FakeServer::with_kernel(&[]).await;
    server.engine.faults().kernels_to_mute += 1;
    let failed = server.sessions.open(&conversation("a"), &python()).await.expect_err("it never answers");
    assert_eq!(failed.code, Code::RunnerFailed);
    assert!(failed.message.contains("did not start: try again"), "{failed}");
    assert!(server.sessions.list(&owner(), None).is_empty());
    assert_eq!(shown(&cell(&server, "a", "print again").await), ("again\n", "", OK));
    server.janitor.idle().await;
    assert_eq!(server.engine.live().len(), 1, "the sandbox of the first is gone");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_figure_takes_the_place_of_no_file() {
    let server = FakeServer::with_kernel(&[]).await;
    let run = begin(&server, RunRequest { stdin_open: true, ..request("a", "ask go?\nfigure\nfigure") });
    let asked = run.events(1).filter(|event| ready(matches!(event.kind, EventKind::InputRequest { .. })));
    assert!(pin!(asked).next().await.is_some());
    let id = run.view().run.to_string();
    let figure = |number: u8| server.root.join(format!("a/files/figure-{}-{number}.png", &id[id.len() - 6..]));
    std::fs::write(figure(1), "of another run").expect("written");
    run.send_input(Bytes::from_static(b"yes\n"), false).await.expect("taken");
    assert_eq!(shown(&run.finished().await.expect("a report")), ("yes\n", "", OK));
    assert_eq!(std::fs::read_to_string(figure(1)).expect("the file"), "of another run");
    assert!(figure(2).exists() && figure(3).exists());
    server.stop().await;
}
