//! A conversation's files, as clients see them.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{ChangeWord, answers, rfc3339};
use crate::{
    domain::{Failure, SafePath},
    ports::storage::{FileFilter, Skipped},
    services::files::{FileContent, FileEntry, FileList, media_type},
};

/// The longest character in UTF-8, in bytes: what [`FileResult::new`] needs at least of a file that goes on.
pub const CHARACTER_BYTES_MAX: usize = 4;

/// Which files of a conversation are asked for. Each argument has its name on the surface and its value.
///
/// # Errors
/// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
pub fn file_filter(
    (argument, folder): (&str, Option<&str>),
    (cursor, after): (&str, Option<&str>),
) -> Result<FileFilter, Failure> {
    let folder = folder.map(|folder| SafePath::from_text(folder.strip_suffix('/').unwrap_or(folder)));
    Ok(FileFilter {
        folder: folder.transpose().map_err(|why| Failure::argument(argument, why))?,
        after: after.map(SafePath::from_encoded).transpose().map_err(|why| Failure::argument(cursor, why))?,
        prefix: Vec::new(),
    })
}

answers! {
    /// A file of a conversation.
    #[derive(JsonSchema)]
    // Generated clients have a `File` of their own, for bytes.
    #[schema(as = StoredFile)]
    pub struct File(entry: &FileEntry) {
        /// Its path below /data. Characters that mislead and bytes that are not UTF-8 are escaped, and the middle of a
        /// long path is left out; then pathEncoded is there.
        path: String = entry.path.display(),
        /// The exact path, percent-encoded, when `path` had to escape something: use it to read or delete the file.
        path_encoded: Option<String> = entry.path_encoded(),
        /// Size in bytes.
        size: u64 = entry.size,
        /// Its media type, from its name.
        media_type: String = entry.media_type().to_owned(),
        /// What the run did to it; `unchanged` outside the result of a run.
        #[schemars(extend("enum" = ["created", "changed", "unchanged"]))]
        #[schema(value_type = ChangeWord)]
        change: &'static str = entry.change.word(),
        /// When it was last modified (RFC 3339).
        modified_at: String = rfc3339(entry.modified_unix_s),
        /// A signed link that downloads it without a token.
        url: String = entry.url.clone(),
        /// When the link stops working (RFC 3339).
        url_expires_at: String = rfc3339(entry.url_expires_unix_s),
    }

    /// A conversation's files.
    #[derive(JsonSchema)]
    pub struct FileListing(list: &FileList) {
        /// Ordered by path.
        files: Vec<File> = list.files.iter().map(File::from).collect(),
        /// Whether there are more files than are listed.
        truncated: bool = list.truncated,
        /// Give it as `after`, over MCP as `cursor`, for the next page; absent on the last.
        after: Option<String> = list.after.as_ref().map(SafePath::to_encoded),
        /// Entries that are not plain files: links, pipes, sockets, devices. They cannot be read.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        skipped: Vec<SkippedResult> = list.skipped.iter().map(Into::into).collect(),
    }

    /// Something that is not a plain file.
    #[derive(JsonSchema)]
    pub struct SkippedResult(skipped: &Skipped) {
        /// Its path below /data.
        path: String = skipped.path.clone(),
        /// Its kind: link, pipe, socket, device, unreadable or `too_deep`.
        kind: String = skipped.kind.as_str().to_owned(),
    }

    /// What was moved.
    pub struct Moved((to, entry): (&SafePath, Option<&FileEntry>)) {
        /// The new path, as in a listing.
        path: String = to.display(),
        /// The exact path, percent-encoded, when `path` had to escape something.
        path_encoded: Option<String> = to.needs_encoding().then(|| to.to_encoded()),
        /// The file; absent for a folder, a link, or another entry that is not a plain file.
        file: Option<File> = entry.map(File::from),
    }

    /// A link to an archive.
    pub struct ArchiveLink((link, expires_unix_s): (String, i64)) {
        /// A signed link that downloads it without a token.
        url: String = link,
        /// When the link stops working (RFC 3339); a download that has begun continues.
        url_expires_at: String = rfc3339(expires_unix_s),
    }
}

/// A file's content, or a piece of it.
#[derive(Debug, Clone, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileResult {
    /// The content from the requested offset.
    pub content: String,
    /// The encoding of `content`: plain text, or bytes in base64.
    #[schemars(extend("enum" = ["utf-8", "base64"]))]
    pub encoding: &'static str,
    /// The offset of the next piece; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    /// Its path below /data.
    pub path: String,
    /// Size of the whole file, in bytes.
    pub size: u64,
    /// Its media type, from its name.
    pub media_type: String,
}

