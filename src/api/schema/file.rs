//! A conversation's files, as clients see them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::Serialize;
use utoipa::ToSchema;

use super::rfc3339;
use crate::services::files::{FileContent, FileEntry, FileList, Imported, media_type};

/// What a run did to a file.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "stands for the words in the API's description")]
enum ChangeWord {
    Created,
    Changed,
    Unchanged,
}

/// A file of a conversation.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct File {
    /// Its path below /data. Characters that mislead and bytes that are not UTF-8 are escaped; then pathEncoded is
    /// there.
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
    /// What the run did to it; `unchanged` outside the answer of a run.
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

/// A conversation's files.
#[derive(Debug, Clone, Serialize, JsonSchema, ToSchema)]
pub struct FileListing {
    /// Ordered by path.
    pub files: Vec<File>,
    /// There are more than are listed.
    pub truncated: bool,
    /// What is not a plain file: links, pipes, sockets, devices. These cannot be read.
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
    /// The content from the requested offset.
    pub content: String,
    /// There is more after this piece.
    pub truncated: bool,
    /// The offset of what follows, when there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64")]
    #[schema(nullable = false)]
    pub next_offset: Option<u64>,
}

/// What was written from an archive.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ImportResult {
    /// How many files.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl From<&FileEntry> for File {
    fn from(entry: &FileEntry) -> Self {
        Self {
            path: entry.path.display(),
            path_encoded: entry.path_encoded(),
            size: entry.size,
            media_type: entry.media_type().to_owned(),
            change: entry.change.word(),
            modified_at: rfc3339(entry.modified_unix_s),
            url: entry.url.clone(),
            url_expires_at: rfc3339(entry.url_expires_unix_s),
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
            .map(|skipped| SkippedResult { path: skipped.path.clone(), kind: skipped.kind.as_str().to_owned() });
        Self {
            files: list.files.iter().map(File::from).collect(),
            truncated: list.truncated,
            skipped: skipped.collect(),
        }
    }
}

impl FileResult {
    /// A piece that starts at `offset`. Text stays text: a character that the end of the piece cuts is left for the
    /// next.
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
            path: content.path.display(),
            size: content.size,
            media_type: media_type(content.path.name()).to_owned(),
            encoding,
            content: text,
            truncated: content.truncated,
            next_offset: content.truncated.then(|| offset.saturating_add(bytes.len() as u64)),
        }
    }
}

/// Without the beginning of a character at the end, if there is one.
fn whole_characters(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cut_inside_a_character_leaves_it_for_the_next_piece() {
        let euro = "aé€".as_bytes();
        assert_eq!(whole_characters(&euro[..5]), "aé".as_bytes());
        assert_eq!(whole_characters(euro), euro);
        assert_eq!(whole_characters(b"\xff\xfe"), b"\xff\xfe");
        assert_eq!(whole_characters(b"\xe2\x82"), b"\xe2\x82", "nothing would be left: it goes as bytes");
    }
}
