//! An answer of a tool as a program gets it: small texts and structures inline, the rest as files in `/data`.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tracing::debug;

use super::{Inner, calls::CallFailure};
use crate::{
    domain::{Failure, SafePath, text::json_bytes, tools::CallEnd},
    ports::tools::Answer,
    services::network::Program,
};

/// What an answer may have in itself, in bytes; more is a file.
const INLINE_BYTES_MAX: usize = 1 << 20;
/// Files of one answer; more are left out.
const FILES_MAX: usize = 50;
/// Where they are.
const FOLDER: &str = "tool-results";
/// How much of a failing tool's text is reported, in characters.
const WHY_CHARS_MAX: usize = 4000;

/// What the program gets.
#[derive(Debug, Default, Serialize)]
pub(super) struct Answered {
    #[serde(skip_serializing_if = "Option::is_none")]
    structured: Option<Value>,
    text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
}

/// The number of the next file of an answer.
static COUNT: AtomicU64 = AtomicU64::new(1);

impl Inner {
    pub(super) async fn answered(
        &self,
        program: &Program,
        tool: &str,
        answer: Answer,
    ) -> Result<Answered, CallFailure> {
        let text = answer.texts.join("\n");
        if answer.is_error {
            let why = text.chars().take(WHY_CHARS_MAX).collect();
            return Err(CallFailure { end: CallEnd::Failed, code: "tool_failed", why });
        }
        let mut answered = Answered::default();
        let structured = answer.structured.map(|value| (value.to_string(), value));
        match structured {
            Some((json, _)) if json.len() > INLINE_BYTES_MAX => {
                answered.files.push(self.keep(program, tool, "json", json.into()).await?);
            }
            Some((_, value)) => answered.structured = Some(value),
            None => {}
        }
        // A structured answer is repeated as text by most servers.
        if is_short(&text) {
            answered.text = text;
        } else {
            answered.files.push(self.keep(program, tool, "txt", text.into()).await?);
        }
        for attachment in answer.attachments.into_iter().take(FILES_MAX) {
            let ending = ending(&attachment.media_type);
            answered.files.push(self.keep(program, tool, ending, attachment.bytes.into()).await?);
        }
        Ok(answered)
    }

    /// Writes a file of the conversation; its path for the program.
    async fn keep(&self, program: &Program, tool: &str, ending: &str, bytes: Bytes) -> Result<String, Failure> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
        let tool: String = tool.chars().map(plain).take(64).collect();
        // No other answer has this name: the time makes it unique among servers and restarts.
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{FOLDER}/{tool}-{:x}-{count}.{ending}", self.parts.shared.sandboxes.clock.unix_ms());
        debug!(conversation = %program.conversation, bytes = bytes.len(), "keep an answer of a tool");
        let path = SafePath::from_text(&name)
            .map_err(|_| Failure::argument("tool", "its answer cannot be named".to_owned()))?;
        self.parts.shared.files.write(&program.conversation, &path, bytes).await?;
        Ok(format!("/data/{name}"))
    }
}

/// Whether a text fits into the answer. JSON writes a control character in six bytes, and an answer that is
/// longer than a message may be would end the program's connection.
fn is_short(text: &str) -> bool {
    text.len() <= INLINE_BYTES_MAX && json_bytes(text) <= 2 * INLINE_BYTES_MAX
}

/// The ending of a file's name, for the media types that models and people open.
fn ending(media_type: &str) -> &'static str {
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    match essence {
        "image/png" => "png",
        "image/jpeg" => "jpg",
        "image/gif" => "gif",
        "image/webp" => "webp",
        "image/svg+xml" => "svg",
        "application/pdf" => "pdf",
        "application/json" => "json",
        "text/plain" => "txt",
        "text/csv" => "csv",
        "text/html" => "html",
        "audio/mpeg" => "mp3",
        "audio/wav" => "wav",
        _ => "bin",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_short_as_json_too() {
        for short in [String::new(), "\n".repeat(INLINE_BYTES_MAX - 1), "\0".repeat(INLINE_BYTES_MAX / 3 - 1)] {
            assert!(is_short(&short), "{}", short.len());
        }
        for long in ["x".repeat(INLINE_BYTES_MAX + 1), "\u{1b}".repeat(INLINE_BYTES_MAX / 2)] {
            assert!(!is_short(&long), "{}", long.len());
        }
    }
}
