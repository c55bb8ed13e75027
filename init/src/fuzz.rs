//! Whatever is sent to a sandbox: it is read in whatever pieces it comes, and what is to be done is in its order.

use bolero::{TypeGenerator, check, produce};

use crate::{
    frame::{Ask, Broken, Decoder, PAYLOAD_MAX_BYTES},
    request::{EARLY_STDIN_MAX_BYTES, Fault, Order, Request},
};

fn cases() -> usize {
    if std::env::var_os("LONG").is_some() { 100_000 } else { 256 }
}

/// Why nothing more is read.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Broken(Broken),
    Fault(Fault),
}

fn decoded(bytes: &[u8], piece: usize) -> (Vec<(Ask, Vec<u8>)>, Option<Broken>) {
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    for piece in bytes.chunks(piece) {
        decoder.feed(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(broken) => return (frames, Some(broken)),
            }
        }
    }
    (frames, None)
}

/// The same, all there from the beginning and without a decoder.
fn plainly(mut bytes: &[u8]) -> (Vec<(Ask, Vec<u8>)>, Option<Broken>) {
    const ASKS: [Ask; 6] = [Ask::Config, Ask::Program, Ask::Go, Ask::Stdin, Ask::StdinEnd, Ask::Signal];
    let mut frames = Vec::new();
    while let Some(&kind) = bytes.first() {
        let Some(ask) = usize::from(kind).checked_sub(1).and_then(|at| ASKS.get(at)) else {
            return (frames, Some(Broken::Type(kind)));
        };
        let [_, a, b, c, d, rest @ ..] = bytes else { break };
        let length = u32::from_be_bytes([*a, *b, *c, *d]);
        if length as usize > PAYLOAD_MAX_BYTES {
            return (frames, Some(Broken::Length(length)));
        }
        let Some((payload, after)) = rest.split_at_checked(length as usize) else { break };
        frames.push((*ask, payload.to_vec()));
        bytes = after;
    }
    (frames, None)
}

fn orders(frames: Vec<(Ask, Vec<u8>)>, broken: Option<Broken>) -> (Vec<Order>, Option<End>) {
    let (mut request, mut orders) = (Request::default(), Vec::new());
    for (ask, payload) in frames {
        match request.take(ask, payload) {
            Ok(order) => orders.push(order),
            Err(fault) => return (orders, Some(End::Fault(fault))),
        }
    }
    (orders, broken.map(End::Broken))
}

/// The program is complete when it starts, it starts once, and its input ends once.
fn are_in_order(orders: &[Order]) {
    let (mut started, mut ended, mut early) = (false, false, 0);
    for (index, order) in orders.iter().enumerate() {
        match order {
            Order::Nothing => assert_eq!(index, 0, "the configuration comes first, and once"),
            Order::Append(_) => assert!(!started),
            Order::Start(config) => {
                assert!(!std::mem::replace(&mut started, true));
                let mut texts = config.args.iter().chain(config.env.iter().flat_map(|(name, value)| [name, value]));
                assert!(texts.all(|text| !text.contains('\0')), "{config:?}");
                assert!(config.env.keys().all(|name| !name.is_empty() && !name.contains('=')), "{config:?}");
            }
            Order::Input(piece) => {
                early += if started { 0 } else { piece.len() };
                assert!(!ended && early <= EARLY_STDIN_MAX_BYTES);
            }
            Order::EndInput => assert!(!std::mem::replace(&mut ended, true)),
            Order::Signal(_) => assert!(started),
        }
    }
}

fn is_taken_in_any_pieces(bytes: &[u8], piece: u8) {
    let plain = plainly(bytes);
    for piece in [bytes.len(), usize::from(piece), 1] {
        assert_eq!(decoded(bytes, piece.max(1)), plain, "in pieces of {piece}");
    }
    are_in_order(&orders(plain.0, plain.1).0);
}

/// Any bytes; the first says how they are cut.
#[test]
fn fuzz_bytes() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        let Some((piece, bytes)) = bytes.split_first() else { return };
        is_taken_in_any_pieces(bytes, *piece);
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
    let asked = (produce::<bool>(), frames, produce::<u8>());
    check!().with_iterations(cases()).with_generator(asked).for_each(|(configured, frames, piece)| {
        let mut bytes = Vec::new();
        let config = configured.then(|| (1, b"{}".to_vec()));
        for (kind, payload) in config.into_iter().chain(frames.iter().map(|(kind, what)| (*kind, what.bytes()))) {
            bytes.push(kind);
            bytes.extend(u32::try_from(payload.len()).expect("a short payload").to_be_bytes());
            bytes.extend(payload);
        }
        is_taken_in_any_pieces(&bytes, *piece);
    });
}
