//! What is kept of output, for any pieces and any reader.

use proptest::prelude::*;

use super::*;
use crate::domain::{
    network::NetworkUse,
    tools::{Approval, ApprovalId, CallEnd, ProposedCall, ToolUse},
};

fn text(log: &EventLog, of: StreamKind) -> Vec<u8> {
    let mut all = Vec::new();
    for event in log.range(0, u64::MAX) {
        if let EventKind::Output(stream, bytes) = event.kind
            && stream == of
        {
            all.extend_from_slice(&bytes);
        }
    }
    all
}

#[test]
fn utf8_sequence_is_never_split() {
    let log = EventLog::new(1 << 20);
    for byte in "a€𝄞é".bytes() {
        log.output(StreamKind::Stdout, &Bytes::copy_from_slice(&[byte]));
    }
    for event in log.range(0, u64::MAX) {
        let EventKind::Output(_, bytes) = event.kind else { continue };
        assert!(std::str::from_utf8(&bytes).is_ok());
    }
    assert_eq!(text(&log, StreamKind::Stdout), "a€𝄞é".as_bytes());
    log.output(StreamKind::Stderr, &Bytes::from_static(b"\xe2\x82"));
    assert_eq!(text(&log, StreamKind::Stderr), b"");
    log.flush();
    assert_eq!(text(&log, StreamKind::Stderr), b"\xe2\x82");
}

#[test]
fn full_log_keeps_beginning_and_end_and_counts_the_cut() {
    let log = EventLog::new(2000);
    log.add(EventKind::Started);
    for n in 0..1000_u32 {
        log.output(StreamKind::Stdout, &Bytes::from(format!("{n:06}\n")));
    }
    let events = log.range(0, u64::MAX);
    assert!(events.len() < 60, "{}", events.len());
    let kept = String::from_utf8(text(&log, StreamKind::Stdout)).expect("text");
    assert!(kept.starts_with("000000\n") && kept.ends_with("000999\n"));
    let cut = events.iter().find_map(|e| match e.kind {
        EventKind::Cut { stdout_bytes, stderr_bytes } => Some((stdout_bytes, stderr_bytes)),
        _ => None,
    });
    assert_eq!(cut, Some((7000 - kept.len() as u64, 0)));
    assert!(events.windows(2).all(|pair| pair[0].number < pair[1].number));
    assert_eq!(*log.subscribe().borrow(), 1001);
    assert_eq!(log.range(1001, u64::MAX).len(), 1);
}

#[test]
fn next_returns_a_cut_for_dropped_events() {
    let log = EventLog::new(2000);
    assert!(log.next(0).is_none());
    log.progress();
    assert!(log.next(0).is_none(), "nothing is under way yet");
    log.add(EventKind::Started);
    for n in 0..1000_u32 {
        log.output(StreamKind::Stdout, &Bytes::from(format!("{n:06}\n")));
        if n % 100 == 0 {
            log.progress();
        }
    }
    let (mut one_by_one, mut from) = (Vec::new(), 0);
    while let Some(event) = log.next(from) {
        from = event.number + 1;
        one_by_one.push(event.number);
    }
    let at_once: Vec<_> = log.range(0, u64::MAX).iter().map(|event| event.number).collect();
    assert_eq!(one_by_one, at_once);
    let cut = log.next(500).expect("an event");
    assert!(matches!(cut.kind, EventKind::Cut { stdout_bytes: 1.., .. }), "{cut:?}");
    let facts = log.facts();
    assert!(facts.newest == 1011 && facts.started_at.is_some() && facts.ended_at.is_none() && facts.kept_bytes > 0);
    log.add(EventKind::Failed(crate::domain::error::Failure::argument("a", "b")));
    log.progress();
    assert_eq!((log.facts().newest, log.facts().ended_at.is_some()), (1012, true));
}

#[test]
fn progress_events_displace_no_output() {
    let log = EventLog::new(1000);
    log.add(EventKind::Started);
    for text in ["first", "second", "third"] {
        log.output(StreamKind::Stdout, &Bytes::from_static(text.as_bytes()));
        for _ in 0..1000 {
            log.progress();
        }
    }
    assert_eq!(text(&log, StreamKind::Stdout), b"firstsecondthird");
    let events = log.range(0, u64::MAX);
    assert!(!events.iter().any(|event| matches!(event.kind, EventKind::Cut { .. })), "{events:?}");
    assert!(events.len() < 10, "a silent program costs a bounded log: {} events", events.len());
    log.output(StreamKind::Stdout, &Bytes::from(vec![b'x'; 2000]));
    log.progress();
    let kept = text(&log, StreamKind::Stdout);
    assert!(kept.ends_with(b"x") && (850..=1000).contains(&kept.len()), "{}", kept.len());
}

