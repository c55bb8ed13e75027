//! A message of a kernel, and its layout on the wire: that of `v1.kernel.websocket.jupyter.org`, which the bridge in
//! the sandbox and Jupyter's clients share. The bridge is built with this file, so it uses nothing else of the server.
//!
//! ```text
//! u64 N, N × u64 offset (little-endian; the first is 8·(1+N), the last the total length), then the parts:
//! channel · header · parent_header · metadata · content · buffers …
//! ```
//!
//! The parts are relayed as they are; only what the server or the bridge itself decides by is read.

use std::{fmt::Display, iter};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The most offsets that a message may have: its five parts, the end, and buffers.
const OFFSETS_MAX: usize = 1024;
/// Channel, header, parent header, metadata, content.
const PARTS: usize = 5;
/// The most buffers.
pub const BUFFERS_MAX: usize = OFFSETS_MAX - PARTS - 1;

/// Where a message belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    Shell,
    Control,
    Stdin,
    Iopub,
    /// Between the server and the bridge; no message of a kernel.
    Bridge,
}

impl Channel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Control => "control",
            Self::Stdin => "stdin",
            Self::Iopub => "iopub",
            Self::Bridge => "bridge",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        let all = [Self::Shell, Self::Control, Self::Stdin, Self::Iopub, Self::Bridge];
        all.into_iter().find(|channel| channel.as_str() == name)
    }
}

/// One message, its JSON parts unread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelMessage {
    pub channel: Channel,
    pub header: Bytes,
    pub parent_header: Bytes,
    pub metadata: Bytes,
    pub content: Bytes,
    pub buffers: Vec<Bytes>,
}

/// What is read of a header. Members that are missing are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Header {
    pub msg_id: String,
    pub msg_type: String,
    pub session: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("a message of {0} bytes is longer than the longest")]
    TooLong(usize),
    #[error("the offsets of the message are wrong")]
    Offsets,
    #[error("the message is for an unknown channel")]
    Channel,
}

impl KernelMessage {
    /// A message of the server's or the bridge's own, with these texts in JSON.
    pub fn new(channel: Channel, header: &impl Display, content: &impl Display) -> Self {
        let empty = || Bytes::from_static(b"{}");
        Self {
            channel,
            header: header.to_string().into(),
            parent_header: empty(),
            metadata: empty(),
            content: content.to_string().into(),
            buffers: Vec::new(),
        }
    }

    /// # Errors
    /// When the bytes are not one message.
    pub fn decode(bytes: &Bytes) -> Result<Self, MessageError> {
        if bytes.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong(bytes.len()));
        }
        let number = |index: usize| {
            let word = bytes.get(8 * index..)?.first_chunk()?;
            usize::try_from(u64::from_le_bytes(*word)).ok()
        };
        let count = number(0).filter(|count| (PARTS + 1..=OFFSETS_MAX).contains(count)).ok_or(MessageError::Offsets)?;
        let offsets = (1..=count).map(number).collect::<Option<Vec<_>>>().ok_or(MessageError::Offsets)?;
        let mut parts = split(bytes, 8 * (1 + count), &offsets).ok_or(MessageError::Offsets)?;
        let buffers = parts.split_off(PARTS);
        let Ok([channel, header, parent_header, metadata, content]) = <[Bytes; PARTS]>::try_from(parts) else {
            return Err(MessageError::Offsets);
        };
        let channel = std::str::from_utf8(&channel).ok().and_then(Channel::parse).ok_or(MessageError::Channel)?;
        Ok(Self { channel, header, parent_header, metadata, content, buffers })
    }

    /// The same with memory of its own. Parts that were read are slices, and keep all that was read with them.
    #[must_use]
    pub fn detached(mut self) -> Self {
        let parts = [&mut self.header, &mut self.parent_header, &mut self.metadata, &mut self.content];
        for part in parts.into_iter().chain(&mut self.buffers) {
            *part = Bytes::copy_from_slice(part);
        }
        self
    }

    /// Its JSON parts and its buffers, in order.
    pub fn parts(&self) -> impl Iterator<Item = &Bytes> {
        [&self.header, &self.parent_header, &self.metadata, &self.content].into_iter().chain(&self.buffers)
    }

    /// What it takes in memory, in bytes, where it is [`detached`](Self::detached).
    pub fn bytes(&self) -> usize {
        /// What a message costs beside its parts.
        const MESSAGE_BYTES: usize = 256;
        self.parts().map(Bytes::len).sum::<usize>() + MESSAGE_BYTES
    }

    /// Its length on the wire, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        let offsets = PARTS + self.buffers.len() + 1;
        8 * (1 + offsets) + self.channel.as_str().len() + self.parts().map(Bytes::len).sum::<usize>()
    }

    /// The message on the wire.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.encoded_bytes());
        self.put(&mut out);
        out.freeze()
    }

    /// The message on the wire behind its length, as [`MessageReader`] reads it.
    pub(super) fn encode_with_length(&self) -> Bytes {
        let length = self.encoded_bytes();
        let mut out = BytesMut::with_capacity(4 + length);
        out.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
        self.put(&mut out);
        out.freeze()
    }

    fn put(&self, out: &mut BytesMut) {
        let channel = self.channel.as_str();
        let offsets = PARTS + self.buffers.len() + 1;
        out.put_u64_le(offsets as u64);
        let mut offset = 8 * (1 + offsets);
        out.put_u64_le(offset as u64);
        for length in iter::once(channel.len()).chain(self.parts().map(Bytes::len)) {
            offset += length;
            out.put_u64_le(offset as u64);
        }
        out.put_slice(channel.as_bytes());
        self.parts().for_each(|part| out.put_slice(part));
    }

    /// The header, as far as it can be read.
    pub fn read_header(&self) -> Header {
        serde_json::from_slice(&self.header).unwrap_or_default()
    }

    /// The header of the message that this one answers.
    pub fn read_parent(&self) -> Header {
        serde_json::from_slice(&self.parent_header).unwrap_or_default()
    }

    /// The content; null when it is no JSON.
    pub fn read_content(&self) -> Value {
        serde_json::from_slice(&self.content).unwrap_or_default()
    }
}

