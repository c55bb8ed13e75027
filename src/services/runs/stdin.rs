//! Standard input of a sandbox: a queue between the clients that send it and the one future that writes it.
//!
//! Bounded in bytes and in senders. A piece counts until the sandbox has taken it, so a program that never reads makes
//! its senders wait and then refuses them. A cell takes lines, so each line of its input has a bound as well. Ends with
//! the run: a sender that waits then gets an error.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::timeout,
};

use crate::{
    domain::{Code, Failure},
    ports::engine::Stdin,
    services::{frames, network::next_of, sandbox::send, sessions::LineMeter},
};

/// The largest piece, and all pieces of a run that its sandbox has not taken, in bytes.
pub const INPUT_BYTES_MAX: usize = frames::PAYLOAD_BYTES_MAX;
/// What a piece counts at least: its entry in the queue takes more than its bytes where those are few.
const PIECE_BYTES_MIN: usize = 128;
/// Senders of one run that may wait for room.
const SENDERS_MAX: usize = 8;
/// How long one waits.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// The clients' end.
pub(super) struct StdinSender {
    /// None once the end of the input was sent.
    queue: Mutex<Option<Queue>>,
    room: Arc<Semaphore>,
    senders: Semaphore,
}

struct Queue {
    pieces: mpsc::UnboundedSender<Piece>,
    /// For a cell, whose kernel is sent a line at a time.
    lines: Option<LineMeter>,
}

/// The sandbox's end. Its drop refuses all later pieces.
pub(super) struct StdinReceiver {
    queue: mpsc::UnboundedReceiver<Piece>,
    room: Arc<Semaphore>,
}

/// Some input, and the room that it takes until it is dropped.
struct Piece {
    bytes: Bytes,
    _room: OwnedSemaphorePermit,
}

/// Opens the input of a program; `lines` measures that of a cell.
pub(super) fn open(lines: Option<LineMeter>) -> (StdinSender, StdinReceiver) {
    let (pieces, queue) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(INPUT_BYTES_MAX));
    let queue_end = Mutex::new(Some(Queue { pieces, lines }));
    let sender = StdinSender { queue: queue_end, room: Arc::clone(&room), senders: Semaphore::new(SENDERS_MAX) };
    (sender, StdinReceiver { queue, room })
}

impl StdinSender {
    /// Queues a piece, whole or not at all; `last` ends the input.
    pub(super) async fn send(&self, bytes: Bytes, last: bool) -> Result<(), Failure> {
        if bytes.len() > INPUT_BYTES_MAX {
            let why = format!("One piece of input may hold {INPUT_BYTES_MAX} bytes: send it in several.");
            return Err(Failure::new(Code::TooLarge, why));
        }
        let _sender = self.senders.try_acquire().map_err(|_| full())?;
        let taken = if bytes.is_empty() { 0 } else { bytes.len().max(PIECE_BYTES_MIN) };
        let wanted = u32::try_from(taken).unwrap_or(u32::MAX);
        let room = match timeout(ROOM_WAIT, Arc::clone(&self.room).acquire_many_owned(wanted)).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return Err(input_closed()),
            Err(_) => return Err(full()),
        };
        let mut queue = self.queue.lock();
        let Queue { pieces, lines } = queue.as_mut().ok_or_else(|| closed("its end was already sent"))?;
        if pieces.is_closed() {
            return Err(input_closed());
        }
        if lines.as_mut().is_some_and(|lines| !lines.take(&bytes)) {
            let why = "The piece makes a line longer than a cell takes: send a shorter line, or write the data to a \
                       file and read it from /data.";
            return Err(Failure::new(Code::TooLarge, why));
        }
        // An empty piece is nothing to write; only the end may come with it.
        if !bytes.is_empty() {
            pieces.send(Piece { bytes, _room: room }).map_err(|_| input_closed())?;
        }
        if last {
            *queue = None;
        }
        Ok(())
    }

    /// Whether pieces are taken, and the last one has not come.
    pub(super) fn is_open(&self) -> bool {
        let queue = self.queue.lock();
        queue.as_ref().is_some_and(|queue| !queue.pieces.is_closed())
    }
}

impl Drop for StdinReceiver {
    fn drop(&mut self) {
        self.queue.close();
        self.room.close();
    }
}

/// All input of a cell: what came with the request, then what follows while it is executed.
pub(super) fn pieces(first: Bytes, receiver: Option<StdinReceiver>) -> BoxStream<'static, Bytes> {
    let more = stream::unfold(receiver, |receiver| async move {
        let mut receiver = receiver?;
        let piece = receiver.queue.recv().await?;
        Some((piece.bytes, Some(receiver)))
    });
    stream::iter((!first.is_empty()).then_some(first)).chain(more).boxed()
}

/// Why a run takes no input.
pub(super) fn closed(why: &str) -> Failure {
    Failure::new(Code::InputClosed, format!("The program takes no input: {why}."))
}

pub(super) fn input_closed() -> Failure {
    closed("the run is over")
}

