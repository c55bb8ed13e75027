//! A kernel's WebSocket.
//!
//! ```text
//! connect ── one task for each connection, spawned at the upgrade; ends with its client, its kernel or the server
//! ```

use std::{collections::VecDeque, future::poll_fn, pin::pin, task::Poll, time::Duration};

use axum::extract::ws::{
    CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code, rejection::WebSocketUpgradeRejection,
};
use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{
    Call,
    wire::{V1, Wire, WireError},
};
use crate::{
    api::http::{ApiCall, ApiError, ApiParts, Reply},
    domain::{Code, clock::every},
    services::{
        kernels::{Connection, ConnectionEnd, MessageRefused},
        sessions::message::{KernelMessage, MESSAGE_BYTES_MAX, MessageError},
    },
};

/// A frame may be longer than a message, so that one that is too long is answered and not cut off.
const FRAME_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// What each connection reads at once, in bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// What a client may have sent that has no room at its kernel, in bytes and messages. Beyond that nothing more is read.
const UNSENT_BYTES_MAX: usize = MESSAGE_BYTES_MAX;
const UNSENT_MAX: usize = 256;
/// How often a client is asked whether it is there; proxies end connections that are silent.
const PING: Duration = Duration::from_secs(30);
/// How long the client may take to answer the end.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The longest reason in a close frame, in bytes (RFC 6455, 5.5).
const REASON_BYTES_MAX: usize = 123;

pub(super) async fn connect(call: Call, upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>) -> Reply {
    let ApiCall { parts: ApiParts { kernels, .. }, who, token, .. } = &call.api;
    let id = call.kernel(call.name())?;
    kernels.get(who, id)?;
    let why = "This path is for WebSockets: connect with one.";
    let upgrade = upgrade.map_err(|_| ApiError::new(Code::InvalidRequest, why))?;
    let connection = kernels.connect(who, id, call.query("session_id").as_deref())?;
    let upgrade = upgrade.max_message_size(FRAME_BYTES_MAX).max_frame_size(FRAME_BYTES_MAX);
    let upgrade = upgrade.read_buffer_size(BUFFER_BYTES).write_buffer_size(0).protocols([V1]);
    let wire = if upgrade.selected_protocol().is_some() { Wire::V1 } else { Wire::Default };
    let ended = token.as_ref().map_or_else(CancellationToken::new, |token| token.expired().clone());
    Ok(upgrade.on_upgrade(move |socket| serve(socket, connection, wire, ended)))
}

/// Why the server ends a connection.
struct Close(u16, String);