/// A reader that comes late sees what a cell raised before it printed much.
#[test]
fn events_that_are_no_output_are_kept_between_output_that_is_dropped() {
    let log = EventLog::new(2000);
    log.add(EventKind::Started);
    let print = || {
        for n in 0..500_u32 {
            log.output(StreamKind::Stdout, &Bytes::from(format!("{n:06}\n")));
        }
    };
    for name in ["first", "second"] {
        print();
        log.progress();
        let (name, value, traceback) = (name.to_owned(), String::new(), String::new());
        log.add(EventKind::Error { name, value, traceback });
    }
    print();
    let events = log.range(0, u64::MAX);
    let raised: Vec<_> = events
        .iter()
        .filter_map(|event| if let EventKind::Error { name, .. } = &event.kind { Some(name.as_str()) } else { None })
        .collect();
    assert_eq!(raised, ["first", "second"]);
    assert!(events.windows(2).all(|pair| pair[0].number < pair[1].number), "{events:?}");
    let (mut one_by_one, mut from) = (Vec::new(), 0);
    while let Some(event) = log.next(from) {
        from = event.number + 1;
        one_by_one.push(event.number);
    }
    assert_eq!(one_by_one, events.iter().map(|event| event.number).collect::<Vec<_>>());
}

/// However the output is divided into pieces, and with a reader meanwhile.
#[test]
fn the_set_number_of_bytes_is_kept_and_little_memory_beside() {
    for (piece, total) in [(1, 300_000), (7, 294_000), (5000, 1_000_000), (400_000, 2_000_000)] {
        let log = EventLog::new(100_000);
        let (mut read, mut from) = (0, 0);
        for sent in 0..total / piece {
            let stream = if sent % 1000 == 0 { StreamKind::Stderr } else { StreamKind::Stdout };
            log.output(stream, &Bytes::from(vec![b'x'; piece]));
            while let Some(event) = log.next(from) {
                from = event.number + 1;
                read += if let EventKind::Output(_, bytes) = event.kind { bytes.len() } else { 0 };
            }
        }
        let kept = text(&log, StreamKind::Stdout).len() + text(&log, StreamKind::Stderr).len();
        assert!((93_000..=100_000).contains(&kept), "{piece}: {kept}");
        assert!(piece > 5000 || read == total, "{piece}: a live reader reads all, once: {read}");
        let memory = log.facts().kept_bytes;
        assert!(memory >= kept && memory < 100_000 * 7, "{piece}: {memory}");
    }
}

#[test]
fn connections_calls_and_questions_count_with_their_texts() {
    let filler = "x".repeat(4000);
    let call = ToolUse {
        server: String::new(),
        tool: String::new(),
        end: CallEnd::Failed,
        why: Some(filler.clone()),
        arguments_sha256: String::new(),
        arguments_bytes: 0,
        took: Duration::ZERO,
    };
    let question = Approval {
        id: ApprovalId::new(),
        call: ProposedCall {
            conversation: "c".parse().expect("a key"),
            server: String::new(),
            tool: String::new(),
            definition: String::new(),
            arguments: filler.clone(),
        },
        asked_unix_ms: 0,
        answered: None,
        answered_by: None,
        expires_unix_ms: 0,
    };
    for kind in [
        EventKind::Network(Box::new(NetworkUse::of(filler, None))),
        EventKind::Tool(Box::new(call)),
        EventKind::Approval(Box::new(question)),
    ] {
        let log = EventLog::new(1000);
        log.add(kind);
        assert!(log.facts().kept_bytes > 4000, "{:?}", log.range(0, 1));
    }
}

#[test]
fn a_range_of_joined_pieces_is_exact() {
    let log = EventLog::new(1 << 20);
    for piece in ["a", "bb", "ccc", "dddd"] {
        log.output(StreamKind::Stdout, &Bytes::from_static(piece.as_bytes()));
    }
    let read = |first, last| match &log.range(first, last)[..] {
        [Event { number, kind: EventKind::Output(_, bytes), .. }] => Some((*number, bytes.clone())),
        [] => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(read(0, u64::MAX), Some((4, Bytes::from_static(b"abbcccdddd"))));
    assert_eq!(read(2, 3), Some((3, Bytes::from_static(b"bbccc"))));
    assert_eq!((read(5, 9), read(0, 0)), (None, None));
}

proptest! {
    #[test]
    fn output_below_the_bound_is_kept_whole(chunks in proptest::collection::vec(any::<Vec<u8>>(), 0..40)) {
        let log = EventLog::new(1 << 24);
        let mut all = Vec::new();
        for chunk in &chunks {
            all.extend_from_slice(chunk);
            log.output(StreamKind::Stdout, &Bytes::copy_from_slice(chunk));
        }
        log.flush();
        prop_assert_eq!(text(&log, StreamKind::Stdout), all);
    }
}
