//! The numbered, bounded log of one run.
//!
//! Output is kept up to a number of bytes: its beginning and its end. What is dropped between them is counted, and one
//! `Cut` event stands in its place. Pieces of output are numbered, and kept joined: an event that is read holds all
//! pieces from the requested number on that are joined. A reader pulls one event at a time: the run never waits for it,
//! and it costs a cursor.

#[cfg(test)]
mod tests;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::output::{Joined, Kept};
use crate::domain::{Event, EventKind, StreamKind};

/// The longest piece of output with a number of its own. Shorter where little is kept, since whole pieces are dropped.
const PIECE_BYTES_MAX: usize = 4096;
const PIECE_BYTES_MIN: usize = 64;

/// The events of one run so far.
#[derive(Debug)]
pub(super) struct EventLog {
    begun: Instant,
    /// Output that is kept of the beginning, and as much of the end.
    half_bytes: usize,
    state: Mutex<State>,
    /// The number of the newest event; readers wait on it.
    newest: watch::Sender<u64>,
}

/// A summary of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LogFacts {
    pub newest: u64,
    /// When the program was handed over, since the run was begun.
    pub started_at: Option<Duration>,
    /// When the last event was added, since the run was begun.
    pub ended_at: Option<Duration>,
    /// The number of the newest answer to a request for input.
    pub answer: u64,
    /// Memory of the kept events, in bytes.
    pub kept_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    head: VecDeque<Kept>,
    head_bytes: usize,
    /// Stands for what was dropped between head and tail, with the number of the last dropped event.
    cut: Option<Event>,
    /// Dropped bytes of each stream.
    dropped: [u64; 2],
    tail: VecDeque<Kept>,
    tail_bytes: usize,
    partial: [BytesMut; 2],
    printed: [u64; 2],
    facts: LogFacts,
}

impl EventLog {
    pub(super) fn new(kept_bytes_max: usize) -> Self {
        let half_bytes = kept_bytes_max / 2;
        Self { begun: Instant::now(), half_bytes, state: Mutex::default(), newest: watch::Sender::new(0) }
    }

    /// Adds an event that is not output.
    pub(super) fn add(&self, kind: EventKind) {
        self.push(&mut self.state.lock(), kind);
    }

    /// Adds output. The unfinished end of a UTF-8 sequence waits for the next chunk of its stream.
    pub(super) fn output(&self, stream: StreamKind, bytes: &Bytes) {
        let mut state = self.state.lock();
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
        self.push_output(&mut state, stream, &whole);
    }

