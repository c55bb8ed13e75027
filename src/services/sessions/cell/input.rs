//! The standard input of one cell, which its kernel asks for in lines, and how long a line or a code may be.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream::BoxStream};

use super::super::message::MESSAGE_BYTES_MAX;
use crate::domain::text::json_bytes;

/// The longest text that a message of the server's own carries, in bytes of its JSON. Beside it are two headers, of
/// which one is a kernel's: at most 64 KiB.
pub(in crate::services) const TEXT_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (128 << 10);

/// Whether a message can carry a text. JSON may take six bytes for one.
pub(in crate::services) fn fits(text: &str) -> bool {
    json_bytes(text) <= TEXT_BYTES_MAX
}

/// Measures lines that come in pieces, each of which a message is to carry.
#[derive(Debug, Default)]
pub(in crate::services) struct LineMeter {
    /// The length of the line that has no end yet, in bytes of its JSON.
    bytes: usize,
}

impl LineMeter {
    /// Takes a piece, unless it makes a line too long; whether it was taken.
    pub(in crate::services) fn take(&mut self, piece: &[u8]) -> bool {
        let mut bytes = self.bytes;
        for (number, part) in piece.split(|&byte| byte == b'\n').enumerate() {
            bytes = json_bytes(&String::from_utf8_lossy(part)) + if number == 0 { bytes } else { 0 };
            if bytes > TEXT_BYTES_MAX {
                return false;
            }
        }
        self.bytes = bytes;
        true
    }
}

/// What a cell reads as lines. Holds at most a line without its end, whose sender bounds it, and one piece.
pub(super) struct Input<'a> {
    pieces: Option<BoxStream<'a, Bytes>>,
    pending: BytesMut,
    /// So many bytes of it hold no end of a line.
    searched: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(pieces: Option<BoxStream<'a, Bytes>>) -> Self {
        Self { pieces, pending: BytesMut::new(), searched: 0 }
    }

    /// The next line without its end; nothing at the end of the input.
    pub(super) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.pending[self.searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.pending.split_to(self.searched + at + 1);
                self.searched = 0;
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                return Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned());
            }
            self.searched = self.pending.len();
            let Some(piece) = self.pieces.as_mut()?.next().await else {
                self.pieces = None;
                self.searched = 0;
                let rest = self.pending.split();
                return (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned());
            };
            self.pending.extend_from_slice(&piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream};
    use serde_json::json;

    use super::*;
    use crate::services::sessions::message::{Channel, KernelMessage};

    #[test]
    fn longest_text_and_the_longest_header_fit_into_a_message() {
        for (text, bytes) in [("x", 1), ("\u{1}", 6), ("\"", 2), ("é", 2)] {
            let longest = text.repeat(TEXT_BYTES_MAX / bytes);
            assert!(fits(&longest) && !fits(&format!("{longest}xxxxxx")));
            let header = json!({"msg_id": "x".repeat(64 << 10)});
            let mut message = KernelMessage::new(Channel::Stdin, &header, &json!({"value": longest}));
            message.parent_header = message.header.clone();
            message.header = Bytes::from_static(b"{}");
            assert!(message.encode().len() <= MESSAGE_BYTES_MAX);
        }
    }

    #[test]
    fn line_is_measured_over_its_pieces() {
        let piece = "\u{1}".repeat(1 << 18);
        for lines in ["", "\n", "short\n\n"] {
            let mut meter = LineMeter::default();
            assert!(meter.take(lines.as_bytes()));
            let taken = (0..10).filter(|_| meter.take(piece.as_bytes())).count();
            assert_eq!(taken, TEXT_BYTES_MAX / (6 << 18));
            assert!(meter.take(format!("\n{piece}").as_bytes()), "another line");
            assert!(!meter.take(format!("\n{}", piece.repeat(3)).as_bytes()), "in one piece");
        }
        let mut meter = LineMeter::default();
        let parts = "é\u{10ffff}".repeat(1000);
        assert!(parts.as_bytes().iter().all(|&byte| meter.take(&[byte])));
        assert!(meter.bytes >= parts.len(), "characters in pieces: {}", meter.bytes);
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        let pieces = ["o", "ne\ntw", "o", "\r\n", "three\n\nfi", "ve"];
        let mut input = Input::new(Some(stream::iter(pieces).map(Bytes::from).boxed()));
        let mut line = || input.line().now_or_never().expect("all is there");
        for expected in ["one", "two", "three", "", "five"] {
            assert_eq!(line().as_deref(), Some(expected));
        }
        assert_eq!((line(), line()), (None, None));
    }
}
