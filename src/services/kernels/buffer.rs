//! Messages of a kernel while no client is connected, kept for the client that disconnected last.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::services::sessions::message::{Channel, Header, KernelMessage};

/// Output is kept up to here, in bytes; what follows is counted and left out.
const OUTPUT_BYTES_MAX: usize = 1 << 20;
/// The same for replies and statuses, because a client that misses one waits without end.
const BYTES_MAX: usize = 2 << 20;

pub(super) struct Buffer {
    /// The client.
    pub(super) name: String,
    messages: VecDeque<KernelMessage>,
    bytes: usize,
    dropped: u64,
    /// The parent of the first message that was left out.
    dropped_of: Bytes,
}

impl Buffer {
    pub(super) fn new(name: String) -> Self {
        Self { name, messages: VecDeque::new(), bytes: 0, dropped: 0, dropped_of: Bytes::new() }
    }

    pub(super) fn push(&mut self, message: &KernelMessage) {
        let Header { msg_type, .. } = message.read_header();
        let max = match (message.channel, msg_type.as_str()) {
            (Channel::Iopub, "status") => BYTES_MAX,
            // Output is kept up to its first gap.
            (Channel::Iopub, _) if self.dropped > 0 => 0,
            (Channel::Iopub, _) => OUTPUT_BYTES_MAX,
            _ => BYTES_MAX,
        };
        let bytes = self.bytes + message.bytes();
        if bytes <= max {
            self.bytes = bytes;
            self.messages.push_back(message.clone());
            return;
        }
        if self.dropped == 0 {
            self.dropped_of = message.parent_header.clone();
        }
        self.dropped += 1;
    }

    /// The messages in order, and how many were left out, with the parent of the first of these.
    pub(super) fn into_messages(self) -> (VecDeque<KernelMessage>, Option<(u64, Bytes)>) {
        (self.messages, (self.dropped > 0).then_some((self.dropped, self.dropped_of)))
    }
}
