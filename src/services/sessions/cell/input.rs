//! The standard input of one cell, which its kernel asks for in lines.

use bytes::BytesMut;
use futures_util::{StreamExt, stream::BoxStream};
use tokio::sync::OwnedSemaphorePermit;

use super::InputPiece;

/// What a cell reads as lines.
pub(super) struct Input<'a> {
    pieces: Option<BoxStream<'a, InputPiece>>,
    pending: BytesMut,
    /// So many bytes of it hold no end of a line.
    searched: usize,
    /// What is pending takes it, so a line without an end makes its senders wait and then refuses them.
    room: Option<OwnedSemaphorePermit>,
}

impl<'a> Input<'a> {
    pub(super) fn new(pieces: Option<BoxStream<'a, InputPiece>>) -> Self {
        Self { pieces, pending: BytesMut::new(), searched: 0, room: None }
    }

    /// The next line without its end; nothing at the end of the input.
    pub(super) async fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.pending[self.searched..].iter().position(|&byte| byte == b'\n') {
                let line = self.take(self.searched + at + 1);
                let line = line.strip_suffix(b"\n").unwrap_or(&line);
                return Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned());
            }
            self.searched = self.pending.len();
            let Some((bytes, room)) = self.pieces.as_mut()?.next().await else {
                self.pieces = None;
                let rest = self.take(self.pending.len());
                return (!rest.is_empty()).then(|| String::from_utf8_lossy(&rest).into_owned());
            };
            self.pending.extend_from_slice(&bytes);
            match (&mut self.room, room) {
                (Some(all), Some(room)) => all.merge(room),
                (all, room) => *all = room.or(all.take()),
            }
            self.give_room_back();
        }
    }

    fn take(&mut self, bytes: usize) -> BytesMut {
        let taken = self.pending.split_to(bytes);
        self.searched = 0;
        self.give_room_back();
        taken
    }

    /// Keeps the room of what is pending alone.
    fn give_room_back(&mut self) {
        if let Some(room) = &mut self.room {
            let spare = room.num_permits().saturating_sub(self.pending.len());
            drop(room.split(spare));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use futures_util::{FutureExt, stream};
    use tokio::sync::Semaphore;

    use super::*;

    const ROOM: usize = 1000;

    /// Pieces that take room as their senders find it, after what came with the request.
    fn input<'a>(first: &'static str, room: &'a Arc<Semaphore>, pieces: &'a [&'static str]) -> Input<'a> {
        let more = pieces.iter().map(move |piece| {
            let wanted = u32::try_from(piece.len().max(100)).expect("short");
            let room = Arc::clone(room).try_acquire_many_owned(wanted).expect("there is room");
            (Bytes::from_static(piece.as_bytes()), Some(room))
        });
        let first = (Bytes::from_static(first.as_bytes()), None);
        Input::new(Some(stream::iter([first]).chain(stream::iter(more)).boxed()))
    }

    #[test]
    fn lines_are_put_together_from_pieces_and_give_their_room_back() {
        let room = Arc::new(Semaphore::new(ROOM));
        let pieces = ["ne\ntw", "o", "\r\n", "three\n\nfi", "ve"];
        let mut input = input("o", &room, &pieces);
        let mut line = || input.line().now_or_never().expect("all is there");
        for (expected, pending) in [("one", 2), ("two", 0), ("three", 3), ("", 2), ("five", 0)] {
            assert_eq!(line().as_deref(), Some(expected));
            assert_eq!(ROOM - room.available_permits(), pending, "{expected}");
        }
        assert_eq!((line(), line()), (None, None));
    }

    #[test]
    fn line_without_an_end_keeps_its_room() {
        let room = Arc::new(Semaphore::new(ROOM));
        let pieces = ["x"; 10];
        let all = input("", &room, &pieces).pieces.expect("pieces");
        let mut input = Input::new(Some(all.chain(stream::pending()).boxed()));
        assert!(input.line().now_or_never().is_none(), "it waits");
        assert_eq!(ROOM - room.available_permits(), pieces.len());
        drop(input);
        assert_eq!(room.available_permits(), ROOM);
    }
}
