//! The file that lines are appended to, and the one beside it that holds the end of their chain (`.head`). A lock on
//! the latter makes appending atomic, so that several processes may write one log.
//!
//! Each line has a number and the SHA-256 of the line before it, so that a line that was changed, removed, added or
//! moved is found.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::domain::text::hex;

/// Hexadecimal digits of a hash.
const HASH_CHARS: usize = 64;
/// How far back the last line is searched for: more than the longest line.
pub(super) const TAIL_BYTES: u64 = 128 << 10;

/// The end of a chain: the number and the hash of its last line. As text it always has the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    pub seq: u64,
    pub hash: String,
}

/// What a line says of its place in the chain.
#[derive(Debug, Deserialize)]
pub(super) struct Link {
    pub seq: u64,
    pub prev: String,
}

impl Default for Head {
    /// The chain without a line.
    fn default() -> Self {
        Self { seq: 0, hash: "0".repeat(HASH_CHARS) }
    }
}

impl Head {
    /// The end of a chain whose last line is this one, without its line feed.
    pub(super) fn at(seq: u64, line: &[u8]) -> Self {
        Self { seq, hash: hex(&Sha256::digest(line)) }
    }

    /// A JSON object as the next line, without a line feed, and the end of the chain with it.
    pub(super) fn next(&self, object: &str) -> (String, Self) {
        let seq = self.seq.saturating_add(1);
        let fields = object.strip_prefix('{').unwrap_or(object);
        let line = format!("{{\"seq\":{seq},\"prev\":\"{}\",{fields}", self.hash);
        let head = Self::at(seq, line.as_bytes());
        (line, head)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (seq, hash) = text.trim_end().split_once(' ')?;
        let is_hash = hash.len() == HASH_CHARS && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Self { seq: seq.parse().ok()?, hash: hash.to_owned() }).filter(|_| is_hash)
    }
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:020} {}", self.seq, self.hash)
    }
}

/// The place of a line in the chain; `None` for a line that is not of a chain.
pub(super) fn link(line: &[u8]) -> Option<Link> {
    serde_json::from_slice(line).ok()
}

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
