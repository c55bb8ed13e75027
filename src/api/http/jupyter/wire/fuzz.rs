//! Any bytes on a WebSocket are a message or an error; a message reads back as itself.

use bolero::{check, produce};

use super::*;
use crate::domain::fuzz_support::{cases, mutated};

fn reads_back(wire: Wire, message: &KernelMessage) {
    // The parts are JSON where the default form was read; the other form does not look at them.
    if let Some(frame) = wire.write(message) {
        let again = match frame {
            Message::Text(text) => wire.read_text(&text.into()),
            Message::Binary(bytes) => wire.read_binary(&bytes),
            _ => Err(WireError::Json),
        };
        assert_eq!(again.as_ref(), Ok(message));
    }
}

#[test]
fn fuzz_frames_of_a_socket() {
    let mut message = KernelMessage::new(Channel::Shell, &serde_json::json!("h"), &serde_json::json!({"code": "x"}));
    message.buffers = vec![Bytes::from_static(b"ab"), Bytes::new()];
    let good = [Wire::Default, Wire::V1].map(|wire| match wire.write(&message) {
        Some(Message::Binary(bytes)) => (wire, bytes.to_vec()),
        other => panic!("{other:?}"),
    });
    let alterations = produce::<Vec<_>>().with().len(0..4_usize);
    check!().with_iterations(cases()).with_generator((alterations, produce::<Vec<u8>>())).for_each(|(changes, any)| {
        for (wire, good) in &good {
            let changed = mutated(good, changes);
            for bytes in [changed, any.clone()] {
                let bytes = Bytes::from(bytes);
                for read in [wire.read_binary(&bytes), wire.read_text(&bytes)] {
                    let _ = read.map(|message| reads_back(*wire, &message));
                }
            }
        }
    });
}
