//! The two forms of a kernel's messages on a WebSocket.
//!
//! ```text
//! default   text: one JSON object; with buffers binary: u32 count, count × u32 offset (big-endian), JSON, buffers
//! v1        binary, see `services::sessions::message`; only where the client offers its name
//! ```
//!
//! The JSON parts of a message are copied as they are.

use std::borrow::Cow;

use axum::{body::Bytes, extract::ws::Message};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::services::sessions::message::{self, Channel, KernelMessage, MessageError};

/// The name of the second form.
pub(super) const V1: &str = "v1.kernel.websocket.jupyter.org";
/// The most offsets in a frame: the JSON, and buffers.
const OFFSETS_MAX: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Default,
    V1,
}

/// Why a frame is no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum WireError {
    #[error("the message is not one JSON object with a header")]
    Json,
    #[error("messages of this form are binary")]
    Text,
    #[error(transparent)]
    Message(#[from] MessageError),
}

#[derive(Deserialize)]
struct Incoming<'a> {
    #[serde(borrow, default)]
    channel: Option<Cow<'a, str>>,
    #[serde(borrow)]
    header: &'a RawValue,
    #[serde(borrow, default)]
    parent_header: Option<&'a RawValue>,
    #[serde(borrow, default)]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
}

impl Wire {
    /// The message of a text frame.
    pub(super) fn read_text(self, text: &Bytes) -> Result<KernelMessage, WireError> {
        if self == Self::V1 { Err(WireError::Text) } else { read_json(text, Vec::new()) }
    }

    /// The message of a binary frame.
    pub(super) fn read_binary(self, bytes: &Bytes) -> Result<KernelMessage, WireError> {
        if self == Self::V1 { Ok(KernelMessage::decode(bytes)?) } else { read_parts(bytes) }
    }

    /// A message as a frame; nothing when the sandbox sent what is not JSON.
    pub(super) fn write(self, message: &KernelMessage) -> Option<Message> {
        match self {
            Self::V1 => Some(Message::Binary(message.encode())),
            Self::Default if message.buffers.is_empty() => Some(Message::Text(json(message)?.into())),
            Self::Default => Some(Message::Binary(with_buffers(json(message)?.as_bytes(), &message.buffers)?)),
        }
    }
}

fn read_json(text: &Bytes, buffers: Vec<Bytes>) -> Result<KernelMessage, WireError> {
    let read: Incoming<'_> = serde_json::from_slice(text).map_err(|_| WireError::Json)?;
    // A message without a channel is for the shell, as in Jupyter Server.
    let channel = read.channel.as_deref().map_or(Some(Channel::Shell), Channel::parse);
    let part =
        |part: Option<&RawValue>| part.map_or(Bytes::from_static(b"{}"), |part| text.slice_ref(part.get().as_bytes()));
    Ok(KernelMessage {
        channel: channel.ok_or(MessageError::Channel)?,
        header: part(Some(read.header)),
        parent_header: part(read.parent_header),
        metadata: part(read.metadata),
        content: part(read.content),
        buffers,
    })
}

fn read_parts(bytes: &Bytes) -> Result<KernelMessage, WireError> {
    let number = |index: usize| {
        let word = bytes.get(4 * index..)?.first_chunk()?;
        usize::try_from(u32::from_be_bytes(*word)).ok()
    };
    let count = number(0).filter(|count| (1..=OFFSETS_MAX).contains(count)).ok_or(MessageError::Offsets)?;
    let offsets = (1..=count).map(number).chain([Some(bytes.len())]).collect::<Option<Vec<_>>>();
    let parts = offsets.and_then(|offsets| message::split(bytes, 4 * (1 + count), &offsets));
    let mut parts = parts.ok_or(MessageError::Offsets)?;
    let text = parts.remove(0);
    read_json(&text, parts)
}

