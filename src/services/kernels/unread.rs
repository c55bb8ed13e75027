//! What a client was not sent: the queue of its connection, and what is kept of it when the connection is over.
//!
//! A connection and its hub hold the same queue. The one that ends the connection leaves in it what is kept, so that a
//! client which comes back gets what its earlier connection did not write.

use std::{
    collections::VecDeque,
    future::poll_fn,
    mem,
    sync::Arc,
    task::{Poll, ready},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::services::sessions::{
    Subscription,
    message::{Channel, KernelMessage},
};

/// Output is kept up to here, in bytes; what follows is counted and left out.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The same for replies, requests for input and statuses, because a client that misses one waits without end.
const BYTES_MAX: usize = 2 << 20;

/// The hub's end of a queue.
#[derive(Clone)]
pub(super) struct Unread(Arc<Mutex<Queue>>);

/// The connection's end. The queue ends when it is dropped.
pub(super) struct Reader(Arc<Mutex<Queue>>);

struct Queue {
    subscription: Subscription,
    /// Read by the connection, and not written to the client yet.
    writing: Option<KernelMessage>,
    kept: Kept,
}

/// Messages in order, up to a bound in bytes.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) messages: VecDeque<KernelMessage>,
    bytes: usize,
    /// What was left out between them.
    pub(super) gap: Option<Gap>,
}

/// Messages that were left out.
pub(super) struct Gap {
    /// How many of those that are kept came before the first of them.
    pub(super) at: usize,
    pub(super) count: u64,
    /// The parent of the first of them.
    pub(super) parent: Bytes,
}

/// Both ends of a queue.
pub(super) fn unread(subscription: Subscription) -> (Reader, Unread) {
    let queue = Arc::new(Mutex::new(Queue { subscription, writing: None, kept: Kept::default() }));
    (Reader(Arc::clone(&queue)), Unread(queue))
}

impl Reader {
    /// The next message, which counts as unread until it is [`written`](Self::written).
    pub(super) async fn next(&mut self) -> Option<KernelMessage> {
        poll_fn(|context| {
            let mut queue = self.0.lock();
            let message = ready!(queue.subscription.poll_next(context));
            queue.writing.clone_from(&message);
            Poll::Ready(message)
        })
        .await
    }

    /// The last message has been written.
    pub(super) fn written(&self) {
        self.0.lock().writing = None;
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.lock().end();
    }
}

impl Unread {
    /// Ends the queue; what is kept of the messages that were not written.
    pub(super) fn take(&self) -> Kept {
        let mut queue = self.0.lock();
        queue.end();
        mem::take(&mut queue.kept)
    }
}

impl Queue {
    fn end(&mut self) {
        let Self { subscription, writing, kept } = self;
        for message in writing.take().into_iter().chain(subscription.close()) {
            kept.push(&message);
        }
    }
}

impl Kept {
    pub(super) fn push(&mut self, message: &KernelMessage) {
        let is_output = message.channel == Channel::Iopub && message.read_header().msg_type != "status";
        let max = match (is_output, &self.gap) {
            (true, None) => OUTPUT_BYTES_MAX,
            // Output is kept up to its first gap.
            (true, Some(_)) => 0,
            (false, _) => BYTES_MAX,
        };
        let bytes = self.bytes + message.bytes();
        if bytes <= max {
            self.bytes = bytes;
            self.messages.push_back(message.clone());
        } else {
            let (at, parent) = (self.messages.len(), &message.parent_header);
            self.gap.get_or_insert_with(|| Gap { at, count: 0, parent: parent.clone() }).count += 1;
        }
    }

    /// Adds what came later.
    pub(super) fn append(&mut self, later: Self) {
        let before = self.messages.len();
        later.messages.iter().for_each(|message| self.push(message));
        if let Some(Gap { at, count, parent }) = later.gap {
            self.gap.get_or_insert(Gap { at: before + at, count: 0, parent }).count += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::services::sessions::queue;

    fn message(channel: Channel, kind: &str, bytes: usize) -> KernelMessage {
        KernelMessage::new(channel, &json!({"msg_type": kind}), &json!("x".repeat(bytes)))
    }

    fn kinds(messages: &VecDeque<KernelMessage>) -> Vec<String> {
        messages.iter().map(|message| message.read_header().msg_type).collect()
    }

    #[tokio::test]
    async fn of_a_full_queue_output_is_kept_up_to_its_gap_and_what_a_client_waits_for_to_its_end() {
        let (sender, subscription) = queue();
        let (mut reader, unread) = unread(subscription);
        let mut later = Kept::default();
        assert!(sender.try_send(&message(Channel::Iopub, "status", 10)));
        for _ in 0..24 {
            let output = message(Channel::Iopub, "stream", 400 << 10);
            if !sender.try_send(&output) {
                later.push(&output);
            }
        }
        let end = [(Channel::Stdin, "input_request"), (Channel::Shell, "execute_reply"), (Channel::Iopub, "status")];
        for (channel, kind) in end {
            later.push(&message(channel, kind, 10));
        }
        // Of what the connection has read, the first is written and the second is not.
        for _ in 0..2 {
            reader.written();
            reader.next().await.expect("a message");
        }
        drop(reader);
        assert!(!sender.try_send(&message(Channel::Iopub, "status", 10)));
        let mut kept = unread.take();
        let bytes: usize = kept.messages.iter().map(KernelMessage::bytes).sum();
        assert!(bytes <= OUTPUT_BYTES_MAX, "{bytes}");
        kept.append(later);
        assert_eq!(kinds(&kept.messages), ["stream", "stream", "input_request", "execute_reply", "status"]);
        assert_eq!(kept.gap.map(|gap| (gap.at, gap.count)), Some((2, 22)), "each is counted once");
        assert!(unread.take().messages.is_empty());
    }

    #[test]
    fn the_gap_of_what_came_later_stays_where_it_is() {
        let (mut kept, mut later) = (Kept::default(), Kept::default());
        kept.push(&message(Channel::Shell, "first", 10));
        for kind in ["second", "long", "left_out"] {
            later.push(&message(Channel::Iopub, kind, if kind == "long" { OUTPUT_BYTES_MAX } else { 10 }));
        }
        later.push(&message(Channel::Shell, "third", 10));
        kept.append(later);
        assert_eq!(kinds(&kept.messages), ["first", "second", "third"]);
        assert_eq!(kept.gap.map(|gap| (gap.at, gap.count)), Some((2, 2)));
    }

    #[test]
    fn replies_are_kept_up_to_their_own_bound() {
        let mut kept = Kept::default();
        for _ in 0..20 {
            kept.push(&message(Channel::Shell, "execute_reply", 400 << 10));
        }
        assert!(kept.bytes <= BYTES_MAX, "{}", kept.bytes);
        assert_eq!(kept.messages.len() as u64 + kept.gap.map_or(0, |gap| gap.count), 20);
    }
}
