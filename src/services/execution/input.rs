//! What a program is sent while it runs: a queue between whoever writes and the one task that feeds the sandbox.
//!
//! Bounded in bytes and in writers. A piece counts until the sandbox has taken it, so a program that never reads makes
//! its writers wait and then refuses them; nothing grows. Ends with the run: whoever waits then is told.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

use crate::{
    domain::error::{Code, Failure},
    services::frames,
};

/// The largest piece, and all pieces of a run that its sandbox has not taken, in bytes.
pub const INPUT_BYTES_MAX: usize = frames::PAYLOAD_BYTES_MAX;
/// Writers of one run that may wait for room.
const WRITERS_MAX: usize = 8;
/// How long one waits.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// The end where input comes in.
pub(super) struct Input {
    /// Gone once the end of the input was given.
    queue: Mutex<Option<mpsc::UnboundedSender<Piece>>>,
    room: Arc<Semaphore>,
    writers: Semaphore,
}

/// The end where the sandbox is fed. Its drop refuses whatever would still come.
pub(super) struct StdinReceiver {
    queue: mpsc::UnboundedReceiver<Piece>,
    room: Arc<Semaphore>,
}

/// Some input, and the room that it takes until it is dropped.
pub(super) struct Piece {
    pub bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// An open input of a program.
pub(super) fn open() -> (Input, StdinReceiver) {
    let (sender, queue) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(INPUT_BYTES_MAX));
    let input =
        Input { queue: Mutex::new(Some(sender)), room: Arc::clone(&room), writers: Semaphore::new(WRITERS_MAX) };
    (input, StdinReceiver { queue, room })
}

impl Input {
    /// Takes a piece in, all of it or nothing; `last` says that no more comes.
    pub(super) async fn send(&self, bytes: Bytes, last: bool) -> Result<(), Failure> {
        if bytes.len() > INPUT_BYTES_MAX {
            let why = format!("One piece of input may hold {INPUT_BYTES_MAX} bytes: send it in several.");
            return Err(Failure::new(Code::TooLarge, why));
        }
        let _writer = self.writers.try_acquire().map_err(|_| full())?;
        let wanted = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let room = match timeout(ROOM_WAIT, Arc::clone(&self.room).acquire_many_owned(wanted)).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return Err(over()),
            Err(_) => return Err(full()),
        };
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = queue.as_ref().ok_or_else(|| closed("its end was already sent"))?;
        if sender.is_closed() {
            return Err(over());
        }
        // An empty piece is nothing to write, but for the end that may come with it.
        if !bytes.is_empty() {
            sender.send(Piece { bytes, _room: room }).map_err(|_| over())?;
        }
        if last {
            *queue = None;
        }
        Ok(())
    }

    /// Whether somebody takes pieces, and the last one has not come.
    pub(super) fn is_open(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_some_and(|sender| !sender.is_closed())
    }
}

impl StdinReceiver {
    /// The next piece; nothing once the end of the input was given.
    pub(super) async fn next(&mut self) -> Option<Piece> {
        self.queue.recv().await
    }
}

impl Drop for StdinReceiver {
    fn drop(&mut self) {
        self.queue.close();
        self.room.close();
    }
}

/// Why a run takes no input.
pub(super) fn closed(why: &str) -> Failure {
    Failure::new(Code::InputClosed, format!("The program takes no input: {why}."))
}

pub(super) fn over() -> Failure {
    closed("the run is over")
}

fn full() -> Failure {
    let why = "The program has not read the input that is already there: wait until it reads, and send this again.";
    Failure::new(Code::InputFull, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(length: usize) -> Bytes {
        vec![b'x'; length].into()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_taken_is_bounded_and_taking_it_makes_room() {
        let (input, mut fed) = open();
        assert_eq!(input.send(bytes(INPUT_BYTES_MAX + 1), false).await.expect_err("too large").code, Code::TooLarge);
        input.send(bytes(INPUT_BYTES_MAX), false).await.expect("it fits");
        assert_eq!(input.send(bytes(1), false).await.expect_err("full").code, Code::InputFull);
        input.send(Bytes::new(), false).await.expect("nothing always fits");
        drop(fed.next().await);
        assert!(input.is_open());
        input.send(bytes(1), true).await.expect("there is room again");
        assert!(!input.is_open(), "its end was given");
        assert_eq!(input.send(bytes(1), false).await.expect_err("closed").code, Code::InputClosed);
        assert_eq!(fed.next().await.map(|piece| piece.bytes.len()), Some(1));
        assert!(fed.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn writers_are_bounded_and_learn_of_the_end() {
        let (input, fed) = open();
        input.send(bytes(INPUT_BYTES_MAX), false).await.expect("it fits");
        let waiting = futures_util::future::join_all((0..WRITERS_MAX).map(|_| input.send(bytes(1), false)));
        let refused = async { input.send(bytes(1), false).await.expect_err("too many wait").code };
        let end = async {
            tokio::task::yield_now().await;
            drop(fed);
            assert!(!input.is_open(), "nobody takes it");
        };
        let (waited, refused, ()) = tokio::join!(waiting, refused, end);
        assert_eq!(refused, Code::InputFull);
        assert!(waited.into_iter().all(|told| told.expect_err("over").code == Code::InputClosed));
        assert_eq!(input.send(Bytes::new(), true).await.expect_err("over").code, Code::InputClosed);
    }
}
