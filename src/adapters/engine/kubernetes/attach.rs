//! The streams of an attached container over one WebSocket, in the protocols `v4` and `v5.channel.k8s.io`: the first
//! byte of each message is its channel. Spawns nothing; both halves end when they are dropped.
//!
//! While the API server is silent, pings are sent, so that no proxy in between closes the connection as idle. A dead
//! connection ends with an error, since its pings are not answered. A server whose container does not read its input
//! reads no ping either, so pings count only from when one was answered after the last input.
//!
//! Version 4 cannot close the input alone: closing the connection would lose the output. So a `shutdown` of the input
//! sends what is left and leaves it open there; a framed runner needs no end of its input.

use std::{
    future::poll_fn,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    Sink, SinkExt as _, Stream, StreamExt,
    stream::{self, BoxStream},
};
use kube::{
    client::Connection,
    core::{Status, response::StatusSummary},
};
use parking_lot::Mutex;
use tokio::{io::AsyncWrite, time::timeout};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error, Message,
        protocol::{Role, WebSocketConfig},
    },
};

use super::life::Life;
use crate::{
    domain::{SandboxId, StreamKind},
    ports::engine::{EngineError, Output, Stdin},
};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// With version 5: the next byte is a channel that ends.
const CLOSE: u8 = 255;
/// The longest message of input, in bytes.
const PIECE_MAX: usize = 32 << 10;
/// Unanswered pings after which the server is gone.
const PINGS_MAX: u32 = 3;

type Stdout = BoxStream<'static, Result<Output, EngineError>>;

/// The connection, which both halves share. Each locks it for a poll, never across an await.
type Shared<S> = Arc<Mutex<Socket<S>>>;

struct Socket<S> {
    stream: S,
    /// Messages of input so far.
    inputs: u64,
}

/// The input and the output of a sandbox. The output ends with an error when the server answers no ping for
/// `silence_max`.
pub(super) async fn streams(
    connection: Connection,
    id: SandboxId,
    life: Arc<Life>,
    silence_max: Duration,
) -> (Stdin, Stdout) {
    let half_close = connection.supports_stream_close();
    // Nothing was read yet. Without a buffer a ping is written at once: the half that reads must not flush, since only
    // one task at a time can wait for room.
    let (io, config) = (connection.into_stream().into_inner(), WebSocketConfig::default().write_buffer_size(0));
    let stream = WebSocketStream::from_raw_socket(io, Role::Client, Some(config)).await;
    let socket = Arc::new(Mutex::new(Socket { stream, inputs: 0 }));
    let messages = messages(Arc::clone(&socket), silence_max / (PINGS_MAX + 1));
    let stdin = Input { socket, half_close, closed: false };
    (Box::pin(stdin), output(messages, id, life))
}

/// The messages of the server, which is sent a ping after each silent `interval`.
fn messages<S>(socket: Shared<S>, interval: Duration) -> impl Stream<Item = Result<Message, Error>> + Send + 'static
where
    S: Stream<Item = Result<Message, Error>> + Sink<Message, Error = Error> + Unpin + Send + 'static,
{
    // With how many messages of input the server had taken when it last answered.
    stream::unfold((socket, None), move |(socket, mut taken)| async move {
        for unanswered in 0.. {
            let received = timeout(interval, next(&socket)).await;
            if let Ok(message) = received {
                let message = message?;
                if let Ok(Message::Pong(inputs)) = &message {
                    taken = inputs[..].try_into().ok().map(u64::from_be_bytes);
                }
                return Some((message, (socket, taken)));
            }
            let pinged = socket.lock().ping(unanswered, taken);
            if let Err(error) = pinged {
                return Some((Err(error), (socket, taken)));
            }
        }
        None
    })
}

async fn next<S: Stream + Unpin>(socket: &Mutex<Socket<S>>) -> Option<S::Item> {
    poll_fn(|context| socket.lock().stream.poll_next_unpin(context)).await
}

impl<S: Sink<Message, Error = Error> + Unpin> Socket<S> {
    /// Sends a ping that says how much input came before it.
    fn ping(&mut self, unanswered: u32, taken: Option<u64>) -> Result<(), Error> {
        if unanswered >= PINGS_MAX && taken == Some(self.inputs) {
            return Err(Error::Io(io::ErrorKind::TimedOut.into()));
        }
        self.stream.start_send_unpin(Message::Ping(Bytes::copy_from_slice(&self.inputs.to_be_bytes())))
    }
}

