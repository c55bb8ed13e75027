//! Writing an archive, from the first byte to the last: it may go to a pipe.
//!
//! One task reads the database; a blocking one writes the archive. When the writer stops receiving, the reader ends.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    ops::Range,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _},
    },
    time::SystemTime,
};

use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};
use tokio::sync::mpsc;

use super::{
    Backup, BackupError, CONVERSATIONS, DATABASE, FORMAT, MANIFEST, Manifest, ROWS_BYTES, ROWS_WAITING_MAX, SUMS, Sums,
    archive, blocking, check::path_digest, sparse,
};
use crate::{
    domain::{
        Clock, ConversationKey,
        text::{hex, rfc3339},
    },
    ports::{
        database::DumpedRow,
        storage::{LastUse, SkippedCounts, Visited},
    },
};

/// Bytes of holes that are stored for a conversation: a file with many of them is left out beyond that.
const FILLED_BYTES_MAX: u64 = 64 << 20;
/// What is counted as left out then, beside what a walk leaves out.
const SPARSE: &str = "sparse";

impl Backup {
    /// Writes an archive of everything, while others run and write.
    ///
    /// # Errors
    /// When something cannot be read or written: what was written is no archive then.
    pub async fn write(&self, into: impl Write + Send + 'static, clock: &dyn Clock) -> Result<Sums, BackupError> {
        let (sender, rows) = mpsc::channel(ROWS_WAITING_MAX);
        let created = rfc3339(clock.unix_s());
        let tables = self.database.version();
        let manifest = Manifest { format: FORMAT, server: env!("CARGO_PKG_VERSION").to_owned(), tables, created };
        let store = self.store.clone();
        let writing = blocking("written", move || {
            let mut writer = Writer::new(into, &manifest)?;
            writer.rows(rows)?;
            Ok((writer, store.last_uses()?))
        });
        let (dumped, written) = tokio::join!(self.database.dump(sender), writing);
        let (mut writer, conversations) = written?;
        dumped?;
        let store = self.store.clone();
        blocking("written", move || {
            for used in conversations {
                // One that was deleted meanwhile is left out.
                if let Some(folder) = store.open(&used.key)? {
                    writer.conversation(&used, |visit| folder.walk(true, visit))?;
                }
            }
            writer.finish()
        })
        .await
    }
}

/// The same for all names of a file, and for no file that replaces it: device, number, time of creation.
type FileId = (u64, u64, Option<SystemTime>);

struct Writer<W: Write> {
    archive: Builder<Digesting<W>>,
    sums: Sums,
    /// The first names of files with several, in the conversation that is written.
    named: HashMap<FileId, Vec<u8>>,
    /// The paths in it, and whether each is a folder.
    written: HashMap<[u8; 16], bool>,
    /// The bytes of holes that were stored for it.
    filled: u64,
}

impl<W: Write> Writer<W> {
    fn new(into: W, manifest: &Manifest) -> Result<Self, BackupError> {
        let archive = Builder::new(Digesting { into, digest: Sha256::new() });
        let (named, written) = (HashMap::new(), HashMap::new());
        let mut writer = Self { archive, sums: Sums::default(), named, written, filled: 0 };
        writer.json(MANIFEST, manifest)?;
        Ok(writer)
    }

