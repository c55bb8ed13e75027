//! Streams a conversation's files into a sandbox whose `/data` is its own, and a program's changes back. Meanwhile the
//! server's copy is authoritative: what a client writes there reaches a running session only with its next cell.
//!
//! Files that come back are untrusted. They are written as clients' files are: below the conversation's folder, through
//! no link, within the quota.

mod sending;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::Metadata,
    mem,
    os::unix::fs::MetadataExt as _,
    sync::Arc,
    time::UNIX_EPOCH,
};

use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use self::sending::{SendError, found, send};
use super::{Files, Step, write::space};
use crate::{
    domain::{Change, Code, ConversationKey, DiskLimit, Failure, SafePath, text::chain},
    ports::storage::{ConversationFolder, FileFilter, IncomingFile, ListBounds, StorageError},
    services::{files::FileList, frames::FileMessage, quota::Writer},
};

/// What of the returned files is held in memory before it is written to the disk.
const HELD_BYTES: usize = 1 << 20;
const HELD_MESSAGES: usize = 512;
/// The mode of a stamp that equals no other.
const UNKNOWN_MODE: u32 = u32::MAX;

/// What a sandbox has: the state of the server's own copy of each entry when both were the same.
#[derive(Debug, Default)]
pub(in crate::services) struct Carried(BTreeMap<SafePath, Stamp>);

/// Distinguishes two states of a file: its inode, its length, when it was changed, its mode. For a folder it has the
/// mode alone.
///
/// A server that is not root opens a file which a program closed to itself by giving it another mode for a moment. That
/// is a change of the inode, so the time when such a file was made counts. Files are replaced and never written again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    mode: u32,
    modified_unix_s: i64,
    file: Option<(u64, u64, i64, i64)>,
}

impl Stamp {
    fn of_file(about: &Metadata) -> Self {
        let mode = about.mode() & 0o777;
        let is_closed = mode & 0o400 == 0;
        let created = about.created().ok().filter(|_| is_closed).and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let (unix_s, ns) = created.map_or_else(
            || (about.ctime(), about.ctime_nsec()),
            |at| (at.as_secs().cast_signed(), at.subsec_nanos().into()),
        );
        Self { mode, modified_unix_s: about.mtime(), file: Some((about.ino(), about.len(), unix_s, ns)) }
    }

    fn of_folder(mode: u32) -> Self {
        Self { mode: mode & 0o777, modified_unix_s: 0, file: None }
    }
}

impl Carried {
    /// Has every entry sent again: in which state the sandbox has it is not known any more.
    pub(in crate::services) fn mark_unconfirmed(&mut self) {
        self.0.values_mut().for_each(|stamp| stamp.mode = UNKNOWN_MODE);
    }
}

impl Files {
    /// Sends what a sandbox does not have yet as frames, the last of which says so. Ends early when they are not
    /// received any more; what the sandbox has is then in doubt.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`] when the files do not fit into `room_bytes`, are too many, or one is longer than
    /// `file_bytes_max`; when the disk fails.
    pub(in crate::services) async fn carry_in(
        &self,
        conversation: &ConversationKey,
        carried: &mut Carried,
        room_bytes: u64,
        file_bytes_max: u64,
        frames: mpsc::Sender<Bytes>,
    ) -> Result<(), Failure> {
        let step = move |at: &Step<'_>| {
            let there = at.open()?;
            let found = there.as_deref().map(|there| found(there, room_bytes, file_bytes_max)).transpose()?;
            Ok((there, found.unwrap_or_default()))
        };
        let (there, found) = self.step(conversation, step).await?;
        let before = mem::take(&mut carried.0);
        carried.0 = found.iter().chain(&before).map(|(path, stamp)| (path.clone(), *stamp)).collect();
        carried.mark_unconfirmed();
        // No step: it takes as long as the sandbox takes.
        let sending = tokio::task::spawn_blocking(move || {
            let sent = send(there.as_deref(), &before, &found, &frames);
            (found, sent)
        });
        match sending.await {
            Ok((found, Ok(()))) => carried.0 = found,
            Ok((_, Err(SendError::NotTaken))) => debug!(%conversation, "a sandbox did not take the files"),
            Ok((_, Err(SendError::Storage(error)))) => return Err(error.into()),
            Err(_) => return Err(Failure::new(Code::Internal, "The server failed while it sent the files.")),
        }
        Ok(())
    }

    /// Takes what a sandbox sends back.
    pub(in crate::services) async fn carry_out(
        self: &Arc<Self>,
        conversation: &ConversationKey,
        carried: Carried,
    ) -> IncomingFiles {
        let writer = self.quota.writer(conversation).await;
        let incoming = IncomingWrites {
            writer,
            conversation: conversation.clone(),
            returned: Returned { carried, limit: None, left_out: 0, replaced: BTreeSet::new() },
            open: None,
            modes: BTreeMap::new(),
            opened: BTreeMap::new(),
        };
        IncomingFiles { files: Arc::clone(self), incoming: Some(incoming), held: Vec::new(), held_bytes: 0 }
    }
}

