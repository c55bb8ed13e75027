//! Reading an archive: what each entry is. Names and types are parsed here; what is allowed together is checked in
//! `check`.

use std::{
    borrow::Cow,
    fs::File,
    io::{BufReader, Read, Seek as _},
    iter,
    ops::Range,
};

use tar::{Archive, EntryType};

use super::{
    BackupError, CONVERSATIONS, DATABASE, HEAD_BYTES_MAX, MANIFEST, Manifest, ROWS_BYTES_MAX, SUMS, Sums, archive,
    sparse,
};
use crate::domain::{
    ConversationKey, SafePath,
    path::{PATH_BYTES_MAX, show},
};

/// The longest name of an entry: a path, and what is before it.
const NAME_BYTES_MAX: u64 = PATH_BYTES_MAX as u64 + 512;

/// An entry.
pub(super) enum Part<'a> {
    Manifest(Manifest),
    /// Lines of JSON.
    Rows {
        table: String,
        text: String,
    },
    Conversation {
        key: ConversationKey,
        used_unix_s: i64,
    },
    Folder {
        key: ConversationKey,
        path: SafePath,
        mode: u32,
    },
    File(FilePart<'a>),
    /// A further name of a file.
    Link {
        key: ConversationKey,
        path: SafePath,
        first: SafePath,
    },
    Sums {
        sums: Sums,
        at: u64,
    },
}

pub(super) struct FilePart<'a> {
    pub key: ConversationKey,
    pub path: SafePath,
    pub mode: u32,
    pub modified_unix_s: i64,
    /// What is stored.
    pub size: u64,
    /// Where it is in the file.
    pub data: Vec<Range<u64>>,
    pub length: u64,
    pub content: &'a mut dyn Read,
}

pub(super) fn refused(name: &[u8], why: impl std::fmt::Display) -> BackupError {
    BackupError::Refused(format!("{}: {why}", show(name)))
}

/// Passes each entry on, in order.
pub(super) fn read(file: &File, each: &mut dyn FnMut(Part<'_>) -> Result<(), BackupError>) -> Result<(), BackupError> {
    let mut file = file;
    file.rewind().map_err(archive("read"))?;
    let length = file.metadata().map_err(archive("read"))?.len();
    let unreadable = |error: std::io::Error| BackupError::Refused(format!("it is no tar archive: {error}"));
    let mut reader = Archive::new(BufReader::new(file));
    // Raw: a name that is longer than the header allows is an entry before it, whose length has a bound here.
    let entries = reader.entries_with_seek().map_err(unreadable)?.raw(true);
    let (mut long_name, mut long_target) = (None, None);
    for entry in entries {
        let mut entry = entry.map_err(unreadable)?;
        let (kind, size) = (entry.header().entry_type(), entry.size());
        let is_text = matches!(kind, EntryType::GNULongName | EntryType::GNULongLink);
        let known = if is_text { None } else { long_name.take() };
        let name = known.unwrap_or_else(|| entry.path_bytes().into_owned());
        let refuse = |why: String| refused(&name, why);
        if size > length.saturating_sub(entry.raw_file_position()) {
            return Err(refused(&name, "the archive ends before it does"));
        }
        if is_text {
            let mut text = bytes(&mut entry, NAME_BYTES_MAX).map_err(refuse)?;
            text.truncate(text.iter().position(|&byte| byte == 0).unwrap_or(text.len()));
            let slot = if kind == EntryType::GNULongName { &mut long_name } else { &mut long_target };
            *slot = Some(text);
            continue;
        }
        let is_file = matches!(kind, EntryType::Regular | EntryType::GNUSparse | EntryType::Link);
        if !is_file && kind != EntryType::Directory {
            return Err(refused(&name, "only plain files and folders are accepted"));
        }
        let target = long_target.take().or_else(|| entry.header().link_name_bytes().map(Cow::into_owned));
        if target.is_some() != (kind == EntryType::Link) {
            return Err(refused(&name, "only a further name of a file is a link"));
        }
        let at = entry.raw_header_position();
        let mode = entry.header().mode().unwrap_or(0) & 0o1777;
        let modified_unix_s = entry.header().mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0);
        let part = match (entry_kind(&name, kind == EntryType::Directory).map_err(refuse)?, kind) {
            (EntryKind::Inside(key, path), EntryType::Directory) => Part::Folder { key, path, mode },
            (EntryKind::Inside(key, path), EntryType::Link) => {
                let target = target.unwrap_or_default();
                match entry_kind(&target, false).map_err(|why| refused(&target, why))? {
                    EntryKind::Inside(of, first) if of == key && size == 0 => Part::Link { key, path, first },
                    _ => return Err(refused(&name, "it is linked to what is no file of its conversation")),
                }
            }
            (EntryKind::Inside(key, path), _) => {
                let parts = match kind {
                    EntryType::GNUSparse => sparse::read(entry.header(), size),
                    _ => Some((iter::once(0..size).collect(), size)),
                };
                let (data, length) = parts.ok_or_else(|| refused(&name, "its parts are not those of a file"))?;
                Part::File(FilePart { key, path, mode, modified_unix_s, size, data, length, content: &mut entry })
            }
            (_, EntryType::Link | EntryType::GNUSparse) => {
                return Err(refused(&name, "only plain files and folders are accepted"));
            }
            (EntryKind::Manifest, _) => Part::Manifest(json(&mut entry).map_err(refuse)?),
            (EntryKind::Sums, _) => Part::Sums { sums: json(&mut entry).map_err(refuse)?, at },
            (EntryKind::Rows(table), _) => {
                let text = bytes(&mut entry, ROWS_BYTES_MAX).map_err(refuse)?;
                let text = String::from_utf8(text).map_err(|_| refused(&name, "it is not UTF-8"))?;
                Part::Rows { table, text }
            }
            (EntryKind::Conversation(key), _) => Part::Conversation { key, used_unix_s: modified_unix_s },
        };
        each(part)?;
    }
    Ok(())
}

