//! The frames of runner protocol 1: their bytes, and nothing of what they mean.
//!
//! A frame is a type (one byte), a length (four bytes, big endian) and as many bytes of payload. What comes in is not
//! trusted: a type that does not exist or a length above the limit is refused as soon as its byte is here.

use std::fmt;

/// The longest payload of a frame.
pub const PAYLOAD_MAX_BYTES: usize = 1 << 20;

/// Type and length.
pub const HEADER_BYTES: usize = 5;

/// What a frame that goes to the sandbox is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Arguments, environment and deadline of the program.
    Config,
    /// A piece of the program.
    Program,
    /// The program is complete: start it.
    Go,
    /// A piece of the program's standard input.
    Stdin,
    /// The end of the program's standard input.
    StdinEnd,
    /// A signal for the program.
    Signal,
}

impl Ask {
    fn parse(byte: u8) -> Result<Self, Broken> {
        Ok(match byte {
            0x01 => Self::Config,
            0x02 => Self::Program,
            0x03 => Self::Go,
            0x04 => Self::Stdin,
            0x05 => Self::StdinEnd,
            0x06 => Self::Signal,
            other => return Err(Broken::Type(other)),
        })
    }
}

/// What a frame that comes from the sandbox is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Tell {
    /// A program can be taken.
    Ready = 0x81,
    /// The program wrote to its standard output.
    Stdout = 0x82,
    /// The program wrote to its standard error.
    Stderr = 0x83,
    /// The program is gone, and all it left behind. The last frame.
    Exit = 0x84,
    /// The request cannot be carried out. The last frame.
    Error = 0x85,
}

/// Bytes that are no frame.
#[derive(Debug, PartialEq, Eq)]
pub enum Broken {
    /// No frame has this type.
    Type(u8),
    /// The payload would be longer than any may be.
    Length(u32),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type(byte) => write!(f, "no frame has the type 0x{byte:02x}"),
            Self::Length(length) => write!(f, "a frame of {length} bytes is longer than {PAYLOAD_MAX_BYTES}"),
        }
    }
}

/// Appends the frame to `out`. A payload has at most [`PAYLOAD_MAX_BYTES`]; those of this program are far shorter.
pub fn encode(out: &mut Vec<u8>, tell: Tell, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_MAX_BYTES);
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    out.push(tell as u8);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Makes frames of bytes, however they were cut on their way.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Bytes that came in.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame, if all of it is here.
    pub fn next(&mut self) -> Result<Option<(Ask, Vec<u8>)>, Broken> {
        let rest = &self.bytes[self.taken..];
        let Some(&kind) = rest.first() else { return Ok(None) };
        let kind = Ask::parse(kind)?;
        let Some(length) = rest.get(1..HEADER_BYTES) else { return Ok(None) };
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        let whole = HEADER_BYTES + length as usize;
        if length as usize > PAYLOAD_MAX_BYTES {
            return Err(Broken::Length(length));
        }
        let Some(payload) = rest.get(HEADER_BYTES..whole) else { return Ok(None) };
        let frame = (kind, payload.to_vec());
        self.taken += whole;
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> Vec<u8> {
        let mut bytes = vec![0x01, 0, 0, 0, 2, b'{', b'}'];
        bytes.extend([0x02, 0, 0, 1, 0]);
        bytes.extend([b'x'; 256]);
        bytes.extend([0x05, 0, 0, 0, 0, 0x03, 0, 0, 0, 0]);
        bytes
    }

    fn all(decoder: &mut Decoder) -> Vec<(Ask, usize)> {
        std::iter::from_fn(|| decoder.next().expect("whole")).map(|(ask, payload)| (ask, payload.len())).collect()
    }

    #[test]
    fn frames_may_be_cut_at_every_byte() {
        let bytes = stream();
        let want = vec![(Ask::Config, 2), (Ask::Program, 256), (Ask::StdinEnd, 0), (Ask::Go, 0)];
        for cut in 0..=bytes.len() {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes[..cut]);
            let mut got = all(&mut decoder);
            decoder.feed(&bytes[cut..]);
            got.extend(all(&mut decoder));
            assert_eq!(got, want, "cut at {cut}");
        }
    }

    #[test]
    fn a_wrong_type_is_refused_at_its_first_byte() {
        for byte in (0..=255).filter(|byte| !(1..=6).contains(byte)) {
            let mut decoder = Decoder::default();
            decoder.feed(&[byte]);
            assert_eq!(decoder.next(), Err(Broken::Type(byte)));
        }
    }

    #[test]
    fn a_huge_length_is_refused_before_its_payload() {
        let mut decoder = Decoder::default();
        decoder.feed(&[0x04, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next(), Err(Broken::Length(u32::MAX)));
        let mut decoder = Decoder::default();
        decoder.feed(&[0x04, 0, 0x10, 0, 0]);
        assert_eq!(decoder.next(), Ok(None));
    }
}