/// The header of a message of the server's or the bridge's own.
pub(super) fn own_header(msg_id: &str, msg_type: &str, session: &str) -> Value {
    let date = OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default();
    json!({"msg_id": msg_id, "msg_type": msg_type, "session": session, "username": "sandbox", "date": date,
        "version": "5.3"})
}

/// The parts of a frame. The first offset is the end of what is before the parts, and the last one that of the frame.
pub fn split(frame: &Bytes, begin: usize, offsets: &[usize]) -> Option<Vec<Bytes>> {
    let is_whole = offsets.first() == Some(&begin) && offsets.last() == Some(&frame.len());
    (is_whole && offsets.is_sorted()).then(|| offsets.windows(2).map(|ends| frame.slice(ends[0]..ends[1])).collect())
}

/// Puts messages together from chunks of any size: each comes after its length, four bytes, big-endian.
#[derive(Debug, Default)]
pub(super) struct MessageReader(BytesMut);

impl MessageReader {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole message, if one is there. Not to be called again after an error.
    ///
    /// # Errors
    /// When what comes next is not one message.
    pub(super) fn next(&mut self) -> Result<Option<KernelMessage>, MessageError> {
        let Some(length) = self.0.first_chunk().map(|length| u32::from_be_bytes(*length) as usize) else {
            return Ok(None);
        };
        if length > MESSAGE_BYTES_MAX {
            return Err(MessageError::TooLong(length));
        }
        if self.0.len() < 4 + length {
            return Ok(None);
        }
        // A copy, since a slice would keep what was read before and after it: a short message several MiB.
        let message = Bytes::copy_from_slice(&self.0[4..4 + length]);
        self.0.advance(4 + length);
        if self.0.is_empty() {
            self.0 = BytesMut::new();
        }
        KernelMessage::decode(&message).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> KernelMessage {
        let header = json!({"msg_id": "1", "msg_type": "stream", "session": "s", "later": [1]});
        let mut message = KernelMessage::new(Channel::Iopub, &header, &json!({"name": "stdout", "text": "é"}));
        message.buffers = vec![Bytes::from_static(b"\0\xff"), Bytes::new()];
        message
    }

    #[test]
    fn a_message_is_laid_out_as_documented_and_read_back() {
        let bytes = message().encode();
        assert_eq!(bytes[..16], [[8, 0, 0, 0, 0, 0, 0, 0], [72, 0, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!(KernelMessage::decode(&bytes), Ok(message()));
        let header = message().read_header();
        assert_eq!((&*header.msg_id, &*header.msg_type, &*header.session), ("1", "stream", "s"));
        assert_eq!(message().read_content()["text"], "é");
    }

    #[test]
    fn messages_are_read_in_any_chunks() {
        let bytes = [message().encode_with_length(), message().encode_with_length()].concat();
        for piece in [1, 3, 7, bytes.len()] {
            let (mut reader, mut read) = (MessageReader::default(), 0);
            for piece in bytes.chunks(piece) {
                reader.push(piece);
                while let Some(next) = reader.next().expect("a message") {
                    assert_eq!(next, message());
                    read += 1;
                }
            }
            assert_eq!(read, 2);
        }
        let mut reader = MessageReader::default();
        reader.push(&bytes);
        let buffer = reader.0.as_ptr_range();
        let read = reader.next().expect("right").expect("a message");
        assert!(!buffer.contains(&read.header.as_ptr()), "it has memory of its own");
        let mut reader = MessageReader::default();
        reader.push(&[0xff, 0xff, 0xff, 0xff]);
        assert_eq!(reader.next(), Err(MessageError::TooLong(u32::MAX as usize)));
    }

    #[test]
    fn every_altered_offset_is_refused_or_read_within_bounds() {
        let good = message().encode();
        for at in 0..72 {
            for value in [0, 1, 7, 127, 128, 255] {
                let mut bytes = good.to_vec();
                bytes[at] = value;
                if let Ok(read) = KernelMessage::decode(&bytes.into()) {
                    assert!(read.content.len() <= good.len() && read.buffers.len() < 1024);
                }
            }
        }
        for length in 0..good.len() {
            assert!(KernelMessage::decode(&good.slice(..length)).is_err(), "cut at {length}");
        }
    }
}
