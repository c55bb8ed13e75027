//! Programs that flood their output, and how ends are decided.

use std::{
    cell::Cell,
    future::{pending, poll_fn, ready},
    task::Poll,
};

use super::*;
use crate::{
    domain::SandboxId,
    ports::engine::{Output, Sandbox},
};

fn execution(sandbox: Sandbox, decoder: Option<frames::Decoder>, log: &EventLog) -> Execution<'_> {
    let (_, sandbox) = attach(Started { sandbox, decoder });
    let (output_left, output_over, exit) = (1 << 10, false, None);
    Execution { sandbox, log, output_left, output_over, exit, reported: false, stopping: false }
}

/// A program that prints without a pause.
fn flood(log: &EventLog) -> Execution<'_> {
    let piece = || Ok::<_, EngineError>(Output { stream: StreamKind::Stdout, bytes: Bytes::from_static(b"x") });
    let sandbox = Sandbox {
        id: SandboxId::new(),
        stdin: Box::pin(tokio::io::sink()),
        output: Box::pin(stream::repeat_with(piece)),
        exit: Box::pin(pending()),
    };
    execution(sandbox, None, log)
}

#[tokio::test]
async fn program_that_floods_is_stopped_at_a_disk_limit() {
    let (log, cancel, limit) = (EventLog::new(1 << 10), CancellationToken::new(), DiskLimit::Entries { max: 1 });
    let stopped = flood(&log).until_end(pin!(pending::<()>()), pending::<()>(), &cancel, ready(limit)).await;
    assert_eq!(stopped, Some(Ended::DiskLimit(limit)));
}

#[tokio::test]
async fn program_that_floods_is_sent_its_input() {
    let (log, cancel, is_sent) = (EventLog::new(1 << 10), CancellationToken::new(), Cell::new(false));
    let writing = pin!(poll_fn(|_| {
        is_sent.set(true);
        Poll::<()>::Pending
    }));
    let stopped = flood(&log).until_end(writing, pending::<()>(), &cancel, pending()).await;
    assert_eq!((stopped, is_sent.get()), (Some(Ended::OutputLimit), true));
}

#[tokio::test]
async fn end_of_process_1_before_its_report_is_out_of_memory_or_a_loss() {
    for (oom_killed, expected) in [(true, Some(Ended::OutOfMemory)), (false, None)] {
        let exit = Exit { status: 137, oom_killed, process_limit_hit: false, broke_off: false };
        let sandbox = Sandbox {
            id: SandboxId::new(),
            stdin: Box::pin(tokio::io::sink()),
            output: Box::pin(stream::empty()),
            exit: Box::pin(ready(Ok(exit))),
        };
        let log = EventLog::new(1 << 10);
        let mut execution = execution(sandbox, Some(frames::Decoder::default()), &log);
        execution.until_exit().await;
        let verdict = match execution.exit {
            Some(Ok(report)) => Some(ended(None, Some(report))),
            Some(Err(ExecuteError::Engine(EngineError::Lost { .. }))) => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(verdict, expected);
    }
}

#[test]
fn verdicts_of_plain_runners_follow_the_facts() {
    let exits = |status, oom_killed, process_limit_hit| {
        Some(Exit { status, oom_killed, process_limit_hit, broke_off: false }.into())
    };
    let rows = [
        (None, exits(0, false, false), Ended::Exited { code: 0 }),
        (None, exits(7, false, false), Ended::Exited { code: 7 }),
        (None, exits(128, false, false), Ended::Exited { code: 128 }),
        (None, exits(137, false, false), Ended::Signaled { signal: 9 }),
        (None, exits(139, false, false), Ended::Signaled { signal: 11 }),
        (None, exits(255, false, false), Ended::Exited { code: 255 }),
        (None, exits(137, true, false), Ended::OutOfMemory),
        (None, exits(1, true, false), Ended::Exited { code: 1 }),
        (None, exits(1, true, true), Ended::ProcessLimit),
        (None, exits(0, true, true), Ended::Exited { code: 0 }),
        (None, exits(1, false, true), Ended::ProcessLimit),
        (Some(Ended::TimedOut), exits(137, false, false), Ended::TimedOut),
        (Some(Ended::TimedOut), exits(137, false, true), Ended::ProcessLimit),
        (Some(Ended::TimedOut), None, Ended::TimedOut),
        (Some(Ended::OutputLimit), exits(137, false, false), Ended::OutputLimit),
        (Some(Ended::Cancelled), exits(137, true, true), Ended::Cancelled),
    ];
    for (stopped, exit, expected) in rows {
        assert_eq!(ended(stopped, exit), expected, "{stopped:?} {exit:?}");
    }
}

#[test]
fn verdicts_of_framed_runners_follow_the_facts() {
    let report = |text: &str| Some(serde_json::from_str(text).expect("an exit report"));
    for (text, expected) in [
        (r#"{"status":0}"#, Ended::Exited { code: 0 }),
        (r#"{"status":137}"#, Ended::Exited { code: 137 }),
        (r#"{"signal":9}"#, Ended::Signaled { signal: 9 }),
        (r#"{"signal":9,"oomKills":1}"#, Ended::OutOfMemory),
        (r#"{"status":137,"oomKills":1}"#, Ended::OutOfMemory),
        (r#"{"status":0,"oomKills":1}"#, Ended::Exited { code: 0 }),
        (r#"{"status":1,"oomKills":1}"#, Ended::Exited { code: 1 }),
        (r#"{"status":1,"forksRefused":3}"#, Ended::ProcessLimit),
        (r#"{"signal":9,"killedBy":"deadline"}"#, Ended::TimedOut),
    ] {
        assert_eq!(ended(None, report(text)), expected, "{text}");
    }
}
