//! The shapes that clients see, the same in MCP and in plain HTTP: results here, arguments in [`arguments`], JSON Schemas
//! of both in [`schema`]; runs on their way in [`run`]. Names are camel case and a change of one is a change of the public contract.
//!
//! Knows no protocol: neither JSON-RPC nor HTTP nor content blocks.

pub mod arguments;
pub mod run;
pub mod schema;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use utoipa::ToSchema;

use crate::{
    nouns::{
        error::Failure,
        id::RequestId,
        outcome::{Ended, Figures, Outcome, signal_name},
    },
    ports::runner::Runner,
    services::{
        conversations::{ConversationPage, KnownConversation},
        execution::Report,
        files::{FileContent, FileEntry, FileList, Imported},
    },
};

/// What came of a run.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Identifies this run in logs.
    pub run_id: String,
    /// The conversation whose files were /data.
    pub conversation_id: String,
    /// The language's own name, also when an alias was asked for.
    pub language: String,
    /// How the program ended.
    pub outcome: OutcomeResult,
    /// What the program printed to standard output. Bytes that are not UTF-8 are replaced by U+FFFD.
    pub stdout: String,
    /// What the program printed to standard error.
    pub stderr: String,
    /// Some of standard output was not kept; a mark in the text says where and how much.
    pub stdout_truncated: bool,
    /// Some of standard error was not kept; a mark in the text says where and how much.
    pub stderr_truncated: bool,
    /// What the run used.
    pub figures: FiguresResult,
    /// The files in /data: those this run created or changed first, then the rest.
    pub files: Vec<File>,
    /// There are more files than are listed.
    pub files_truncated: bool,
}

/// One word for how a program ended.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for the words in the API's description")]
enum Ending {
    Exited,
    Signaled,
    TimedOut,
    OutOfMemory,
    OutputLimit,
    DiskLimit,
    ProcessLimit,
    Cancelled,
}

/// What a run did to a file.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for the words in the API's description")]
enum ChangeWord {
    Created,
    Changed,
    Unchanged,
}

/// How a program ended.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct OutcomeResult {
    /// One word for how it ended.
    #[schemars(extend("enum" = Ended::WORDS))]
    #[schema(value_type = Ending)]
    pub ended: &'static str,
    /// The exit status, when the program ended by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "i32")]
    #[schema(nullable = false)]
    pub exit_code: Option<i32>,
    /// The name of the signal that ended the program, when one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[schema(nullable = false)]
    pub signal: Option<String>,
    /// What happened and what to do about it, in one sentence.
    pub sentence: String,
}

/// What a run used.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FiguresResult {
    /// Time the program took, in milliseconds.
    pub wall_ms: u64,
    /// CPU time, in milliseconds, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    #[schema(nullable = false)]
    pub cpu_ms: Option<u64>,
    /// Highest memory use in bytes, where it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    #[schema(nullable = false)]
    pub memory_peak_bytes: Option<u64>,
    /// Bytes printed to standard output, kept or not.
    pub stdout_bytes: u64,
    /// Bytes printed to standard error, kept or not.
    pub stderr_bytes: u64,
}

/// A file of a conversation.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Its path below /data. Characters that mislead and bytes that are not UTF-8 are escaped; then pathEncoded is there.
    pub path: String,
    /// The exact path, percent-encoded, when `path` had to escape something: use it to read or delete the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[schema(nullable = false)]
    pub path_encoded: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Its media type, from its name.
    pub media_type: String,
    /// What the run did to it; `unchanged` when no run is spoken of.
    #[schemars(extend("enum" = ["created", "changed", "unchanged"]))]
    #[schema(value_type = ChangeWord)]
    pub change: &'static str,
    /// When it was last modified (RFC 3339).
    pub modified_at: String,
    /// A signed link that downloads it without a token.
    pub url: String,
    /// When the link stops working (RFC 3339).
    pub url_expires_at: String,
}

/// The languages that can be run now.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct RunnerList {
    /// Ordered by language.
    pub runners: Vec<RunnerResult>,
}

