//! A file of a conversation, as services and observers see it.

use super::{media::media_type, path::SafePath, text::json_bytes, words::words};

words! {
    /// How a file changed since a mark in the file system's time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Change: word {
        Created = "created",
        /// Its bytes, its name or its mode changed.
        Changed = "changed",
        /// Also without a mark.
        Unchanged = "unchanged",
    }
}

/// A file with a link that downloads it without a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    pub path: SafePath,
    pub size: u64,
    /// [`Change::Unchanged`] in a plain listing.
    pub change: Change,
    pub modified_unix_s: i64,
    pub url: String,
    pub url_expires_unix_s: i64,
}

impl FileEntry {
    /// The percent-encoded path, when the displayed path does not lead back to the file.
    pub fn path_encoded(&self) -> Option<String> {
        self.path.needs_encoding().then(|| self.path.to_encoded())
    }

    pub fn media_type(&self) -> &'static str {
        media_type(self.path.name())
    }

    /// An upper bound of its length in an answer (JSON), and of the memory that it takes, in bytes.
    pub fn wire_bytes(&self) -> usize {
        /// The names of the members, two times and a number.
        const REST_BYTES: usize = 260;
        let encoded = self.path_encoded().map_or(0, |encoded| encoded.len());
        json_bytes(&self.path.display()) + encoded + self.media_type().len() + json_bytes(&self.url) + REST_BYTES
    }
}
