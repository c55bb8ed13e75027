//! Writing, moving and deleting: within the quota, one writer of a conversation at a time, on a client's condition.

use std::{pin::pin, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tracing::debug;

use super::{Files, Step};
use crate::{
    domain::{Code, ConversationKey, Failure, FileEntry, Principal, SafePath},
    ports::storage::{ConversationFolder, FsResult, StorageError, Usage},
    services::{quota::Writer, shares::HeldMemory},
};

/// The usage of a new folder on most disks.
pub(super) const FOLDER_BYTES: u64 = 4096;

/// What of an upload is held in memory, in bytes, before it is written to the disk.
const STEP_BYTES: usize = 256 << 10;

/// Whether a file may be replaced or deleted, by its validator; `None` stands for no file.
pub type Precondition = Box<dyn Fn(Option<&str>) -> bool + Send>;

impl Files {
    /// Writes a whole file atomically. A missing conversation and missing folders are created.
    ///
    /// # Errors
    /// [`Code::TooLarge`] before the disk is touched, [`Code::NotAFile`] when a folder or file is in the way,
    /// [`Code::QuotaExceeded`] and [`Code::NoSpace`] with the old file unchanged, [`Code::Forbidden`],
    /// [`Code::QueueFull`] when too much waits to be written.
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
        let _held = self.hold(&conversation.owner, bytes.len())?;
        let more = space(path, Some(bytes.len() as u64));
        let path = path.clone();
        let step = move |at: &Step<'_>, writer: &Writer| {
            writer.reserve(&more)?;
            Ok(at.write(|there| there.write(&path, &bytes).inspect(|_| at.announce(Some(&path))))?)
        };
        let entry = self.write_step(conversation, step).await?;
        Ok(self.entry(conversation, entry))
    }

    /// Memory for what waits for its turn on the disk. The memory of a request's body was given back when the body was
    /// parsed.
    pub(super) fn hold(&self, owner: &Principal, bytes: usize) -> Result<HeldMemory, Failure> {
        let why = "Too much is being written to the server's files at once: send it again in a moment.";
        self.memory.take(owner, bytes).ok_or_else(|| Failure::new(Code::QueueFull, why))
    }

    /// Checks that `more` may be written to a conversation; nothing is reserved.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], [`Code::NoSpace`]; nothing was touched.
    pub(in crate::services) async fn check_capacity(
        &self,
        conversation: &ConversationKey,
        more: Usage,
    ) -> Result<(), Failure> {
        self.write_step(conversation, move |_, writer| writer.check_room(&more)).await.map(drop)
    }

    /// A step during which no other client writes to the conversation, also where its caller goes away. So none is
    /// measured while another is in progress, and a condition that was checked holds.
    pub(super) async fn write_step<T: Send + 'static>(
        &self,
        conversation: &ConversationKey,
        step: impl FnOnce(&Step<'_>, &Writer) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let writer = self.quota.writer(conversation).await;
        self.step(conversation, move |at| step(at, &writer)).await
    }

    /// Makes a folder and its missing parents; `false` where there is one. A missing conversation is created.
    ///
    /// # Errors
    /// [`Code::NotAFile`] when a file or a link is where a folder should be, [`Code::QuotaExceeded`],
    /// [`Code::NoSpace`], [`Code::Forbidden`], [`Code::InvalidArgument`] for a name that is too long.
    pub async fn make_folders(&self, conversation: &ConversationKey, path: &SafePath) -> Result<bool, Failure> {
        debug!(%conversation, "make a folder");
        let path = path.clone();
        let step = move |at: &Step<'_>, writer: &Writer| {
            if at.open()?.is_some_and(|there| there.has_folder(&path)) {
                return Ok(false);
            }
            writer.reserve(&space(&path, None))?;
            at.write(|there| there.make_folders(&path))?;
            Ok(true)
        };
        self.write_step(conversation, step).await
    }

    /// Deletes a file, a link (not its target) or a folder with its contents, if the condition holds.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::FileNotFound`], [`Code::Forbidden`], [`Code::PreconditionFailed`].
    pub async fn delete(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        condition: Option<Precondition>,
    ) -> Result<(), Failure> {
        debug!(%conversation, "delete a file");
        let (path, quota) = (path.clone(), Arc::clone(&self.quota));
        let step = move |at: &Step<'_>, _: &Writer| {
            at.check(&path, condition.as_ref())?;
            let deleted = at.existing()?.delete(&path);
            // A deletion that failed may have removed a part of a folder.
            quota.shrunk(at.id);
            deleted?;
            at.announce(Some(&path));
            Ok(())
        };
        self.write_step(conversation, step).await
    }

    /// Gives a file, a link (not its target) or a folder with its contents another path in one step, if the condition
    /// holds for what is moved. Missing folders are created; a file that has the path already stays unless it is to be
    /// replaced, and a folder always stays. Returns a plain file's entry.
    ///
    /// # Errors
    /// As [`Files::delete`]; `PreconditionFailed` also when a file has the path, `NotAFile` when a folder has it or a
    /// file is where a folder should be, `InvalidArgument` for a folder into itself, `FileBusy`, and those of a write
    /// where folders have to be created.
    pub async fn rename(
        &self,
        conversation: &ConversationKey,
        from: &SafePath,
        to: &SafePath,
        replace: bool,
        condition: Option<Precondition>,
    ) -> Result<Option<FileEntry>, Failure> {
        debug!(%conversation, replace, "move a file");
        if to != from && to.is_within(from) {
            return Err(Failure::argument("to", "it is inside what is moved: give a path outside it"));
        }
        // A path that stays as it is replaces only itself.
        let replace = replace || from == to;
        let (from, to) = (from.clone(), to.clone());
        let step = move |at: &Step<'_>, writer: &Writer| {
            at.check(&from, condition.as_ref())?;
            let there = at.existing()?;
            if to.folders().last().is_some_and(|folder| !there.has_folder(&folder)) {
                writer.reserve(&space(&to, None))?;
            }
            there.mark()?;
            let moved = there.rename(&from, &to, replace).map_err(|error| match error {
                StorageError::NameTooLong => {
                    Failure::argument("to", "a name in it is longer than the disk allows: use a shorter one")
                }
                other => other.into(),
            })?;
            at.announce(Some(&from));
            at.announce(Some(&to));
            Ok(moved)
        };
        let moved = self.write_step(conversation, step).await?;
        Ok(moved.map(|entry| self.entry(conversation, entry)))
    }

    /// Copies a file, also into another conversation, if the condition holds for what it would replace.
    ///
    /// # Errors
    /// As [`Files::open`] and [`Files::upload`]; [`Code::FileBusy`] when the file changes meanwhile.
    pub async fn copy(
        &self,
        (source, from): (&ConversationKey, &SafePath),
        (target, to): (&ConversationKey, &SafePath),
        condition: Option<Precondition>,
    ) -> Result<FileEntry, Failure> {
        let file = self.open(source, from).await?;
        let pieces = file
            .pieces(0, file.size)
            .map(|piece| piece.map_err(|_| Failure::new(Code::FileBusy, "The file changed while it was copied.")));
        self.upload(target, to, condition, Some(file.size), pieces).await
    }

    /// Writes a whole file of any length from a stream, if the condition holds. The file is completed beside the
    /// conversation's files and then takes its place, so that a stream that breaks off changes nothing. What arrives is
    /// reserved, so that several uploads together keep the quotas.
    ///
    /// # Errors
    /// As [`Files::write`], [`Code::PreconditionFailed`], [`Code::FileBusy`], and those of the stream.
    pub async fn upload(
        &self,
        conversation: &ConversationKey,
        path: &SafePath,
        condition: Option<Precondition>,
        announced_bytes: Option<u64>,
        body: impl Stream<Item = Result<Bytes, Failure>> + Send,
    ) -> Result<FileEntry, Failure> {
        debug!(%conversation, ?announced_bytes, "write a file from a stream");
        self.check_capacity(conversation, space(path, announced_bytes)).await?;
        let wanted = path.clone();
        let begin = move |at: &Step<'_>| {
            at.check(&wanted, condition.as_ref())?;
            let there = at.create()?;
            there.mark()?;
            Ok((there.incoming()?, there.identity()?, condition))
        };
        let (mut file, identity, condition) = self.step(conversation, begin).await?;
        let mut arrival = self.quota.arrival(conversation, file.is_counted());
        let (mut body, mut received, mut ended) = (pin!(body), 0_u64, false);
        while !ended {
            let mut pieces = Vec::new();
            let mut bytes = 0;
            while bytes < STEP_BYTES && !ended {
                match body.next().await.transpose()? {
                    Some(piece) => {
                        bytes += piece.len();
                        pieces.push(piece);
                    }
                    None => ended = true,
                }
            }
            received += bytes as u64;
            let so_far = space(path, Some(received));
            let step = move |_: &Step<'_>, writer: &Writer| {
                writer.admit(&mut arrival, &so_far)?;
                pieces.iter().try_for_each(|piece| file.append(piece))?;
                Ok((file, arrival))
            };
            (file, arrival) = self.write_step(conversation, step).await?;
        }
        let (path, quota) = (path.clone(), Arc::clone(&self.quota));
        let complete = move |at: &Step<'_>, writer: &Writer| {
            at.check(&path, condition.as_ref())?;
            writer.settle(&mut arrival)?;
            let file = match at.open()? {
                Some(there) if there.identity()? == identity => file,
                // The conversation was deleted meanwhile and is created again, as by other writes.
                _ => {
                    let there = at.create()?;
                    there.mark()?;
                    // On its own disk, what was counted has gone with the old one.
                    quota.measured(at.id, None);
                    file.moved_to(there)?
                }
            };
            Ok(file.persist(&path).inspect(|_| at.announce(Some(&path)))?)
        };
        let entry = self.write_step(conversation, complete).await?;
        Ok(self.entry(conversation, entry))
    }
}