/// What a name says.
enum EntryKind {
    Manifest,
    Sums,
    Rows(String),
    Conversation(ConversationKey),
    Inside(ConversationKey, SafePath),
}

fn entry_kind(name: &[u8], is_folder: bool) -> Result<EntryKind, String> {
    let unknown = || "a backup has no such entry".to_owned();
    let name = if is_folder { name.strip_suffix(b"/").unwrap_or(name) } else { name };
    let (first, rest) = split(name);
    let rest = match (first, rest) {
        (first, None) if first == MANIFEST.as_bytes() && !is_folder => return Ok(EntryKind::Manifest),
        (first, None) if first == SUMS.as_bytes() && !is_folder => return Ok(EntryKind::Sums),
        (first, Some(rest)) if first == DATABASE.as_bytes() && !is_folder => {
            let text = std::str::from_utf8(rest).map_err(|_| unknown())?;
            let file = text.strip_suffix(".jsonl").and_then(|file| file.split_once('/'));
            return file.map(|(table, _)| EntryKind::Rows(table.to_owned())).ok_or_else(unknown);
        }
        (first, Some(rest)) if first == CONVERSATIONS.as_bytes() => rest,
        _ => return Err(unknown()),
    };
    let (first, mut inside) = split(rest);
    let mut key = first.to_vec();
    if first.starts_with(b"@") {
        let (id, path) = split(inside.ok_or_else(unknown)?);
        key.push(b'/');
        key.extend_from_slice(id);
        inside = path;
    }
    let key = std::str::from_utf8(&key).map_err(|_| "its conversation is no id".to_owned())?;
    let key: ConversationKey = key.parse().map_err(|why| format!("its conversation {why}"))?;
    match inside {
        None if is_folder => Ok(EntryKind::Conversation(key)),
        None => Err(unknown()),
        Some(path) => {
            let path = SafePath::from_components(path.split(|&byte| byte == b'/')).map_err(|why| why.to_string())?;
            Ok(EntryKind::Inside(key, path))
        }
    }
}

/// A name, and what follows its slash.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    match path.iter().position(|&byte| byte == b'/') {
        Some(at) => (&path[..at], Some(&path[at + 1..])),
        None => (path, None),
    }
}

fn json<T: serde::de::DeserializeOwned>(entry: &mut impl Read) -> Result<T, String> {
    serde_json::from_slice(&bytes(entry, HEAD_BYTES_MAX)?).map_err(|error| error.to_string())
}

fn bytes(entry: &mut impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    entry.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most { Err(format!("it is longer than {most} bytes")) } else { Ok(bytes) }
}
