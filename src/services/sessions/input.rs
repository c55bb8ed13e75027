//! The standard input of a cell, as lines.

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream::BoxStream};

/// What a cell reads as lines.
pub(super) struct Input<'a> {
    pieces: Option<BoxStream<'a, Bytes>>,
    pending: BytesMut,
}

impl<'a> Input<'a> {
    pub(super) fn new(pieces: Option<BoxStream<'a, Bytes>>) -> Self {
        Self { pieces, pending: BytesMut::new() }
    }

    /// The next line without its end; nothing at the end of the input.
    pub(super) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.pending.iter().position(|&byte| byte == b'\n') {
                let line = self.pending.split_to(at + 1);
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                return Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned());
            }
            let Some(piece) = self.pieces.as_mut()?.next().await else {
                self.pieces = None;
                let rest = self.pending.split();
                return (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned());
            };
            self.pending.extend_from_slice(&piece);
        }
    }
}
