//! The streams above and below the multiplexer. Above it the stream of a channel, for the code that speaks with its
//! program. The multiplexer does not reset a stream that is dropped after its own half was ended: the other end is not
//! notified and gets no more window. So each end gives up a write that finds no window once the other half has ended,
//! and data that the program still sends after its answer is read. Below it what it writes, gathered into pieces for
//! the sandbox.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::AsyncReadExt as _;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{mpsc, oneshot},
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_util::{
    compat::{Compat, FuturesAsyncReadCompatExt as _},
    sync::PollSender,
};
use yamux::Stream;

use super::{READ_BYTES, upstream::ProgramEnd};

/// What a frame of the multiplexer carries at most.
pub(super) const PIECE_BYTES: usize = (64 << 10) - 64;
/// A piece for the sandbox: a whole frame with its header. What did not fit would be flushed as a piece of its own.
const FRAME_BYTES: usize = PIECE_BYTES + 12;
/// How long a program that has ended its half may take nothing of what is written to it.
const STALLED_MAX: Duration = Duration::from_mins(1);
/// How long what a program sends is read after the end of its answer: all of it, and each piece.
const REST_MAX: Duration = Duration::from_secs(30);
const PIECE_MAX: Duration = Duration::from_secs(5);

/// A stream that is given back when this is dropped.
pub(super) struct ChannelStream {
    /// `None` once it is dropped, and so is `back`.
    stream: Option<Compat<Stream>>,
    back: Option<oneshot::Sender<Stream>>,
    /// Wakes the task that waits for bytes of the program.
    reader: Option<Waker>,
    /// While a write waits for room.
    stalled: Option<Pin<Box<Sleep>>>,
    ended: ProgramEnd,
}

impl ChannelStream {
    /// The stream comes back when all that was done with it is over.
    pub(super) fn new(stream: Stream) -> (Self, oneshot::Receiver<Stream>) {
        let (back, returned) = oneshot::channel();
        let (stream, ended) = (Some(stream.compat()), ProgramEnd::default());
        (Self { stream, back: Some(back), reader: None, stalled: None, ended }, returned)
    }

    /// Holds when the program ended its half, once a flush or a write without room has found that.
    pub(super) fn ended(&self) -> ProgramEnd {
        Arc::clone(&self.ended)
    }

    fn stream(&mut self) -> Pin<&mut Compat<Stream>> {
        Pin::new(self.stream.as_mut().expect("it is there until the drop"))
    }

    /// Ready when a program that has ended its half has taken nothing for too long.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALLED_MAX)));
            ready!(stalled.as_mut().poll(cx));
            self.stalled = None;
            if self.has_ended(cx) {
                return Poll::Ready(());
            }
        }
    }

    /// Whether the program has ended its half.
    fn has_ended(&mut self, cx: &mut Context<'_>) -> bool {
        // A read of no bytes is ready then alone. It leaves a waker, which has to be that of who reads.
        let waker = self.reader.clone().unwrap_or_else(|| cx.waker().clone());
        let mut context = Context::from_waker(&waker);
        let has_ended = self.stream().poll_read(&mut context, &mut ReadBuf::new(&mut [])).is_ready();
        if has_ended {
            self.ended.get_or_init(Instant::now);
        }
        has_ended
    }
}

impl Drop for ChannelStream {
    fn drop(&mut self) {
        if let Some((stream, back)) = self.stream.take().zip(self.back.take()) {
            drop(back.send(stream.into_inner()));
        }
    }
}

impl AsyncRead for ChannelStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = self.stream().poll_read(cx, buffer);
        if read.is_pending() {
            self.reader = Some(cx.waker().clone());
        }
        read
    }
}

impl AsyncWrite for ChannelStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.stream().poll_write(cx, bytes);
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        ready!(self.poll_stalled(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // While a request waits for its host, the proxy flushes and does not read: a reset shows here alone, and wakes.
        if self.has_ended(cx) && self.stream.as_ref().is_some_and(|stream| stream.get_ref().is_closed()) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        self.stream().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

/// Reads what a program still sends after its answer has ended, so that one that sends all before it reads comes to the
/// answer. A stream whose answer has not ended is reset by its drop.
pub(super) async fn read_rest(mut stream: Stream) {
    if !stream.is_write_closed() {
        return;
    }
    let rest = async {
        let mut piece = vec![0; READ_BYTES];
        while matches!(timeout(PIECE_MAX, stream.read(&mut piece)).await, Ok(Ok(1..))) {}
    };
    let _ = timeout(REST_MAX, rest).await;
}

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
        if self.piece.len() >= FRAME_BYTES {
            ready!(self.poll_send(cx))?;
        }
        let count = bytes.len().min(FRAME_BYTES - self.piece.len());
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

    use super::{
        super::{
            Multiplexer,
            tests::{sandbox, say},
        },
        *,
    };

    #[tokio::test]
    async fn pieces_are_full_or_flushed_and_an_end_is_an_error_each_time() {
        let (sender, mut pieces) = mpsc::channel(1);
        let mut outgoing = Outgoing::new(sender);
        let written = tokio::spawn(async move {
            outgoing.write_all(&vec![1; FRAME_BYTES * 2 + 5]).await.expect("taken");
            outgoing.flush().await.expect("sent");
            outgoing
        });
        let mut lengths = Vec::new();
        while lengths.iter().sum::<usize>() < FRAME_BYTES * 2 + 5 {
            lengths.push(pieces.recv().await.expect("a piece").len());
        }
        assert_eq!(lengths, [FRAME_BYTES, FRAME_BYTES, 5]);
        let mut outgoing = written.await.expect("written");
        drop(pieces);
        for _ in 0..3 {
            outgoing.write_all(b"x").await.expect("held until it is flushed");
            assert_eq!(outgoing.flush().await.expect_err("gone").kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn each_whole_frame_is_one_piece() {
        let carrier = Multiplexer::trusting(None).expect("a carrier");
        let mut sandbox = sandbox(&carrier);
        let (relayed, from_server) = mpsc::channel(4);
        let mut pieces = std::mem::replace(&mut sandbox.from_server, from_server);
        let counting = tokio::spawn(async move {
            let mut whole = 0;
            while whole < 4 {
                let piece = pieces.recv().await.expect("a piece");
                whole += usize::from(piece.len() == FRAME_BYTES);
                relayed.send(piece).await.expect("taken");
            }
        });
        let (mut first, mut all) = sandbox.channels().await;
        say(&mut first, &[1]).await;
        let mut channel = all.recv().await.expect("a channel");
        say(&mut channel, b"\x01endless\n").await;
        timeout(REST_MAX, counting).await.expect("a window has room for four").expect("they are sent");
    }
}