/// One language.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct RunnerResult {
    /// What to give as `language`.
    pub language: String,
    /// Other names that are accepted.
    pub aliases: Vec<String>,
    /// The language's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[schema(nullable = false)]
    pub version: Option<String>,
    /// What is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String")]
    #[schema(nullable = false)]
    pub description: Option<String>,
    /// The container image.
    pub image: String,
}

/// A conversation's files.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct FileListing {
    /// Ordered by path.
    pub files: Vec<File>,
    /// There are more than are listed.
    pub truncated: bool,
    /// What is there and is not a plain file: links, pipes, sockets, devices. These cannot be read.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<SkippedResult>,
}

/// Something that is not a plain file.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct SkippedResult {
    /// Where it is.
    pub path: String,
    /// What it is: link, pipe, socket, device, unreadable or `too_deep`.
    pub kind: String,
}

/// A file's content, or a piece of it.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileResult {
    /// Its path below /data.
    pub path: String,
    /// Bytes of the whole file.
    pub size: u64,
    /// Its media type, from its name.
    pub media_type: String,
    /// How `content` is written: text as it is, or bytes in base64.
    #[schemars(extend("enum" = ["utf-8", "base64"]))]
    pub encoding: &'static str,
    /// The content from the asked offset on.
    pub content: String,
    /// There is more after this piece.
    pub truncated: bool,
    /// The offset of what follows, when there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    #[schema(nullable = false)]
    pub next_offset: Option<u64>,
}

/// A file is gone.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct Deleted {
    /// Always true.
    pub deleted: bool,
}

/// A page of conversations.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ConversationList {
    /// In the order of their names.
    pub conversations: Vec<ConversationResult>,
    /// Give it as `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub after: Option<String>,
}

/// A conversation.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConversationResult {
    /// Its name.
    pub conversation_id: String,
    /// When a run last began in it, or something came or went at the top of its folder (RFC 3339).
    pub used_at: String,
}

/// What was written from an archive.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ImportResult {
    /// How many files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// An error of ours; a program that fails is a result.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct ErrorResult {
    /// What went wrong.
    pub error: ErrorBody,
}

/// What went wrong.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ErrorBody {
    /// A stable word for programs.
    pub code: &'static str,
    /// One sentence that says what to do.
    pub message: String,
    /// Names the request in the server's log.
    pub request_id: String,
}

impl From<&Report> for RunResult {
    fn from(report: &Report) -> Self {
        Self {
            run_id: report.run.to_string(),
            conversation_id: report.conversation.to_string(),
            language: report.language.to_string(),
            outcome: (&report.outcome).into(),
            stdout: report.stdout.text.clone(),
            stderr: report.stderr.text.clone(),
            stdout_truncated: report.stdout.truncated,
            stderr_truncated: report.stderr.truncated,
            figures: (&report.outcome.figures).into(),
            files: report.files.files.iter().map(File::from).collect(),
            files_truncated: report.files.truncated,
        }
    }
}

impl From<&Outcome> for OutcomeResult {
    fn from(outcome: &Outcome) -> Self {
        let (exit_code, signal) = match outcome.ended {
            Ended::Exited { code } => (Some(code), None),
            Ended::Signaled { signal } => {
                (None, Some(signal_name(signal).map_or_else(|| signal.to_string(), str::to_owned)))
            }
            _ => (None, None),
        };
        Self { ended: outcome.ended.word(), exit_code, signal, sentence: outcome.sentence() }
    }
}

impl From<&Figures> for FiguresResult {
    fn from(figures: &Figures) -> Self {
        let ms = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            wall_ms: ms(figures.wall),
            cpu_ms: figures.cpu.map(ms),
            memory_peak_bytes: figures.memory_peak_bytes,
            stdout_bytes: figures.stdout_bytes,
            stderr_bytes: figures.stderr_bytes,
        }
    }
}

