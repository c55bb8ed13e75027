//! The frames of `ZeroMQ` that a message is for a kernel, and their signature.

use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeromq::ZmqMessage;

use crate::message::{Channel, KernelMessage};

/// Before it a message has identities of the sender's choice, after it the signature.
const DELIMITER: &[u8] = b"<IDS|MSG>";

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
    pub fn sign(&self, message: &KernelMessage) -> ZmqMessage {
        let signature =
            self.of(message.parts().take(4)).map_or_else(String::new, |hash| hex(&hash.finalize().into_bytes()));
        let mut frames = ZmqMessage::from(Bytes::from_static(DELIMITER));
        frames.push_back(signature.into());
        message.parts().for_each(|part| frames.push_back(part.clone()));
        frames
    }

    /// The message in `frames` of a channel, if it is one and has the right signature.
    pub fn verify(&self, channel: Channel, frames: ZmqMessage) -> Option<KernelMessage> {
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
        Some(KernelMessage { channel, header, parent_header, metadata, content, buffers })
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

    fn example() -> KernelMessage {
        let buffers = vec![Bytes::from_static(b"\0\xff"), Bytes::new()];
        KernelMessage { buffers, ..KernelMessage::new(Channel::Shell, &"{\"msg_id\":\"1\"}", &"{\"code\":\"x\"}") }
    }

    fn verified(signer: &Signer, frames: ZmqMessage) -> Option<KernelMessage> {
        signer.verify(Channel::Shell, frames)
    }

    #[test]
    fn message_is_read_back_from_its_frames() {
        let signer = Signer::new("secret");
        for message in [example(), KernelMessage::new(Channel::Shell, &"{}", &"{}")] {
            assert_eq!(verified(&signer, signer.sign(&message)), Some(message));
        }
    }

    #[test]
    fn wrong_signature_and_missing_parts_are_refused() {
        let signer = Signer::new("secret");
        assert_eq!(verified(&signer, Signer::new("other").sign(&example())), None);
        assert_eq!(verified(&signer, Signer::new("").sign(&example())), None);
        for length in 0..6 {
            let frames: Vec<_> = signer.sign(&example()).into_vec().into_iter().take(length).collect();
            if let Ok(frames) = ZmqMessage::try_from(frames) {
                assert_eq!(verified(&signer, frames), None);
            }
        }
        for signature in ["0", "zz", "é"] {
            let mut frames = signer.sign(&example()).into_vec();
            frames[1] = signature.into();
            assert_eq!(verified(&signer, ZmqMessage::try_from(frames).expect("frames")), None);
        }
    }

    #[test]
    fn identities_before_the_delimiter_are_skipped() {
        let signer = Signer::new("secret");
        let mut frames = signer.sign(&example());
        frames.push_front("kernel.1.stream.stdout".into());
        assert_eq!(verified(&signer, frames), Some(example()));
    }
}
