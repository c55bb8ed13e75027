//! The followers of one kernel's messages.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::super::{
    message::KernelMessage,
    queue::{Following, MessageSender, queue},
};

/// Their queues; `None` when there will be no more messages.
pub(super) struct Followers {
    all: Mutex<Option<Vec<(u64, MessageSender)>>>,
    newest: AtomicU64,
}

impl Default for Followers {
    fn default() -> Self {
        Self { all: Mutex::new(Some(Vec::new())), newest: AtomicU64::new(0) }
    }
}

impl Followers {
    pub(super) fn add(&self) -> Following {
        let (sender, following) = queue();
        if let Some(all) = self.all.lock().as_mut() {
            all.retain(|(_, follower)| !follower.is_closed());
            all.push((self.newest.fetch_add(1, Ordering::Relaxed), sender));
        }
        following
    }

    /// Passes a message on to each; waits while the queue of one is full.
    pub(super) async fn send(&self, message: &KernelMessage) {
        let all = self.all.lock().clone().unwrap_or_default();
        for (number, follower) in all {
            if !follower.send(message).await
                && let Some(all) = self.all.lock().as_mut()
            {
                all.retain(|(other, _)| *other != number);
            }
        }
    }

    /// Ends their queues.
    pub(super) fn end(&self) {
        *self.all.lock() = None;
    }
}
