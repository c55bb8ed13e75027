//! Fuzz tests: the decoded frames do not depend on chunking, and the resulting actions are in a valid sequence.

use bolero::{TypeGenerator, check, produce};

use crate::{
    frame::{Decoder, FrameError, InputFrame, PAYLOAD_MAX_BYTES},
    request::{Action, EARLY_STDIN_MAX_BYTES, Request},
};

fn cases() -> usize {
    if std::env::var_os("LONG").is_some_and(|value| value == "1") { 100_000 } else { 256 }
}

fn decoded(bytes: &[u8], piece: usize) -> (Vec<(InputFrame, Vec<u8>)>, Option<FrameError>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.buffer().extend_from_slice(piece);
        loop {
            match decoder.next() {
                Ok(Some((kind, payload))) => add(&mut frames, kind, payload),
                Ok(None) => break,
                Err(broken) => return (frames, Some(broken)),
            }
        }
    }
    (frames, None)
}

/// Adds a frame. Bytes for the channels are one stream, whose frames have no meaning.
fn add(frames: &mut Vec<(InputFrame, Vec<u8>)>, kind: InputFrame, payload: &[u8]) {
    match frames.last_mut() {
        Some((InputFrame::Channels, stream)) if kind == InputFrame::Channels => stream.extend_from_slice(payload),
        _ => frames.push((kind, payload.to_vec())),
    }
}

/// Reference decoder: parses the whole buffer at once.
fn decode_whole(mut bytes: &[u8]) -> (Vec<(InputFrame, Vec<u8>)>, Option<FrameError>) {
    const INPUT_FRAMES: [InputFrame; 9] = [
        InputFrame::Config,
        InputFrame::Program,
        InputFrame::Go,
        InputFrame::Stdin,
        InputFrame::StdinEnd,
        InputFrame::Signal,
        InputFrame::Channels,
        InputFrame::Attached,
        InputFrame::Files,
    ];
    let mut frames = Vec::new();
    while let Some(&kind) = bytes.first() {
        let Some(kind) = usize::from(kind).checked_sub(1).and_then(|at| INPUT_FRAMES.get(at)) else {
            return (frames, Some(FrameError::Type(kind)));
        };
        let [_, a, b, c, d, rest @ ..] = bytes else { break };
        let length = u32::from_be_bytes([*a, *b, *c, *d]);
        if length as usize > PAYLOAD_MAX_BYTES {
            return (frames, Some(FrameError::Length(length)));
        }
        let is_channels = *kind == InputFrame::Channels;
        let Some((payload, after)) = rest.split_at_checked(length as usize) else {
            if is_channels && !rest.is_empty() {
                add(&mut frames, *kind, rest);
            }
            break;
        };
        add(&mut frames, *kind, payload);
        bytes = after;
    }
    (frames, None)
}

/// The actions up to the first frame that is refused.
fn actions(frames: &[(InputFrame, Vec<u8>)]) -> Vec<Action<'_>> {
    let mut request = Request::default();
    frames.iter().map_while(|(kind, payload)| request.take(*kind, payload).ok()).collect()
}

/// The program is complete when it starts, it starts once, and its input ends once.
fn assert_action_sequence(actions: &[Action<'_>]) {
    let (mut started, mut ended, mut early) = (false, false, 0);
    let in_sequence = actions.iter().filter(|action| !matches!(action, Action::Files(_)));
    for (index, action) in in_sequence.enumerate() {
        match action {
            Action::Nothing => assert_eq!(index, 0, "the configuration comes first, and once"),
            Action::Append(_) => assert!(!started),
            Action::Start(config) => {
                assert!(!std::mem::replace(&mut started, true));
                let mut texts = config.args.iter().chain(config.env.iter().flat_map(|(name, value)| [name, value]));
                assert!(texts.all(|text| !text.contains('\0')), "{config:?}");
                assert!(config.env.keys().all(|name| !name.is_empty() && !name.contains('=')), "{config:?}");
            }
            Action::Input(piece) => {
                early += if started { 0 } else { piece.len() };
                assert!(!ended && early <= EARLY_STDIN_MAX_BYTES);
            }
            Action::EndInput => assert!(!std::mem::replace(&mut ended, true)),
            Action::Signal(_) | Action::Channels(_) => assert!(started),
            Action::Files(_) => {}
        }
    }
}

fn assert_independent_of_chunking(bytes: &[u8], piece: u8) {
    let plain = decode_whole(bytes);
    for piece in [bytes.len(), usize::from(piece), 1] {
        assert_eq!(decoded(bytes, piece.max(1)), plain, "in pieces of {piece}");
    }
    assert_action_sequence(&actions(&plain.0));
}

/// Arbitrary bytes; the first is the chunk size.
#[test]
fn fuzz_bytes() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        let Some((piece, bytes)) = bytes.split_first() else { return };
        assert_independent_of_chunking(bytes, *piece);
    });
}

/// What may be in a frame.
#[derive(Debug, TypeGenerator)]
enum Payload {
    Nothing,
    One(u8),
    Bytes(Vec<u8>),
    Config { args: Vec<String>, name: String, wall_ms: u64 },
}

impl Payload {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::One(byte) => vec![*byte],
            Self::Bytes(bytes) => bytes.clone(),
            Self::Config { args, name, wall_ms } => {
                let config = serde_json::json!({"args": args, "env": {name: "value"}, "wallMs": wall_ms});
                config.to_string().into_bytes()
            }
        }
    }
}

/// Whole frames, of which the first is mostly a configuration.
#[test]
fn fuzz_requests() {
    let frames = produce::<Vec<_>>().with().len(0..9_usize).values((0..8_u8, produce::<Payload>()));
    let requests = (produce::<bool>(), frames, produce::<u8>());
    check!().with_iterations(cases()).with_generator(requests).for_each(|(configured, frames, piece)| {
        let mut bytes = Vec::new();
        let config = configured.then(|| (1, b"{}".to_vec()));
        for (kind, payload) in config.into_iter().chain(frames.iter().map(|(kind, what)| (*kind, what.bytes()))) {
            bytes.push(kind);
            bytes.extend(u32::try_from(payload.len()).expect("a short payload").to_be_bytes());
            bytes.extend(payload);
        }
        assert_independent_of_chunking(&bytes, *piece);
    });
}
