//! What is kept of a run's events: output as joined pieces, everything else as it came.

use std::time::Duration;

use bytes::Bytes;

use crate::domain::event::{Event, EventKind, StreamKind};

/// Output that is kept is joined up to this size, so that a program that prints single characters costs little more
/// than its characters.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// Pieces that follow each other faster are joined. What a person typed between two pieces keeps its place.
const JOINED_WITHIN: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) enum Kept {
    Output(Joined),
    Other(Event),
}

/// Pieces of one stream, one after the other: all of them text, or none.
#[derive(Debug)]
pub(super) struct Joined {
    pub stream: StreamKind,
    pub at: Duration,
    is_text: bool,
    /// The number of the first piece, dropped or not.
    first: u64,
    bytes: Vec<u8>,
    /// Where each piece ends.
    ends: Vec<u32>,
    /// Pieces that are dropped.
    dropped: usize,
}

impl Kept {
    /// The number of the event, or of the last piece.
    pub(super) fn last(&self) -> u64 {
        match self {
            Self::Output(joined) => joined.first + joined.ends.len() as u64 - 1,
            Self::Other(event) => event.number,
        }
    }

    /// What is kept of it from `first` to `last`, as one event with the number of its last piece.
    pub(super) fn event(&self, first: u64, last: u64) -> Option<Event> {
        match self {
            Self::Output(joined) => joined.event(first, last),
            Self::Other(event) => (first..=last).contains(&event.number).then(|| event.clone()),
        }
    }

    pub(super) fn is_progress(&mut self) -> bool {
        matches!(self, Self::Other(Event { kind: EventKind::Progress { .. }, .. }))
    }
}

impl Joined {
    /// The first piece.
    pub(super) fn new(stream: StreamKind, at: Duration, first: u64, piece: &[u8]) -> Self {
        let is_text = std::str::from_utf8(piece).is_ok();
        let mut joined = Self { stream, at, is_text, first, bytes: Vec::new(), ends: Vec::new(), dropped: 0 };
        joined.add(at, piece);
        joined
    }

    pub(super) fn takes(&self, stream: StreamKind, at: Duration, number: u64, piece: &[u8]) -> bool {
        self.stream == stream
            && at.saturating_sub(self.at) < JOINED_WITHIN
            && self.first + self.ends.len() as u64 == number
            && self.bytes.len() + piece.len() <= JOINED_BYTES_MAX
            && self.is_text == std::str::from_utf8(piece).is_ok()
    }

    pub(super) fn add(&mut self, at: Duration, piece: &[u8]) {
        self.at = at;
        self.bytes.extend_from_slice(piece);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// Nothing more is added.
    pub(super) fn close(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Drops the oldest piece: its number, its bytes, and whether it was the last that was left.
    pub(super) fn drop_piece(&mut self) -> (u64, usize, bool) {
        let bytes = self.end(self.dropped + 1) - self.end(self.dropped);
        self.dropped += 1;
        (self.first + self.dropped as u64 - 1, bytes, self.dropped == self.ends.len())
    }

    /// Where the first so many pieces end.
    fn end(&self, pieces: usize) -> usize {
        pieces.checked_sub(1).and_then(|index| self.ends.get(index)).map_or(0, |end| *end as usize)
    }

    pub(super) fn memory(&self) -> usize {
        size_of::<Kept>() + self.bytes.len() + self.ends.len() * size_of::<u32>()
    }

    pub(super) fn event(&self, first: u64, last: u64) -> Option<Event> {
        let index = |number: u64| usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let begin = index(first).max(self.dropped);
        let end = if last < self.first { 0 } else { index(last).saturating_add(1).min(self.ends.len()) };
        (begin < end).then(|| {
            let bytes = Bytes::copy_from_slice(&self.bytes[self.end(begin)..self.end(end)]);
            let number = self.first + end as u64 - 1;
            Event { number, at: self.at, kind: EventKind::Output(self.stream, bytes) }
        })
    }
}
