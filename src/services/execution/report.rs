//! What came of a run.

use super::collect::Captured;
use crate::{
    domain::{
        event::FileNote,
        id::{Language, RunId},
        outcome::Outcome,
        owner::ConversationKey,
    },
    services::files::{FileEntry, FileList},
};

/// What came of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// Which run.
    pub run: RunId,
    /// Whose files.
    pub conversation: ConversationKey,
    /// The language's own name.
    pub language: Language,
    /// How it ended.
    pub outcome: Outcome,
    /// What it printed to standard output.
    pub stdout: Captured,
    /// What it printed to standard error.
    pub stderr: Captured,
    /// The conversation's files, those of this run first.
    pub files: FileList,
}

/// A file that the run made or changed, as its event tells of it.
pub(super) fn note(file: &FileEntry) -> FileNote {
    FileNote {
        path: file.path.display(),
        path_encoded: file.path_encoded(),
        size: file.size,
        media_type: file.media_type().to_owned(),
        change: file.change.word(),
        modified_unix_s: file.modified_unix_s,
        url: file.url.clone(),
        url_expires_unix_s: file.url_expires_unix_s,
    }
}