fn input(bytes: &[u8]) -> Message {
    let mut message = Vec::with_capacity(bytes.len() + 1);
    message.push(STDIN);
    message.extend_from_slice(bytes);
    Message::Binary(message.into())
}

/// Writes messages, each of which is flushed before the next is taken. A write is done when the connection has taken
/// its message: a caller may give up a write that waits, and none of its bytes are counted for the next one.
struct Input<S> {
    socket: Shared<S>,
    half_close: bool,
    closed: bool,
}

impl<S: Sink<Message, Error = Error> + Unpin> Input<S> {
    fn poll_send(&self, context: &mut Context<'_>, message: Message) -> Poll<io::Result<()>> {
        let mut socket = self.socket.lock();
        ready!(socket.stream.poll_ready_unpin(context)).map_err(broken)?;
        socket.inputs += 1;
        Poll::Ready(socket.stream.start_send_unpin(message).map_err(broken))
    }
}

impl<S: Sink<Message, Error = Error> + Unpin> AsyncWrite for Input<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.as_mut().poll_flush(context))?;
        let piece = &bytes[..bytes.len().min(PIECE_MAX)];
        if !piece.is_empty() {
            ready!(self.poll_send(context, input(piece)))?;
        }
        Poll::Ready(Ok(piece.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.lock().stream.poll_flush_unpin(context).map_err(broken)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.half_close && !self.closed {
            ready!(self.poll_send(context, Message::Binary(Bytes::from_static(&[CLOSE, STDIN]))))?;
        }
        self.closed = true;
        self.poll_flush(context)
    }
}

fn broken(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::BrokenPipe, other),
    }
}

/// One message of the server.
#[derive(Debug)]
enum Item {
    Output(Output),
    /// The last word on the container's streams; `None` when they ended as they should.
    Status(Option<String>),
    Nothing,
}

/// The output of both streams. It has ended well when the status said so, or when we ended the sandbox; a connection
/// that ends before is an error.
fn output(
    messages: impl Stream<Item = Result<Message, Error>> + Send + 'static,
    id: SandboxId,
    life: Arc<Life>,
) -> Stdout {
    // Both are over when one is; the messages are not polled again after their end.
    let start = Some((Box::pin(messages), false));
    let items = stream::unfold(start, move |state| {
        let life = Arc::clone(&life);
        async move {
            let (mut messages, mut complete) = state?;
            loop {
                let error = match messages.next().await {
                    Some(Ok(Message::Close(_))) | None => EngineError::Lost { id },
                    Some(Err(error)) => EngineError::unavailable("read", error),
                    Some(Ok(message)) => match read(&message) {
                        Item::Output(output) => return Some((Ok(output), Some((messages, complete)))),
                        Item::Status(None) => {
                            complete = true;
                            continue;
                        }
                        Item::Status(Some(why)) => EngineError::refused("attach", why),
                        Item::Nothing => continue,
                    },
                };
                return (!complete && !life.is_ended_by_us()).then_some((Err(error), None));
            }
        }
    });
    items.boxed()
}

fn read(message: &Message) -> Item {
    let bytes = match message {
        Message::Binary(bytes) => bytes.clone(),
        Message::Text(text) => Bytes::copy_from_slice(text.as_bytes()),
        _ => return Item::Nothing,
    };
    let Some(channel) = bytes.first().copied() else { return Item::Nothing };
    let rest = bytes.slice(1..);
    let output =
        |stream| if rest.is_empty() { Item::Nothing } else { Item::Output(Output { stream, bytes: rest.clone() }) };
    match channel {
        STDOUT => output(StreamKind::Stdout),
        STDERR => output(StreamKind::Stderr),
        STATUS if !rest.is_empty() => match serde_json::from_slice::<Status>(&rest) {
            Ok(Status { status: Some(StatusSummary::Success), .. }) => Item::Status(None),
            Ok(status) => Item::Status(Some(status.message)),
            Err(_) => Item::Status(Some(String::from_utf8_lossy(&rest).chars().take(200).collect())),
        },
        _ => Item::Nothing,
    }
}

#[cfg(test)]
#[path = "attach_tests.rs"]
mod tests;
