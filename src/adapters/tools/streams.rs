//! The two streams of a connection: a line is bounded, and both end when the connection ends, also if its server stops
//! reading. Does not know whose streams they are.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use rmcp::{RoleClient, transport::async_rw::AsyncRwTransport};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

use crate::ports::tools::MESSAGE_BYTES_MAX;

/// What a connection and its streams share.
#[derive(Debug, Clone, Default)]
pub(super) struct Link {
    /// The connection is to end, or has ended.
    pub(super) ended: CancellationToken,
    /// The server's input has been closed.
    pub(super) input_closed: CancellationToken,
    /// The server sent more than a message may be.
    pub(super) too_long: CancellationToken,
}

pub(super) type Linked<R, W> = AsyncRwTransport<RoleClient, Output<R>, Input<W>>;

/// A transport of lines. When the server ends its output, the link ends.
pub(super) fn linked<R, W>(output: R, input: W, link: &Link) -> Linked<R, W>
where
    R: AsyncRead + Send + Unpin,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let output = Output {
        stream: output,
        line_bytes: 0,
        too_long: link.too_long.clone(),
        ended: Box::pin(link.ended.clone().cancelled_owned()),
        _end: link.ended.clone().drop_guard(),
    };
    let input = Input {
        stream: input,
        ended: Box::pin(link.ended.clone().cancelled_owned()),
        _closed: link.input_closed.clone().drop_guard(),
    };
    // `Output` ends the connection before rmcp's own bound, which skips the line and goes on.
    AsyncRwTransport::new(output, input).with_max_line_length(MESSAGE_BYTES_MAX + 1)
}

/// What a server writes.
pub(super) struct Output<R> {
    stream: R,
    line_bytes: usize,
    too_long: CancellationToken,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    _end: DropGuard,
}

impl<R: AsyncRead + Unpin> AsyncRead for Output<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        for line in buf.filled()[before..].split_inclusive(|byte| *byte == b'\n') {
            self.line_bytes += line.len();
            if self.line_bytes > MESSAGE_BYTES_MAX {
                self.too_long.cancel();
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long")));
            }
            if line.ends_with(b"\n") {
                self.line_bytes = 0;
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// What a server reads.
pub(super) struct Input<W> {
    // Dropped before `_closed`.
    stream: W,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    _closed: DropGuard,
}

impl<W: AsyncWrite + Unpin> Input<W> {
    fn poll_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut W>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if self.ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        poll(Pin::new(&mut self.stream), cx)
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for Input<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_with(cx, AsyncWrite::poll_shutdown)
    }
}
