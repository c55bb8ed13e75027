//! Checking a whole archive before anything is changed.

use std::{
    collections::{BTreeSet, HashMap},
    fs::File,
    io::{self, Read as _, Seek as _},
};

use sha2::{Digest as _, Sha256};

use super::{
    BackupError, FORMAT, Manifest, Sums, archive,
    read::{Part, read, refused},
    write::Digesting,
};
use crate::{
    domain::{ConversationKey, text::hex},
    ports::database::DumpedRow,
};

/// The longest name of a column.
const COLUMN_CHARS_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Folder,
    /// A folder that has no entry of its own yet.
    Parent,
}

/// What was read so far.
#[derive(Default)]
struct Check<'a> {
    /// Those that this server knows, and their version.
    tables: &'a [&'a str],
    newest: i64,
    manifest: Option<Manifest>,
    conversations: BTreeSet<ConversationKey>,
    /// The beginnings of the digests of paths: an archive may have millions.
    paths: HashMap<[u8; 16], Kind>,
    counted: Sums,
    /// The length of the longest file, with its holes.
    longest: u64,
    /// Where it is, too.
    recorded: Option<(Sums, u64)>,
}

/// Reads an archive to its end. Returns also the length of its longest file: a file with holes may claim any.
///
/// # Errors
/// [`BackupError::Refused`] when it is not whole, or holds what a backup does not.
pub(super) fn check(file: &File, tables: &[&str], newest: i64) -> Result<(Manifest, Sums, u64), BackupError> {
    let mut check = Check { tables, newest, ..Check::default() };
    read(file, &mut |part| check.part(part))?;
    let whole = |what| BackupError::Refused(format!("it has no {what}: it is not whole"));
    let manifest = check.manifest.ok_or_else(|| whole("manifest.json"))?;
    let (recorded, end) = check.recorded.ok_or_else(|| whole("sums.json"))?;
    let Sums { changed, left_out, .. } = recorded.clone();
    let counted = Sums { sha256: digest(file, end)?, changed, left_out, ..check.counted };
    if counted != recorded {
        return Err(BackupError::Refused("its content is not what its sums.json says: it was changed".to_owned()));
    }
    Ok((manifest, recorded, check.longest))
}

impl Check<'_> {
    fn part(&mut self, part: Part<'_>) -> Result<(), BackupError> {
        let refuse = |why: &str| Err(BackupError::Refused(why.to_owned()));
        if self.recorded.is_some() {
            return refuse("something follows its sums.json");
        }
        match part {
            Part::Manifest(_) if self.manifest.is_some() => return refuse("it has two manifest.json"),
            // Before what follows it, of which this version may know nothing.
            Part::Manifest(Manifest { format, tables, server, .. }) if format > FORMAT || tables > self.newest => {
                return refuse(&format!("it was written by the newer version {server}: restore it with that"));
            }
            Part::Manifest(manifest) => self.manifest = Some(manifest),
            _ if self.manifest.is_none() => return refuse("it does not begin with a manifest.json"),
            Part::Rows { table, text } => {
                if !self.tables.contains(&table.as_str()) {
                    return Err(refused(table.as_bytes(), "no such table is known"));
                }
                let rows = rows(&table, &text)?.len() as u64;
                *self.counted.rows.entry(table).or_default() += rows;
            }
            Part::Conversation { key, .. } => {
                if !self.conversations.insert(key.clone()) {
                    return Err(refused(key.to_string().as_bytes(), "it is there twice"));
                }
                self.counted.conversations += 1;
            }
            Part::Folder { key, path, .. } => {
                self.take(&key, path.as_bytes(), Kind::Folder)?;
                self.counted.folders += 1;
            }
            Part::File(file) => {
                self.take(&file.key, file.path.as_bytes(), Kind::File)?;
                self.longest = self.longest.max(file.length);
                self.counted.files += 1;
                self.counted.bytes = self.counted.bytes.saturating_add(file.size);
            }
            Part::Link { key, path, first } => {
                if self.paths.get(&path_digest(&key, first.as_bytes())) != Some(&Kind::File) {
                    return Err(refused(path.as_bytes(), "the file that it is linked to does not come before it"));
                }
                self.take(&key, path.as_bytes(), Kind::File)?;
                self.counted.files += 1;
            }
            Part::Sums { sums, at } => self.recorded = Some((sums, at)),
        }
        Ok(())
    }

    /// Each path is there once, and is either a file or a folder.
    fn take(&mut self, key: &ConversationKey, path: &[u8], kind: Kind) -> Result<(), BackupError> {
        if !self.conversations.contains(key) {
            return Err(refused(path, "its conversation does not come before it"));
        }
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if *self.paths.entry(path_digest(key, &path[..at])).or_insert(Kind::Parent) == Kind::File {
                return Err(refused(path, "a file is where it has a folder"));
            }
        }
        match self.paths.insert(path_digest(key, path), kind) {
            None => Ok(()),
            Some(Kind::Parent) if kind == Kind::Folder => Ok(()),
            Some(_) => Err(refused(path, "it is there twice")),
        }
    }
}

/// Stands for a path of a conversation.
pub(super) fn path_digest(key: &ConversationKey, path: &[u8]) -> [u8; 16] {
    let digest = Sha256::new().chain_update(key.to_string()).chain_update([0]).chain_update(path).finalize();
    let mut start = [0; 16];
    start.copy_from_slice(&digest[..16]);
    start
}

/// The rows of an entry, whose columns have names that can be in a statement, and texts and whole numbers.
///
/// # Errors
/// [`BackupError::Refused`] when a line is something else.
pub(super) fn rows(table: &str, text: &str) -> Result<Vec<DumpedRow>, BackupError> {
    let row = |line| -> Result<DumpedRow, BackupError> {
        let row: DumpedRow =
            serde_json::from_str(line).map_err(|error| refused(table.as_bytes(), format!("a row: {error}")))?;
        let is_column = |name: &str| {
            !name.is_empty()
                && name.len() <= COLUMN_CHARS_MAX
                && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        };
        let is_good =
            !row.is_empty() && row.iter().all(|(name, value)| is_column(name) && (value.is_string() || value.is_i64()));
        if is_good { Ok(row) } else { Err(refused(table.as_bytes(), "a row has what no column has")) }
    };
    text.lines().map(row).collect()
}

/// The SHA-256 of the first bytes.
fn digest(mut file: &File, length: u64) -> Result<String, BackupError> {
    let mut digesting = Digesting { into: io::sink(), digest: Sha256::new() };
    let read = file.rewind().and_then(|()| io::copy(&mut file.take(length), &mut digesting));
    read.map_err(archive("read"))?;
    Ok(hex(&digesting.digest.finalize()))
}
