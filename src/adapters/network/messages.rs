//! Messages between a program and the server: each a length (four bytes, big endian) and so many bytes, both ways, on
//! one connection. The gate interprets their content.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    SinkExt as _, StreamExt as _,
    stream::{BoxStream, unfold},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::codec::{FramedWrite, LengthDelimitedCodec};

use super::{Sandbox, channel::Client};

/// The first byte of such a connection.
pub(super) const FIRST: u8 = 2;
/// The longest message of a program, and of the server, in bytes.
const FROM_PROGRAM_MAX: u32 = 1 << 20;
const TO_PROGRAM_MAX: usize = 4 << 20;
/// Messages of one sandbox that are incomplete, or wait until the gate takes them, in bytes.
pub(super) const READ_BYTES_MAX: usize = 8 << 20;
/// How long a program may take to read a message.
const WRITE_MAX: Duration = Duration::from_mins(5);

pub(super) async fn serve(mut client: Client, sandbox: &Sandbox) {
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

    use futures_util::FutureExt as _;

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
