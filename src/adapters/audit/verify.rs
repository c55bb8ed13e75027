//! Reads audit logs and finds the first line that breaks the chain.

use std::{
    fmt,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
};

use super::file::{Head, Link, TAIL_BYTES, head_path, link};

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
        let notes = [
            (*first > 1, " Name the older files first to check those before it.".to_owned()),
            (*unchained > 0, format!(" {unchained} lines before it have no chain.")),
            (*cut_off > 0, format!(" {cut_off} lines were cut off by a full disk or a crash.")),
            (*end_unknown, " There is no .head file, so missing lines at the end cannot be noticed.".to_owned()),
        ];
        notes.iter().filter(|(applies, _)| *applies).try_for_each(|(_, note)| f.write_str(note))
    }
}

/// Why a log cannot be trusted from a line on.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("{file} cannot be read")]
    Read {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{file}, line {line}: {broken}")]
    Broken { file: PathBuf, line: u64, broken: Broken },
}

/// How the chain is broken at a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
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
    #[error("it was changed: its hash was another one when it was written")]
    LastChanged,
}

/// Verifies the files of one log, oldest first.
///
/// # Errors
/// The first line that breaks the chain, or a file that cannot be read.
pub fn verify(files: &[PathBuf]) -> Result<Verified, VerifyError> {
    let (mut verified, mut head, mut line) = (Verified::default(), None, 0);
    for file in files {
        line = read(file, &mut verified, &mut head)?;
    }
    let Some(file) = files.last() else { return Ok(verified) };
    let recorded = fs::read_to_string(head_path(file)).ok().and_then(|text| Head::parse(&text));
    verified.end_unknown = recorded.is_none();
    let last = head.unwrap_or_default();
    let broken = match recorded {
        Some(head) if head.seq > last.seq => Broken::Truncated { last: last.seq, head: head.seq },
        Some(head) if head.seq == last.seq && head.hash != last.hash => Broken::LastChanged,
        _ => return Ok(verified),
    };
    Err(VerifyError::Broken { file: file.clone(), line, broken })
}

/// Returns the number of lines.
fn read(file: &Path, verified: &mut Verified, head: &mut Option<Head>) -> Result<u64, VerifyError> {
    let failed = |source| VerifyError::Read { file: file.to_owned(), source };
    let mut reader = BufReader::new(File::open(file).map_err(failed)?);
    let mut text = Vec::new();
    for line in 1.. {
        text.clear();
        // A longer line is none of ours; its parts are no JSON.
        if reader.by_ref().take(TAIL_BYTES).read_until(b'\n', &mut text).map_err(failed)? == 0 {
            return Ok(line - 1);
        }
        let is_whole = text.pop_if(|byte| *byte == b'\n').is_some();
        let broken = |broken| VerifyError::Broken { file: file.to_owned(), line, broken };
        follow(&text, is_whole, verified, head).map_err(broken)?;
    }
    Ok(0)
}

/// Checks one line.
fn follow(text: &[u8], is_whole: bool, verified: &mut Verified, head: &mut Option<Head>) -> Result<(), Broken> {
    let Some(Link { seq, prev }) = link(text).filter(|_| is_whole) else {
        let is_cut_off = !is_whole || serde_json::from_slice::<serde::de::IgnoredAny>(text).is_err();
        match head {
            _ if is_cut_off => verified.cut_off += 1,
            None => verified.unchained += 1,
            Some(_) => return Err(Broken::Added),
        }
        return Ok(());
    };
    match &head {
        None if seq == 1 && prev != Head::default().hash => return Err(Broken::Changed(0)),
        Some(head) if seq > head.seq + 1 => return Err(Broken::Missing { from: head.seq + 1, to: seq - 1 }),
        Some(head) if seq <= head.seq => return Err(Broken::Moved { found: seq, expected: head.seq + 1 }),
        Some(head) if prev != head.hash => return Err(Broken::Changed(head.seq)),
        None => verified.first = seq,
        Some(_) => {}
    }
    verified.lines += 1;
    *head = Some(Head::at(seq, text));
    Ok(())
}
