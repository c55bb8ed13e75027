//! One Jupyter message and its two encodings: the frames of `ZeroMQ`, signed, and `v1.kernel.websocket.jupyter.org`
//! behind a length, as the server reads and writes it. The parts are relayed byte for byte; must not know what they
//! mean.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use thiserror::Error;
use zeromq::ZmqMessage;

/// The longest message, either way, in the encoding of version 1.
pub const MESSAGE_MAX_BYTES: usize = 4 << 20;

/// The most offsets that a message may have, either way, and so the most buffers.
const OFFSETS_MAX: usize = 1024;
/// Of the channel, the four parts in JSON, and the end.
const OFFSETS_BESIDE: usize = 6;
pub const BUFFERS_MAX: usize = OFFSETS_MAX - OFFSETS_BESIDE;

/// Before it a message has identities of the sender's choice, after it the signature.
const DELIMITER: &[u8] = b"<IDS|MSG>";

/// Where a message belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    Shell,
    Control,
    Stdin,
    Iopub,
    /// Between this program and the server.
    Bridge,
}

impl Channel {
    fn name(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Control => "control",
            Self::Stdin => "stdin",
            Self::Iopub => "iopub",
            Self::Bridge => "bridge",
        }
    }

    fn parse(name: &[u8]) -> Option<Self> {
        [Self::Shell, Self::Control, Self::Stdin, Self::Iopub, Self::Bridge]
            .into_iter()
            .find(|channel| channel.name().as_bytes() == name)
    }
}

/// The parts of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub header: Bytes,
    pub parent_header: Bytes,
    pub metadata: Bytes,
    pub content: Bytes,
    pub buffers: Vec<Bytes>,
}

/// Bytes that are not a message.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MessageError {
    #[error("a message of {0} bytes is longer than {MESSAGE_MAX_BYTES}")]
    Length(usize),
    #[error("the offsets of a message do not fit it")]
    Offsets,
    #[error("a message for no known channel")]
    Channel,
}

impl Message {
    /// A message with an empty parent header and metadata.
    pub fn new(header: impl Into<Bytes>, content: impl Into<Bytes>) -> Self {
        let empty = Bytes::from_static(b"{}");
        Self {
            header: header.into(),
            parent_header: empty.clone(),
            metadata: empty,
            content: content.into(),
            buffers: Vec::new(),
        }
    }

    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        [&self.header, &self.parent_header, &self.metadata, &self.content].into_iter().chain(&self.buffers)
    }

    /// The length of the encoding of version 1, channel included.
    pub fn bytes(&self, channel: Channel) -> usize {
        let offsets = 1 + (OFFSETS_BESIDE + self.buffers.len());
        8 * offsets + channel.name().len() + self.parts().map(Bytes::len).sum::<usize>()
    }

    /// The length in four bytes, big endian, and the encoding of version 1.
    pub fn encode(&self, channel: Channel) -> Bytes {
        let length = self.bytes(channel);
        let mut out = Vec::with_capacity(4 + length);
        out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        let count = OFFSETS_BESIDE + self.buffers.len();
        out.extend_from_slice(&(count as u64).to_le_bytes());
        let mut at = 8 * (1 + count);
        out.extend_from_slice(&(at as u64).to_le_bytes());
        let lengths = std::iter::once(channel.name().len()).chain(self.parts().map(Bytes::len));
        for part in lengths {
            at += part;
            out.extend_from_slice(&(at as u64).to_le_bytes());
        }
        out.extend_from_slice(channel.name().as_bytes());
        self.parts().for_each(|part| out.extend_from_slice(part));
        out.into()
    }

    /// Reads the encoding of version 1, without a length before it.
    pub fn decode(bytes: &Bytes) -> Result<(Channel, Self), MessageError> {
        let number = |at: usize| {
            let eight = bytes.get(8 * at..8 * at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(eight)).ok()
        };
        let count =
            number(0).filter(|count| (OFFSETS_BESIDE..=OFFSETS_MAX).contains(count)).ok_or(MessageError::Offsets)?;
        let offsets: Option<Vec<_>> = (1..=count).map(number).collect();
        let offsets = offsets.ok_or(MessageError::Offsets)?;
        let is_whole = offsets[0] == 8 * (1 + count) && offsets[count - 1] == bytes.len() && offsets.is_sorted();
        if !is_whole {
            return Err(MessageError::Offsets);
        }
        let mut parts = offsets.windows(2).map(|edges| bytes.slice(edges[0]..edges[1]));
        let mut next = || parts.next().unwrap_or_default();
        let channel = Channel::parse(&next()).ok_or(MessageError::Channel)?;
        let (header, parent_header, metadata, content) = (next(), next(), next(), next());
        Ok((channel, Self { header, parent_header, metadata, content, buffers: parts.collect() }))
    }
}

/// Takes messages from bytes that arrive in any pieces.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
}