/// Files on their way back.
pub(in crate::services) struct IncomingFiles {
    files: Arc<Files>,
    /// `None` after a failure.
    incoming: Option<IncomingWrites>,
    held: Vec<FileMessage>,
    held_bytes: usize,
}

/// What has come back.
#[derive(Debug, Default)]
pub(in crate::services) struct Returned {
    /// What the sandbox has now.
    pub carried: Carried,
    /// Why not everything was stored.
    pub limit: Option<DiskLimit>,
    /// What cannot travel, such as links, and what could not be written.
    pub left_out: u64,
    /// Files that were there before.
    replaced: BTreeSet<SafePath>,
}

impl IncomingFiles {
    /// Takes the next message. After a limit it stores nothing more.
    ///
    /// # Errors
    /// When the disk fails. Nothing more is taken.
    pub(in crate::services) async fn take(&mut self, message: FileMessage) -> Result<(), Failure> {
        self.held_bytes += match &message {
            FileMessage::Bytes(held) | FileMessage::Gone(held) | FileMessage::Entry { path: held, .. } => held.len(),
            FileMessage::End { .. } | FileMessage::Taken { .. } => 0,
        };
        self.held.push(message);
        if self.held_bytes >= HELD_BYTES || self.held.len() >= HELD_MESSAGES {
            self.write_held(false).await?;
        }
        Ok(())
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// When the disk fails.
    pub(in crate::services) async fn finish(mut self) -> Result<Returned, Failure> {
        self.write_held(true).await?;
        Ok(self.incoming.map(|incoming| incoming.returned).unwrap_or_default())
    }

    async fn write_held(&mut self, is_last: bool) -> Result<(), Failure> {
        let Some(mut incoming) = self.incoming.take() else { return Ok(()) };
        let held = mem::take(&mut self.held);
        self.held_bytes = 0;
        let conversation = incoming.conversation.clone();
        let step = move |at: &Step<'_>| {
            for message in held {
                if !matches!(message, FileMessage::Bytes(_)) {
                    // Why that one was not stored says nothing about this one.
                    let done = incoming.close(at);
                    incoming.note_error(done)?;
                }
                let done = incoming.message(at, message);
                incoming.note_error(done)?;
            }
            if is_last {
                let done = incoming.close(at).and_then(|()| incoming.set_modes(at));
                incoming.note_error(done)?;
            }
            Ok(incoming)
        };
        self.incoming = Some(self.files.step(&conversation, step).await?);
        Ok(())
    }
}

impl Returned {
    /// A file that was replaced has a new inode, so a listing takes it for a new one.
    pub(in crate::services) fn correct(&self, files: &mut FileList) {
        for file in &mut files.files {
            if file.change == Change::Created && self.replaced.contains(&file.path) {
                file.change = Change::Changed;
            }
        }
    }
}

/// A file whose bytes are coming.
struct Open {
    path: SafePath,
    mode: u32,
    modified_unix_s: i64,
    bytes: u64,
    file: Box<dyn IncomingFile>,
}

/// Writes what comes back. Clients that write wait meanwhile.
struct IncomingWrites {
    writer: Writer,
    conversation: ConversationKey,
    returned: Returned,
    open: Option<Open>,
    /// Folders get their modes last: one may be closed to writes.
    modes: BTreeMap<SafePath, u32>,
    /// Folders that were closed to writes and are open until the end, with the modes that they had.
    opened: BTreeMap<SafePath, u32>,
}

impl IncomingWrites {
    /// Notes why something was not written; an error of the disk ends all.
    fn note_error(&mut self, done: Result<(), Failure>) -> Result<(), Failure> {
        let Err(failure) = done else { return Ok(()) };
        self.open = None;
        match failure.code {
            Code::Internal => return Err(failure),
            Code::QuotaExceeded | Code::NoSpace => self.returned.limit = Some(self.writer.limit(failure.code)),
            _ => {
                debug!(conversation = %self.conversation, %failure, "a file of a sandbox was not stored");
                self.returned.left_out += 1;
            }
        }
        Ok(())
    }

