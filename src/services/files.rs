//! What clients do with a conversation's files: list, read, write, delete, and download by link.
//!
//! Owns the ceilings on one answer and how long a link lives. Knows no HTTP and no settings. The store's work is
//! blocking, so it runs on blocking threads, a bounded number at a time; a caller that goes away leaves its step to end
//! by itself.

mod archive;
mod media;
mod signed;
#[cfg(test)]
mod tests;

use std::{os::unix::fs::FileExt as _, sync::Arc};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tracing::{debug, error};

pub use self::{
    archive::{ARCHIVE_ENTRIES_MAX, Archive, Imported},
    media::{OCTET_STREAM, media_type},
    signed::{Content, Download, SignedLink},
};
use super::{
    quota::{Quota, QuotaOptions},
    trash::Trash,
};
pub use crate::adapters::storage::Change;
use crate::{
    adapters::storage::{Conversation, Deleted, Entry, ListBounds, Mark, Store, StoreError, Usage},
    domain::{
        clock::Clock,
        error::{Code, Failure},
        owner::ConversationKey,
        path::SafePath,
    },
    services::links::{URL_TTL_S_MAX, UrlSigner},
};

/// Steps on disk at the same time: enough to keep a disk busy, few enough to leave threads and descriptors to others.
const STEPS_MAX: usize = 16;

/// What a new folder takes on most disks, in bytes.
const FOLDER_BYTES: u64 = 4096;

/// The ceilings of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesOptions {
    /// How long a link lives, in seconds; at most [`URL_TTL_S_MAX`].
    pub url_ttl_s: u64,
    /// Files in one listing.
    pub entries_max: usize,
    /// Levels of folders in one listing.
    pub depth_max: usize,
    /// Part of a file in one answer, in bytes.
    pub read_bytes_max: u64,
    /// Longest file that is written, in bytes.
    pub write_bytes_max: u64,
    /// What a conversation may take on disk.
    pub quota: QuotaOptions,
}

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            url_ttl_s: 24 * 60 * 60,
            entries_max: 200,
            depth_max: 16,
            read_bytes_max: 1 << 20,
            write_bytes_max: 8 << 20,
            quota: QuotaOptions::default(),
        }
    }
}

/// A file as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Where, below `/data`, for people: see [`SafePath::display`].
    pub path: String,
    /// Where, percent-encoded; only when `path` had to be escaped and so does not lead back to the file.
    pub path_encoded: Option<String>,
    /// How long, in bytes.
    pub size: u64,
    /// What its name claims it to be.
    pub media_type: String,
    /// What became of it in this run; [`Change::Unchanged`] in a plain listing.
    pub change: Change,
    /// When its bytes were last changed, in seconds since the Unix epoch, as the file itself says.
    pub modified_unix_s: i64,
    /// A link that downloads it without a token.
    pub url: String,
    /// Until when the link is good, in seconds since the Unix epoch.
    pub url_expires_unix_s: i64,
}

/// Something in a conversation's folder that is no plain file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Where, for people.
    pub path: String,
    /// One word: `link`, `pipe`, `socket`, `device`, `unreadable`, `too_deep`.
    pub kind: &'static str,
}

/// A conversation's files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileList {
    /// Created and changed files first, each group in the order of paths.
    pub files: Vec<FileEntry>,
    /// Created and changed files, those too that one answer does not hold.
    pub changed: u64,
    /// There are more than one answer holds.
    pub truncated: bool,
    /// What is there and is no plain file.
    pub skipped: Vec<Skipped>,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// Where, for people.
    pub path: String,
    /// How long the whole file is, in bytes.
    pub size: u64,
    /// What its name claims it to be.
    pub media_type: String,
    /// The bytes from the offset that was asked for.
    pub bytes: Bytes,
    /// The file goes on after these bytes.
    pub truncated: bool,
}

