//! A message of a kernel, and its layout on the wire: that of `v1.kernel.websocket.jupyter.org`, which the bridge in
//! the sandbox and Jupyter's clients share.
//!
//! ```text
//! u64 N, N × u64 offset (little-endian; the first is 8·(1+N), the last the total length), then the parts:
//! channel · header · parent_header · metadata · content · buffers …
//! ```
//!
//! The parts are relayed as they are; only what the server itself decides by is read.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::Deserialize;
use serde_json::Value;

use crate::domain::{text::json_bytes, words::words};

/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;
/// The longest text that a message of the server's own carries, in bytes of its JSON. Beside it are two headers, of
/// which one is a kernel's: at most 64 KiB.
pub(in crate::services) const TEXT_BYTES_MAX: usize = MESSAGE_BYTES_MAX - (128 << 10);
/// The most offsets that a message may have: its five parts, the end, and buffers.
const OFFSETS_MAX: u64 = 1024;
/// Channel, header, parent header, metadata, content.
const PARTS: usize = 5;

words! {
    /// Where a message belongs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Channel: as_str {
        Shell = "shell",
        Control = "control",
        Stdin = "stdin",
        Iopub = "iopub",
        /// Between the server and the bridge; no message of a kernel.
        Bridge = "bridge",
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
    /// A message of the server's own.
    pub fn new(channel: Channel, header: &Value, content: &Value) -> Self {
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
        let number = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.first_chunk().copied()?))
        };
        let count = number(0).filter(|count| (PARTS as u64 + 1..=OFFSETS_MAX).contains(count));
        let count = usize::try_from(count.ok_or(MessageError::Offsets)?).map_err(|_| MessageError::Offsets)?;
        let offset = |index: usize| number(8 * index).and_then(|offset| usize::try_from(offset).ok());
        let offsets = (1..=count).map(offset).collect::<Option<Vec<_>>>().ok_or(MessageError::Offsets)?;
        let mut parts = parts(bytes, 8 * (1 + count), &offsets).ok_or(MessageError::Offsets)?;
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

    /// What it takes in memory, in bytes, where it is [`detached`](Self::detached).
    pub fn bytes(&self) -> usize {
        /// What a message costs beside its parts.
        const MESSAGE_BYTES: usize = 256;
        let parts = [&self.header, &self.parent_header, &self.metadata, &self.content];
        parts.into_iter().chain(&self.buffers).map(Bytes::len).sum::<usize>() + MESSAGE_BYTES
    }

    /// The message on the wire.
    pub fn encode(&self) -> Bytes {
        let channel = Bytes::from_static(self.channel.as_str().as_bytes());
        let json = [&channel, &self.header, &self.parent_header, &self.metadata, &self.content];
        let parts: Vec<&Bytes> = json.into_iter().chain(&self.buffers).collect();
        let head = 8 * (2 + parts.len());
        let mut out = BytesMut::with_capacity(head + parts.iter().map(|part| part.len()).sum::<usize>());
        out.put_u64_le(parts.len() as u64 + 1);
        let mut offset = head as u64;
        out.put_u64_le(offset);
        for part in &parts {
            offset += part.len() as u64;
            out.put_u64_le(offset);
        }
        for part in parts {
            out.put_slice(part);
        }
        out.freeze()
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

/// The parts of a frame. The first offset is the end of what is before the parts, and the last one that of the frame.
pub fn parts(frame: &Bytes, begin: usize, offsets: &[usize]) -> Option<Vec<Bytes>> {
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

/// Whether a message can carry a text. JSON may take six bytes for one.
pub(in crate::services) fn fits(text: &str) -> bool {
    json_bytes(text) <= TEXT_BYTES_MAX
}

/// Measures lines that come in pieces, each of which a message is to carry.
#[derive(Debug, Default)]
pub(in crate::services) struct LineMeter {
    /// The length of the line that has no end yet, in bytes of its JSON.
    bytes: usize,
}

impl LineMeter {
    /// Takes a piece, unless it makes a line too long; whether it was taken.
    pub(in crate::services) fn take(&mut self, piece: &[u8]) -> bool {
        let mut bytes = self.bytes;
        for (number, part) in piece.split(|&byte| byte == b'\n').enumerate() {
            bytes = json_bytes(&String::from_utf8_lossy(part)) + if number == 0 { bytes } else { 0 };
            if bytes > TEXT_BYTES_MAX {
                return false;
            }
        }
        self.bytes = bytes;
        true
    }
}

/// A message behind its length.
pub(super) fn with_length(message: &KernelMessage) -> Bytes {
    let message = message.encode();
    let mut out = BytesMut::with_capacity(4 + message.len());
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(&message);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let bytes = [with_length(&message()), with_length(&message())].concat();
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
    fn longest_text_and_the_longest_header_fit_into_a_message() {
        for (text, bytes) in [("x", 1), ("\u{1}", 6), ("\"", 2), ("é", 2)] {
            let longest = text.repeat(TEXT_BYTES_MAX / bytes);
            assert!(fits(&longest) && !fits(&format!("{longest}xxxxxx")));
            let header = json!({"msg_id": "x".repeat(64 << 10)});
            let mut message = KernelMessage::new(Channel::Stdin, &header, &json!({"value": longest}));
            message.parent_header = message.header.clone();
            message.header = Bytes::from_static(b"{}");
            assert!(message.encode().len() <= MESSAGE_BYTES_MAX);
        }
    }

    #[test]
    fn line_is_measured_over_its_pieces() {
        let piece = "\u{1}".repeat(1 << 18);
        for lines in ["", "\n", "short\n\n"] {
            let mut meter = LineMeter::default();
            assert!(meter.take(lines.as_bytes()));
            let taken = (0..10).filter(|_| meter.take(piece.as_bytes())).count();
            assert_eq!(taken, TEXT_BYTES_MAX / (6 << 18));
            assert!(meter.take(format!("\n{piece}").as_bytes()), "another line");
            assert!(!meter.take(format!("\n{}", piece.repeat(3)).as_bytes()), "in one piece");
        }
        let mut meter = LineMeter::default();
        let parts = "é\u{10ffff}".repeat(1000);
        assert!(parts.as_bytes().iter().all(|&byte| meter.take(&[byte])));
        assert!(meter.bytes >= parts.len(), "characters in pieces: {}", meter.bytes);
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
