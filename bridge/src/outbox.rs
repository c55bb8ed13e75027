//! The queue of messages for the server: bounded, so that the kernel is always read, however slowly the server reads.
//! What does not fit is dropped and counted: printed text first, and messages that a client waits for (replies,
//! requests for input and the status that ends a cell) only where they flood themselves.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use serde_json::json;

use crate::{
    limits,
    message::{Channel, MESSAGE_MAX_BYTES, Message},
};

/// What a cell prints waits up to here.
const STREAM_MAX_BYTES: usize = 8 << 20;

/// Results, errors and displays wait up to here, so that a cell that prints too much still has its result.
const OUTPUT_MAX_BYTES: usize = 11 << 20;

/// A kernel that floods its status loses it from here on.
const STATUS_MAX_BYTES: usize = 12 << 20;

/// A kernel that floods its replies or its requests for input loses them from here on. Beside all that other messages
/// may take, there is room for the longest.
const REPLY_MAX_BYTES: usize = STATUS_MAX_BYTES + MESSAGE_MAX_BYTES;

/// How much a message matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// Printed text: dropped when the reader is slow.
    Stream,
    /// Results, errors and displays: dropped when the reader is slower still.
    Output,
    /// Dropped when it floods.
    Status,
    /// Replies and requests for input: dropped when they flood.
    Reply,
    /// This program's own, as many as the server asks for: never dropped.
    Own,
}

/// Encoded messages, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    dropped_messages: u64,
    dropped_bytes: u64,
    /// What a program printed of the missing text.
    dropped_printed: u64,
}

impl Outbox {
    /// Adds a message, after a note of what was dropped before it.
    pub fn push(&mut self, channel: Channel, message: &Message, weight: Weight) {
        let limit = match weight {
            // What was full takes output again when half of it is gone, so that gaps are few and long.
            Weight::Stream if self.dropped_messages > 0 => STREAM_MAX_BYTES / 2,
            Weight::Stream => STREAM_MAX_BYTES,
            Weight::Output => OUTPUT_MAX_BYTES,
            Weight::Status => STATUS_MAX_BYTES,
            Weight::Reply => REPLY_MAX_BYTES,
            Weight::Own => usize::MAX,
        };
        if self.bytes.saturating_add(message.bytes(channel)) > limit {
            let printed = if weight == Weight::Stream { limits::printed(message) } else { 0 };
            self.note_dropped(1, message.bytes(channel), printed);
            return;
        }
        let (messages, bytes, printed) = (self.dropped_messages, self.dropped_bytes, self.dropped_printed);
        if messages > 0 || bytes > 0 || printed > 0 {
            let content = json!({"messages": messages, "bytes": bytes, "printedBytes": printed});
            (self.dropped_messages, self.dropped_bytes, self.dropped_printed) = (0, 0, 0);
            self.append(bridge_message("dropped", &content).encode(Channel::Bridge));
        }
        self.append(message.encode(channel));
    }

    /// Counts what is missing: whole messages, or bytes of one that was made shorter; and what was printed of these.
    pub fn note_dropped(&mut self, messages: u64, bytes: usize, printed: usize) {
        self.dropped_messages += messages;
        self.dropped_bytes += bytes as u64;
        self.dropped_printed += printed as u64;
    }

    fn append(&mut self, bytes: Bytes) {
        self.bytes += bytes.len();
        self.waiting.push_back(bytes);
    }

    /// The next bytes to write; empty when nothing waits.
    pub fn front(&self) -> &[u8] {
        self.waiting.front().map_or(&[], |bytes| bytes)
    }

    /// So many bytes of the front were written.
    pub fn wrote(&mut self, count: usize) {
        self.bytes -= count;
        if let Some(front) = self.waiting.front_mut() {
            front.advance(count);
            if front.is_empty() {
                self.waiting.pop_front();
            }
        }
    }

    /// Whether everything is written.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// A message on the channel between this program and the server.
pub fn bridge_message(word: &str, content: &serde_json::Value) -> Message {
    Message::new(json!({"msg_type": word}).to_string(), content.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Decoder;

    fn drain(outbox: &mut Outbox) -> Vec<(Channel, Message)> {
        let mut decoder = Decoder::default();
        let mut all = Vec::new();
        while !outbox.is_empty() {
            let count = outbox.front().len().min(70_000);
            decoder.feed(&outbox.front()[..count]);
            outbox.wrote(count);
            all.extend(decoder.next().expect("whole"));
        }
        assert_eq!(outbox.bytes, 0);
        all
    }

    #[test]
    fn printed_text_is_dropped_and_counted_while_the_result_status_and_replies_stay() {
        let mut outbox = Outbox::default();
        let output = Message::new("{}", json!({"name": "stdout", "text": "\n".repeat(1 << 19)}).to_string());
        for _ in 0..10 {
            outbox.push(Channel::Iopub, &output, Weight::Stream);
        }
        let result = Message::new("{}", "{\"data\":{}}");
        outbox.push(Channel::Iopub, &result, Weight::Output);
        let idle = Message::new("{}", "{\"execution_state\":\"idle\"}");
        outbox.push(Channel::Iopub, &idle, Weight::Status);
        outbox.push(Channel::Shell, &output, Weight::Reply);
        let all = drain(&mut outbox);
        assert_eq!(all.len(), 7 + 1 + 1 + 1 + 1);
        let size = output.bytes(Channel::Iopub);
        let note = json!({"messages": 3, "bytes": 3 * size, "printedBytes": 3 << 19});
        assert_eq!(all[7], (Channel::Bridge, bridge_message("dropped", &note)));
        assert_eq!(all[8], (Channel::Iopub, result));
        assert_eq!(all[9], (Channel::Iopub, idle));
        assert_eq!(all[10].0, Channel::Shell);
    }

    #[test]
    fn status_flood_is_bounded() {
        let mut outbox = Outbox::default();
        let status = Message::new("{}", vec![b' '; 1 << 20]);
        (0..100).for_each(|_| outbox.push(Channel::Iopub, &status, Weight::Status));
        assert!(outbox.bytes <= STATUS_MAX_BYTES && outbox.dropped_messages > 80);
    }

    #[test]
    fn flood_of_replies_and_requests_for_input_is_bounded_and_own_messages_stay() {
        let mut outbox = Outbox::default();
        let message = Message::new("{}", vec![b' '; 1 << 20]);
        for channel in [Channel::Shell, Channel::Stdin] {
            (0..50).for_each(|_| outbox.push(channel, &message, Weight::Reply));
        }
        assert!(outbox.bytes <= REPLY_MAX_BYTES && outbox.dropped_messages > 80);
        let figures = bridge_message("figures", &json!({}));
        outbox.push(Channel::Bridge, &figures, Weight::Own);
        assert_eq!(drain(&mut outbox).pop(), Some((Channel::Bridge, figures)));
    }
}
