//! The file that lines are appended to, and the one beside it that holds the end of the chain (`.head`). A lock on the
//! latter makes appending atomic, so that several processes may write one log.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::chain::{Head, link};

/// How far back the last line is searched for: more than the longest line.
pub(super) const TAIL_BYTES: u64 = 128 << 10;

/// A log that is only appended to, and whose file may be moved away.
pub(super) struct LogFile {
    path: PathBuf,
    head: PathBuf,
}

/// The file beside a log that holds the end of its chain.
pub(super) fn head_path(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(".head");
    name.into()
}

impl LogFile {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = Self { path: path.to_owned(), head: head_path(path) };
        open(&file.path, true)?;
        open(&file.head, false)?;
        Ok(file)
    }

    /// Appends an object as the next line of the chain, or fails. Both files are opened each time, since they may have
    /// been moved away.
    pub(super) fn append(&self, object: &str) -> io::Result<()> {
        let head_file = open(&self.head, false)?;
        flock(&head_file, FlockOperation::LockExclusive)?;
        let mut log = open(&self.path, true)?;
        let tail = Tail::read(&log)?;
        let (line, head) = tail.continued_from(&head_file).next(object);
        // A line that a full disk or a crash cut off stays where it is.
        let text = format!("{}{line}\n", if tail.is_cut { "\n" } else { "" });
        if log.write(text.as_bytes())? != text.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // The line is written. Without this the next one is continued from the log itself.
        head_file.write_all_at(head.to_string().as_bytes(), 0).or(Ok(()))
    }
}

/// The end of a log.
struct Tail {
    /// Of the last whole line, if that is of a chain.
    head: Option<Head>,
    /// It does not end with a line feed.
    is_cut: bool,
}

impl Tail {
    fn read(log: &File) -> io::Result<Self> {
        let length = log.metadata()?.len();
        let from = length.saturating_sub(TAIL_BYTES);
        let mut bytes = vec![0; usize::try_from(length - from).unwrap_or_default()];
        log.read_exact_at(&mut bytes, from)?;
        let is_cut = bytes.last().is_some_and(|byte| *byte != b'\n');
        // One that was cut off just before its line feed is whole, and the next line is continued from it.
        let mut lines = bytes.split(|byte| *byte == b'\n').rev();
        let head = lines.find_map(|line| link(line).map(|link| Head::at(link.seq, line)));
        Ok(Self { head, is_cut })
    }

    /// The end of the chain. That of the log counts where it is ahead: a process died between the two writes. Otherwise
    /// the log was moved away, or lines are missing.
    fn continued_from(&self, head_file: &File) -> Head {
        let mut bytes = [0; 128];
        let length = head_file.read_at(&mut bytes, 0).unwrap_or_default();
        let recorded = std::str::from_utf8(&bytes[..length]).ok().and_then(Head::parse).unwrap_or_default();
        self.head.clone().filter(|head| head.seq > recorded.seq).unwrap_or(recorded)
    }
}

/// Refuses a symbolic link, and a pipe, which would block.
fn open(path: &Path, append: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).append(append).create(true).mode(0o600).custom_flags(flags);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}
