//! The frames of runner protocol 1: their encoding. Must not know their meaning.
//!
//! A frame is a type (one byte), a length (four bytes, big endian) and as many bytes of payload. What comes in is not
//! trusted: a type that does not exist or a length above the limit is refused as soon as its byte has arrived.

use thiserror::Error;

/// The longest payload of a frame.
pub const PAYLOAD_MAX_BYTES: usize = 1 << 20;

/// Type and length.
pub const HEADER_BYTES: usize = 5;

/// The type of a frame to the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFrame {
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
    /// Bytes for the process that has the channels; none when the server has ended them.
    Channels,
    /// The server reads from here on.
    Attached,
    /// Files for `/data`.
    Files,
}

impl InputFrame {
    fn parse(byte: u8) -> Result<Self, FrameError> {
        Ok(match byte {
            0x01 => Self::Config,
            0x02 => Self::Program,
            0x03 => Self::Go,
            0x04 => Self::Stdin,
            0x05 => Self::StdinEnd,
            0x06 => Self::Signal,
            0x07 => Self::Channels,
            0x08 => Self::Attached,
            0x09 => Self::Files,
            other => return Err(FrameError::Type(other)),
        })
    }
}

/// The type of a frame from the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutputFrame {
    /// A program can be taken.
    Ready = 0x81,
    /// The program wrote to its standard output.
    Stdout = 0x82,
    /// The program wrote to its standard error.
    Stderr = 0x83,
    /// The program is gone, and all it left behind. The last frame, except for those of files.
    Exit = 0x84,
    /// The request cannot be carried out. The last frame.
    Error = 0x85,
    /// Bytes of the process that has the channels; empty when it has ended.
    Channels = 0x86,
    /// Files of `/data` that were changed.
    Files = 0x87,
}

/// Bytes that are not a valid frame.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("no frame has the type 0x{0:02x}")]
    Type(u8),
    #[error("a frame of {0} bytes is longer than {PAYLOAD_MAX_BYTES}")]
    Length(u32),
}

/// What precedes a payload of this length. It has at most [`PAYLOAD_MAX_BYTES`]; those of this program are far shorter.
pub fn header(kind: OutputFrame, payload_bytes: usize) -> [u8; HEADER_BYTES] {
    debug_assert!(payload_bytes <= PAYLOAD_MAX_BYTES);
    let [a, b, c, d] = u32::try_from(payload_bytes).unwrap_or(u32::MAX).to_be_bytes();
    [kind as u8, a, b, c, d]
}

/// Parses frames from bytes that arrive in any chunks.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
    /// What is still to come of a frame that is handed out in pieces.
    rest: usize,
}

impl Decoder {
    /// Where received bytes are appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        &mut self.bytes
    }

    /// The next frame, if it is complete. Bytes for the channels are not waited for: each piece that is here is handed
    /// out as a frame of its own.
    pub fn next(&mut self) -> Result<Option<(InputFrame, &[u8])>, FrameError> {
        if self.rest > 0 {
            return Ok(self.piece());
        }
        let rest = &self.bytes[self.taken..];
        let Some(&kind) = rest.first() else { return Ok(None) };
        let kind = InputFrame::parse(kind)?;
        let Some(length) = rest.get(1..HEADER_BYTES) else { return Ok(None) };
        let length = u32::from_be_bytes([length[0], length[1], length[2], length[3]]);
        let whole = HEADER_BYTES + length as usize;
        if length as usize > PAYLOAD_MAX_BYTES {
            return Err(FrameError::Length(length));
        }
        if kind == InputFrame::Channels && length > 0 {
            self.taken += HEADER_BYTES;
            self.rest = length as usize;
            return Ok(self.piece());
        }
        let payload = self.taken + HEADER_BYTES..self.taken + whole;
        if payload.end > self.bytes.len() {
            return Ok(None);
        }
        self.taken = payload.end;
        Ok(Some((kind, &self.bytes[payload])))
    }

    fn piece(&mut self) -> Option<(InputFrame, &[u8])> {
        let count = self.rest.min(self.bytes.len() - self.taken);
        let piece = self.taken..self.taken + count;
        self.taken = piece.end;
        self.rest -= count;
        (count > 0).then(|| (InputFrame::Channels, &self.bytes[piece]))
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

    fn all(decoder: &mut Decoder) -> Vec<(InputFrame, usize)> {
        let mut frames = Vec::new();
        while let Some((kind, payload)) = decoder.next().expect("whole") {
            frames.push((kind, payload.len()));
        }
        frames
    }

    #[test]
    fn decoder_accepts_frames_split_at_any_byte() {
        let bytes = stream();
        let want =
            vec![(InputFrame::Config, 2), (InputFrame::Program, 256), (InputFrame::StdinEnd, 0), (InputFrame::Go, 0)];
        for cut in 0..=bytes.len() {
            let mut decoder = Decoder::default();
            decoder.buffer().extend_from_slice(&bytes[..cut]);
            let mut got = all(&mut decoder);
            decoder.buffer().extend_from_slice(&bytes[cut..]);
            got.extend(all(&mut decoder));
            assert_eq!(got, want, "cut at {cut}");
        }
    }

    #[test]
    fn decoder_refuses_an_unknown_type_at_its_first_byte() {
        for byte in (0..=255).filter(|byte| !(1..=9).contains(byte)) {
            let mut decoder = Decoder::default();
            decoder.buffer().push(byte);
            assert_eq!(decoder.next(), Err(FrameError::Type(byte)));
        }
    }

    #[test]
    fn decoder_refuses_an_excessive_length_before_the_payload() {
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(&[0x04, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(decoder.next(), Err(FrameError::Length(u32::MAX)));
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(&[0x04, 0, 0x10, 0, 0]);
        assert_eq!(decoder.next(), Ok(None));
    }

    #[test]
    fn decoder_hands_out_bytes_for_the_channels_as_they_come() {
        let mut decoder = Decoder::default();
        decoder.buffer().extend_from_slice(&[0x07, 0, 0, 0, 4, b'a', b'b']);
        assert_eq!(decoder.next(), Ok(Some((InputFrame::Channels, &b"ab"[..]))));
        assert_eq!(decoder.next(), Ok(None));
        decoder.buffer().extend_from_slice(b"cd\x03\0\0\0\0");
        assert_eq!(decoder.next(), Ok(Some((InputFrame::Channels, &b"cd"[..]))));
        assert_eq!(decoder.next(), Ok(Some((InputFrame::Go, &[][..]))));
    }
}