    fn message(&mut self, at: &Step<'_>, message: FileMessage) -> Result<(), Failure> {
        if self.returned.limit.is_some() {
            return Ok(());
        }
        match message {
            FileMessage::Entry { is_folder: true, mode, path, .. } => {
                let path = safe(&path)?;
                if !self.returned.carried.0.contains_key(&path) && !self.modes.contains_key(&path) {
                    self.writer.reserve(&space(&path, None))?;
                }
                self.open_parents(at, &path)?;
                at.create()?.make_folders(&path)?;
                self.modes.insert(path, mode);
            }
            FileMessage::Entry { is_folder: false, mode, modified_unix_s, path } => {
                let (path, file) = (safe(&path)?, at.create()?.incoming()?);
                self.open = Some(Open { path, mode, modified_unix_s, bytes: 0, file });
            }
            FileMessage::Bytes(piece) => {
                // Without an open file they are of one that was left out.
                let Some(open) = &mut self.open else { return Ok(()) };
                open.bytes += piece.len() as u64;
                self.writer.check(&space(&open.path, Some(open.bytes)))?;
                open.file.append(&piece)?;
            }
            FileMessage::Gone(path) => self.remove(at, &safe(&path)?)?,
            FileMessage::End { left_out } => self.returned.left_out += left_out,
            FileMessage::Taken { .. } => {}
        }
        Ok(())
    }

    fn close(&mut self, at: &Step<'_>) -> Result<(), Failure> {
        let Some(Open { path, mode, modified_unix_s, bytes, mut file }) = self.open.take() else { return Ok(()) };
        let bytes = if file.is_counted() { 0 } else { bytes };
        self.writer.reserve(&space(&path, Some(bytes)))?;
        self.open_parents(at, &path)?;
        file.set_attributes(mode, modified_unix_s)?;
        let entry = file.persist(&path)?;
        if entry.change == Change::Changed {
            self.returned.replaced.insert(path.clone());
        }
        // A client that was faster has replaced it: then it is sent again.
        if let Some(Ok(open)) = at.open()?.map(|there| there.read(&path))
            && let Ok(about) = open.file.metadata()
        {
            self.returned.carried.0.insert(path, Stamp::of_file(&about));
        }
        Ok(())
    }

    fn remove(&mut self, at: &Step<'_>, path: &SafePath) -> Result<(), Failure> {
        self.open_parents(at, path)?;
        let was = self.returned.carried.0.remove(path);
        let was_folder = was.is_some_and(|stamp| stamp.file.is_none());
        let Some(there) = at.open()? else { return Ok(()) };
        let bounds = ListBounds { entries_max: 1, bytes_max: 1, depth_max: 64 };
        let inside = FileFilter { folder: Some(path.clone()), ..FileFilter::default() };
        if was_folder && !there.page(bounds, &inside)?.entries.is_empty() {
            // A client has put something there meanwhile.
            return Ok(());
        }
        if let Some(was) = was.filter(|_| !was_folder)
            && is_other(&*there, path, was)
        {
            // A client has replaced it meanwhile: then it is sent again.
            return Ok(());
        }
        self.opened.remove(path);
        match there.delete(path) {
            Err(StorageError::NotFound) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Opens the folders above a path that an earlier program closed to writes. The last one may have opened them only
    /// while it ran.
    fn open_parents(&mut self, at: &Step<'_>, path: &SafePath) -> Result<(), Failure> {
        for folder in path.folders() {
            let stamp = self.returned.carried.0.get(&folder).filter(|stamp| stamp.file.is_none());
            let Some(mode) = stamp.map(|stamp| stamp.mode).filter(|mode| mode & 0o300 != 0o300) else { continue };
            if !self.opened.contains_key(&folder)
                && let Some(there) = at.open()?
                && there.set_folder_mode(&folder, mode | 0o700).is_ok()
            {
                self.opened.insert(folder, mode);
            }
        }
        Ok(())
    }

    fn set_modes(&mut self, at: &Step<'_>) -> Result<(), Failure> {
        let Some(there) = at.open()? else { return Ok(()) };
        let (received, mut modes) = (mem::take(&mut self.modes), mem::take(&mut self.opened));
        modes.extend(received.iter().map(|(path, mode)| (path.clone(), *mode)));
        for (path, mode) in modes.into_iter().rev() {
            if let Err(error) = there.set_folder_mode(&path, mode) {
                warn!(error = %chain(&error), "the mode of a folder from a sandbox was not set");
            }
            if received.contains_key(&path) {
                self.returned.carried.0.insert(path, Stamp::of_folder(mode));
            }
        }
        Ok(())
    }
}

/// Whether what is there now is not the file that the sandbox had.
fn is_other(there: &dyn ConversationFolder, path: &SafePath, was: Stamp) -> bool {
    match there.read(path) {
        Ok(open) => open.file.metadata().is_ok_and(|about| Stamp::of_file(&about) != was),
        Err(error) => matches!(error, StorageError::NotAFile),
    }
}

fn safe(path: &[u8]) -> Result<SafePath, Failure> {
    let names = path.split(|byte| *byte == b'/');
    SafePath::from_components(names).map_err(|why| Failure::argument("path", why))
}

#[cfg(test)]
mod tests;
