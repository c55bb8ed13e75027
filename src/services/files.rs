//! What clients do with a conversation's files: list, read, write, move, delete, and download by link.
//!
//! Owns the limits of one answer and the lifetime of a link. Knows no HTTP and no settings. Storage blocks, so its
//! operations run on blocking threads, a bounded number at a time; an operation ends also when its caller disconnects.
//! What changes is announced to readers, which no operation waits for.

mod announce;
mod archive;
mod carried;
mod edit;
mod listing;
mod signed;
#[cfg(test)]
pub(super) mod tests;
mod write;

use std::{
    collections::HashMap,
    io::{Read as _, Seek as _, SeekFrom},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast::Receiver};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use self::announce::Announcements;
pub(super) use self::carried::{Carried, Returned};
pub use self::{
    announce::Changed,
    archive::{ARCHIVE_ENTRIES_MAX, Archive, Imported},
    edit::TextChange,
    listing::{FileList, FileQuery, LISTING_BYTES_MAX},
    signed::Download,
    write::Precondition,
};
use super::{
    links::{URL_TTL_S_MAX, UrlSigner},
    quota::{Quota, QuotaOptions},
    shares::{SharedMemory, Shares},
};
pub use crate::domain::{
    Change, FileEntry,
    file::{OCTET_STREAM, media_type},
};
use crate::{
    domain::{Clock, Code, ConversationKey, Failure, InstanceId, Principal, SafePath, text::chain},
    ports::{
        peers::Notices,
        storage::{ConversationFolder, Entry, FsResult, OpenFile, Storage, StorageError},
    },
};

/// Concurrent steps on disk: enough to keep a disk busy, few enough to leave threads and descriptors to others.
const STEPS_MAX: usize = 16;

/// The same for one owner, and for one conversation.
const OWNER_STEPS_MAX: usize = STEPS_MAX / 2;
const CONVERSATION_STEPS_MAX: usize = 4;
/// Of reads of more than so many bytes, as many as steps are in memory at once.
const LONG_READ_BYTES: u64 = 1 << 20;

/// The limits of one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FilesOptions {
    /// The lifetime of a link, in seconds; at most [`URL_TTL_S_MAX`].
    pub url_ttl_s: u64,
    /// The maximum number of files in one listing.
    pub entries_max: usize,
    /// The maximum depth of folders in one listing.
    pub depth_max: usize,
    /// Longest file that is written, in bytes.
    pub write_bytes_max: u64,
    /// Whole files and texts that wait until they are written, in bytes; those of one owner take half of it.
    pub waiting_bytes_max: usize,
    pub quota: QuotaOptions,
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

impl FileContent {
    /// The same for an answer that holds all of a file.
    ///
    /// # Errors
    /// [`Code::TooLarge`] with this sentence where the file goes on.
    pub fn whole(self, why: impl Into<String>) -> Result<Self, Failure> {
        if self.truncated { Err(Failure::new(Code::TooLarge, why)) } else { Ok(self) }
    }
}

/// What was read, with its right to be in memory.
struct LongRead {
    bytes: Vec<u8>,
    _room: [Option<OwnedSemaphorePermit>; 2],
}

impl AsRef<[u8]> for LongRead {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// When the conversations that clients hold for a time were last used, in unix seconds. Programs count too: their files
/// are looked at before and after them. Bounded by what is watched: a use of another conversation is not noted.
#[derive(Default)]
pub(super) struct Uses(Mutex<HashMap<ConversationKey, i64>>);

impl Uses {
    pub(super) fn watch(&self, conversation: &ConversationKey) {
        self.0.lock().entry(conversation.clone()).or_default();
    }

    pub(super) fn forget(&self, conversation: &ConversationKey) {
        self.0.lock().remove(conversation);
    }

    /// `None` for a conversation that is not watched.
    pub(super) fn last(&self, conversation: &ConversationKey) -> Option<i64> {
        self.0.lock().get(conversation).copied()
    }

