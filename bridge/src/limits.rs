//! How a message that is too long for the server is made shorter: a stream's text is cut, with a mark; other content
//! loses its largest members, then its buffers, of which there may also be too many. Content is looked at no deeper
//! than needed, because a program wrote it.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    message::{BUFFERS_MAX, KernelMessage, MESSAGE_BYTES_MAX},
    outbox::Dropped,
};

/// The longest text of one `stream` message, as it stands in JSON.
pub const STREAM_MAX_BYTES: usize = 1 << 20;

/// What a header or parent header may have: it can be neither cut nor left out.
const HEADER_MAX_BYTES: usize = 64 << 10;

#[derive(Deserialize)]
struct Stream<'a> {
    #[serde(borrow)]
    name: &'a RawValue,
    #[serde(borrow)]
    text: &'a RawValue,
}

type Members = BTreeMap<String, Box<RawValue>>;

/// Makes `message` fit; what was taken out of it, or that it must not be sent. The cut text of a stream has a mark, so
/// it counts as printed only.
pub fn fit(message: &mut KernelMessage, kind: &str) -> Dropped {
    let is_long = kind == "stream" && message.content.len() > STREAM_MAX_BYTES;
    let printed = if is_long { cut_stream(message) } else { 0 };
    let before = message.encoded_bytes();
    if message.buffers.len() > BUFFERS_MAX {
        message.buffers.clear();
    }
    if message.encoded_bytes() > MESSAGE_BYTES_MAX {
        drop_largest(message);
    }
    if message.encoded_bytes() > MESSAGE_BYTES_MAX {
        message.buffers.clear();
    }
    if message.encoded_bytes() > MESSAGE_BYTES_MAX {
        message.metadata = Bytes::from_static(b"{}");
    }
    let has_long_header = [&message.header, &message.parent_header].iter().any(|part| part.len() > HEADER_MAX_BYTES);
    let now = message.encoded_bytes();
    if has_long_header || now > MESSAGE_BYTES_MAX {
        return Dropped { messages: 1, bytes: before, printed };
    }
    Dropped { messages: 0, bytes: before.saturating_sub(now), printed }
}

/// How many bytes a program printed for this message of a stream, or a little less: an escaped character counts as one.
pub fn printed(message: &KernelMessage) -> usize {
    serde_json::from_slice(&message.content).map_or(0, |Stream { text, .. }| unescaped(text.get()).saturating_sub(2))
}

/// The length of a text in JSON without its escapes, at least.
fn unescaped(text: &str) -> usize {
    let (mut bytes, mut count) = (text.bytes(), 0);
    while let Some(byte) = bytes.next() {
        count += 1;
        if byte == b'\\' && bytes.next() == Some(b'u') {
            bytes.nth(3);
        }
    }
    count
}

/// How much of what was printed is cut.
fn cut_stream(message: &mut KernelMessage) -> usize {
    let Ok(Stream { name, text }) = serde_json::from_slice(&message.content) else { return 0 };
    let text = text.get();
    let end = cut(text, STREAM_MAX_BYTES);
    if end == text.len() || name.get().len() > HEADER_MAX_BYTES {
        return 0;
    }
    // Without the quotation mark at its end.
    let printed = unescaped(&text[end..text.len() - 1]);
    let mark = format!("\\n[{} bytes of output were left out here]\\n", text.len() - end);
    message.content = format!("{{\"name\":{},\"text\":{}{mark}\"}}", name.get(), &text[..end]).into();
    printed
}

/// Where a JSON string, written with its quotes, can be cut: at most `limit` bytes, and never inside of a character or
/// of an escape, or between the halves of a pair.
fn cut(text: &str, limit: usize) -> usize {
    if text.len() <= limit || !text.starts_with('"') {
        return text.len();
    }
    let bytes = text.as_bytes();
    let (mut at, mut safe) = (1, 1);
    while at <= limit {
        let is_first_half =
            matches!(bytes[at..], [b'\\', b'u', b'd' | b'D', b'8' | b'9' | b'a' | b'b' | b'A' | b'B', ..]);
        safe = at;
        at += match (bytes[at], bytes.get(at + 1)) {
            (b'"', _) => return text.len(),
            _ if is_first_half && bytes.get(at + 6) == Some(&b'\\') => 12,
            (b'\\', Some(b'u')) => 6,
            (0xf0.., _) => 4,
            (0xe0.., _) => 3,
            (b'\\' | 0xc0.., _) => 2,
            _ => 1,
        };
    }
    safe
}

/// Takes the largest members out of the content, those of `data` (the forms of a display) before others.
fn drop_largest(message: &mut KernelMessage) {
    let Ok(mut content) = serde_json::from_slice::<Members>(&message.content) else {
        message.content = Bytes::from_static(b"{}");
        return;
    };
    let mut excess = message.encoded_bytes().saturating_sub(MESSAGE_BYTES_MAX);
    if let Some(mut data) = content.get("data").and_then(|data| serde_json::from_str::<Members>(data.get()).ok()) {
        excess = remove_largest(&mut data, excess);
        if let Ok(data) = serde_json::value::to_raw_value(&data) {
            content.insert("data".to_owned(), data);
        }
    }
    remove_largest(&mut content, excess);
    message.content = serde_json::to_vec(&content).unwrap_or_else(|_| b"{}".to_vec()).into();
}