impl Decoder {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next message, if it is complete.
    pub fn next(&mut self) -> Result<Option<(Channel, Message)>, MessageError> {
        let Some(&[a, b, c, d]) = self.bytes.first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length > MESSAGE_MAX_BYTES {
            return Err(MessageError::Length(length));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        let rest = self.bytes.split_off(4 + length);
        let whole = Bytes::from(std::mem::replace(&mut self.bytes, rest)).slice(4..);
        Message::decode(&whole).map(Some)
    }
}

/// Signs what goes to the kernel, and verifies what comes from it.
#[derive(Clone, Debug)]
pub struct Signer {
    key: Vec<u8>,
}

impl Signer {
    /// With the key of a connection file. Without a key nothing is signed, as Jupyter has it.
    pub fn new(key: &str) -> Self {
        Self { key: key.as_bytes().to_vec() }
    }

    fn of<'a>(&self, parts: impl IntoIterator<Item = &'a Bytes>) -> Option<Hmac<Sha256>> {
        let mut hash = Hmac::<Sha256>::new_from_slice(&self.key).ok().filter(|_| !self.key.is_empty())?;
        parts.into_iter().for_each(|part| hash.update(part));
        Some(hash)
    }

    /// The frames for a socket of the kernel.
    pub fn sign(&self, message: &Message) -> ZmqMessage {
        let signature =
            self.of(message.parts().take(4)).map_or_else(String::new, |hash| hex(&hash.finalize().into_bytes()));
        let mut frames = ZmqMessage::from(Bytes::from_static(DELIMITER));
        frames.push_back(signature.into());
        message.parts().for_each(|part| frames.push_back(part.clone()));
        frames
    }

    /// The message in `frames`, if it is one and has the right signature.
    pub fn verify(&self, frames: ZmqMessage) -> Option<Message> {
        let mut frames = frames.into_vecdeque();
        let at = frames.iter().position(|frame| **frame == *DELIMITER)?;
        frames.drain(..=at);
        let signature = frames.pop_front()?;
        if frames.len() < 4 {
            return None;
        }
        if let Some(hash) = self.of(frames.iter().take(4)) {
            hash.verify_slice(&unhex(&signature)?).ok()?;
        }
        let buffers = frames.split_off(4).into();
        let mut next = || frames.pop_front().unwrap_or_default();
        let (header, parent_header, metadata, content) = (next(), next(), next(), next());
        Some(Message { header, parent_header, metadata, content, buffers })
    }
}

/// Bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let digit = |four: u8| char::from_digit(four.into(), 16).unwrap_or_default();
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Message {
        let buffers = vec![Bytes::from_static(b"\0\xff"), Bytes::new()];
        Message { buffers, ..Message::new("{\"msg_id\":\"1\"}", "{\"code\":\"x\"}") }
    }

    #[test]
    fn message_survives_both_encodings() {
        for message in [example(), Message::new("{}", "{}")] {
            let bytes = message.encode(Channel::Shell);
            assert_eq!(bytes.len(), 4 + message.bytes(Channel::Shell));
            let mut decoder = Decoder::default();
            for byte in &bytes {
                assert_eq!(decoder.next(), Ok(None));
                decoder.feed(&[*byte]);
            }
            assert_eq!(decoder.next(), Ok(Some((Channel::Shell, message.clone()))));
            let signer = Signer::new("secret");
            assert_eq!(signer.verify(signer.sign(&message)), Some(message));
        }
    }

    #[test]
    fn layout_is_that_of_version_1() {
        let bytes = Message::new("{}", "{}").encode(Channel::Iopub);
        let numbers: Vec<_> =
            bytes[4..60].chunks(8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight"))).collect();
        assert_eq!(numbers, [6, 56, 61, 63, 65, 67, 69]);
        assert_eq!(&bytes[60..], b"iopub{}{}{}{}");
    }

    #[test]
    fn broken_bytes_are_refused() {
        let whole = example().encode(Channel::Control).slice(4..);
        for at in 0..whole.len() {
            assert!(Message::decode(&whole.slice(..at)).is_err(), "cut at {at}");
        }
        for at in 0..8 * 9 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] = byte;
                let _ = Message::decode(&bytes.into());
            }
        }
        assert_eq!(Message::decode(&example().encode(Channel::Bridge).slice(5..)), Err(MessageError::Offsets));
        let mut decoder = Decoder::default();
        decoder.feed(&[0xff; 4]);
        assert_eq!(decoder.next(), Err(MessageError::Length(u32::MAX as usize)));
    }

    #[test]
    fn wrong_signature_and_missing_parts_are_refused() {
        let signer = Signer::new("secret");
        assert_eq!(signer.verify(Signer::new("other").sign(&example())), None);
        assert_eq!(signer.verify(Signer::new("").sign(&example())), None);
        for length in 0..6 {
            let frames: Vec<_> = signer.sign(&example()).into_vec().into_iter().take(length).collect();
            if let Ok(frames) = ZmqMessage::try_from(frames) {
                assert_eq!(signer.verify(frames), None);
            }
        }
        for signature in ["0", "zz", "é"] {
            let mut frames = signer.sign(&example()).into_vec();
            frames[1] = signature.into();
            assert_eq!(signer.verify(ZmqMessage::try_from(frames).expect("frames")), None);
        }
    }

    #[test]
    fn identities_before_the_delimiter_are_skipped() {
        let signer = Signer::new("secret");
        let mut frames = signer.sign(&example());
        frames.push_front("kernel.1.stream.stdout".into());
        assert_eq!(signer.verify(frames), Some(example()));
    }
}