    fn note(&self, conversation: &ConversationKey, now_unix_s: i64) {
        if let Some(last) = self.0.lock().get_mut(conversation) {
            *last = now_unix_s;
        }
    }
}

pub struct Files {
    store: Arc<dyn Storage>,
    signer: Arc<UrlSigner>,
    clock: Arc<dyn Clock>,
    options: FilesOptions,
    steps: Arc<Semaphore>,
    owner_steps: Shares<Principal>,
    conversation_steps: Shares<ConversationKey>,
    long_reads: Arc<Semaphore>,
    owner_long_reads: Shares<Principal>,
    quota: Arc<Quota>,
    changes: Arc<Announcements>,
    uses: Uses,
    /// The memory that whole files and texts take until they are written.
    memory: SharedMemory<Principal>,
}

impl Files {
    pub fn new(store: Arc<dyn Storage>, signer: Arc<UrlSigner>, clock: Arc<dyn Clock>, options: FilesOptions) -> Self {
        let quota = Arc::new(Quota::new(Arc::clone(&store), options.quota));
        Self {
            store,
            signer,
            clock,
            options,
            steps: Arc::new(Semaphore::new(STEPS_MAX)),
            owner_steps: Shares::new(OWNER_STEPS_MAX),
            conversation_steps: Shares::new(CONVERSATION_STEPS_MAX),
            long_reads: Arc::new(Semaphore::new(STEPS_MAX)),
            owner_long_reads: Shares::new(OWNER_STEPS_MAX),
            quota,
            changes: Arc::default(),
            uses: Uses::default(),
            memory: SharedMemory::new(options.waiting_bytes_max),
        }
    }

    pub(super) fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(super) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// What changes from now on by other ways than runs of this server, in all conversations of an owner.
    pub fn changes(&self, who: &Principal) -> Receiver<Changed> {
        self.changes.subscribe(who)
    }

    /// Exchanges what changes with the other servers of a database, as the server `me`, until `stop`.
    pub async fn share_changes(&self, me: InstanceId, notices: &dyn Notices, stop: CancellationToken) {
        self.changes.share(me, notices, &stop).await;
    }

    /// How often the other servers could not be told what has changed.
    pub fn announcements_lost(&self) -> u64 {
        self.changes.lost()
    }

    /// Tells the other servers what a run has changed. Readers here have its events.
    pub(super) fn announce_run(&self, conversation: &ConversationKey, files: &FileList) {
        if files.changed > files.made().count() as u64 {
            return self.changes.announce_elsewhere(conversation, None);
        }
        for file in files.made() {
            self.changes.announce_elsewhere(conversation, Some(&file.path));
        }
    }

    /// Ends the background work of the storage; the next start continues it.
    pub async fn close(&self) {
        let closed = self.blocking(|store| {
            store.close();
            Ok(())
        });
        drop(closed.await);
    }

    /// Reads a part of a file: at most `bytes_max` bytes from byte `offset` on, none from its end on. A long read waits
    /// until there are few others whose bytes are still held.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::NotAFile`], [`Code::Forbidden`].
    pub async fn read(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        offset: u64,
        bytes_max: u64,
    ) -> Result<FileContent, Failure> {
        debug!(%conversation, "read a file");
        let mut room = [None, None];
        if bytes_max > LONG_READ_BYTES {
            let share = self.owner_long_reads.of(&conversation.owner).acquire_owned().await;
            room = [share.ok(), Arc::clone(&self.long_reads).acquire_owned().await.ok()];
        }
        let wanted_path = path.clone();
        let read = self.step(conversation, move |at| {
            let OpenFile { mut file, size, .. } = at.existing()?.read(&wanted_path)?;
            let mut bytes = Vec::new();
            let read = file.seek(SeekFrom::Start(offset.min(size)));
            let read = read.and_then(|_| file.take(bytes_max).read_to_end(&mut bytes));
            read.map_err(|source| StorageError::Io { act: "read", source })?;
            Ok((size, Bytes::from_owner(LongRead { bytes, _room: room })))
        });
        let (size, bytes) = read.await?;
        let truncated = offset.saturating_add(bytes.len() as u64) < size;
        Ok(FileContent { path: path.clone(), size, bytes, truncated })
    }

