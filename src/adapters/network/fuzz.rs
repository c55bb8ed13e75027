//! What a sandbox sends in place of the multiplexer's other end: any bytes, and frames that are nearly right.

use bolero::{TypeGenerator, check, produce};
use bytes::Bytes;

use super::{tests::sandbox, *};
use crate::domain::fuzz_support::cases;

/// A frame of yamux: a header of 12 bytes, and a payload that is as long as it says or not.
#[derive(Debug, Clone, Copy, TypeGenerator)]
struct Frame {
    version: bool,
    kind: u8,
    flags: u8,
    stream: u8,
    length: u32,
    is_honest: bool,
    payload: [u8; 8],
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let length = if self.is_honest { 8 } else { self.length };
        // Version 0 alone exists. Data has a payload, the other kinds use the length as a number.
        let mut bytes = vec![u8::from(self.version && self.kind == 0), self.kind % 5, 0, self.flags % 32];
        bytes.extend(u32::from(self.stream % 8).to_be_bytes());
        bytes.extend(length.to_be_bytes());
        if self.kind.is_multiple_of(5) {
            bytes.extend(self.payload);
        }
        bytes
    }
}

/// All of it ends without a panic, whatever the pieces.
fn ends(bytes: &[u8], piece: u8) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut sandbox = sandbox(&Multiplexer::trusting(None).expect("a carrier"));
        for piece in bytes.chunks(usize::from(piece).max(1)) {
            drop(sandbox.to_server.send(Bytes::copy_from_slice(piece)));
        }
        drop(sandbox.to_server);
        while sandbox.from_server.recv().await.is_some() {}
        sandbox.carried.await.expect("without a panic");
    });
}

#[test]
fn fuzz_bytes() {
    check!().with_iterations(cases()).for_each(|bytes: &[u8]| {
        let Some((piece, bytes)) = bytes.split_first() else { return };
        ends(bytes, *piece);
    });
}

#[test]
fn fuzz_frames() {
    let frames = produce::<Vec<Frame>>().with().len(0..12_usize);
    check!().with_iterations(cases()).with_generator((frames, produce::<u8>())).for_each(|(frames, piece)| {
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::bytes).collect();
        ends(&bytes, *piece);
    });
}
