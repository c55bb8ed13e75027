//! The numbered, bounded log of one run.
//!
//! Output is kept up to a number of bytes: its beginning and its end. What falls out between them is counted, and one
//! `Cut` event stands in its place. A reader asks for everything from a number on; it is never waited for.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::{Bytes, BytesMut};
use tokio::{sync::watch, time::Instant};

use crate::nouns::event::{Event, EventKind, StreamKind};

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
        kept.next += 1;
        let event = Event { number: kept.next, at: self.begun.elapsed(), kind };
        let cost = cost(&event);
        let half = self.kept_bytes_max / 2;
        // Once something stands in the tail, everything goes there: order is by number.
        if kept.tail.is_empty() && kept.cut.is_none() && kept.head_bytes + cost <= half {
            kept.head_bytes += cost;
            kept.head.push(event);
            return;
        }
        kept.tail_bytes += cost;
        kept.tail.push_back(event);
        while kept.tail_bytes > half {
            let Some(position) = kept.tail.iter().position(|e| matches!(e.kind, EventKind::Output(..))) else { break };
            // The newest output stays, however long it is: it is one frame of the engine's at most.
            if kept.tail.iter().skip(position + 1).all(|e| !matches!(e.kind, EventKind::Output(..))) {
                break;
            }
            let Some(dropped) = kept.tail.remove(position) else { break };
            kept.tail_bytes -= self::cost(&dropped);
            kept.note_cut(&dropped);
        }
    }
}

impl Kept {
    fn note_cut(&mut self, dropped: &Event) {
        let EventKind::Output(stream, bytes) = &dropped.kind else { return };
        let (mut stdout, mut stderr) = self.cut.as_ref().map_or((0, 0), |(_, stdout, stderr)| (*stdout, *stderr));
        match stream {
            StreamKind::Stdout => stdout += bytes.len() as u64,
            StreamKind::Stderr => stderr += bytes.len() as u64,
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

fn cost(event: &Event) -> usize {
    match &event.kind {
        EventKind::Output(_, bytes) => bytes.len() + EVENT_COST_BYTES,
        _ => 0,
    }
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
