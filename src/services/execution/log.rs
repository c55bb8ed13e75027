//! The numbered, bounded log of one run.
//!
//! Output is kept up to a number of bytes: its beginning and its end. What falls out between them is counted, and one
//! `Cut` event stands in its place. A reader asks for everything from a number on; it is never waited for.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{sync::watch, time::Instant};

use crate::domain::event::{Event, EventKind, StreamKind};

/// What an event costs beside its bytes: a program that prints single characters is bounded too.
const EVENT_COST_BYTES: usize = 64;

/// What happened to one run so far.
#[derive(Debug)]
pub struct EventLog {
    begun: Instant,
    kept_bytes_max: usize,
    kept: Mutex<Kept>,
    /// The number of the newest event; readers wait on it.
    newest: watch::Sender<u64>,
}

/// What the log knows beside its events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogFacts {
    /// The number of the newest event.
    pub newest: u64,
    /// When the program was handed over, since the run was begun.
    pub started_at: Option<Duration>,
    /// When the last event was added, since the run was begun.
    pub ended_at: Option<Duration>,
    /// What is kept, in bytes, each event's own cost included.
    pub kept_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    head: Vec<Event>,
    head_bytes: usize,
    /// What was dropped between head and tail: the number of the last dropped event, and the bytes of each stream.
    cut: Option<(Event, u64, u64)>,
    tail: VecDeque<Event>,
    tail_bytes: usize,
    next: u64,
    partial: [BytesMut; 2],
    /// What was printed to each stream, kept or not.
    printed: [u64; 2],
    facts: LogFacts,
}

impl EventLog {
    /// An empty log that keeps so many bytes of output.
    pub fn new(kept_bytes_max: usize) -> Self {
        Self { begun: Instant::now(), kept_bytes_max, kept: Mutex::default(), newest: watch::Sender::new(0) }
    }

    /// Adds an event that is not output.
    pub fn add(&self, kind: EventKind) {
        let mut kept = self.lock();
        self.push(&mut kept, kind);
        self.tell(&kept);
    }

    /// Adds output. The unfinished end of a UTF-8 sequence waits for the next chunk of its stream.
    pub fn output(&self, stream: StreamKind, bytes: &Bytes) {
        let mut kept = self.lock();
        kept.printed[index(stream)] += bytes.len() as u64;
        let partial = &mut kept.partial[index(stream)];
        let whole = if partial.is_empty() {
            let split = whole_len(bytes);
            partial.extend_from_slice(&bytes[split..]);
            bytes.slice(..split)
        } else {
            partial.extend_from_slice(bytes);
            let split = whole_len(partial);
            partial.split_to(split).freeze()
        };
        if !whole.is_empty() {
            self.push(&mut kept, EventKind::Output(stream, whole));
            self.tell(&kept);
        }
    }

    /// Says that no more output comes: an unfinished sequence is given as it is.
    pub fn flush(&self) {
        let mut kept = self.lock();
        for stream in [StreamKind::Stdout, StreamKind::Stderr] {
            let rest = kept.partial[index(stream)].split().freeze();
            if !rest.is_empty() {
                self.push(&mut kept, EventKind::Output(stream, rest));
            }
        }
        self.tell(&kept);
    }

    /// Every kept event from this number on, in order; a `Cut` stands for those that were dropped.
    pub fn since(&self, number: u64) -> Vec<Event> {
        let kept = self.lock();
        let cut = kept.cut.as_ref().map(|(event, ..)| event);
        kept.head.iter().chain(cut).chain(&kept.tail).filter(|event| event.number >= number).cloned().collect()
    }

    /// The first kept event from this number on. A `Cut` stands for dropped events up to its own number.
    ///
    /// Asking for one at a time is what lets a reader take as long as it likes and hold nothing.
    pub fn next(&self, number: u64) -> Option<Event> {
        let kept = self.lock();
        let of_head = kept.head.partition_point(|event| event.number < number);
        let cut = || kept.cut.as_ref().map(|(event, ..)| event).filter(|event| event.number >= number);
        let of_tail = || kept.tail.get(kept.tail.partition_point(|event| event.number < number));
        kept.head.get(of_head).or_else(cut).or_else(of_tail).cloned()
    }

    /// Says that the program is still under way; nothing when it has not started or is over.
    pub fn progress(&self) {
        let mut kept = self.lock();
        let LogFacts { started_at: Some(started_at), ended_at: None, .. } = kept.facts else { return };
        let [stdout_bytes, stderr_bytes] = kept.printed;
        let wall = self.begun.elapsed().saturating_sub(started_at);
        self.push(&mut kept, EventKind::Progress { wall, stdout_bytes, stderr_bytes });
        self.tell(&kept);
    }

    /// What is known beside the events.
    pub fn facts(&self) -> LogFacts {
        let kept = self.lock();
        LogFacts { newest: kept.next, kept_bytes: kept.head_bytes + kept.tail_bytes, ..kept.facts }
    }