/// What a client has sent and its kernel has not taken yet. What is on the control and stdin channels does not wait for
/// room on the shell channel.
#[derive(Default)]
struct Unsent(VecDeque<(usize, BoxFuture<'static, Result<(), MessageRefused>>)>);

impl Unsent {
    /// Whether there is room for more.
    fn takes(&self) -> bool {
        let bytes: usize = self.0.iter().map(|(bytes, _)| bytes).sum();
        bytes < UNSENT_BYTES_MAX && self.0.len() < UNSENT_MAX
    }

    fn push(&mut self, message: KernelMessage, connection: &Connection) {
        self.0.push_back((message.bytes(), connection.send(message).boxed()));
    }

    /// Waits until one is passed on or refused; nothing when there is none. Those behind it are begun as well, so that
    /// each comes before what the client sends over its next connection.
    async fn sent(&mut self) -> Option<Result<(), MessageRefused>> {
        poll_fn(|context| {
            let mut unsent = self.0.iter_mut().enumerate();
            let sent = unsent.find_map(|(at, (_, sending))| match sending.poll_unpin(context) {
                Poll::Ready(sent) => Some((at, sent)),
                Poll::Pending => None,
            });
            match sent {
                Some((at, sent)) => {
                    drop(self.0.remove(at));
                    Poll::Ready(Some(sent))
                }
                None if self.0.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for a write to the client, and passes messages on meanwhile. Room that a message was given is held until
    /// it is passed on, so that a client which does not read would keep others from sending.
    ///
    /// # Errors
    /// Why a message is refused.
    async fn sent_during<T>(&mut self, write: impl Future<Output = T>) -> Result<T, MessageRefused> {
        let mut write = pin!(write);
        loop {
            tokio::select! {
                written = &mut write => return Ok(written),
                Some(sent) = self.sent() => sent?,
            }
        }
    }
}

async fn serve(mut socket: WebSocket, mut connection: Connection, wire: Wire, ended: CancellationToken) {
    let mut unsent = Unsent::default();
    let over = tokio::select! {
        over = relay(&mut socket, &mut connection, wire, &mut unsent) => over,
        () = ended.cancelled() => Some(Close(close_code::POLICY, "the token was revoked or has expired".to_owned())),
    };
    // What waits takes memory, so it keeps the slot of the connection.
    let _slot = Some(connection.leave()).filter(|_| !unsent.0.is_empty());
    // What a client has sent is passed on also when the client has left.
    let passing = ended.run_until_cancelled(async { while unsent.sent().await.is_some() {} });
    tokio::join!(close(socket, over), passing);
}

/// Ends a connection that the server ends.
async fn close(mut socket: WebSocket, over: Option<Close>) {
    let Some(Close(code, mut reason)) = over else { return };
    reason.truncate(reason.floor_char_boundary(REASON_BYTES_MAX));
    let close = Message::Close(Some(CloseFrame { code, reason: reason.into() }));
    let ending = async {
        if socket.send(close).await.is_ok() {
            while let Some(Ok(_)) = socket.recv().await {}
        }
    };
    // A client that does not answer is cut off.
    drop(timeout(CLOSE_MAX, ending).await);
}

/// Relays until one side ends; why, when it is the server. While messages of the client wait, it is written to and
/// pinged, and read from as long as there is room.
async fn relay(socket: &mut WebSocket, connection: &mut Connection, wire: Wire, unsent: &mut Unsent) -> Option<Close> {
    let mut pings = every(PING);
    loop {
        connection.written();
        let takes = unsent.takes();
        let frame = tokio::select! {
            message = connection.next() => match message {
                Some(message) => wire.write(&message),
                None => return Some(close_of(connection.end())),
            },
            Some(sent) = unsent.sent() => {
                if let Err(why) = sent {
                    return Some(refused(connection, why));
                }
                None
            }
            frame = socket.recv(), if takes => {
                let Ok(frame) = frame? else { return Some(too_long()) };
                match read(wire, frame) {
                    Ok(Some(message)) => unsent.push(message, connection),
                    Ok(None) => {}
                    Err(close) => return Some(close),
                }
                None
            }
            _ = pings.tick() => Some(Message::Ping(axum::body::Bytes::new())),
        };
        if let Some(frame) = frame {
            match unsent.sent_during(socket.send(frame)).await {
                Ok(written) => written.ok()?,
                Err(why) => return Some(refused(connection, why)),
            }
        }
    }
}

/// The message in a frame, if it has one.
fn read(wire: Wire, frame: Message) -> Result<Option<KernelMessage>, Close> {
    let message = match frame {
        Message::Text(text) => wire.read_text(&text.into()),
        Message::Binary(bytes) => wire.read_binary(&bytes),
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(None),
    };
    message.map(Some).map_err(|why| match why {
        WireError::Message(MessageError::TooLong(_)) => too_long(),
        why => Close(close_code::INVALID, why.to_string()),
    })
}

fn refused(connection: &Connection, why: MessageRefused) -> Close {
    match why {
        MessageRefused::Over => close_of(connection.end()),
        MessageRefused::TooLong => too_long(),
        why => Close(close_code::POLICY, why.to_string()),
    }
}

fn too_long() -> Close {
    let max = MESSAGE_BYTES_MAX >> 20;
    Close(close_code::SIZE, format!("a message has at most {max} MiB: send less at once"))
}

fn close_of(end: ConnectionEnd) -> Close {
    match end {
        ConnectionEnd::Replaced => Close(close_code::NORMAL, "the client has connected again".to_owned()),
        ConnectionEnd::NotRead => Close(close_code::AGAIN, "the client did not read".to_owned()),
        ConnectionEnd::Ended(why) => Close(close_code::NORMAL, format!("the kernel is gone: {why}")),
        ConnectionEnd::Stopping => Close(close_code::AWAY, "the server stops".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;
    use crate::services::sessions::message::Channel;

    /// How a connection is closed for this frame.
    fn closed(wire: Wire, frame: Message) -> (u16, String) {
        match read(wire, frame) {
            Err(Close(code, why)) => (code, why),
            Ok(_) => panic!("it is a message"),
        }
    }

    #[test]
    fn wrong_message_is_closed_for_the_same_reason_in_both_forms() {
        let (size, why) = closed(Wire::V1, Message::Binary(vec![0; MESSAGE_BYTES_MAX + 1].into()));
        assert_eq!((size, why.as_str()), (close_code::SIZE, "a message has at most 4 MiB: send less at once"));

        let message = KernelMessage::new(Channel::Iopub, &json!({}), &json!({})).encode();
        // The channel follows the number of the offsets and these.
        let (head, rest) = message.split_at(8 * 7);
        let rest = rest.strip_prefix(b"iopub").expect("the channel");
        let binary = Message::Binary([head, b"other", rest].concat().into());
        let text = Message::Text(json!({"header": {}, "channel": "other"}).to_string().into());
        assert_eq!(closed(Wire::V1, binary), closed(Wire::Default, text));
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_client_has_sent_is_passed_on_while_it_is_written_to() {
        let (passed_on, write) = oneshot::channel();
        let sending = async move { passed_on.send(()).map_err(|()| MessageRefused::Over) };
        let mut unsent = Unsent(VecDeque::from([(1, sending.boxed())]));
        let written = timeout(Duration::from_mins(1), unsent.sent_during(write)).await;
        assert_eq!(written.expect("it is passed on"), Ok(Ok(())));
        assert!(unsent.0.is_empty());
    }
}
