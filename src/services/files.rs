//! What clients do with a conversation's files: list, read, write, delete, and download by link.
//!
//! Owns the limits of one answer and the lifetime of a link. Knows no HTTP and no settings. Storage blocks, so its
//! steps run on blocking threads, a bounded number at a time; the step of a caller that went away still ends.

mod archive;
mod signed;
#[cfg(test)]
mod tests;

use std::{os::unix::fs::FileExt as _, sync::Arc};

use bytes::Bytes;
use tokio::sync::Semaphore;
use tracing::{debug, error};

pub use self::{
    archive::{ARCHIVE_ENTRIES_MAX, Archive, Imported},
    signed::{Content, Download},
};
use super::{
    links::{URL_TTL_S_MAX, UrlSigner},
    quota::{Quota, QuotaOptions},
};
pub use crate::domain::{
    file::{Change, FileEntry},
    media::{OCTET_STREAM, media_type},
};
use crate::{
    domain::{
        clock::Clock,
        error::{Code, Failure},
        owner::ConversationKey,
        path::SafePath,
    },
    ports::storage::{ConversationFolder, Entry, ListBounds, Listing, Mark, Skipped, Storage, StorageError, Usage},
};

/// Concurrent steps on disk: enough to keep a disk busy, few enough to leave threads and descriptors to others.
const STEPS_MAX: usize = 16;

/// The usage of a new folder on most disks.
const FOLDER_BYTES: u64 = 4096;

/// The limits of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesOptions {
    /// The lifetime of a link, in seconds; at most [`URL_TTL_S_MAX`].
    pub url_ttl_s: u64,
    /// The maximum number of files in one listing.
    pub entries_max: usize,
    /// The maximum depth of folders in one listing.
    pub depth_max: usize,
    /// Part of a file in one answer, in bytes.
    pub read_bytes_max: u64,
    /// Longest file that is written, in bytes.
    pub write_bytes_max: u64,
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

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileList {
    /// Created and changed files first, each group in the order of paths.
    pub files: Vec<FileEntry>,
    /// The number of created and changed files, including those beyond the limits of one answer.
    pub changed: u64,
    /// There are more files than in `files`.
    pub truncated: bool,
    pub skipped: Vec<Skipped>,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    pub path: SafePath,
    /// The size of the whole file.
    pub size: u64,
    /// The bytes from the requested offset on.
    pub bytes: Bytes,
    /// The file goes on after these bytes.
    pub truncated: bool,
}

pub struct Files {
    store: Arc<dyn Storage>,
    signer: Arc<UrlSigner>,
    clock: Arc<dyn Clock>,
    options: FilesOptions,
    steps: Arc<Semaphore>,
    quota: Arc<Quota>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Files {
    pub fn new(store: Arc<dyn Storage>, signer: Arc<UrlSigner>, clock: Arc<dyn Clock>, options: FilesOptions) -> Self {
        let quota = Arc::new(Quota::new(Arc::clone(&store), options.quota));
        Self { store, signer, clock, options, steps: Arc::new(Semaphore::new(STEPS_MAX)), quota }
    }

    pub(super) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Ends the background work of the storage; the next start continues it.
    pub async fn close(&self) {
        let closed = self.blocking(|store| {
            store.close();
            Ok(())
        });
        drop(closed.await);
    }

    /// Lists a conversation's files; an unknown conversation has an empty list.
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
        let listed =
            self.blocking(move |store| Ok(store.open(&id)?.map(|there| there.list(bounds, since)).transpose()?));
        let Some(listing) = listed.await? else { return Ok(FileList::default()) };
        let Listing { entries, changed, truncated, skipped, usage } = listing;
        self.quota.measured(conversation, usage);
        let expires = self.url_expires_unix_s();
        let files = entries.into_iter().map(|entry| self.entry(conversation, entry, expires)).collect();
        Ok(FileList { files, changed, truncated, skipped })
    }

