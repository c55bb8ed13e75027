//! The standard input of one cell, which its kernel asks for in lines.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream::BoxStream};

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

    use super::*;

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
