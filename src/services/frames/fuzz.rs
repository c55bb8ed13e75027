//! Bytes from a sandbox are read as the protocol defines, in chunks of any size.

use bolero::{TypeGenerator, check, produce};
use serde_json::json;

use super::*;
use crate::domain::fuzz_support::cases;

/// The messages of a stream up to the first error.
type Decoded = (Vec<RunnerMessage>, Option<FrameError>);

fn decode(bytes: &[u8], piece: usize) -> Decoded {
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(message)) => found.push(message),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// The same from whole bytes, without a decoder.
fn decode_whole(mut bytes: &[u8]) -> Decoded {
    let mut found = Vec::new();
    while let [kind, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        match kind {
            0x81..=0x87 if length > 1 << 20 => return (found, Some(FrameError::TooLong { length })),
            0x81..=0x87 if length > rest.len() => break,
            0x81..=0x87 => {}
            &kind => return (found, Some(FrameError::UnknownType { kind })),
        }
        let payload;
        (payload, bytes) = rest.split_at(length);
        match message(*kind, Bytes::copy_from_slice(payload)) {
            Ok(message) => found.push(message),
            Err(error) => return (found, Some(error)),
        }
        check_message(found.last().expect("one"), *kind, payload);
    }
    (found, None)
}

/// Output is passed on as it is; a status or a signal is one that a process can have; a sentence is short.
fn check_message(message: &RunnerMessage, kind: u8, payload: &[u8]) {
    match message {
        RunnerMessage::Output(StreamKind::Stdout, output) => assert!(kind == STDOUT && output == payload),
        RunnerMessage::Output(StreamKind::Stderr, output) => assert!(kind == STDERR && output == payload),
        RunnerMessage::Channels(bytes) => assert!(kind == FROM_CHANNELS && bytes == payload),
        RunnerMessage::Files(files) => {
            assert_eq!(kind, FILES_OUT);
            if let FileMessage::Entry { mode, .. } = files {
                assert_eq!(mode & !0o777, 0);
            }
        }
        RunnerMessage::Ready(_) => assert_eq!(kind, READY),
        RunnerMessage::Error(text) => assert!(kind == ERROR && text.chars().count() <= 200),
        RunnerMessage::Exit(end) => match (end.status, end.signal) {
            (Some(status), None) => assert!((0..=255).contains(&status)),
            (None, Some(signal)) => assert!((1..=64).contains(&signal)),
            both => panic!("{both:?}"),
        },
    }
}

fn decodes_in_any_chunks(bytes: &[u8], piece: u8) -> Decoded {
    let whole = decode_whole(bytes);
    for piece in [bytes.len(), usize::from(piece), 1] {
        assert_eq!(decode(bytes, piece.max(1)), whole, "in pieces of {piece}");
    }
    whole
}

/// Any bytes; the first is the chunk size.
#[test]
fn fuzz_bytes() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        let Some((piece, bytes)) = bytes.split_first() else { return };
        decodes_in_any_chunks(bytes, *piece);
    });
}

/// The payload of a frame.
#[derive(Debug, TypeGenerator)]
enum Payload {
    Bytes(Vec<u8>),
    Exit { status: Option<i16>, signal: Option<i8>, number: u64 },
}

impl Payload {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Exit { status, signal, number } => {
                let status = status.map(|status| status % 300);
                let text = json!({"status": status, "signal": signal, "oomKills": number, "message": "m"});
                text.to_string().into_bytes()
            }
        }
    }
}

/// Whole frames of every type, with payloads of every kind: all are decoded, or one is an error.
#[test]
fn fuzz_frames() {
    let frames = produce::<Vec<_>>().with().len(0..6_usize).values((0x7e..0x88_u8, produce::<Payload>()));
    check!().with_iterations(cases()).with_generator((frames, produce::<u8>())).for_each(|(frames, piece)| {
        let mut bytes = BytesMut::new();
        for (kind, payload) in frames {
            put(&mut bytes, *kind, &payload.bytes());
        }
        let (found, error) = decodes_in_any_chunks(&bytes, *piece);
        assert!(error.is_some() || found.len() == frames.len());
    });
}
