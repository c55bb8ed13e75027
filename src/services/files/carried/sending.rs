//! Sends the difference between a conversation and its sandbox. Clients may change files meanwhile: one that was
//! deleted is left out, and is handled with the next difference.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read as _},
};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::Stamp;
use crate::{
    domain::{Code, Failure, SafePath, outcome::mib},
    ports::storage::{ConversationFolder, StorageError, Usage, Visited},
    services::frames,
};

/// A piece of a file in one frame.
const PIECE_BYTES: usize = 256 << 10;
/// Files and folders of one sandbox. With Docker `/data` has 20 000 inodes, of which one is its own.
const ENTRIES_MAX: usize = 19_999;

/// Why not everything was sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum SendError {
    #[error("the sandbox takes nothing more")]
    NotTaken,
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// Every folder and plain file, if they fit.
pub(super) fn found(
    there: &dyn ConversationFolder,
    room_bytes: u64,
    file_bytes_max: u64,
) -> Result<BTreeMap<SafePath, Stamp>, Failure> {
    let (mut found, mut usage, mut longer) = (BTreeMap::new(), Usage::default(), None);
    let mut visit = |visited: Visited| {
        let Visited { path, mode, file, .. } = visited;
        let stamp = match file {
            Some((file, bytes)) => {
                usage = usage.plus(&Usage::of_file(bytes));
                if bytes > file_bytes_max {
                    longer = Some((path.display(), bytes));
                }
                Stamp::of_file(&file.metadata()?)
            }
            None => Stamp::of_folder(mode),
        };
        found.insert(path, stamp);
        Ok(())
    };
    there.walk(false, &mut visit).map_err(|source| StorageError::Io { act: "read", source })?;
    let refuse = |why: String| Err(Failure::new(Code::QuotaExceeded, why));
    if usage.bytes > room_bytes {
        return refuse(format!(
            "The conversation's files have {} MiB and a sandbox has room for {} MiB of them, so nothing was run: \
             delete files that are no longer needed, or the operator must raise SANDBOX_ENGINE__STREAMED_BYTES.",
            mib(usage.bytes),
            mib(room_bytes)
        ));
    }
    if let Some((path, bytes)) = longer {
        return refuse(format!(
            "The conversation's file {path} has {bytes} bytes and one file in a sandbox may have {file_bytes_max}, \
             so nothing was run: delete it, or the operator must raise SANDBOX_LIMITS__FILE_BYTES_MAX."
        ));
    }
    if found.len() > ENTRIES_MAX {
        return refuse(format!(
            "The conversation has {} files and folders and a sandbox has room for {ENTRIES_MAX}, so nothing was run: \
             delete files that are no longer needed.",
            found.len()
        ));
    }
    Ok(found)
}

/// Sends the difference.
pub(super) fn send(
    there: Option<&dyn ConversationFolder>,
    before: &BTreeMap<SafePath, Stamp>,
    now: &BTreeMap<SafePath, Stamp>,
    frames: &mpsc::Sender<Bytes>,
) -> Result<(), SendError> {
    let send = |frame| frames.blocking_send(frame).map_err(|_| SendError::NotTaken);
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
        match there.map(|there| there.read(path)) {
            Some(Ok(open)) => {
                send(head)?;
                send_bytes(open.file, &send)?;
            }
            Some(Err(error @ StorageError::Io { .. })) => return Err(error.into()),
            Some(Err(_)) | None => {}
        }
    }
    send(frames::files::end())
}

pub(super) fn send_bytes(mut file: File, send: &impl Fn(Bytes) -> Result<(), SendError>) -> Result<(), SendError> {
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return Ok(()),
            Ok(count) => send(frames::files::bytes(&piece[..count]))?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(StorageError::Io { act: "read", source }.into()),
        }
    }
}
