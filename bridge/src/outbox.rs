//! The queue of messages for the server: bounded, so that the kernel is always read, however slowly the server reads.
//! What does not fit is dropped and counted: printed text first, and messages that a client waits for (replies,
//! requests for input and the status that ends a cell) only where they flood themselves.

use std::{collections::VecDeque, io::ErrorKind, mem, time::Duration};

use bytes::{Buf, Bytes};
use serde_json::json;
use tokio::{net::unix::pipe::Sender, time::timeout};

use crate::{
    limits,
    message::{Channel, KernelMessage, MESSAGE_BYTES_MAX},
};

/// What a cell prints waits up to here.
const STREAM_MAX_BYTES: usize = 8 << 20;

/// Results, errors and displays wait up to here, so that a cell that prints too much still has its result.
const OUTPUT_MAX_BYTES: usize = 11 << 20;

/// A kernel that floods its status loses it from here on.
const STATUS_MAX_BYTES: usize = 12 << 20;

/// A kernel that floods its replies or its requests for input loses them from here on. Beside all that other messages
/// may take, there is room for the longest.
const REPLY_MAX_BYTES: usize = STATUS_MAX_BYTES + MESSAGE_BYTES_MAX;

/// How long the server may take to read what is left.
const SEND_LIMIT: Duration = Duration::from_secs(30);

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

/// What is missing of the messages for the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Whole ones.
    pub messages: usize,
    /// Of these, and of those that were made shorter.
    pub bytes: usize,
    /// What a program printed of the missing text.
    pub printed: usize,
}

/// Encoded messages, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    waiting: VecDeque<Bytes>,
    bytes: usize,
    dropped: Dropped,
}

impl Outbox {
    /// Adds a message, after a note of what was dropped before it.
    pub fn push(&mut self, message: &KernelMessage, weight: Weight) {
        let limit = match weight {
            // What was full takes output again when half of it is gone, so that gaps are few and long.
            Weight::Stream if self.dropped.messages > 0 => STREAM_MAX_BYTES / 2,
            Weight::Stream => STREAM_MAX_BYTES,
            Weight::Output => OUTPUT_MAX_BYTES,
            Weight::Status => STATUS_MAX_BYTES,
            Weight::Reply => REPLY_MAX_BYTES,
            Weight::Own => usize::MAX,
        };
        if self.bytes.saturating_add(message.encoded_bytes()) > limit {
            let printed = if weight == Weight::Stream { limits::printed(message) } else { 0 };
            return self.note_dropped(Dropped { messages: 1, bytes: message.encoded_bytes(), printed });
        }
        let dropped = mem::take(&mut self.dropped);
        if dropped != Dropped::default() {
            let Dropped { messages, bytes, printed } = dropped;
            let content = json!({"messages": messages, "bytes": bytes, "printedBytes": printed});
            self.append(&bridge_message("dropped", &content));
        }
        self.append(message);
    }

    /// Counts what is missing.
    pub fn note_dropped(&mut self, dropped: Dropped) {
        self.dropped.messages += dropped.messages;
        self.dropped.bytes += dropped.bytes;
        self.dropped.printed += dropped.printed;
    }

    fn append(&mut self, message: &KernelMessage) {
        let bytes = message.encode_with_length();
        self.bytes += bytes.len();
        self.waiting.push_back(bytes);
    }

    /// Writes as much as the server takes at once. Whether the server is gone.
    pub fn write(&mut self, output: &Sender) -> bool {
        let front: &[u8] = self.waiting.front().map_or(&[], |bytes| bytes);
        match output.try_write(front) {
            Ok(count) => self.wrote(count),
            Err(error) => return error.kind() != ErrorKind::WouldBlock,
        }
        false
    }

    /// Writes the rest, as far as the server takes it in time.
    pub async fn finish(&mut self, output: &Sender) {
        let write = async { while !self.is_empty() && output.writable().await.is_ok() && !self.write(output) {} };
        // A reader that takes nothing is not waited for without end.
        let _ = timeout(SEND_LIMIT, write).await;
    }

    /// So many bytes of the front were written.
    fn wrote(&mut self, count: usize) {
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
pub fn bridge_message(word: &str, content: &serde_json::Value) -> KernelMessage {
    KernelMessage::new(Channel::Bridge, &json!({"msg_type": word}), content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::MessageReader;

    fn drain(outbox: &mut Outbox) -> Vec<KernelMessage> {
        let mut reader = MessageReader::default();
        let mut all = Vec::new();
        while !outbox.is_empty() {
            let front = &outbox.waiting[0];
            let count = front.len().min(70_000);
            reader.push(&front[..count]);
            outbox.wrote(count);
            all.extend(reader.next().expect("whole"));
        }
        assert_eq!(outbox.bytes, 0);
        all
    }

    fn long(channel: Channel) -> KernelMessage {
        KernelMessage::new(channel, &"{}", &" ".repeat(1 << 20))
    }

    #[test]
    fn printed_text_is_dropped_and_counted_while_the_result_status_and_replies_stay() {
        let mut outbox = Outbox::default();
        let content = json!({"name": "stdout", "text": "\n".repeat(1 << 19)});
        let output = KernelMessage::new(Channel::Iopub, &"{}", &content);
        for _ in 0..10 {
            outbox.push(&output, Weight::Stream);
        }
        let result = KernelMessage::new(Channel::Iopub, &"{}", &"{\"data\":{}}");
        outbox.push(&result, Weight::Output);
        let idle = KernelMessage::new(Channel::Iopub, &"{}", &"{\"execution_state\":\"idle\"}");
        outbox.push(&idle, Weight::Status);
        let reply = KernelMessage { channel: Channel::Shell, ..output.clone() };
        outbox.push(&reply, Weight::Reply);
        let all = drain(&mut outbox);
        assert_eq!(all.len(), 7 + 1 + 1 + 1 + 1);
        let size = output.encoded_bytes();
        let note = json!({"messages": 3, "bytes": 3 * size, "printedBytes": 3 << 19});
        assert_eq!(all[7..], [bridge_message("dropped", &note), result, idle, reply]);
    }

    #[test]
    fn status_flood_is_bounded() {
        let mut outbox = Outbox::default();
        (0..100).for_each(|_| outbox.push(&long(Channel::Iopub), Weight::Status));
        assert!(outbox.bytes <= STATUS_MAX_BYTES && outbox.dropped.messages > 80);
    }

    #[test]
    fn flood_of_replies_and_requests_for_input_is_bounded_and_own_messages_stay() {
        let mut outbox = Outbox::default();
        for channel in [Channel::Shell, Channel::Stdin] {
            (0..50).for_each(|_| outbox.push(&long(channel), Weight::Reply));
        }
        assert!(outbox.bytes <= REPLY_MAX_BYTES && outbox.dropped.messages > 80);
        let figures = bridge_message("figures", &json!({}));
        outbox.push(&figures, Weight::Own);
        assert_eq!(drain(&mut outbox).pop(), Some(figures));
    }
}
