//! Puts a run's output together from its log.

use crate::domain::{
    event::{Event, EventKind, StreamKind},
    outcome::Figures,
};

/// What a program printed to one stream, as far as it was kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Text; bytes that are no UTF-8 are replaced by U+FFFD, and a cut is marked where it is.
    pub text: String,
    /// Something was printed that is not in the text.
    pub truncated: bool,
}

/// The two streams of a run.
pub(super) fn collect(events: &[Event], figures: &Figures) -> (Captured, Captured) {
    (one(events, StreamKind::Stdout, figures.stdout_bytes), one(events, StreamKind::Stderr, figures.stderr_bytes))
}

/// The two streams as far as these events tell of them, of a run that may go on.
pub fn so_far(events: &[Event]) -> (Captured, Captured) {
    (one(events, StreamKind::Stdout, 0), one(events, StreamKind::Stderr, 0))
}

fn one(events: &[Event], of: StreamKind, printed_bytes: u64) -> Captured {
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
    let kept: usize = parts.iter().map(Vec::len).sum();
    let mark = format!("\n[… {cut_bytes} bytes were not kept …]\n");
    let text = parts.iter().map(|part| String::from_utf8_lossy(part)).collect::<Vec<_>>().join(&mark);
    Captured { text, truncated: cut_bytes > 0 || (kept as u64) < printed_bytes }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_cut_is_marked_only_in_the_stream_that_lost_something() {
        let kinds = [
            EventKind::Output(StreamKind::Stdout, Bytes::from_static(b"begin")),
            EventKind::Output(StreamKind::Stderr, Bytes::from_static(b"warn\xff")),
            EventKind::Cut { stdout_bytes: 10, stderr_bytes: 0 },
            EventKind::Output(StreamKind::Stdout, Bytes::from_static(b"end")),
        ];
        let events: Vec<_> =
            kinds.into_iter().zip(1..).map(|(kind, number)| Event { number, at: Duration::ZERO, kind }).collect();
        let figures = Figures { stdout_bytes: 18, stderr_bytes: 5, ..Figures::default() };
        let (stdout, stderr) = collect(&events, &figures);
        assert_eq!(stdout.text, "begin\n[… 10 bytes were not kept …]\nend");
        assert!(stdout.truncated && !stderr.truncated);
        assert_eq!(stderr.text, "warn\u{fffd}");
    }
}
