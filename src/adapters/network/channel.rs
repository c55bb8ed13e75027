//! One channel: a connection of a program. Its first byte shows whether it speaks SOCKS 5 or HTTP, or is a request to
//! the server itself: one line, which the gate answers in pieces. Or it is messages between the two, both ways: each a
//! length (four bytes, big endian) and so many bytes, whose content the gate interprets.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    AsyncWriteExt as _, FutureExt as _, SinkExt as _, StreamExt as _,
    stream::{BoxStream, unfold},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::codec::{FramedWrite, LengthDelimitedCodec};
use yamux::Stream;

use super::{
    READ_BYTES, Sandbox, http, socks,
    stream::{ChannelStream, read_rest},
};
use crate::{domain::network::Refusal, ports::network::Gate};

/// A program's end of a channel. What was read ahead is in the buffer.
pub(super) type Client = BufReader<ChannelStream>;

/// How long a program may take until its first byte.
const FIRST_BYTE_MAX: Duration = Duration::from_mins(5);
/// The first byte of a request, which is not part of its line, of messages and of SOCKS 5.
const REQUEST: u8 = 1;
const MESSAGES: u8 = 2;
const SOCKS_5: u8 = 5;

/// The longest line of a request, and how long it may take.
const LINE_BYTES_MAX: u64 = 64 << 10;
const LINE_MAX: Duration = Duration::from_secs(10);

/// The longest message of a program, and of the server, in bytes.
const FROM_PROGRAM_MAX: u32 = 1 << 20;
const TO_PROGRAM_MAX: usize = 4 << 20;
/// Messages of one sandbox that are incomplete, or wait until the gate takes them, in bytes.
pub(super) const MESSAGES_BYTES_MAX: usize = 8 << 20;
/// How long a program may take to read a message.
const WRITE_MAX: Duration = Duration::from_mins(5);

/// Serves a connection; with `is_full` it gets the answer that there is no room for it.
pub(super) async fn serve(mut channel: Stream, sandbox: Arc<Sandbox>, is_full: bool) {
    // Nothing of a channel is sent before its first byte; the sandbox drops this one.
    if channel.write_all(&[0]).await.is_err() || channel.flush().await.is_err() {
        return;
    }
    let (stream, returned) = ChannelStream::new(channel);
    let mut client = BufReader::with_capacity(READ_BYTES, stream);
    let first = match timeout(FIRST_BYTE_MAX, client.fill_buf()).await {
        Ok(Ok([first, ..])) => *first,
        _ => return,
    };
    match first {
        SOCKS_5 => socks::serve(client, &sandbox, is_full).boxed().await,
        MESSAGES | REQUEST if is_full => {
            sandbox.refused(String::new(), Refusal::TooMany);
            return;
        }
        MESSAGES => messages(client, &sandbox).await,
        REQUEST => request(client, &sandbox.gate).await,
        _ => http::serve(client, sandbox, is_full).boxed().await,
    }
    if let Ok(stream) = returned.await {
        read_rest(stream).await;
    }
}

async fn request(mut client: Client, gate: &Arc<dyn Gate>) {
    let mut line = Vec::new();
    let mut bounded = (&mut client).take(LINE_BYTES_MAX);
    if !matches!(timeout(LINE_MAX, bounded.read_until(b'\n', &mut line)).await, Ok(Ok(_))) || line.pop() != Some(b'\n')
    {
        return;
    }
    line.drain(..1);
    let mut answer = gate.request(line.into());
    while let Some(piece) = answer.next().await {
        if client.write_all(&piece).await.is_err() || client.flush().await.is_err() {
            return;
        }
    }
    // The program has closed its end already, or sees this one.
    let _ = client.shutdown().await;
}

async fn messages(mut client: Client, sandbox: &Sandbox) {
    if client.read_u8().await.is_err() {
        return;
    }
    let (reading, writing) = tokio::io::split(client);
    let codec = LengthDelimitedCodec::builder().max_frame_length(TO_PROGRAM_MAX).new_codec();
    let mut answers = FramedWrite::new(writing, codec);
    let mut answering = sandbox.gate.messages(incoming(reading, Arc::clone(&sandbox.messages)));
    while let Some(answer) = answering.next().await {
        if !matches!(timeout(WRITE_MAX, answers.send(answer)).await, Ok(Ok(()))) {
            return;
        }
    }
    let _ = answers.into_inner().shutdown().await;
}

/// The messages of a program. Room for one is taken before it is read, and given back when the next one is wanted. One
/// that is too long, or half of one, ends them.
fn incoming(reading: impl AsyncRead + Send + Unpin + 'static, room: Arc<Semaphore>) -> BoxStream<'static, Bytes> {
    unfold((reading, room, None::<OwnedSemaphorePermit>), |(mut reading, room, last)| async move {
        drop(last);
        let length = reading.read_u32().await.ok().filter(|length| *length <= FROM_PROGRAM_MAX)?;
        let taken = Arc::clone(&room).acquire_many_owned(length).await.ok()?;
        let mut message = vec![0; usize::try_from(length).ok()?];
        reading.read_exact(&mut message).await.ok()?;
        Some((Bytes::from(message), (reading, room, Some(taken))))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn message(text: &[u8]) -> Vec<u8> {
        [&u32::try_from(text.len()).expect("short").to_be_bytes()[..], text].concat()
    }

    #[tokio::test]
    async fn messages_of_a_sandbox_take_room_until_the_next_one_is_wanted() {
        let room = Arc::new(Semaphore::new(8));
        let mut first = incoming(Cursor::new([message(b"12345"), message(b"678")].concat()), Arc::clone(&room));
        let mut second = incoming(Cursor::new(message(b"abcd")), Arc::clone(&room));
        assert_eq!(first.next().await.as_deref(), Some(&b"12345"[..]));
        assert!(second.next().now_or_never().is_none(), "there is room for three bytes");
        assert_eq!(first.next().await.as_deref(), Some(&b"678"[..]));
        assert_eq!(second.next().await.as_deref(), Some(&b"abcd"[..]));
        assert!(first.next().await.is_none() && second.next().await.is_none());
        assert_eq!(room.available_permits(), 8);
    }

    #[tokio::test]
    async fn message_that_is_too_long_or_incomplete_ends_them() {
        let half = message(b"half")[..6].to_vec();
        for bytes in [(FROM_PROGRAM_MAX + 1).to_be_bytes().to_vec(), half] {
            let room = Arc::new(Semaphore::new(8));
            assert!(incoming(Cursor::new(bytes), room).next().await.is_none());
        }
    }
}
