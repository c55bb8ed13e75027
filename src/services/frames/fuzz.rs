//! Whatever a sandbox sends: it is read as the protocol has it, in whatever pieces it comes.

use bolero::{TypeGenerator, check, produce};
use serde_json::json;

use super::*;
use crate::domain::fuzz_support::cases;

/// What a stream holds, up to what ends the conversation.
type Heard = (Vec<RunnerMessage>, Option<FrameError>);

fn hear(bytes: &[u8], piece: usize) -> Heard {
    let (mut decoder, mut found) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(said)) => found.push(said),
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// The same, all there from the beginning and without a decoder.
fn plainly(mut bytes: &[u8]) -> Heard {
    let mut found = Vec::new();
    while let [kind, a, b, c, d, rest @ ..] = bytes {
        let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
        match kind {
            0x81..=0x85 if length > 1 << 20 => return (found, Some(FrameError::TooLong { length })),
            0x81..=0x85 if length > rest.len() => break,
            0x81..=0x85 => {}
            &kind => return (found, Some(FrameError::UnknownType { kind })),
        }
        let payload;
        (payload, bytes) = rest.split_at(length);
        match said(*kind, Bytes::copy_from_slice(payload)) {
            Ok(said) => found.push(said),
            Err(error) => return (found, Some(error)),
        }
        is_what_it_says(found.last().expect("one"), *kind, payload);
    }
    (found, None)
}

/// Output is passed on as it is; a status or a signal is one that a process can have; a sentence is short.
fn is_what_it_says(said: &RunnerMessage, kind: u8, payload: &[u8]) {
    match said {
        RunnerMessage::Stdout(output) => assert!(kind == STDOUT && output == payload),
        RunnerMessage::Stderr(output) => assert!(kind == STDERR && output == payload),
        RunnerMessage::Ready { .. } => assert_eq!(kind, READY),
        RunnerMessage::Error(message) => assert!(kind == ERROR && message.chars().count() <= 200),
        RunnerMessage::Exit(end) => match (end.status, end.signal) {
            (Some(status), None) => assert!((0..=255).contains(&status)),
            (None, Some(signal)) => assert!((1..=64).contains(&signal)),
            both => panic!("{both:?}"),
        },
    }
}

fn is_heard_in_any_pieces(bytes: &[u8], piece: u8) -> Heard {
    let plain = plainly(bytes);
    for piece in [bytes.len(), usize::from(piece), 1] {
        assert_eq!(hear(bytes, piece.max(1)), plain, "in pieces of {piece}");
    }
    plain
}

/// Any bytes; the first says how they are cut.
#[test]
fn fuzz_bytes() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        let Some((piece, bytes)) = bytes.split_first() else { return };
        is_heard_in_any_pieces(bytes, *piece);
    });
}

/// What may be in a frame.
#[derive(Debug, TypeGenerator)]
enum Payload {
    Bytes(Vec<u8>),
    Ending { status: Option<i16>, signal: Option<i8>, number: u64 },
}

impl Payload {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Ending { status, signal, number } => {
                let status = status.map(|status| status % 300);
                let text = json!({"status": status, "signal": signal, "oomKills": number, "message": "m"});
                text.to_string().into_bytes()
            }
        }
    }
}

/// Whole frames of every type, with payloads of every kind: either all are heard, or the conversation ends.
#[test]
fn fuzz_frames() {
    let frames = produce::<Vec<_>>().with().len(0..6_usize).values((0x7e..0x88_u8, produce::<Payload>()));
    check!().with_iterations(cases()).with_generator((frames, produce::<u8>())).for_each(|(frames, piece)| {
        let mut bytes = BytesMut::new();
        for (kind, payload) in frames {
            put(&mut bytes, *kind, &payload.bytes());
        }
        let (found, error) = is_heard_in_any_pieces(&bytes, *piece);
        assert!(error.is_some() || found.len() == frames.len());
    });
}
