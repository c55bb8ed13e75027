//! The numbered, bounded log of one run.
//!
//! Output is kept up to a number of bytes: its beginning and its end. What is dropped between them is counted, and one
//! `Cut` event stands in its place. A reader pulls one event at a time: the run never waits for it, and it costs a
//! cursor.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use tokio::{sync::watch, time::Instant};

use crate::domain::event::{Event, EventKind, StreamKind};

/// What an output event costs beside its bytes, so that a program that prints single characters is bounded too.
const EVENT_COST_BYTES: usize = 64;

/// The events of one run so far.
#[derive(Debug)]
pub(super) struct EventLog {
    begun: Instant,
    kept_bytes_max: usize,
    state: Mutex<State>,
    /// The number of the newest event; readers wait on it.
    newest: watch::Sender<u64>,
}

/// A summary of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LogFacts {
    /// The number of the newest event.
    pub newest: u64,
    /// When the program was handed over, since the run was begun.
    pub started_at: Option<Duration>,
    /// When the last event was added, since the run was begun.
    pub ended_at: Option<Duration>,
    /// Kept output in bytes, with each event's own cost.
    pub kept_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    head: Vec<Event>,
    head_bytes: usize,
    /// Stands for what was dropped between head and tail, with the number of the last dropped event.
    cut: Option<Event>,
    /// Dropped bytes of each stream.
    dropped: [u64; 2],
    tail: VecDeque<Event>,
    tail_bytes: usize,
    next: u64,
    partial: [BytesMut; 2],
    printed: [u64; 2],
    facts: LogFacts,
}

impl EventLog {
    /// An empty log that keeps so many bytes of output.
    pub(super) fn new(kept_bytes_max: usize) -> Self {
        Self { begun: Instant::now(), kept_bytes_max, state: Mutex::default(), newest: watch::Sender::new(0) }
    }

    /// Adds an event that is not output.
    pub(super) fn add(&self, kind: EventKind) {
        self.push(&mut self.lock(), kind);
    }

