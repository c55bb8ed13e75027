//! What the multiplexer writes, gathered into pieces for the sandbox.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use tokio::{io::AsyncWrite, sync::mpsc};
use tokio_util::sync::PollSender;

/// A piece for the sandbox.
pub(super) const PIECE_BYTES: usize = (64 << 10) - 64;

/// Sends what is written as pieces: full ones, and the rest when it is flushed.
pub(super) struct Outgoing {
    sender: PollSender<Bytes>,
    piece: BytesMut,
}

impl Outgoing {
    pub(super) fn new(sender: mpsc::Sender<Bytes>) -> Self {
        Self { sender: PollSender::new(sender), piece: BytesMut::new() }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        if !self.piece.is_empty() {
            ready!(self.sender.poll_reserve(cx)).map_err(gone)?;
            self.sender.send_item(self.piece.split().freeze()).map_err(gone)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Outgoing {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.piece.len() >= PIECE_BYTES {
            ready!(self.poll_send(cx))?;
        }
        let count = bytes.len().min(PIECE_BYTES - self.piece.len());
        self.piece.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_send(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    #[tokio::test]
    async fn pieces_are_full_or_flushed_and_an_end_is_an_error_each_time() {
        let (sender, mut pieces) = mpsc::channel(1);
        let mut outgoing = Outgoing::new(sender);
        let written = tokio::spawn(async move {
            outgoing.write_all(&vec![1; PIECE_BYTES * 2 + 5]).await.expect("taken");
            outgoing.flush().await.expect("sent");
            outgoing
        });
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < PIECE_BYTES * 2 + 5 {
            lengths.push(pieces.recv().await.expect("a piece").len());
        }
        assert_eq!(lengths, [PIECE_BYTES, PIECE_BYTES, 5]);
        let mut outgoing = written.await.expect("written");
        drop(pieces);
        for _ in 0..3 {
            outgoing.write_all(b"x").await.expect("held until it is flushed");
            assert_eq!(outgoing.flush().await.expect_err("gone").kind(), io::ErrorKind::BrokenPipe);
        }
    }
}
