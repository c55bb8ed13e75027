//! A kernel's messages on their way: written to its sandbox, after its request and between bytes of its channels and
//! frames of its files; and in the queues of its subscribers, each of which holds a bounded number of bytes that were
//! not read.

use std::{
    iter,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    io::AsyncWriteExt,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::message::{KernelMessage, MESSAGE_BYTES_MAX};
use crate::{
    ports::engine::Stdin,
    services::{frames, network::next_of, sandbox::send},
};

/// What may be unread, in bytes.
const UNREAD_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;
/// How long a sandbox that takes nothing any more may take to be seen to end. Its end says how the kernel ended.
const END_MAX: Duration = Duration::from_secs(10);

/// Puts messages into a queue. A clone is the same queue.
#[derive(Clone)]
pub(in crate::services) struct MessageSender {
    queue: mpsc::UnboundedSender<(KernelMessage, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// The messages of a queue. It ends when its senders are gone.
pub(in crate::services) struct Subscription {
    queue: mpsc::UnboundedReceiver<(KernelMessage, OwnedSemaphorePermit)>,
}

/// An empty queue.
pub(in crate::services) fn queue() -> (MessageSender, Subscription) {
    let (queue, receiver) = mpsc::unbounded_channel();
    (MessageSender { queue, room: Arc::new(Semaphore::new(UNREAD_BYTES_MAX)) }, Subscription { queue: receiver })
}

impl MessageSender {
    /// Waits for room, unless the queue is no longer read.
    async fn send(&self, message: &KernelMessage) {
        tokio::select! {
            Ok(room) = Arc::clone(&self.room).acquire_many_owned(cost(message)) => {
                drop(self.queue.send((message.clone(), room)));
            }
            () = self.queue.closed() => {}
        }
    }

    /// False when there is no room, or the queue is no longer read.
    pub(in crate::services) fn try_send(&self, message: &KernelMessage) -> bool {
        let room = Arc::clone(&self.room).try_acquire_many_owned(cost(message));
        room.is_ok_and(|room| self.queue.send((message.clone(), room)).is_ok())
    }

    pub(in crate::services) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

impl Subscription {
    pub(in crate::services) async fn next(&mut self) -> Option<KernelMessage> {
        self.queue.recv().await.map(|(message, _)| message)
    }

    pub(in crate::services) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<KernelMessage>> {
        self.queue.poll_recv(context).map(|next| next.map(|(message, _)| message))
    }

    /// Takes no more messages; those that were not read.
    pub(in crate::services) fn close(&mut self) -> impl Iterator<Item = KernelMessage> {
        self.queue.close();
        iter::from_fn(move || self.queue.try_recv().ok().map(|(message, _)| message))
    }
}

fn cost(message: &KernelMessage) -> u32 {
    u32::try_from(message.bytes().min(UNREAD_BYTES_MAX)).unwrap_or(u32::MAX)
}

/// The queues of the subscribers of one kernel's messages; `None` when there will be no more messages.
pub(super) struct Subscribers(Mutex<Option<Vec<MessageSender>>>);

impl Default for Subscribers {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Subscribers {
    pub(super) fn add(&self) -> Subscription {
        let (sender, subscription) = queue();
        if let Some(all) = self.0.lock().as_mut() {
            all.retain(|subscriber| !subscriber.is_closed());
            all.push(sender);
        }
        subscription
    }

    /// Passes a message on to each; waits while the queue of one is full.
    pub(super) async fn send(&self, message: &KernelMessage) {
        let all = self.0.lock().clone().unwrap_or_default();
        for subscriber in all {
            subscriber.send(message).await;
        }
    }

    /// Ends their queues.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }
}

/// Writes the request, then messages. When the sandbox does not take them any more and does not end, it is `stuck`.
/// Keeps the stream open, since closing it early closes the output on some engines.
pub(super) async fn write(
    mut stdin: Stdin,
    request: Bytes,
    mut outgoing: mpsc::Receiver<KernelMessage>,
    mut channels: Option<mpsc::Receiver<Bytes>>,
    mut files: mpsc::Receiver<Bytes>,
    stuck: CancellationToken,
) {
    let mut written = send(&mut stdin, &request).await;
    while written {
        written = tokio::select! {
            message = outgoing.recv() => match message {
                Some(message) => write_message(&mut stdin, &message).await,
                None => return,
            },
            Some(frame) = files.recv() => send(&mut stdin, &frame).await,
            piece = next_of(&mut channels) => send(&mut stdin, &frames::channels(&piece)).await,
        };
    }
    files.close();
    outgoing.close();
    while outgoing.recv().await.is_some() {}
    sleep(END_MAX).await;
    stuck.cancel();
    std::future::pending::<()>().await;
}

/// Writes a message in frames; whether the sandbox takes it.
async fn write_message(stdin: &mut Stdin, message: &KernelMessage) -> bool {
    for piece in message.encode_with_length().chunks(frames::PAYLOAD_BYTES_MAX) {
        if stdin.write_all(&frames::stdin(piece)).await.is_err() {
            return false;
        }
    }
    stdin.flush().await.is_ok()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::stream;
    use tokio::{io::duplex, time::timeout};

    use super::{
        super::{SessionEnd, kernel::Kernel},
        *,
    };
    use crate::{
        domain::{Environment, SandboxId},
        ports::engine::Sandbox,
        services::{sandbox::Started, tasks::Tasks},
    };

    #[tokio::test(start_paused = true)]
    async fn kernel_whose_sandbox_takes_nothing_and_does_not_end_is_ended() {
        let (stdin, closed) = duplex(1);
        drop(closed);
        let sandbox = Sandbox {
            id: SandboxId::new(),
            stdin: Box::pin(stdin),
            output: Box::pin(stream::pending()),
            exit: Box::pin(pending()),
        };
        let (started, tasks) = (Started { sandbox, decoder: None }, Tasks::default());
        let kernel = Kernel::begin(started, "fake", &Environment::default(), END_MAX, None, &tasks);
        let end = timeout(END_MAX * 2, kernel.ended()).await.expect("it is ended");
        assert_eq!(end, SessionEnd::Unresponsive);
    }
}