/// The files of all conversations, as clients may use them.
pub struct Files {
    store: Arc<Store>,
    signer: Arc<UrlSigner>,
    clock: Arc<dyn Clock>,
    options: FilesOptions,
    steps: Arc<Semaphore>,
    quota: Arc<Quota>,
    trash: Trash,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Files {
    /// The service over a store.
    pub fn new(store: Arc<Store>, signer: Arc<UrlSigner>, clock: Arc<dyn Clock>, options: FilesOptions) -> Self {
        let quota = Arc::new(Quota::new(Arc::clone(&store), options.quota));
        let trash = Trash::new(Arc::clone(&store));
        Self { store, signer, clock, options, steps: Arc::new(Semaphore::new(STEPS_MAX)), quota, trash }
    }

    /// What conversations may take on disk.
    pub(super) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Deletes what takes long.
    pub fn trash(&self) -> &Trash {
        &self.trash
    }

    /// Lists a conversation's files. One that has none has an empty list, whether it was ever used or not.
    ///
    /// # Errors
    /// [`Code::Internal`] when the disk fails.
    pub async fn list(&self, conversation: &ConversationKey) -> Result<FileList, Failure> {
        debug!(%conversation, "list files");
        self.listing(conversation, None).await
    }

    /// Lists a conversation's files, those created or changed since the mark first.
    ///
    /// # Errors
    /// [`Code::Internal`] when the disk fails.
    pub async fn changed_since(&self, conversation: &ConversationKey, mark: Mark) -> Result<FileList, Failure> {
        self.listing(conversation, Some(mark)).await
    }

    async fn listing(&self, conversation: &ConversationKey, since: Option<Mark>) -> Result<FileList, Failure> {
        let bounds = ListBounds { entries_max: self.options.entries_max, depth_max: self.options.depth_max };
        let id = conversation.clone();
        let listed = self.blocking(move |store| match store.open_conversation(&id)? {
            Some(there) => there.list(bounds, since).map(Some),
            None => Ok(None),
        });
        let Some(listing) = listed.await? else { return Ok(FileList::default()) };
        self.quota.measured(conversation, listing.usage);
        let expires = self.url_expires_unix_s();
        Ok(FileList {
            files: listing.entries.into_iter().map(|entry| self.entry(conversation, entry, expires)).collect(),
            changed: listing.changed,
            truncated: listing.truncated,
            skipped: listing.skipped.into_iter().map(|s| Skipped { path: s.path, kind: s.kind.as_str() }).collect(),
        })
    }

    /// Reads a part of a file: from `offset` (in bytes) as much as one answer holds. An offset at or behind the end gives
    /// no bytes.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::NotAFile`], [`Code::Forbidden`].
    pub async fn read(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        offset: u64,
    ) -> Result<FileContent, Failure> {
        debug!(%conversation, "read a file");
        let bytes_max = self.options.read_bytes_max;
        let (shown, media_type) = (path.display(), media_type(path.name()).to_owned());
        let path = path.clone();
        let read = self.existing(conversation, move |there| {
            let opened = there.read(&path)?;
            let wanted = opened.size.saturating_sub(offset).min(bytes_max);
            let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(0)];
            let mut filled = 0;
            while filled < bytes.len() {
                let at = offset.saturating_add(filled as u64);
                match opened.file.read_at(&mut bytes[filled..], at) {
                    // It became shorter: what is there is the answer.
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(StoreError::Io { act: "read", source }),
                }
            }
            bytes.truncate(filled);
            Ok((opened.size, Bytes::from(bytes)))
        });
        let (size, bytes) = read.await?;
        let truncated = offset.saturating_add(bytes.len() as u64) < size;
        Ok(FileContent { path: shown, size, media_type, bytes, truncated })
    }

    /// Writes a whole file, in one step for whoever reads it. The conversation and folders on the way are made.
    ///
    /// # Errors
    /// [`Code::TooLarge`] before the disk is touched, [`Code::NotAFile`] when a folder or file is in the way,
    /// [`Code::QuotaExceeded`] and [`Code::NoSpace`] with what was there left as it was, [`Code::Forbidden`].
    pub async fn write(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        bytes: Bytes,
    ) -> Result<FileEntry, Failure> {
        debug!(%conversation, bytes = bytes.len(), "write a file");
        let bytes_max = self.options.write_bytes_max;
        if bytes.len() as u64 > bytes_max {
            let sentence =
                format!("The file is longer than {bytes_max} bytes: write a shorter one, or let a program make it.");
            return Err(Failure::new(Code::TooLarge, sentence));
        }
        self.check_capacity(conversation, space(path, Some(bytes.len()))).await?;
        let (id, path) = (conversation.clone(), path.clone());
        let entry = self.blocking(move |store| written(store, &id, |there| there.write(&path, &bytes))).await?;
        Ok(self.entry(conversation, entry, self.url_expires_unix_s()))
    }

