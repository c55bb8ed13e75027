//! What is kept of a run as text: its program, and its output, in joined pieces among other events of its log, and put
//! together for readers.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use crate::domain::{
    Event, EventKind, StreamKind,
    text::{cut_mark, json_bytes},
};

/// How much of a program is kept with its run, in bytes of JSON.
pub const SOURCE_BYTES_MAX: usize = 64 << 10;

/// Output that is kept is joined up to this size, so that a program that prints single characters costs little more
/// than its characters.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// Pieces that follow each other faster are joined. What a person typed between two pieces keeps its position.
const JOINED_WITHIN: Duration = Duration::from_millis(20);

/// The text of a program, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Bytes that are not UTF-8 are replaced by U+FFFD.
    pub text: Arc<str>,
    /// The program goes on after the text.
    pub truncated: bool,
}

impl Source {
    /// At most [`SOURCE_BYTES_MAX`] of a program.
    pub(super) fn of(program: &[u8]) -> Self {
        let begin = &program[..program.len().min(SOURCE_BYTES_MAX)];
        let text = String::from_utf8_lossy(begin);
        let mut bytes = 0;
        let end = text.char_indices().find(|(_, c)| {
            bytes += json_bytes(c.encode_utf8(&mut [0; 4]));
            bytes > SOURCE_BYTES_MAX
        });
        let kept = &text[..end.map_or(text.len(), |(at, _)| at)];
        Self { text: kept.into(), truncated: kept.len() < text.len() || begin.len() < program.len() }
    }
}

/// What a program printed to one stream, as far as it was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    /// Bytes that are not UTF-8 are replaced by U+FFFD; a cut is marked where it is.
    pub text: String,
    /// Something was printed that is not in the text.
    pub truncated: bool,
}

impl CapturedOutput {
    /// Standard output and standard error, as far as they are in these events.
    pub(super) fn of(events: &[Event]) -> (Self, Self) {
        (one(events, StreamKind::Stdout), one(events, StreamKind::Stderr))
    }
}

fn one(events: &[Event], of: StreamKind) -> CapturedOutput {
    // Joined before decoding: a binary stream is split anywhere.
    let mut parts = vec![Vec::new()];
    let mut cut_bytes = 0;
    for event in events {
        match &event.kind {
            EventKind::Output(stream, bytes) if *stream == of => {
                if let Some(part) = parts.last_mut() {
                    part.extend_from_slice(bytes);
                }
            }
            EventKind::Cut { stdout_bytes, stderr_bytes } => {
                cut_bytes = if of == StreamKind::Stdout { *stdout_bytes } else { *stderr_bytes };
                if cut_bytes > 0 {
                    parts.push(Vec::new());
                }
            }
            _ => {}
        }
    }
    let mark = cut_mark(cut_bytes);
    let text = parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join(&mark);
    CapturedOutput { text, truncated: cut_bytes > 0 }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_kept_whole_or_cut_by_its_length_in_json() {
        let whole = Source::of("print('é')\n".as_bytes());
        assert_eq!((&*whole.text, whole.truncated), ("print('é')\n", false));
        for program in ["\u{1}".repeat(100_000), "é\"".repeat(100_000), "x".repeat(SOURCE_BYTES_MAX + 1)] {
            let source = Source::of(program.as_bytes());
            let bytes = json_bytes(&source.text);
            assert!(program.starts_with(&*source.text) && source.truncated);
            assert!((SOURCE_BYTES_MAX - 6..=SOURCE_BYTES_MAX).contains(&bytes), "{bytes}");
        }
    }

    #[test]
    fn cut_is_marked_only_in_the_stream_that_lost_output() {
        let kinds = [
            EventKind::Output(StreamKind::Stdout, Bytes::from_static(b"begin")),
            EventKind::Output(StreamKind::Stderr, Bytes::from_static(b"warn\xff")),
            EventKind::Cut { stdout_bytes: 10, stderr_bytes: 0 },
            EventKind::Output(StreamKind::Stdout, Bytes::from_static(b"end")),
        ];
        let events: Vec<_> =
            kinds.into_iter().zip(1..).map(|(kind, number)| Event { number, at: Duration::ZERO, kind }).collect();
        let (stdout, stderr) = CapturedOutput::of(&events);
        assert_eq!(stdout.text, "begin\n[… 10 bytes were not kept …]\nend");
        assert!(stdout.truncated && !stderr.truncated);
        assert_eq!(stderr.text, "warn\u{fffd}");
    }
}