impl From<&FileEntry> for File {
    fn from(entry: &FileEntry) -> Self {
        Self {
            path: entry.path.clone(),
            path_encoded: entry.path_encoded.clone(),
            size: entry.size,
            media_type: entry.media_type.clone(),
            change: entry.change.word(),
            modified_at: rfc3339(entry.modified_unix_s),
            url: entry.url.clone(),
            url_expires_at: rfc3339(entry.url_expires_unix_s),
        }
    }
}

impl From<&Runner> for RunnerResult {
    fn from(runner: &Runner) -> Self {
        Self {
            language: runner.language.to_string(),
            aliases: runner.aliases.iter().map(ToString::to_string).collect(),
            version: runner.version.clone(),
            description: runner.description.clone(),
            image: runner.reference.clone().unwrap_or_else(|| runner.image.0.clone()),
        }
    }
}

impl From<&[Runner]> for RunnerList {
    fn from(runners: &[Runner]) -> Self {
        Self { runners: runners.iter().map(RunnerResult::from).collect() }
    }
}

impl From<&ConversationPage> for ConversationList {
    fn from(page: &ConversationPage) -> Self {
        let one = |known: &KnownConversation| ConversationResult {
            conversation_id: known.id.to_string(),
            used_at: rfc3339(known.used_unix_s),
        };
        Self {
            conversations: page.conversations.iter().map(one).collect(),
            after: page.after.as_ref().map(ToString::to_string),
        }
    }
}

impl From<Imported> for ImportResult {
    fn from(Imported { files, bytes }: Imported) -> Self {
        Self { files, bytes }
    }
}

impl From<&FileList> for FileListing {
    fn from(list: &FileList) -> Self {
        let skipped = list
            .skipped
            .iter()
            .map(|skipped| SkippedResult { path: skipped.path.clone(), kind: skipped.kind.to_owned() });
        Self {
            files: list.files.iter().map(File::from).collect(),
            truncated: list.truncated,
            skipped: skipped.collect(),
        }
    }
}

impl FileResult {
    /// A piece that starts at `offset`. Text stays text: a character that the end of the piece cuts is left for the next.
    pub fn new(content: &FileContent, offset: u64) -> Self {
        let mut bytes = &content.bytes[..];
        if content.truncated {
            bytes = whole_characters(bytes);
        }
        let (encoding, text) = if let Ok(text) = std::str::from_utf8(bytes) {
            ("utf-8", text.to_owned())
        } else {
            bytes = &content.bytes;
            ("base64", BASE64_STANDARD.encode(bytes))
        };
        Self {
            path: content.path.clone(),
            size: content.size,
            media_type: content.media_type.clone(),
            encoding,
            content: text,
            truncated: content.truncated,
            next_offset: content.truncated.then(|| offset.saturating_add(bytes.len() as u64)),
        }
    }
}

impl ErrorResult {
    /// The failure of a request.
    pub fn new(failure: &Failure, request: RequestId) -> Self {
        let Failure { code, message, .. } = failure;
        Self { error: ErrorBody { code: code.as_str(), message: message.clone(), request_id: request.to_string() } }
    }
}

/// Without the beginning of a character at the end, if there is one.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

fn rfc3339(unix_s: i64) -> String {
    let moment = OffsetDateTime::from_unix_timestamp(unix_s).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    moment.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_rfc_3339() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(1_795_253_483), "2026-11-21T09:31:23Z");
        assert_eq!(rfc3339(-1), "1969-12-31T23:59:59Z");
        for extreme in [i64::MAX, i64::MIN, 253_402_300_800] {
            assert!(!rfc3339(extreme).is_empty());
        }
    }

    #[test]
    fn a_cut_character_is_left_for_the_next_piece() {
        let euro = "aé€".as_bytes();
        assert_eq!(whole_characters(&euro[..5]), "aé".as_bytes());
        assert_eq!(whole_characters(euro), euro);
        assert_eq!(whole_characters(b"\xff\xfe"), b"\xff\xfe");
        assert_eq!(whole_characters(b"\xe2\x82"), b"\xe2\x82", "nothing would be left: it goes as bytes");
    }
}