    /// Makes sure that so much more may be written to a conversation.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::NoSpace`]; nothing was touched.
    pub(super) async fn check_capacity(&self, conversation: &ConversationKey, more: Usage) -> Result<(), Failure> {
        let (id, quota) = (conversation.clone(), Arc::clone(&self.quota));
        self.blocking(move |_| Ok(quota.reserve(&id, &more))).await?
    }

    /// Deletes a conversation with all its files. `false` when there was none. Whoever calls holds its turn.
    pub(super) async fn remove(&self, conversation: &ConversationKey) -> Result<bool, Failure> {
        let id = conversation.clone();
        let removed = self.blocking(move |store| store.remove_conversation(&id)).await?;
        self.quota.measured(conversation, None);
        if removed == Some(Deleted::Begun) {
            self.trash.empty();
        }
        Ok(removed.is_some())
    }

    /// Deletes a file, a link (not what it points to) or a folder with all it holds.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::Forbidden`].
    pub async fn delete(&self, conversation: &ConversationKey, path: &SafePath) -> Result<(), Failure> {
        debug!(%conversation, "delete a file");
        let path = path.clone();
        if self.existing(conversation, move |there| there.delete(&path)).await? == Deleted::Begun {
            self.trash.empty();
        }
        Ok(())
    }

    /// A step on a conversation that must be there.
    async fn existing<T: Send + 'static>(
        &self,
        conversation: &ConversationKey,
        step: impl FnOnce(Conversation) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Failure> {
        let id = conversation.clone();
        let done = self.blocking(move |store| store.open_conversation(&id)?.map(step).transpose());
        done.await?.ok_or_else(|| {
            let sentence = "This conversation has no files yet: run a program or write a file in it first.";
            Failure::new(Code::ConversationNotFound, sentence)
        })
    }

    /// A step on the store, off the async threads. Its turn is held until it has ended, also when nobody waits for it.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, Failure> {
        let internal = || Failure::new(Code::Internal, "The server could not use its files: its log says why.");
        let turn = Arc::clone(&self.steps).acquire_owned().await.map_err(|_| internal())?;
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            step(&store)
        });
        match done.await {
            Ok(result) => result.map_err(|error| {
                let failure = error.failure();
                if failure.code == Code::Internal {
                    error!(error = super::janitor::chain(&error), "a step on the files failed");
                }
                failure
            }),
            Err(_) => Err(internal()),
        }
    }

    fn url_expires_unix_s(&self) -> i64 {
        let ttl_s = i64::try_from(self.options.url_ttl_s).map_or(URL_TTL_S_MAX, |ttl_s| ttl_s.min(URL_TTL_S_MAX));
        self.clock.unix_s().saturating_add(ttl_s)
    }

    fn entry(&self, conversation: &ConversationKey, entry: Entry, url_expires_unix_s: i64) -> FileEntry {
        let Entry { path, size, modified_unix_s, change } = entry;
        FileEntry {
            url: self.signer.mint(conversation, &path, url_expires_unix_s),
            path_encoded: path.needs_encoding().then(|| path.to_encoded()),
            media_type: media_type(path.name()).to_owned(),
            path: path.display(),
            size,
            change,
            modified_unix_s,
            url_expires_unix_s,
        }
    }
}

/// Writes to a conversation, made where there is none, and counts as a use of it. One that is deleted meanwhile is made
/// again: what was told to be written is there.
fn written<T>(
    store: &Store,
    id: &ConversationKey,
    write: impl Fn(&Conversation) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    /// Somebody who keeps deleting it wins after this many.
    const TRIES: usize = 4;

    let mut tries = TRIES;
    loop {
        let there = store.create_conversation(id)?;
        there.mark()?;
        let done = write(&there)?;
        tries -= 1;
        let still = store.open_conversation(id)?.map(|now| now.identity()).transpose()?;
        if tries == 0 || still == Some(there.identity()?) {
            return Ok(done);
        }
    }
}

/// What a file of this length, or a folder, takes at most, with the folders on the way to it.
fn space(path: &SafePath, file_bytes: Option<usize>) -> Usage {
    let names = path.components().count().saturating_sub(1) as u64;
    let folders = Usage { bytes: names * FOLDER_BYTES, entries: names };
    folders.plus(&file_bytes.map_or(Usage { bytes: FOLDER_BYTES, entries: 1 }, |bytes| Usage::of_file(bytes as u64)))
}