/// A file or folder and its new path.
#[derive(Debug, Deserialize, JsonSchema, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveFile {
    /// The file or folder, relative to /data.
    #[schema(min_length = 1, example = "hello.txt")]
    pub from: String,
    /// Its new path, relative to /data.
    #[schema(min_length = 1, example = "greetings/hello.txt")]
    pub to: String,
    /// Whether both paths are percent-encoded, as the `pathEncoded` of a listed file is.
    #[serde(default)]
    pub encoded: bool,
    /// Whether a file that has the new path already is replaced; a folder never is.
    #[serde(default)]
    pub replace: bool,
}

impl MoveFile {
    /// The path and the new path.
    ///
    /// # Errors
    /// [`crate::domain::error::Code::InvalidArgument`], naming the argument.
    pub fn paths(&self) -> Result<(SafePath, SafePath), Failure> {
        let parse = if self.encoded { SafePath::from_encoded } else { SafePath::from_text };
        let path = |name: &str, text: &str| parse(text).map_err(|why| Failure::argument(name, why));
        Ok((path("from", &self.from)?, path("to", &self.to)?))
    }
}

impl FileResult {
    /// A piece that starts at `offset`, of at most so many bytes, but never less than a character, so that the next
    /// piece begins later. Text stays text: a character that the end of the piece cuts is left for the next. `fitting`
    /// is how many bytes of a text fit into the answer.
    pub fn new(content: &FileContent, offset: u64, bytes_max: usize, fitting: impl FnOnce(&str) -> usize) -> Self {
        let first = first_character(&content.bytes);
        let mut bytes = &content.bytes[..content.bytes.len().min(bytes_max.max(first))];
        let cut = content.truncated || bytes.len() < content.bytes.len();
        let (encoding, text) = match std::str::from_utf8(if cut { whole_characters(bytes) } else { bytes }) {
            Ok(text) => {
                bytes = &bytes[..fitting(text).max(first)];
                ("utf-8", String::from_utf8_lossy(bytes).into_owned())
            }
            Err(_) => ("base64", BASE64_STANDARD.encode(bytes)),
        };
        let next = offset.saturating_add(bytes.len() as u64);
        Self {
            content: text,
            encoding,
            next_offset: (next < content.size && !bytes.is_empty()).then_some(next),
            path: content.path.display(),
            size: content.size,
            media_type: media_type(content.path.name()).to_owned(),
        }
    }

    /// Of a file that is shown whole in another way.
    #[must_use]
    pub fn without_content(self) -> Self {
        Self { content: String::new(), next_offset: None, ..self }
    }
}

/// How many bytes the first character has; one where there is no UTF-8.
fn first_character(bytes: &[u8]) -> usize {
    let chunk = bytes[..bytes.len().min(CHARACTER_BYTES_MAX)].utf8_chunks().next();
    let first = chunk.and_then(|chunk| chunk.valid().chars().next());
    first.map_or(bytes.len().min(1), char::len_utf8)
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
    use proptest::prelude::*;

    use super::*;
    use crate::{
        domain::path::{COMPONENTS_MAX, SHOWN_BYTES_MAX},
        services::{files::Change, links::UrlSigner},
    };

    proptest! {
        /// A listing is bounded by these lengths, so none may be too small for a name, and none far too large.
        #[test]
        fn a_file_counts_its_length_in_json_whatever_its_name_is(
            names in proptest::collection::vec(
                prop_oneof![
                    "[a-z./\u{1b}\u{202e}\"\\\\é日\u{e0041}]{1,60}".prop_map(String::into_bytes),
                    proptest::collection::vec(1_u8.., 1..255),
                    Just(vec![0x1b; 250]),
                ],
                1..COMPONENTS_MAX,
            ),
            size: u64,
            modified_unix_s: i64,
        ) {
            let Ok(path) = SafePath::from_components(names) else { return Ok(()) };
            let key = "c".parse().expect("an id");
            let url = UrlSigner::new(&[], "https://sandbox.example.org").mint(&key, &path, 2_000_000_000);
            let entry =
                FileEntry { path, size, change: Change::Unchanged, modified_unix_s, url, url_expires_unix_s: i64::MAX };
            let file = File::from(&entry);
            prop_assert!(file.path.len() <= SHOWN_BYTES_MAX);
            let (counted, real) = (entry.wire_bytes(), serde_json::to_string(&file).expect("JSON").len());
            prop_assert!(real <= counted && counted <= real + 160, "{real} {counted}");
        }
    }

    #[test]
    fn text_cut_inside_a_character_leaves_it_for_the_next_piece() {
        let euro = "aé€".as_bytes();
        assert_eq!(whole_characters(&euro[..5]), "aé".as_bytes());
        assert_eq!(whole_characters(euro), euro);
        assert_eq!(whole_characters(b"\xff\xfe"), b"\xff\xfe");
        assert_eq!(whole_characters(b"\xe2\x82"), b"\xe2\x82", "nothing would be left: it goes as bytes");
    }
}
