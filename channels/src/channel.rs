//! A channel whose writes have a limit once the other end has ended its half. That end may have given the channel up:
//! the multiplexer does not reset a stream that is dropped in this state, and gives no more room.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};

/// How long no byte may be taken. A host that has ended its half may still be slow to read.
const STALLED_MAX: Duration = Duration::from_mins(5);

pub struct Channel<S> {
    stream: S,
    /// The other end has ended its half.
    has_ended: bool,
    /// While a write waits for room, and the other end has ended its half.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> Channel<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, has_ended: false, stalled: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Channel<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.has_ended |= read.is_ready() && buffer.filled().len() == before && buffer.remaining() > 0;
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Channel<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if written.is_ready() || !self.has_ended {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALLED_MAX)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex, split},
        time::timeout,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn write_without_room_ends_when_the_other_end_has_ended_its_half() {
        let (near, mut far) = duplex(4);
        far.write_all(b"that").await.expect("written");
        far.shutdown().await.expect("ended");
        let (mut reader, mut writer) = split(Channel::new(near));
        let mut got = Vec::new();
        reader.read_to_end(&mut got).await.expect("its end");
        assert_eq!(got, b"that");
        writer.write_all(b"1234").await.expect("there is room");
        let written = timeout(2 * STALLED_MAX, writer.write_all(b"5")).await.expect("it ends");
        assert_eq!(written.expect_err("no room").kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn write_without_room_waits_for_an_end_that_may_answer() {
        let (near, mut far) = duplex(4);
        let (_reader, mut writer) = split(Channel::new(near));
        assert!(timeout(2 * STALLED_MAX, writer.write_all(b"12345")).await.is_err(), "it waits");
        far.read_exact(&mut [0; 4]).await.expect("read");
        writer.write_all(b"5").await.expect("there is room");
    }
}
