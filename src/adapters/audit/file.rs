//! The file that lines are appended to, and the one beside it that holds the end of their chain (`.head`). A lock on
//! the latter makes appending atomic, so that several processes may write one log.
//!
//! Each line has a number and the SHA-256 of the line before it, so that a line that was changed, removed, added or
//! moved is found: [`verify`] reads logs and finds the first line that breaks the chain.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{Access, FlockOperation, OFlags, access, flock};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::domain::text::hex;

/// Hexadecimal digits of a hash.
const HASH_CHARS: usize = 64;
/// How far back the last line is searched for: more than the longest line.
pub(super) const TAIL_BYTES: u64 = 128 << 10;

/// The end of a chain: the number and the hash of its last line. As text it always has the same length.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Head {
    pub seq: u64,
    pub hash: String,
}

/// What a line says of its position in the chain.
#[derive(Debug, Deserialize)]
struct Link {
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
    fn at(seq: u64, line: &[u8]) -> Self {
        Self { seq, hash: hex(&Sha256::digest(line)) }
    }

    /// A JSON object as the next line, without a line feed, and the end of the chain with it.
    pub(super) fn next(&self, object: &str) -> (String, Self) {
        let fields = object.strip_prefix('{').unwrap_or(object);
        let line = self.start_of_next() + fields;
        let head = Self::at(self.seq.saturating_add(1), line.as_bytes());
        (line, head)
    }

    /// What every next line begins with.
    fn start_of_next(&self) -> String {
        format!("{{\"seq\":{},\"prev\":\"{}\",", self.seq.saturating_add(1), self.hash)
    }

    /// Whether a text can be what is left of the next line.
    fn can_precede(&self, text: &[u8]) -> bool {
        let start = self.start_of_next();
        !text.is_empty() && (text.starts_with(start.as_bytes()) || start.as_bytes().starts_with(text))
    }

    fn parse(text: &str) -> Option<Self> {
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

/// The position of a line in the chain; `None` for a line that is not of a chain.
fn link(line: &[u8]) -> Option<Link> {
    serde_json::from_slice(line).ok()
}

/// A log that is only appended to, and whose file may be moved away.
pub(super) struct LogFile {
    path: PathBuf,
    head: PathBuf,
}

/// The file beside a log that holds the end of its chain.
pub(super) fn head_path(log: &Path) -> PathBuf {
    log.with_added_extension("head")
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
    /// The head of the chain at the last whole line, if that is of a chain.
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

/// Whether the file of a log can be appended to, or where there is none, made. Makes none: it would belong to the user
/// of this process, and the server's may be another.
///
/// # Errors
/// When it cannot, or is not a regular file.
pub fn check(log: &Path) -> io::Result<()> {
    for file in [log, &head_path(log)] {
        if file.symlink_metadata().is_ok() {
            open(file, true)?;
        } else {
            let folder = log.parent().filter(|folder| !folder.as_os_str().is_empty());
            access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK | Access::EXEC_OK)?;
        }
    }
    Ok(())
}

/// Refuses a symbolic link, and a pipe, which would block.
fn open(path: &Path, append: bool) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits().cast_signed();
    let mut options = OpenOptions::new();
    options.read(true).write(true).append(append).create(true).mode(0o600).custom_flags(flags);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a regular file")) }
}

/// What was read of logs whose chain is unbroken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verified {
    /// Lines of the chain.
    pub lines: u64,
    /// The number of the first one. Above 1, older lines are in a file that was not named.
    pub first: u64,
    /// Lines before the chain, which older versions wrote.
    pub unchained: u64,
    /// Lines that a full disk or a crash cut off.
    pub cut_off: u64,
    /// There is no `.head` file beside the last log, so missing lines at the end cannot be noticed.
    pub end_unknown: bool,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, first, unchained, cut_off, end_unknown } = self;
        write!(f, "The chain is unbroken: {lines} lines, from number {first}.")?;
        if *first > 1 {
            write!(f, " Name the older files first to check those before it.")?;
        }
        if *unchained > 0 {
            write!(f, " {unchained} lines before it have no chain.")?;
        }
        if *cut_off > 0 {
            write!(f, " {cut_off} lines were cut off by a full disk or a crash.")?;
        }
        if *end_unknown {
            write!(f, " There is no .head file, so missing lines at the end cannot be noticed.")?;
        }
        Ok(())
    }
}