    /// Deletes a conversation with all its files. `false` when there was none. The caller holds its lock.
    pub(super) async fn remove(&self, conversation: &ConversationKey) -> Result<bool, Failure> {
        let quota = Arc::clone(&self.quota);
        let step = move |at: &Step<'_>| {
            let removed = at.store.remove(at.id)?;
            quota.forget(at.id);
            if removed {
                at.announce(None);
            }
            Ok(removed)
        };
        self.step(conversation, step).await
    }

    /// A step on a conversation, which counts against [`CONVERSATION_STEPS_MAX`] too: one with slow steps leaves most
    /// of them to others.
    async fn step<T: Send + 'static>(
        &self,
        conversation: &ConversationKey,
        step: impl FnOnce(&Step<'_>) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        self.uses.note(conversation, self.clock.unix_s());
        let permit = self.conversation_steps.of(conversation).acquire_owned().await;
        let (id, changes) = (conversation.clone(), Arc::clone(&self.changes));
        let step = move |store: &dyn Storage| {
            let _permit = permit;
            step(&Step { store, id: &id, changes: &changes })
        };
        self.owner_step(&conversation.owner, step).await
    }

    /// A step on the storage for an owner, which counts against [`OWNER_STEPS_MAX`] too.
    pub(super) async fn owner_step<T: Send + 'static>(
        &self,
        owner: &Principal,
        step: impl FnOnce(&dyn Storage) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.owner_steps.of(owner).acquire_owned().await;
        let step = move |store: &dyn Storage| {
            let _permit = permit;
            step(store)
        };
        self.blocking(step).await
    }

    /// A step on the storage, on a blocking thread. It counts against [`STEPS_MAX`] until it has ended, also when its
    /// caller went away.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        step: impl FnOnce(&dyn Storage) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let internal = || Failure::new(Code::Internal, "The server could not use its files: its log says why.");
        let (permit, store) = (Arc::clone(&self.steps).acquire_owned().await, Arc::clone(&self.store));
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

    fn entry(&self, conversation: &ConversationKey, entry: Entry) -> FileEntry {
        let Entry { path, size, modified_unix_s, change } = entry;
        let url_expires_unix_s = self.url_expires_unix_s();
        let url = self.signer.mint(conversation, &path, url_expires_unix_s);
        FileEntry { path, size, change, modified_unix_s, url, url_expires_unix_s }
    }
}

/// One conversation for a step on a blocking thread.
struct Step<'a> {
    store: &'a dyn Storage,
    id: &'a ConversationKey,
    changes: &'a Announcements,
}

impl Step<'_> {
    fn open(&self) -> FsResult<Option<Box<dyn ConversationFolder>>> {
        self.store.open(self.id)
    }

    fn existing(&self) -> Result<Box<dyn ConversationFolder>, Failure> {
        self.open()?.ok_or_else(no_files)
    }

    fn create(&self) -> FsResult<Box<dyn ConversationFolder>> {
        self.store.create(self.id)
    }

    /// Announces what the step changes: a file, or a folder with all in it; `None` for all files. In the step, since
    /// that ends also when its caller goes away. Waits for no reader.
    fn announce(&self, path: Option<&SafePath>) {
        self.changes.announce(self.id, path);
    }
}

fn no_files() -> Failure {
    let sentence = "This conversation has no files yet: run a program or write a file in it first.";
    Failure::new(Code::ConversationNotFound, sentence)
}

/// Logs the cause, which clients must not see.
impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        let failure = error.failure();
        if failure.code == Code::Internal {
            error!(error = chain(&error), "a step on the files failed");
        }
        failure
    }
}