impl Step<'_> {
    /// Whether a condition holds for the file that is there now.
    fn check(&self, path: &SafePath, condition: Option<&Precondition>) -> Result<(), Failure> {
        let Some(condition) = condition else { return Ok(()) };
        let etag = match self.open()?.map(|there| there.read(path)).transpose() {
            Ok(file) => file.map(|file| file.etag),
            Err(StorageError::NotFound | StorageError::NotAFile | StorageError::Denied { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if condition(etag.as_deref()) {
            return Ok(());
        }
        let why = "The file is not the one that the condition requires: read it again and decide anew.";
        Err(Failure::new(Code::PreconditionFailed, why))
    }

    /// Writes to the conversation, creating it if it is missing, and counts as a use of it. A conversation that is
    /// deleted meanwhile is created again.
    pub(super) fn write<T>(&self, write: impl Fn(&dyn ConversationFolder) -> FsResult<T>) -> FsResult<T> {
        /// If the conversation is deleted during each of these attempts, the write is lost with it.
        const TRIES: usize = 4;

        let mut tries = TRIES;
        loop {
            let there = self.create()?;
            there.mark()?;
            let done = write(there.as_ref())?;
            tries -= 1;
            let still = self.open()?.map(|now| now.identity()).transpose()?;
            if tries == 0 || still == Some(there.identity()?) {
                return Ok(done);
            }
        }
    }
}

/// An upper bound of the usage of a file of this length, or of a folder, with its parent folders.
pub(super) fn space(path: &SafePath, file_bytes: Option<u64>) -> Usage {
    let names = path.components().count().saturating_sub(1) as u64;
    let folders = Usage { bytes: names * FOLDER_BYTES, entries: names };
    folders.plus(&file_bytes.map_or(Usage { bytes: FOLDER_BYTES, entries: 1 }, Usage::of_file))
}
