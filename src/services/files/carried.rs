//! A conversation's files on their way into a sandbox whose `/data` is its own, and what a program changed on its way
//! back. Between the two the server's copy is the conversation's: what a client writes there reaches a program that
//! runs only with its next cell.
//!
//! What comes back is untrusted. It is written as clients' files are: below the conversation's folder, through no link,
//! within the quota.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, Metadata},
    io::{self, Read as _},
    mem,
    os::unix::fs::MetadataExt as _,
    sync::Arc,
};

use bytes::Bytes;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::{Files, write::space};
use crate::{
    domain::{
        error::{Code, Failure},
        file::Change,
        outcome::{DiskLimit, mib},
        owner::ConversationKey,
        path::SafePath,
        text::chain,
    },
    ports::storage::{ConversationFolder, IncomingFile, ListBounds, Storage, StorageError, Usage, Visited},
    services::{
        files::FileList,
        frames::{self, FileMessage},
        quota::Writer,
    },
};

/// A piece of a file in one frame.
const PIECE_BYTES: usize = 256 << 10;
/// What of the returned files is held in memory before it is written to the disk.
const HELD_BYTES: usize = 1 << 20;
const HELD_MESSAGES: usize = 512;

/// What a sandbox has: the state of the server's own copy of each entry when both were the same.
#[derive(Debug, Default)]
pub(in crate::services) struct Carried(BTreeMap<SafePath, Stamp>);

/// Tells one state of a file from another: its inode, its length, when it was changed, its mode. Of a folder the mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    mode: u32,
    modified_unix_s: i64,
    file: Option<(u64, u64, i64, i64)>,
}

impl Stamp {
    fn of_file(about: &Metadata) -> Self {
        let file = Some((about.ino(), about.len(), about.ctime(), about.ctime_nsec()));
        Self { mode: about.mode() & 0o777, modified_unix_s: about.mtime(), file }
    }

    fn of_folder(mode: u32) -> Self {
        Self { mode: mode & 0o777, modified_unix_s: 0, file: None }
    }
}

impl Files {
    /// Sends what a sandbox does not have yet as frames, the last of which says so. Ends early when they are not
    /// received any more.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`] when the files do not fit into `room_bytes`; when the disk fails.
    pub(in crate::services) async fn carry_in(
        &self,
        conversation: &ConversationKey,
        carried: Carried,
        room_bytes: u64,
        frames: mpsc::Sender<Bytes>,
    ) -> Result<Carried, Failure> {
        let id = conversation.clone();
        let step = move |store: &dyn Storage| {
            let there = store.open(&id)?;
            let found = there.as_deref().map(|there| found(there, room_bytes)).transpose()?.unwrap_or_default();
            if send(there.as_deref(), &carried.0, &found, &frames).is_err() {
                debug!(conversation = %id, "a sandbox did not take the files");
            }
            Ok(Carried(found))
        };
        self.step(conversation, step).await
    }

    /// Takes what a sandbox sends back.
    pub(in crate::services) async fn carry_out(
        self: &Arc<Self>,
        conversation: &ConversationKey,
        carried: Carried,
    ) -> Returning {
        let writer = self.quota.writer(conversation).await;
        let placing = Placing {
            writer,
            conversation: conversation.clone(),
            returned: Returned { carried, limit: None, left_out: 0, replaced: BTreeSet::new() },
            open: None,
            modes: Vec::new(),
        };
        Returning { files: Arc::clone(self), placing: Some(placing), held: Vec::new(), held_bytes: 0 }
    }
}