/// Removes members until `excess` bytes are gone or only small ones are left; returns what is still too much.
fn remove_largest(members: &mut Members, mut excess: usize) -> usize {
    const SMALL_BYTES: usize = 1024;
    while excess > 0 {
        let sizes = members.iter().map(|(name, value)| (name, value.get().len()));
        let largest = sizes.max_by_key(|(_, size)| *size).filter(|(_, size)| *size >= SMALL_BYTES);
        let Some((name, size)) = largest.map(|(name, size)| (name.clone(), size)) else { break };
        members.remove(&name);
        excess = excess.saturating_sub(size);
    }
    excess
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use serde_json::{Value, json};

    use super::*;
    use crate::message::Channel;

    fn of(content: &impl Display) -> KernelMessage {
        KernelMessage::new(Channel::Iopub, &"{}", content)
    }

    fn fitted(content: &Value, kind: &str) -> (KernelMessage, Dropped) {
        let mut message = of(content);
        let dropped = fit(&mut message, kind);
        assert!(message.encoded_bytes() <= MESSAGE_BYTES_MAX);
        (message, dropped)
    }

    fn content(message: &KernelMessage) -> Value {
        serde_json::from_slice(&message.content).expect("JSON")
    }

    #[test]
    fn short_messages_stay_as_they_are() {
        let given = json!({"name": "stdout", "text": "a".repeat(1000)});
        let (message, dropped) = fitted(&given, "stream");
        assert_eq!((content(&message), dropped), (given, Dropped::default()));
    }

    #[test]
    fn long_text_is_cut_between_characters_and_escapes() {
        for unit in ["a", "é", "\u{20ac}", "\u{1f600}", "\n", "\\", "\"", "\u{1}", "ab\u{1f600}\"\n"] {
            for lead in ["", "x", "xyz"] {
                let text = format!("{lead}{}", unit.repeat((3 << 19) / unit.len()));
                let (message, dropped) = fitted(&json!({"name": "stdout", "text": text}), "stream");
                let now = content(&message)["text"].as_str().expect("text").to_owned();
                let (kept, mark) = now.split_once("\n[").unwrap_or((&now, ""));
                assert!(text.starts_with(kept) && mark.contains("bytes of output"), "{unit:?}");
                let printed = text.len() - kept.len();
                assert_eq!(dropped, Dropped { printed, ..Dropped::default() }, "{unit:?}");
                assert!(message.content.len() < STREAM_MAX_BYTES + 100);
            }
        }
    }

    #[test]
    fn printed_bytes_are_those_of_the_program() {
        for text in ["", "a", "é\n\t\"\\", "\u{1}\u{7f}\u{1f600}"] {
            let message = of(&json!({"name": "stdout", "text": text}));
            assert_eq!(printed(&message), text.len(), "{text:?}");
        }
        assert_eq!(printed(&of(&"{\"name\":\"stdout\",\"text\":\"\\ud83d\\ude00\"}")), 2);
        assert_eq!(printed(&of(&"{\"name\":1,\"text\":2}")), 0);
        assert_eq!(printed(&of(&"{}")), 0);
    }

    #[test]
    fn pairs_of_escaped_halves_stay_together() {
        for lead in 0..12 {
            let text = format!("\"{}{}\"", "x".repeat(lead), "\\ud83d\\ude00".repeat(200));
            let end = cut(&text, 1000);
            let kept: String = serde_json::from_str(&format!("{}\"", &text[..end])).expect("a JSON string");
            assert!(end <= 1000 && end > 980 && kept.ends_with('\u{1f600}'));
        }
    }

    #[test]
    fn display_loses_its_largest_form_first() {
        let data = json!({"text/plain": "a plot", "image/png": "p".repeat(5 << 20), "text/html": "h".repeat(1 << 20)});
        let (message, dropped) = fitted(&json!({"data": data, "metadata": {}}), "display_data");
        let now = content(&message);
        assert_eq!(now["data"]["text/plain"], json!("a plot"));
        assert!(now["data"].get("image/png").is_none() && now["data"].get("text/html").is_some());
        assert!(dropped.bytes > 5 << 20 && dropped.messages == 0);
    }

    #[test]
    fn buffers_and_metadata_go_last_and_headers_never() {
        let mut message = of(&"{\"a\":1}");
        message.buffers = vec![vec![0; 5 << 20].into()];
        assert!(fit(&mut message, "comm_msg").messages == 0);
        assert!(message.buffers.is_empty() && message.content == "{\"a\":1}");
        let mut message = KernelMessage::new(Channel::Iopub, &" ".repeat(5 << 20), &"{}");
        assert!(fit(&mut message, "status").messages == 1);
        let mut message = of(&"{}");
        message.metadata = vec![b' '; 5 << 20].into();
        assert!(fit(&mut message, "execute_reply").messages == 0);
    }

    #[test]
    fn message_with_too_many_buffers_loses_them_and_can_be_read() {
        for (count, left) in [(BUFFERS_MAX, BUFFERS_MAX), (BUFFERS_MAX + 1, 0), (100_000, 0)] {
            let mut message = of(&"{\"a\":1}");
            message.buffers = vec![Bytes::new(); count];
            let dropped = fit(&mut message, "comm_msg");
            assert_eq!((dropped.messages, dropped.bytes > 0), (0, left == 0), "{count}");
            let read = KernelMessage::decode(&message.encode()).expect("a message");
            assert_eq!((read.content.as_ref(), read.buffers.len()), (b"{\"a\":1}".as_slice(), left));
        }
    }

    #[test]
    fn content_that_is_not_json_or_nested_without_end_is_replaced() {
        for content in ["x".repeat(5 << 20), "[".repeat(5 << 20), format!("{{\"data\":{}", "{\"a\":".repeat(1 << 20))] {
            let mut message = of(&content);
            fit(&mut message, "display_data");
            assert_eq!(message.content, "{}");
        }
    }
}