fn json(message: &KernelMessage) -> Option<String> {
    let part = |part: &'_ Bytes| serde_json::from_slice::<&RawValue>(part).ok().map(|raw| raw.get().to_owned());
    let header = message.read_header();
    let [id, kind] = [&header.msg_id, &header.msg_type].map(|text| serde_json::Value::from(text.as_str()).to_string());
    let channel = message.channel.as_str();
    let (own, parent) = (part(&message.header)?, part(&message.parent_header)?);
    let (metadata, content) = (part(&message.metadata)?, part(&message.content)?);
    let about = format!(r#""channel":"{channel}","msg_id":{id},"msg_type":{kind}"#);
    let parts = format!(r#""header":{own},"parent_header":{parent},"metadata":{metadata},"content":{content}"#);
    Some(format!(r#"{{{about},{parts},"buffers":[]}}"#))
}

fn with_buffers(json: &[u8], buffers: &[Bytes]) -> Option<Bytes> {
    let count = 1 + buffers.len();
    let (mut out, mut offset) = (u32::try_from(count).ok()?.to_be_bytes().to_vec(), 4 * (1 + count));
    for part in std::iter::once(json).chain(buffers.iter().map(|buffer| &buffer[..])) {
        out.extend(u32::try_from(offset).ok()?.to_be_bytes());
        offset += part.len();
    }
    out.extend(json);
    out.extend(buffers.concat());
    Some(out.into())
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn message(buffers: Vec<Bytes>) -> KernelMessage {
        KernelMessage {
            channel: Channel::Iopub,
            header: Bytes::from_static(br#"{"msg_id": "1",  "msg_type": "x\"y"}"#),
            parent_header: Bytes::from_static(br#"{"b":1.0, "a": 2}"#),
            metadata: Bytes::from_static(b"{}"),
            content: Bytes::from_static("{\"text\": \"é\"}".as_bytes()),
            buffers,
        }
    }

    fn read(wire: Wire, frame: Message) -> Result<KernelMessage, WireError> {
        match frame {
            Message::Text(text) => wire.read_text(&text.into()),
            Message::Binary(bytes) => wire.read_binary(&bytes),
            _ => Err(WireError::Json),
        }
    }

    #[test]
    fn messages_are_copied_byte_for_byte_in_both_forms() {
        for buffers in [vec![], vec![Bytes::from_static(b"\0\xff"), Bytes::new()]] {
            for wire in [Wire::Default, Wire::V1] {
                let sent = message(buffers.clone());
                assert_eq!(read(wire, wire.write(&sent).expect("a frame")), Ok(sent), "{wire:?}");
            }
        }
        let Some(Message::Text(text)) = Wire::Default.write(&message(vec![])) else { panic!("a text") };
        let text: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&text["msg_id"], &text["msg_type"]), (&"1".into(), &"x\"y".into()));
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for (text, why) in [
            ("", WireError::Json),
            ("[]", WireError::Json),
            ("{}", WireError::Json),
            (r#"{"header":{}} "#, MessageError::Channel.into()),
            (r#"{"header":{},"header":{}}"#, WireError::Json),
            (r#"{"header":{},"channel":"other"}"#, MessageError::Channel.into()),
        ] {
            let read = Wire::Default.read_text(&Bytes::from_static(text.as_bytes()));
            if text.contains("}} ") {
                assert_eq!(read.map(|message| message.channel), Ok(Channel::Shell), "no channel is the shell");
            } else {
                assert_eq!(read, Err(why), "{text}");
            }
        }
        assert_eq!(Wire::V1.read_text(&Bytes::from_static(b"{}")), Err(WireError::Text));
        let broken = KernelMessage { content: Bytes::from_static(b"{} , \"channel\": 1"), ..message(vec![]) };
        assert_eq!(Wire::Default.write(&broken), None, "a sandbox cannot add members");
    }

    #[test]
    fn every_altered_byte_of_the_offsets_is_refused_or_read_within_bounds() {
        let Some(Message::Binary(good)) = Wire::Default.write(&message(vec![Bytes::from_static(b"abc")])) else {
            panic!("a binary frame")
        };
        for at in 0..12 {
            for value in [0, 1, 2, 4, 12, 127, 255] {
                let mut bytes = good.to_vec();
                bytes[at] = value;
                drop(Wire::Default.read_binary(&bytes.into()));
            }
        }
        for length in 0..12 {
            assert!(Wire::Default.read_binary(&good.slice(..length)).is_err(), "cut at {length}");
        }
    }
}