/// Every folder and plain file, if they fit.
fn found(there: &dyn ConversationFolder, room_bytes: u64) -> Result<BTreeMap<SafePath, Stamp>, Failure> {
    let (mut found, mut usage) = (BTreeMap::new(), Usage::default());
    let mut visit = |visited: Visited| {
        let Visited { path, mode, file, .. } = visited;
        let stamp = match file {
            Some((file, bytes)) => {
                usage = usage.plus(&Usage::of_file(bytes));
                Stamp::of_file(&file.metadata()?)
            }
            None => Stamp::of_folder(mode),
        };
        found.insert(path, stamp);
        Ok(())
    };
    there.walk(&mut visit).map_err(|source| StorageError::Io { act: "read", source })?;
    if usage.bytes > room_bytes {
        let why = format!(
            "The conversation's files have {} MiB and a sandbox has room for {} MiB of them, so nothing was run: \
             delete files that are no longer needed, or the operator must raise SANDBOX_ENGINE__STREAMED_BYTES.",
            mib(usage.bytes),
            mib(room_bytes)
        );
        return Err(Failure::new(Code::QuotaExceeded, why));
    }
    Ok(found)
}

/// Sends the difference. A client may change files meanwhile: one that is gone is left out.
fn send(
    there: Option<&dyn ConversationFolder>,
    before: &BTreeMap<SafePath, Stamp>,
    now: &BTreeMap<SafePath, Stamp>,
    frames: &mpsc::Sender<Bytes>,
) -> io::Result<()> {
    let send = |frame| frames.blocking_send(frame).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe));
    let is_kept =
        |(path, old): (&SafePath, &Stamp)| now.get(path).is_some_and(|new| new.file.is_some() == old.file.is_some());
    // From the deepest up, so that a folder is empty when its turn comes.
    for (path, _) in before.iter().rev().filter(|entry| !is_kept(*entry)) {
        send(frames::files::gone(path.as_bytes()))?;
    }
    for (path, stamp) in now.iter().filter(|(path, stamp)| before.get(path) != Some(stamp)) {
        let is_folder = stamp.file.is_none();
        let head = frames::files::entry(is_folder, stamp.mode, stamp.modified_unix_s, path.as_bytes());
        if is_folder {
            send(head)?;
            continue;
        }
        let Some(Ok(open)) = there.map(|there| there.read(path)) else { continue };
        send(head)?;
        send_bytes(open.file, &send)?;
    }
    send(frames::files::end())
}

fn send_bytes(mut file: File, send: &impl Fn(Bytes) -> io::Result<()>) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            count => send(frames::files::bytes(&piece[..count]))?,
        }
    }
}