    /// Reads a part of a file: from `offset` (in bytes) up to the limit of one answer. An offset at or behind the end
    /// returns no bytes.
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
        let wanted_path = path.clone();
        let read = self.existing(conversation, move |there| {
            let opened = there.read(&wanted_path)?;
            let wanted = opened.size.saturating_sub(offset).min(bytes_max);
            let mut bytes = vec![0; usize::try_from(wanted).unwrap_or(0)];
            let mut filled = 0;
            while filled < bytes.len() {
                let at = offset.saturating_add(filled as u64);
                match opened.file.read_at(&mut bytes[filled..], at) {
                    // The file became shorter: the answer is what is left.
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(StorageError::Io { act: "read", source }),
                }
            }
            bytes.truncate(filled);
            Ok((opened.size, Bytes::from(bytes)))
        });
        let (size, bytes) = read.await?;
        let truncated = offset.saturating_add(bytes.len() as u64) < size;
        Ok(FileContent { path: path.clone(), size, bytes, truncated })
    }

    /// Writes a whole file atomically. A missing conversation and missing folders are created.
    ///
    /// # Errors
    /// [`Code::TooLarge`] before the disk is touched, [`Code::NotAFile`] when a folder or file is in the way,
    /// [`Code::QuotaExceeded`] and [`Code::NoSpace`] with the old file unchanged, [`Code::Forbidden`].
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
                format!("The file is longer than {bytes_max} bytes: write a shorter one, or let a program create it.");
            return Err(Failure::new(Code::TooLarge, sentence));
        }
        let more = space(path, Some(bytes.len()));
        let path = path.clone();
        let entry = self.writing(conversation, more, move |there| there.write(&path, &bytes)).await?;
        Ok(self.entry(conversation, entry, self.url_expires_unix_s()))
    }

    /// Checks that `more` may be written to a conversation.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::NoSpace`]; nothing was touched.
    pub(super) async fn check_capacity(&self, conversation: &ConversationKey, more: Usage) -> Result<(), Failure> {
        let writer = self.quota.writer(conversation).await;
        self.blocking(move |_| writer.reserve(&more)).await
    }

    /// Writes to a conversation that has room for `more`. Other writes to the conversation wait until it is done, so
    /// that none is measured while another is in progress.
    async fn writing<T: Send + 'static>(
        &self,
        conversation: &ConversationKey,
        more: Usage,
        write: impl Fn(&dyn ConversationFolder) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, Failure> {
        let id = conversation.clone();
        let writer = self.quota.writer(conversation).await;
        let step = move |store: &dyn Storage| {
            writer.reserve(&more)?;
            Ok(written(store, &id, write)?)
        };
        self.blocking(step).await
    }

    /// Deletes a conversation with all its files. `false` when there was none. The caller holds its lock.
    pub(super) async fn remove(&self, conversation: &ConversationKey) -> Result<bool, Failure> {
        let id = conversation.clone();
        let removed = self.blocking(move |store| Ok(store.remove(&id)?)).await?;
        self.quota.measured(conversation, None);
        Ok(removed)
    }

    /// Deletes a file, a link (not its target) or a folder with its contents.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::Forbidden`].
    pub async fn delete(&self, conversation: &ConversationKey, path: &SafePath) -> Result<(), Failure> {
        debug!(%conversation, "delete a file");
        let path = path.clone();
        self.existing(conversation, move |there| there.delete(&path)).await
    }

    /// A step on an existing conversation.
    async fn existing<T: Send + 'static>(
        &self,
        conversation: &ConversationKey,
        step: impl FnOnce(&dyn ConversationFolder) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, Failure> {
        let id = conversation.clone();
        let done = self.blocking(move |store| Ok(store.open(&id)?.map(|there| step(there.as_ref())).transpose()?));
        done.await?.ok_or_else(|| {
            let sentence = "This conversation has no files yet: run a program or write a file in it first.";
            Failure::new(Code::ConversationNotFound, sentence)
        })
    }

    /// A step on the storage, on a blocking thread. It counts against [`STEPS_MAX`] until it has ended, also when its
    /// caller went away.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&dyn Storage) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let internal = || Failure::new(Code::Internal, "The server could not use its files: its log says why.");
        let Ok(permit) = Arc::clone(&self.steps).acquire_owned().await else { return Err(internal()) };
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            step(store.as_ref())
        });
        done.await.unwrap_or_else(|_| Err(internal()))
    }

    fn url_expires_unix_s(&self) -> i64 {
        let ttl_s = i64::try_from(self.options.url_ttl_s).map_or(URL_TTL_S_MAX, |ttl_s| ttl_s.min(URL_TTL_S_MAX));
        self.clock.unix_s().saturating_add(ttl_s)
    }

    fn entry(&self, conversation: &ConversationKey, entry: Entry, url_expires_unix_s: i64) -> FileEntry {
        let Entry { path, size, modified_unix_s, change } = entry;
        let url = self.signer.mint(conversation, &path, url_expires_unix_s);
        FileEntry { path, size, change, modified_unix_s, url, url_expires_unix_s }
    }
}

/// Logs the cause, which clients must not see.
impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        let failure = error.failure();
        if failure.code == Code::Internal {
            error!(error = super::janitor::chain(&error), "a step on the files failed");
        }
        failure
    }
}

/// Writes to a conversation, creating it if it is missing, and counts as a use of it. A conversation that is deleted
/// meanwhile is created again.
fn written<T>(
    store: &dyn Storage,
    id: &ConversationKey,
    write: impl Fn(&dyn ConversationFolder) -> Result<T, StorageError>,
) -> Result<T, StorageError> {
    /// If the conversation is deleted during each of these attempts, the write is lost with it.
    const TRIES: usize = 4;

    let mut tries = TRIES;
    loop {
        let there = store.create(id)?;
        there.mark()?;
        let done = write(there.as_ref())?;
        tries -= 1;
        let still = store.open(id)?.map(|now| now.identity()).transpose()?;
        if tries == 0 || still == Some(there.identity()?) {
            return Ok(done);
        }
    }
}

/// An upper bound of the usage of a file of this length, or of a folder, with its parent folders.
fn space(path: &SafePath, file_bytes: Option<usize>) -> Usage {
    let names = path.components().count().saturating_sub(1) as u64;
    let folders = Usage { bytes: names * FOLDER_BYTES, entries: names };
    folders.plus(&file_bytes.map_or(Usage { bytes: FOLDER_BYTES, entries: 1 }, |bytes| Usage::of_file(bytes as u64)))
}
