//! A run's output, put together from its events.

use crate::domain::{
    event::{Event, EventKind, StreamKind},
    text::cut_mark,
};

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;

    use super::*;

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
