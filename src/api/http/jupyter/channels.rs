//! A kernel's WebSocket.
//!
//! ```text
//! connect ── one task for each connection, spawned at the upgrade; ends with its client, its kernel or the server
//! ```

use std::{sync::Arc, time::Duration};

use axum::{
    Extension,
    extract::{
        State,
        ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code, rejection::WebSocketUpgradeRejection},
    },
    response::Response,
};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    call::Call,
    wire::{V1, Wire},
};
use crate::{
    api::http::error::ApiError,
    domain::error::Code,
    services::{
        kernels::{Connection, ConnectionEnd, Kernels, MessageRefused},
        sessions::message::MESSAGE_BYTES_MAX,
        tokens::Token,
    },
};

/// A frame may be longer than a message, so that one that is too long is answered and not cut off.
const FRAME_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// What each connection reads at once, in bytes.
const BUFFER_BYTES: usize = 16 << 10;
/// How often a client is asked whether it is there; proxies end connections that are silent.
const PING: Duration = Duration::from_secs(30);
/// How long the client may take to answer the end.
const CLOSE_MAX: Duration = Duration::from_secs(2);
/// The longest reason in a close frame, in bytes (RFC 6455, 5.5).
const REASON_BYTES_MAX: usize = 123;

pub(super) async fn connect(
    State(kernels): State<Kernels>,
    token: Option<Extension<Arc<Token>>>,
    call: Call,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ApiError> {
    let (who, id) = (&call.who, call.kernel()?);
    kernels.get(who, id)?;
    let why = "This path is for WebSockets: connect with one.";
    let upgrade = upgrade.map_err(|_| ApiError::new(Code::InvalidRequest, why))?;
    let connection = kernels.connect(who, id, call.query("session_id").as_deref())?;
    let upgrade = upgrade.max_message_size(FRAME_BYTES_MAX).max_frame_size(FRAME_BYTES_MAX);
    let upgrade = upgrade.read_buffer_size(BUFFER_BYTES).write_buffer_size(0).protocols([V1]);
    let wire = if upgrade.selected_protocol().is_some() { Wire::V1 } else { Wire::Default };
    let ended = token.map_or_else(CancellationToken::new, |token| token.expired().clone());
    Ok(upgrade.on_upgrade(move |socket| serve(socket, connection, wire, ended)))
}

/// Why the server ends a connection.
struct Close(u16, String);

impl Close {
    fn refused(why: &impl ToString) -> Self {
        Self(close_code::POLICY, why.to_string())
    }
}

async fn serve(mut socket: WebSocket, mut connection: Connection, wire: Wire, ended: CancellationToken) {
    let over = tokio::select! {
        over = relay(&mut socket, &mut connection, wire) => over,
        () = ended.cancelled() => Some(Close::refused(&"the token was revoked or has expired")),
    };
    let Some(Close(code, mut reason)) = over else { return };
    drop(connection);
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

/// Relays until one side ends; why, when it is the server.
async fn relay(socket: &mut WebSocket, connection: &mut Connection, wire: Wire) -> Option<Close> {
    let mut pings = interval(PING);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let frame = tokio::select! {
            message = connection.next() => match message {
                Some(message) => wire.write(&message),
                None => return Some(over(connection.end())),
            },
            frame = socket.recv() => match frame? {
                Ok(frame) => {
                    if let Err(close) = take(connection, wire, frame).await {
                        return Some(close);
                    }
                    None
                }
                Err(_) => return Some(too_long()),
            },
            _ = pings.tick() => Some(Message::Ping(axum::body::Bytes::new())),
        };
        if let Some(frame) = frame {
            socket.send(frame).await.ok()?;
        }
    }
}

async fn take(connection: &Connection, wire: Wire, frame: Message) -> Result<(), Close> {
    let message = match frame {
        Message::Text(text) => wire.read_text(&text.into()),
        Message::Binary(bytes) => wire.read_binary(&bytes),
        Message::Ping(_) | Message::Pong(_) | Message::Close(_) => return Ok(()),
    };
    let message = message.map_err(|why| Close(close_code::INVALID, why.to_string()))?;
    match connection.send(message).await {
        Ok(()) => Ok(()),
        Err(MessageRefused::Over) => Err(over(connection.end())),
        Err(MessageRefused::TooLong) => Err(too_long()),
        Err(why) => Err(Close::refused(&why)),
    }
}

fn too_long() -> Close {
    let max = MESSAGE_BYTES_MAX >> 20;
    Close(close_code::SIZE, format!("a message has at most {max} MiB: send less at once"))
}

fn over(end: ConnectionEnd) -> Close {
    match end {
        ConnectionEnd::Replaced => Close(close_code::NORMAL, "the client has connected again".to_owned()),
        ConnectionEnd::NotRead => Close(close_code::AGAIN, "the client did not read".to_owned()),
        ConnectionEnd::Ended(why) => Close(close_code::NORMAL, format!("the kernel is gone: {why}")),
        ConnectionEnd::Stopping => Close(close_code::AWAY, "the server stops".to_owned()),
    }
}
