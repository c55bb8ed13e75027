//! Queues of a kernel's messages: each holds a bounded number of bytes that were not read. And the followers of one
//! kernel, which have a queue each.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::message::{KernelMessage, MESSAGE_BYTES_MAX};

/// What may be unread, in bytes.
const UNREAD_BYTES_MAX: usize = 2 * MESSAGE_BYTES_MAX;

/// Puts messages into a queue. A clone is the same queue.
#[derive(Clone)]
pub(in crate::services) struct MessageSender {
    queue: mpsc::UnboundedSender<(KernelMessage, OwnedSemaphorePermit)>,
    room: Arc<Semaphore>,
}

/// The messages of a queue. It ends when its senders are gone.
pub(in crate::services) struct Following {
    queue: mpsc::UnboundedReceiver<(KernelMessage, OwnedSemaphorePermit)>,
}

/// An empty queue.
pub(in crate::services) fn queue() -> (MessageSender, Following) {
    let (queue, receiver) = mpsc::unbounded_channel();
    (MessageSender { queue, room: Arc::new(Semaphore::new(UNREAD_BYTES_MAX)) }, Following { queue: receiver })
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

impl Following {
    pub(in crate::services) async fn next(&mut self) -> Option<KernelMessage> {
        self.queue.recv().await.map(|(message, _)| message)
    }
}

fn cost(message: &KernelMessage) -> u32 {
    u32::try_from(message.bytes().min(UNREAD_BYTES_MAX)).unwrap_or(u32::MAX)
}

/// The queues of the followers of one kernel's messages; `None` when there will be no more messages.
pub(super) struct Followers(Mutex<Option<Vec<MessageSender>>>);

impl Default for Followers {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl Followers {
    pub(super) fn add(&self) -> Following {
        let (sender, following) = queue();
        if let Some(all) = self.0.lock().as_mut() {
            all.retain(|follower| !follower.is_closed());
            all.push(sender);
        }
        following
    }

    /// Passes a message on to each; waits while the queue of one is full.
    pub(super) async fn send(&self, message: &KernelMessage) {
        let all = self.0.lock().clone().unwrap_or_default();
        for follower in all {
            follower.send(message).await;
        }
    }

    /// Ends their queues.
    pub(super) fn end(&self) {
        *self.0.lock() = None;
    }
}