/// Why a log cannot be trusted from a line on.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("{file} cannot be read")]
    Read { file: PathBuf, source: io::Error },
    #[error("{file}, line {line}: {broken}")]
    Broken { file: PathBuf, line: u64, broken: ChainBreak },
}

/// How the chain is broken at a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChainBreak {
    #[error("the line with number {0} was changed: this line has another hash of it")]
    Changed(u64),
    #[error("the lines with numbers {from} to {to} are missing before it")]
    Missing { from: u64, to: u64 },
    #[error("its number is {found} where {expected} must follow: lines were moved or repeated")]
    Moved { found: u64, expected: u64 },
    #[error("it is not of the chain: it was added")]
    Added,
    #[error("the log ends with number {last}, but number {head} was written: lines were removed at the end")]
    Truncated { last: u64, head: u64 },
    #[error(
        "the log has no line of the chain, but number {0} was written: if the log was rotated, name the older file \
         before it; otherwise lines were removed"
    )]
    Absent(u64),
    #[error("it was changed: its hash was another one when it was written")]
    LastChanged,
}

/// Verifies the files of one log, oldest first.
///
/// # Errors
/// The first line that breaks the chain, or a file that cannot be read.
pub fn verify(files: &[PathBuf]) -> Result<Verified, VerifyError> {
    let (mut verified, mut head, mut line) = (Verified::default(), None, 0);
    let Some(file) = files.last() else { return Ok(verified) };
    // Before the log: a server may append to both meanwhile, and each line is in the log before it is the head.
    let recorded = fs::read_to_string(head_path(file)).ok().and_then(|text| Head::parse(&text));
    for file in files {
        line = read(file, &mut verified, &mut head)?;
    }
    verified.end_unknown = recorded.is_none();
    let last = head.unwrap_or_default();
    let broken = match recorded {
        Some(head) if last.seq == 0 && head.seq > 0 => ChainBreak::Absent(head.seq),
        Some(head) if head.seq > last.seq => ChainBreak::Truncated { last: last.seq, head: head.seq },
        Some(head) if head.seq == last.seq && head.hash != last.hash => ChainBreak::LastChanged,
        _ => return Ok(verified),
    };
    Err(VerifyError::Broken { file: file.clone(), line, broken })
}

/// Returns the number of lines.
fn read(file: &Path, verified: &mut Verified, head: &mut Option<Head>) -> Result<u64, VerifyError> {
    let failed = |source| VerifyError::Read { file: file.to_owned(), source };
    let mut reader = BufReader::new(File::open(file).map_err(failed)?);
    let (mut text, mut line) = (Vec::new(), 0);
    // A longer line is none of ours; its parts are no JSON.
    while reader.by_ref().take(TAIL_BYTES).read_until(b'\n', &mut text).map_err(failed)? > 0 {
        line += 1;
        let is_whole = text.pop_if(|byte| *byte == b'\n').is_some();
        let broken = |broken| VerifyError::Broken { file: file.to_owned(), line, broken };
        follow(&text, is_whole, verified, head).map_err(broken)?;
        text.clear();
    }
    Ok(line)
}

/// Checks one line.
fn follow(text: &[u8], is_whole: bool, verified: &mut Verified, head: &mut Option<Head>) -> Result<(), ChainBreak> {
    let Some(Link { seq, prev }) = link(text).filter(|_| is_whole) else {
        let is_cut_off = !is_whole || serde_json::from_slice::<serde::de::IgnoredAny>(text).is_err();
        match &head {
            // The log's writer leaves no other text behind.
            Some(head) if !is_cut_off || !head.can_precede(text) => return Err(ChainBreak::Added),
            _ if is_cut_off => verified.cut_off += 1,
            _ => verified.unchained += 1,
        }
        return Ok(());
    };
    match &head {
        None if seq == 1 && prev != Head::default().hash => return Err(ChainBreak::Changed(0)),
        Some(head) if seq > head.seq + 1 => return Err(ChainBreak::Missing { from: head.seq + 1, to: seq - 1 }),
        Some(head) if seq <= head.seq => return Err(ChainBreak::Moved { found: seq, expected: head.seq + 1 }),
        Some(head) if prev != head.hash => return Err(ChainBreak::Changed(head.seq)),
        None => verified.first = seq,
        Some(_) => {}
    }
    verified.lines += 1;
    *head = Some(Head::at(seq, text));
    Ok(())
}