    /// Since the run was begun.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Tells the number of the newest event, now and whenever there is a newer one.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, kept: &Kept) {
        self.newest.send_replace(kept.next);
    }

    fn push(&self, kept: &mut Kept, kind: EventKind) {
        // A progress event replaces one directly before it, so a silent program does not grow the log.
        if matches!(kind, EventKind::Progress { .. }) {
            let _replaced =
                if kept.tail.is_empty() { kept.head.pop_if(is_progress) } else { kept.tail.pop_back_if(is_progress) };
        }
        kept.next += 1;
        let event = Event { number: kept.next, at: self.begun.elapsed(), kind };
        match &event.kind {
            EventKind::Started => kept.facts.started_at = Some(event.at),
            kind if kind.is_last() => kept.facts.ended_at = Some(event.at),
            _ => {}
        }
        let (cost, half) = (cost(&event), self.kept_bytes_max / 2);
        // Once something is in the tail, everything goes there: order is by number.
        if kept.tail.is_empty() && kept.cut.is_none() && kept.head_bytes + cost <= half {
            kept.head_bytes += cost;
            kept.head.push(event);
            return;
        }
        kept.tail_bytes += cost;
        kept.tail.push_back(event);
        while kept.tail_bytes > half {
            // Only output and progress are dropped: files and the end come after all output.
            let Some(oldest) = kept.tail.iter().position(is_output) else { break };
            // The newest output stays, however long it is: it is at most one frame of the engine.
            if !kept.tail.iter().skip(oldest + 1).any(is_output) {
                break;
            }
            for dropped in kept.tail.drain(..=oldest).collect::<Vec<_>>() {
                kept.tail_bytes -= self::cost(&dropped);
                kept.note_cut(&dropped);
            }
        }
    }
}

impl Kept {
    fn note_cut(&mut self, dropped: &Event) {
        let (mut stdout, mut stderr) = self.cut.as_ref().map_or((0, 0), |(_, stdout, stderr)| (*stdout, *stderr));
        match &dropped.kind {
            EventKind::Output(StreamKind::Stdout, bytes) => stdout += bytes.len() as u64,
            EventKind::Output(StreamKind::Stderr, bytes) => stderr += bytes.len() as u64,
            _ => {}
        }
        let kind = EventKind::Cut { stdout_bytes: stdout, stderr_bytes: stderr };
        self.cut = Some((Event { number: dropped.number, at: dropped.at, kind }, stdout, stderr));
    }
}

fn index(stream: StreamKind) -> usize {
    match stream {
        StreamKind::Stdout => 0,
        StreamKind::Stderr => 1,
    }
}

/// What an event takes of the bytes that are kept for output: only output takes any.
fn cost(event: &Event) -> usize {
    if let EventKind::Output(_, bytes) = &event.kind { bytes.len() + EVENT_COST_BYTES } else { 0 }
}

fn is_output(event: &Event) -> bool {
    matches!(event.kind, EventKind::Output(..))
}

fn is_progress(event: &mut Event) -> bool {
    matches!(event.kind, EventKind::Progress { .. })
}

/// How much of `bytes` does not end within a UTF-8 sequence. Bytes that are no UTF-8 at all count as whole.
fn whole_len(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    let Some(start) = (tail..bytes.len()).rev().find(|&i| bytes[i] & 0xC0 != 0x80) else { return bytes.len() };
    let wanted = match bytes[start] {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    if bytes.len() - start < wanted { start } else { bytes.len() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(log: &EventLog, of: StreamKind) -> Vec<u8> {
        let mut all = Vec::new();
        for event in log.since(0) {
            if let EventKind::Output(stream, bytes) = event.kind
                && stream == of
            {
                all.extend_from_slice(&bytes);
            }
        }
        all
    }

    #[test]
    fn a_character_is_never_split() {
        let log = EventLog::new(1 << 20);
        for byte in "a€𝄞é".bytes() {
            log.output(StreamKind::Stdout, &Bytes::copy_from_slice(&[byte]));
        }
        for event in log.since(0) {
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
    fn the_beginning_and_the_end_are_kept_and_the_cut_is_counted() {
        let log = EventLog::new(2000);
        log.add(EventKind::Started);
        for n in 0..1000_u32 {
            log.output(StreamKind::Stdout, &Bytes::from(format!("{n:06}\n")));
        }
        let events = log.since(0);
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
        assert_eq!(log.since(1001).len(), 1);
    }

    #[test]
    fn a_reader_gets_one_event_at_a_time_and_a_cut_for_what_it_missed() {
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
        let at_once: Vec<_> = log.since(0).iter().map(|event| event.number).collect();
        assert_eq!(one_by_one, at_once);
        let cut = log.next(100).expect("an event");
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
        let events = log.since(0);
        assert!(!events.iter().any(|event| matches!(event.kind, EventKind::Cut { .. })), "{events:?}");
        assert!(events.len() < 10, "a silent program costs a bounded log: {} events", events.len());
        log.output(StreamKind::Stdout, &Bytes::from(vec![b'x'; 2000]));
        log.progress();
        assert_eq!(text(&log, StreamKind::Stdout).iter().filter(|byte| **byte == b'x').count(), 2000);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_below_the_bound(chunks in proptest::collection::vec(any::<Vec<u8>>(), 0..40)) {
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
}
