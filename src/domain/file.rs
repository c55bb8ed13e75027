//! A file of a conversation, as services and observers see it.

use super::{media::media_type, path::SafePath};

/// How a file changed since a mark in the file system's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    Created,
    /// Its bytes, its name or its mode changed.
    Changed,
    /// Also without a mark.
    Unchanged,
}

impl Change {
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Changed => "changed",
            Self::Unchanged => "unchanged",
        }
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
}