/// Files on their way back.
pub(in crate::services) struct Returning {
    files: Arc<Files>,
    /// `None` after a failure.
    placing: Option<Placing>,
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

impl Returning {
    /// Takes the next message; whether more is wanted.
    ///
    /// # Errors
    /// When the disk fails. Nothing more is taken.
    pub(in crate::services) async fn take(&mut self, message: FileMessage) -> Result<bool, Failure> {
        self.held_bytes += if let FileMessage::Bytes(bytes) = &message { bytes.len() } else { 0 };
        self.held.push(message);
        if self.held_bytes >= HELD_BYTES || self.held.len() >= HELD_MESSAGES {
            self.place(false).await?;
        }
        Ok(self.placing.as_ref().is_some_and(|placing| placing.returned.limit.is_none()))
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// When the disk fails.
    pub(in crate::services) async fn finish(mut self) -> Result<Returned, Failure> {
        self.place(true).await?;
        Ok(self.placing.map(|placing| placing.returned).unwrap_or_default())
    }

    async fn place(&mut self, is_last: bool) -> Result<(), Failure> {
        let Some(mut placing) = self.placing.take() else { return Ok(()) };
        let held = mem::take(&mut self.held);
        self.held_bytes = 0;
        let conversation = placing.conversation.clone();
        let step = move |store: &dyn Storage| {
            for message in held {
                if !matches!(message, FileMessage::Bytes(_)) {
                    // Why that one was not stored says nothing about this one.
                    let done = placing.close(store);
                    placing.judge(done)?;
                }
                let done = placing.message(store, message);
                placing.judge(done)?;
            }
            if is_last {
                let done = placing.close(store).and_then(|()| placing.set_modes(store));
                placing.judge(done)?;
            }
            Ok(placing)
        };
        self.placing = Some(self.files.step(&conversation, step).await?);
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
struct Placing {
    writer: Writer,
    conversation: ConversationKey,
    returned: Returned,
    open: Option<Open>,
    /// Folders get their modes last: one may be closed to writes.
    modes: Vec<(SafePath, u32)>,
}

impl Placing {
    /// Notes why something was not written; an error of the disk ends all.
    fn judge(&mut self, done: Result<(), Failure>) -> Result<(), Failure> {
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

    fn message(&mut self, store: &dyn Storage, message: FileMessage) -> Result<(), Failure> {
        if self.returned.limit.is_some() {
            return Ok(());
        }
        match message {
            FileMessage::Entry { is_folder: true, mode, path, .. } => {
                let path = safe(&path)?;
                if !self.returned.carried.0.contains_key(&path) {
                    self.writer.reserve(&space(&path, None))?;
                }
                store.create(&self.conversation)?.make_folders(&path)?;
                self.modes.push((path, mode));
            }
            FileMessage::Entry { is_folder: false, mode, modified_unix_s, path } => {
                let (path, file) = (safe(&path)?, store.create(&self.conversation)?.incoming()?);
                self.open = Some(Open { path, mode, modified_unix_s, bytes: 0, file });
            }
            FileMessage::Bytes(piece) => {
                // Without an open file they are of one that was left out.
                let Some(open) = &mut self.open else { return Ok(()) };
                open.bytes += piece.len() as u64;
                self.writer.check(&space(&open.path, Some(open.bytes)))?;
                open.file.append(&piece)?;
            }
            FileMessage::Gone(path) => self.gone(store, &safe(&path)?)?,
            FileMessage::End { left_out } => self.returned.left_out += left_out,
            FileMessage::Taken { .. } => {}
        }
        Ok(())
    }

    fn close(&mut self, store: &dyn Storage) -> Result<(), Failure> {
        let Some(Open { path, mode, modified_unix_s, bytes, mut file }) = self.open.take() else { return Ok(()) };
        let bytes = if file.is_counted() { 0 } else { bytes };
        self.writer.reserve(&space(&path, Some(bytes)))?;
        file.set_attributes(mode, modified_unix_s)?;
        let entry = file.place(&path)?;
        if entry.change == Change::Changed {
            self.returned.replaced.insert(path.clone());
        }
        // A client that was faster has replaced it: then it is sent again.
        if let Some(Ok(open)) = store.open(&self.conversation)?.map(|there| there.read(&path))
            && let Ok(about) = open.file.metadata()
        {
            self.returned.carried.0.insert(path, Stamp::of_file(&about));
        }
        Ok(())
    }

    fn gone(&mut self, store: &dyn Storage, path: &SafePath) -> Result<(), Failure> {
        let was_folder = self.returned.carried.0.remove(path).is_some_and(|stamp| stamp.file.is_none());
        let Some(there) = store.open(&self.conversation)? else { return Ok(()) };
        let bounds = ListBounds { entries_max: 1, bytes_max: 1, depth_max: 64 };
        if was_folder && !there.page(bounds, Some(path), None)?.entries.is_empty() {
            // A client has put something there meanwhile.
            return Ok(());
        }
        match there.delete(path) {
            Err(StorageError::NotFound) => Ok(()),
            other => Ok(other?),
        }
    }

    fn set_modes(&mut self, store: &dyn Storage) -> Result<(), Failure> {
        let Some(there) = store.open(&self.conversation)? else { return Ok(()) };
        for (path, mode) in mem::take(&mut self.modes).into_iter().rev() {
            if let Err(error) = there.set_folder_mode(&path, mode) {
                warn!(error = %chain(&error), "the mode of a folder from a sandbox was not set");
            }
            self.returned.carried.0.insert(path, Stamp::of_folder(mode));
        }
        Ok(())
    }
}

fn safe(path: &[u8]) -> Result<SafePath, Failure> {
    let names = path.split(|byte| *byte == b'/');
    SafePath::from_components(names).map_err(|why| Failure::argument("path", why))
}

#[cfg(test)]
mod tests;