    /// No more output comes: an unfinished sequence is added as it is.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        for stream in [StreamKind::Stdout, StreamKind::Stderr] {
            let rest = state.partial[index(stream)].split();
            self.push_output(&mut state, stream, &rest);
        }
    }

    /// Every kept event from `first` to `last`, in order; a `Cut` stands for those that were dropped.
    pub(super) fn range(&self, first: u64, last: u64) -> Vec<Event> {
        let state = self.state.lock();
        let cut = state.cut.iter().filter(|cut| (first..=last).contains(&cut.number)).cloned();
        let of = |kept: &VecDeque<Kept>| kept.iter().filter_map(|kept| kept.event(first, last)).collect::<Vec<_>>();
        of(&state.head).into_iter().chain(cut).chain(of(&state.tail)).collect()
    }

    /// The first kept event from this number on. A `Cut` stands for dropped events up to its own number.
    pub(super) fn next(&self, number: u64) -> Option<Event> {
        let state = self.state.lock();
        let of = |kept: &VecDeque<Kept>| {
            kept.get(kept.partition_point(|kept| kept.last() < number)).and_then(|kept| kept.event(number, u64::MAX))
        };
        let cut = || state.cut.clone().filter(|event| event.number >= number);
        of(&state.head).or_else(cut).or_else(|| of(&state.tail))
    }

    /// Adds that the program is still under way; nothing when it has not started or is over.
    pub(super) fn progress(&self) {
        let mut state = self.state.lock();
        let LogFacts { started_at: Some(started_at), ended_at: None, .. } = state.facts else { return };
        let [stdout_bytes, stderr_bytes] = state.printed;
        let wall = self.begun.elapsed().saturating_sub(started_at);
        self.push(&mut state, EventKind::Progress { wall, stdout_bytes, stderr_bytes });
    }

    /// What was printed to standard output and standard error, kept or not, in bytes.
    pub(super) fn printed(&self) -> [u64; 2] {
        self.state.lock().printed
    }

    pub(super) fn facts(&self) -> LogFacts {
        self.state.lock().facts
    }

    /// The time since the run was begun.
    pub(super) fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// The number of the newest event, now and whenever there is a newer one.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Waits until a request for input is answered, by its number; for ever where it is not.
    pub(super) async fn answered(&self, request: u64) {
        let mut newest = self.subscribe();
        while self.facts().answer <= request && newest.changed().await.is_ok() {}
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

    fn push_output(&self, state: &mut State, stream: StreamKind, mut bytes: &[u8]) {
        let piece_max = (self.half_bytes / 16).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX);
        while !bytes.is_empty() {
            let split = if bytes.len() > piece_max { whole_len(&bytes[..piece_max]).max(1) } else { bytes.len() };
            let (piece, rest) = bytes.split_at(split);
            state.add_output(stream, piece, self.begun.elapsed(), self.half_bytes);
            bytes = rest;
            self.announce(state);
        }
    }

    fn push(&self, state: &mut State, kind: EventKind) {
        // A progress event replaces one directly before it, so a silent program does not grow the log.
        if matches!(kind, EventKind::Progress { .. }) && state.tail.pop_back_if(Kept::is_progress).is_none() {
            state.head.pop_back_if(|kept| state.tail.is_empty() && kept.is_progress());
        }
        state.facts.newest += 1;
        let event = Event { number: state.facts.newest, at: self.begun.elapsed(), kind };
        match &event.kind {
            EventKind::Started => state.facts.started_at = Some(event.at),
            EventKind::InputAnswered => state.facts.answer = event.number,
            kind if kind.is_last() => state.facts.ended_at = Some(event.at),
            _ => {}
        }
        state.facts.kept_bytes += match &event.kind {
            EventKind::File(file) => file.wire_bytes(),
            EventKind::Failed(failure) => failure.message.len(),
            EventKind::Display(display) => display.bytes(),
            EventKind::Error { name, value, traceback } => name.len() + value.len() + traceback.len(),
            EventKind::InputRequest { prompt, .. } => prompt.len(),
            // The target is in its refusal too.
            EventKind::Network(used) => size_of_val(&**used) + 2 * used.target.len(),
            EventKind::Tool(used) => size_of_val(&**used) + used.why.as_ref().map_or(0, String::len),
            EventKind::Approval(question) => size_of_val(&**question) + question.call.arguments.len(),
            _ => 0,
        };
        let list = if state.tail.is_empty() { &mut state.head } else { &mut state.tail };
        list.push_back(Kept::Other(event));
        self.announce(state);
    }

    /// While the log is locked, so that numbers only grow.
    fn announce(&self, state: &State) {
        self.newest.send_replace(state.facts.newest);
    }
}

impl State {
    fn add_output(&mut self, stream: StreamKind, piece: &[u8], at: Duration, half_bytes: usize) {
        self.facts.newest += 1;
        let number = self.facts.newest;
        // Once something is in the tail, everything goes there: order is by number.
        let to_head = self.cut.is_none() && self.tail.is_empty() && self.head_bytes + piece.len() <= half_bytes;
        let (list, sum) =
            if to_head { (&mut self.head, &mut self.head_bytes) } else { (&mut self.tail, &mut self.tail_bytes) };
        *sum += piece.len();
        let open = list.back_mut().and_then(|kept| if let Kept::Output(open) = kept { Some(open) } else { None });
        match open {
            Some(open) if open.takes(stream, at, number, piece) => open.add(at, piece),
            open => {
                open.into_iter().for_each(Joined::close);
                self.facts.kept_bytes += size_of::<Kept>();
                list.push_back(Kept::Output(Joined::new(stream, at, number, piece)));
            }
        }
        self.facts.kept_bytes += piece.len() + size_of::<u32>();
        while self.tail_bytes > half_bytes && self.drop_oldest() {}
    }

    /// Drops the oldest piece of the tail, or progress before it. Other events before it are kept, with the head: what
    /// a cell shows, asks and raises is bounded, and a later piece is dropped after it.
    fn drop_oldest(&mut self) -> bool {
        let is_kept = |kept: &mut Kept| matches!(kept, Kept::Other(_)) && !kept.is_progress();
        if let Some(event) = self.tail.pop_front_if(is_kept) {
            self.head.push_back(event);
            return true;
        }
        let Some(oldest) = self.tail.front_mut() else { return false };
        let (number, at, freed) = match oldest {
            Kept::Other(event) => (event.number, event.at, Some(0)),
            Kept::Output(joined) => {
                let (number, bytes, emptied) = joined.drop_piece();
                self.tail_bytes -= bytes;
                self.dropped[index(joined.stream)] += bytes as u64;
                (number, joined.at, emptied.then(|| joined.memory()))
            }
        };
        if let Some(freed) = freed {
            self.facts.kept_bytes -= freed;
            self.tail.pop_front();
        }
        let [stdout_bytes, stderr_bytes] = self.dropped;
        self.cut = Some(Event { number, at, kind: EventKind::Cut { stdout_bytes, stderr_bytes } });
        true
    }
}

fn index(stream: StreamKind) -> usize {
    usize::from(stream == StreamKind::Stderr)
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