fn full() -> Failure {
    let why = "The program has not read the input that is already there: wait until it reads, and send this again.";
    Failure::new(Code::InputFull, why)
}

/// Writes the request, closes the stream of a plain runner, then writes pieces of input and of channels, and control
/// frames. A program that does not read is no error. Never ends: dropping the stream early closes the output on some
/// engines.
pub(super) async fn write(
    mut stdin: Stdin,
    request: Bytes,
    close: bool,
    mut control: mpsc::Receiver<Bytes>,
    mut input: Option<StdinReceiver>,
    mut channels: Option<mpsc::Receiver<Bytes>>,
) {
    let mut written = send(&mut stdin, &request).await;
    if written && close {
        drop(stdin.shutdown().await);
    }
    while written {
        // A piece gives its room back once it is written, and not before. None of the three is preferred: a download
        // through a channel may always have a next piece.
        let (frame, _piece) = tokio::select! {
            Some(frame) = control.recv() => (frame, None),
            piece = next_of(&mut channels) => (frames::channels(&piece), None),
            piece = next_piece(&mut input) => {
                (piece.as_ref().map_or_else(frames::stdin_end, |piece| frames::stdin(&piece.bytes)), piece)
            }
        };
        written = send(&mut stdin, &frame).await;
    }
    // Refuses pieces that nothing takes any more.
    drop(input);
    std::future::pending::<()>().await;
}

/// The next piece, or once that there is none; never anything after that.
async fn next_piece(input: &mut Option<StdinReceiver>) -> Option<Piece> {
    let Some(receiver) = input else { return std::future::pending().await };
    let piece = receiver.queue.recv().await;
    if piece.is_none() {
        *input = None;
    }
    piece
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    fn bytes(length: usize) -> Bytes {
        vec![b'x'; length].into()
    }

    #[tokio::test(start_paused = true)]
    async fn queued_input_is_bounded_until_it_is_taken() {
        let (input, mut receiver) = open(None);
        assert_eq!(input.send(bytes(INPUT_BYTES_MAX + 1), false).await.expect_err("too large").code, Code::TooLarge);
        input.send(bytes(INPUT_BYTES_MAX), false).await.expect("it fits");
        assert_eq!(input.send(bytes(1), false).await.expect_err("full").code, Code::InputFull);
        input.send(Bytes::new(), false).await.expect("nothing always fits");
        drop(receiver.queue.recv().await);
        assert!(input.is_open());
        input.send(bytes(1), true).await.expect("there is room again");
        assert!(!input.is_open(), "its end was given");
        assert_eq!(input.send(bytes(1), false).await.expect_err("closed").code, Code::InputClosed);
        assert_eq!(receiver.queue.recv().await.map(|piece| piece.bytes.len()), Some(1));
        assert!(receiver.queue.recv().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn queued_pieces_of_one_byte_are_bounded() {
        let (input, _receiver) = open(None);
        for _ in 0..INPUT_BYTES_MAX / PIECE_BYTES_MIN {
            input.send(bytes(1), false).await.expect("it fits");
        }
        assert_eq!(input.send(bytes(1), false).await.expect_err("full").code, Code::InputFull);
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_senders_are_bounded_and_fail_when_the_run_ends() {
        let (input, receiver) = open(None);
        input.send(bytes(INPUT_BYTES_MAX), false).await.expect("it fits");
        let waiting = futures_util::future::join_all((0..SENDERS_MAX).map(|_| input.send(bytes(1), false)));
        let refused = async { input.send(bytes(1), false).await.expect_err("too many wait").code };
        let end = async {
            tokio::task::yield_now().await;
            drop(receiver);
            assert!(!input.is_open(), "nothing takes it");
        };
        let (waited, refused, ()) = tokio::join!(waiting, refused, end);
        assert_eq!(refused, Code::InputFull);
        assert!(waited.into_iter().all(|sent| sent.expect_err("over").code == Code::InputClosed));
        assert_eq!(input.send(Bytes::new(), true).await.expect_err("over").code, Code::InputClosed);
    }

    #[tokio::test(start_paused = true)]
    async fn input_does_not_wait_for_the_end_of_a_download() {
        const PIECES: usize = 1000;
        let ((input, receiver), (_control, control)) = (open(None), mpsc::channel(1));
        input.send(Bytes::from_static(b"a line"), false).await.expect("it fits");
        let (download, channels) = mpsc::channel(PIECES);
        for _ in 0..PIECES {
            download.try_send(Bytes::from_static(b"piece")).expect("it fits");
        }
        let (sandbox, mut read) = duplex(1 << 20);
        let writing = write(Box::pin(sandbox), Bytes::new(), false, control, Some(receiver), Some(channels));
        assert!(timeout(Duration::from_secs(1), writing).await.is_err(), "it never ends");
        let mut written = Vec::new();
        read.read_to_end(&mut written).await.expect("it is read");
        let at = written.windows(6).position(|bytes| bytes == b"a line").expect("the input");
        assert!(at < written.len() / 2, "{at} of {}", written.len());
    }
}