    fn rows(&mut self, mut rows: mpsc::Receiver<(&'static str, DumpedRow)>) -> Result<(), BackupError> {
        let (mut table, mut text, mut number) = ("", String::new(), 0);
        while let Some((of, row)) = rows.blocking_recv() {
            if of != table || text.len() >= ROWS_BYTES {
                self.rows_entry(table, number, &text)?;
                text.clear();
                number += 1;
            }
            table = of;
            text.push_str(&serde_json::Value::Object(row).to_string());
            text.push('\n');
            *self.sums.rows.entry(of.to_owned()).or_default() += 1;
        }
        self.rows_entry(table, number, &text)
    }

    fn rows_entry(&mut self, table: &str, number: usize, text: &str) -> Result<(), BackupError> {
        if text.is_empty() {
            return Ok(());
        }
        self.text(&format!("{DATABASE}/{table}/{number:06}.jsonl"), text.as_bytes())
    }

    /// `walk` passes on what is in its folder.
    fn conversation(
        &mut self,
        used: &LastUse,
        walk: impl FnOnce(&mut dyn FnMut(Visited) -> io::Result<()>) -> io::Result<SkippedCounts>,
    ) -> Result<(), BackupError> {
        let top = format!("{CONVERSATIONS}/{}/", used.key);
        self.entry(EntryType::Directory, 0o700, used.unix_s, top.as_bytes(), 0, io::empty())
            .map_err(archive("written"))?;
        self.sums.conversations += 1;
        (self.named, self.written, self.filled) = (HashMap::new(), HashMap::new(), 0);
        let left_out = walk(&mut |visited| {
            if self.is_first(&used.key, &visited) { self.visit(top.as_bytes(), visited) } else { Ok(()) }
        });
        let left_out = left_out.map_err(BackupError::Read)?;
        for (kind, count) in left_out {
            *self.sums.left_out.entry(kind.as_str().to_owned()).or_default() += count;
        }
        Ok(())
    }

    /// Some file systems list a name again that a program removed and made again meanwhile, perhaps as something else.
    /// An archive has each path once, and a folder before what is in it.
    fn is_first(&mut self, key: &ConversationKey, visited: &Visited) -> bool {
        let (folder, _) = visited.path.split_last();
        if !folder.is_empty() && self.written.get(&path_digest(key, folder)) != Some(&true) {
            return false;
        }
        match self.written.entry(path_digest(key, visited.path.as_bytes())) {
            Entry::Vacant(free) => {
                free.insert(visited.file.is_none());
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn visit(&mut self, top: &[u8], visited: Visited) -> io::Result<()> {
        let Visited { path, mode, modified_unix_s: modified, file, data } = visited;
        let mut name = [top, path.as_bytes()].concat();
        let Some((file, size)) = file else {
            name.push(b'/');
            self.sums.folders += 1;
            return self.entry(EntryType::Directory, mode, modified, &name, 0, io::empty());
        };
        let before = file.metadata()?;
        let id = (before.dev(), before.ino(), before.created().ok());
        if let Some(first) = self.named.get(&id) {
            let mut header = header(EntryType::Link, mode, modified, 0);
            self.archive.append_link(&mut header, OsStr::from_bytes(&name), OsStr::from_bytes(first))?;
            self.sums.files += 1;
            return Ok(());
        }
        let (parts, filled) = sparse::joined(&data);
        if self.filled.saturating_add(filled) > FILLED_BYTES_MAX {
            *self.sums.left_out.entry(SPARSE.to_owned()).or_default() += 1;
            return Ok(());
        }
        self.filled += filled;
        let stored: u64 = parts.iter().map(|part| part.end - part.start).sum();
        let mut header = header(EntryType::Regular, mode, modified, stored);
        if stored < size {
            sparse::mark(&mut header, &parts, size);
        }
        let mut whole = ExactLength::new(&file, parts);
        self.archive.append_data(&mut header, OsStr::from_bytes(&name), &mut whole)?;
        let after = file.metadata()?;
        let is_changed = whole.is_short || after.len() != size || after.modified().ok() != before.modified().ok();
        self.sums.changed += u64::from(is_changed);
        self.sums.files += 1;
        self.sums.bytes += stored;
        if before.nlink() > 1 {
            self.named.insert(id, name);
        }
        Ok(())
    }

    fn entry(
        &mut self,
        kind: EntryType,
        mode: u32,
        modified: i64,
        name: &[u8],
        size: u64,
        content: impl Read,
    ) -> io::Result<()> {
        let mut header = header(kind, mode, modified, size);
        self.archive.append_data(&mut header, OsStr::from_bytes(name), content)
    }

    fn json(&mut self, name: &str, value: &impl serde::Serialize) -> Result<(), BackupError> {
        let text = serde_json::to_vec_pretty(value).map_err(|error| archive("written")(error.into()))?;
        self.text(name, &text)
    }

    /// An entry of the server's own.
    fn text(&mut self, name: &str, text: &[u8]) -> Result<(), BackupError> {
        let written = self.entry(EntryType::Regular, 0o600, 0, name.as_bytes(), text.len() as u64, text);
        written.map_err(archive("written"))
    }

    fn finish(mut self) -> Result<Sums, BackupError> {
        self.sums.sha256 = hex(&self.archive.get_ref().digest.clone().finalize());
        let sums = self.sums.clone();
        self.json(SUMS, &sums)?;
        self.archive.into_inner().and_then(|mut written| written.flush()).map_err(archive("written"))?;
        Ok(sums)
    }
}

fn header(kind: EntryType, mode: u32, modified: i64, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_mtime(u64::try_from(modified).unwrap_or(0));
    header.set_size(size);
    header
}

/// Digests what is written.
pub(super) struct Digesting<W> {
    pub into: W,
    pub digest: Sha256,
}

impl<W: Write> Write for Digesting<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.into.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.into.flush()
    }
}

/// As many bytes as the parts of the file had when it was opened, whatever a program does to it: no more, and zeros for
/// those that are gone.
struct ExactLength<'a> {
    file: &'a File,
    parts: std::vec::IntoIter<Range<u64>>,
    part: Range<u64>,
    is_short: bool,
}

impl<'a> ExactLength<'a> {
    fn new(file: &'a File, parts: Vec<Range<u64>>) -> Self {
        Self { file, parts: parts.into_iter(), part: 0..0, is_short: false }
    }
}

impl Read for ExactLength<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            let Some(next) = self.parts.next() else { return Ok(0) };
            self.part = next;
        }
        let left = self.part.end - self.part.start;
        let wanted = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = &mut buffer[..wanted];
        let mut read = self.file.read_at(buffer, self.part.start)?;
        if read == 0 && wanted > 0 {
            self.is_short = true;
            buffer.fill(0);
            read = wanted;
        }
        self.part.start += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Seek as _, Write as _};

    use super::{super::check::check, *};
    use crate::domain::SafePath;

    #[test]
    fn a_path_that_is_listed_again_is_written_once() {
        let manifest = Manifest { format: FORMAT, server: String::new(), tables: 1, created: String::new() };
        let file = tempfile::tempfile().expect("a file");
        let mut writer = Writer::new(file.try_clone().expect("a handle"), &manifest).expect("a manifest");
        let visited = |path: &str, is_file: bool| Visited {
            path: SafePath::from_text(path).expect("a path"),
            mode: 0o755,
            modified_unix_s: 0,
            file: is_file.then(|| (tempfile::tempfile().expect("a file"), 0)),
            data: Vec::new(),
        };
        let listed =
            [("x", true), ("d", false), ("d/f", true), ("x", false), ("x/f", true), ("d", true), ("d/g", true)];
        let walk = |visit: &mut dyn FnMut(Visited) -> io::Result<()>| -> io::Result<SkippedCounts> {
            listed.iter().try_for_each(|(path, is_file)| visit(visited(path, *is_file)))?;
            Ok(SkippedCounts::new())
        };
        let used = LastUse { unix_s: 0, key: "c".parse().expect("a key") };
        writer.conversation(&used, walk).expect("a conversation");
        let sums = writer.finish().expect("an archive");
        assert_eq!((sums.files, sums.folders), (3, 1));
        check(&file, &[], 1).expect("it can be restored");
    }

    #[test]
    fn a_file_that_changes_has_the_length_of_its_header() {
        let mut file = tempfile::tempfile().expect("a file");
        for (now, expected, is_short) in [("abc", "abc\0\0", true), ("abcdefg", "abcde", false)] {
            file.set_len(0).and_then(|()| file.rewind()).expect("an empty file");
            file.write_all(now.as_bytes()).and_then(|()| file.rewind()).expect("written");
            let (mut whole, mut text) = (ExactLength::new(&file, vec![0..2, 2..5]), String::new());
            whole.read_to_string(&mut text).expect("read");
            assert_eq!((text.as_str(), whole.is_short), (expected, is_short));
        }
    }
}
