//! The frames and messages of the runner protocol, as a sandbox reads and writes them, without the server's codec.

use std::fmt::Display;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, DuplexStream},
    sync::mpsc,
};

const STDIN: u8 = 4;
/// The longest message that a bridge takes.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// A message of the server: its channel, header and content. Without a channel, it is one that is too long.
#[derive(Default)]
pub(super) struct Message {
    pub(super) channel: String,
    pub(super) header: Value,
    pub(super) content: Value,
}

pub(super) async fn frame(input: &mut DuplexStream) -> Option<(u8, Vec<u8>)> {
    let kind = input.read_u8().await.ok()?;
    let mut payload = vec![0; input.read_u32().await.ok()? as usize];
    input.read_exact(&mut payload).await.ok()?;
    Some((kind, payload))
}

pub(super) async fn read(mut input: DuplexStream, messages: mpsc::Sender<Message>) {
    let mut bytes = Vec::new();
    while let Some((kind, payload)) = frame(&mut input).await {
        if kind != STDIN {
            continue;
        }
        bytes.extend_from_slice(&payload);
        while let Some(length) = bytes.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) {
            if length > MESSAGE_BYTES_MAX {
                drop(messages.send(Message::default()).await);
                return;
            }
            if bytes.len() < 4 + length {
                break;
            }
            let message: Vec<u8> = bytes.drain(..4 + length).skip(4).collect();
            if messages.send(parse(&message)).await.is_err() {
                return;
            }
        }
    }
}

fn parse(bytes: &[u8]) -> Message {
    let number = |at: usize| usize::try_from(u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default()));
    let offset = |index: usize| number(8 * (1 + index)).unwrap_or_default();
    let part = |index: usize| &bytes[offset(index)..offset(index + 1)];
    let value = |index| serde_json::from_slice(part(index)).unwrap_or_default();
    Message { channel: String::from_utf8_lossy(part(0)).into_owned(), header: value(1), content: value(4) }
}

pub(super) fn layout(
    channel: &str,
    header: &Value,
    parent: &Value,
    content: &dyn Display,
    buffers: &[&str],
) -> Vec<u8> {
    let parts = [channel.to_owned(), header.to_string(), parent.to_string(), "{}".to_owned(), content.to_string()];
    let parts: Vec<_> = parts.into_iter().chain(buffers.iter().map(|buffer| (*buffer).to_owned())).collect();
    let mut offset = 8 * (2 + parts.len());
    let mut message = (1 + parts.len() as u64).to_le_bytes().to_vec();
    message.extend((offset as u64).to_le_bytes());
    for part in &parts {
        offset += part.len();
        message.extend((offset as u64).to_le_bytes());
    }
    message.extend(parts.concat().into_bytes());
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], &message].concat()
}