    /// Adds output. The unfinished end of a UTF-8 sequence waits for the next chunk of its stream.
    pub(super) fn output(&self, stream: StreamKind, bytes: &Bytes) {
        let mut state = self.lock();
        state.printed[index(stream)] += bytes.len() as u64;
        let partial = &mut state.partial[index(stream)];
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
            self.push(&mut state, EventKind::Output(stream, whole));
        }
    }

    /// No more output comes: an unfinished sequence is added as it is.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        for stream in [StreamKind::Stdout, StreamKind::Stderr] {
            let rest = state.partial[index(stream)].split().freeze();
            if !rest.is_empty() {
                self.push(&mut state, EventKind::Output(stream, rest));
            }
        }
    }

    /// Every kept event from this number on, in order; a `Cut` stands for those that were dropped.
    pub(super) fn since(&self, number: u64) -> Vec<Event> {
        let state = self.lock();
        state.head.iter().chain(&state.cut).chain(&state.tail).filter(|event| event.number >= number).cloned().collect()
    }

    /// The first kept event from this number on. A `Cut` stands for dropped events up to its own number.
    pub(super) fn next(&self, number: u64) -> Option<Event> {
        let state = self.lock();
        let of_head = state.head.partition_point(|event| event.number < number);
        let cut = || state.cut.as_ref().filter(|event| event.number >= number);
        let of_tail = || state.tail.get(state.tail.partition_point(|event| event.number < number));
        state.head.get(of_head).or_else(cut).or_else(of_tail).cloned()
    }

    /// Adds that the program is still under way; nothing when it has not started or is over.
    pub(super) fn progress(&self) {
        let mut state = self.lock();
        let LogFacts { started_at: Some(started_at), ended_at: None, .. } = state.facts else { return };
        let [stdout_bytes, stderr_bytes] = state.printed;
        let wall = self.begun.elapsed().saturating_sub(started_at);
        self.push(&mut state, EventKind::Progress { wall, stdout_bytes, stderr_bytes });
    }

    /// What was printed to standard output and standard error, kept or not, in bytes.
    pub(super) fn printed(&self) -> [u64; 2] {
        self.lock().printed
    }

    /// The log in short.
    pub(super) fn facts(&self) -> LogFacts {
        let state = self.lock();
        LogFacts { newest: state.next, kept_bytes: state.head_bytes + state.tail_bytes, ..state.facts }
    }

    /// The time since the run was begun.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The number of the newest event, now and whenever there is a newer one.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Waits for the last event.
    pub(super) async fn ended(&self) {
        let mut newest = self.subscribe();
        while self.facts().ended_at.is_none() && newest.changed().await.is_ok() {}
    }

    /// Events from this number on; ends after the last one of the run.
    pub(super) fn stream(log: Arc<Self>, from: u64) -> BoxStream<'static, Event> {
        stream::unfold((log, from), |(log, from)| async move {
            let event = log.next_or_later(from).await?;
            let next = event.number.saturating_add(1);
            Some((event, (log, next)))
        })
        .boxed()
    }

    /// The next event from this number on, now or later; nothing when there will be none.
    async fn next_or_later(&self, from: u64) -> Option<Event> {
        let mut newest = self.subscribe();
        loop {
            newest.mark_unchanged();
            // In this order, so that an event added before the end is seen.
            let ended = self.facts().ended_at.is_some();
            if let Some(event) = self.next(from) {
                return Some(event);
            }
            if ended || newest.changed().await.is_err() {
                return None;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, state: &mut State, kind: EventKind) {
        // A progress event replaces one directly before it, so a silent program does not grow the log.
        if matches!(kind, EventKind::Progress { .. }) && state.tail.pop_back_if(is_progress).is_none() {
            state.head.pop_if(|event| state.tail.is_empty() && is_progress(event));
        }
        state.next += 1;
        let event = Event { number: state.next, at: self.begun.elapsed(), kind };
        match &event.kind {
            EventKind::Started => state.facts.started_at = Some(event.at),
            kind if kind.is_last() => state.facts.ended_at = Some(event.at),
            _ => {}
        }
        let (cost, half) = (cost(&event), self.kept_bytes_max / 2);
        // Once something is in the tail, everything goes there: order is by number.
        if state.tail.is_empty() && state.head_bytes + cost <= half {
            state.head_bytes += cost;
            state.head.push(event);
        } else {
            state.tail_bytes += cost;
            state.tail.push_back(event);
            state.shorten_tail(half);
        }
        // While the log is locked, so that numbers only grow.
        self.newest.send_replace(state.next);
    }
}

impl State {
    fn shorten_tail(&mut self, bytes_max: usize) {
        while self.tail_bytes > bytes_max {
            // Only output and progress are dropped: files and the end come after all output.
            let Some(oldest) = self.tail.iter().position(is_output) else { return };
            // The newest output stays, however long it is: it is at most one frame of the engine.
            if !self.tail.iter().skip(oldest + 1).any(is_output) {
                return;
            }
            for _ in 0..=oldest {
                let Some(dropped) = self.tail.pop_front() else { return };
                self.tail_bytes -= cost(&dropped);
                self.note_cut(&dropped);
            }
        }
    }

    fn note_cut(&mut self, dropped: &Event) {
        if let EventKind::Output(stream, bytes) = &dropped.kind {
            self.dropped[index(*stream)] += bytes.len() as u64;
        }
        let [stdout_bytes, stderr_bytes] = self.dropped;
        let kind = EventKind::Cut { stdout_bytes, stderr_bytes };
        self.cut = Some(Event { number: dropped.number, at: dropped.at, kind });
    }
}

fn index(stream: StreamKind) -> usize {
    usize::from(stream == StreamKind::Stderr)
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
    fn utf8_sequence_is_never_split() {
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
    fn full_log_keeps_beginning_and_end_and_counts_the_cut() {
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
        assert!(text(&log, StreamKind::Stdout).ends_with(&[b'x'; 2000]), "the newest output is kept");
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
}
