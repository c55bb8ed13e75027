//! A conversation's folder as a tar archive, both ways.
//!
//! Export: the archive is made while it is read, a chunk at a time, so a slow reader costs a page of names and a chunk.
//! Import: the whole archive is checked before the first file is written; an entry that is not a plain file or folder
//! below `/data` is refused by name. Files are written as [`Files::write`] does.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt as _,
    sync::Arc,
};

use bytes::Bytes;
use futures_util::{
    StreamExt as _, TryStreamExt as _,
    stream::{self, BoxStream},
};
use tar::EntryType;
use tracing::debug;

use super::{Download, Files, Step, write::FOLDER_BYTES};
use crate::{
    domain::{Code, ConversationKey, Failure, SafePath},
    ports::storage::{ConversationFolder, FileFilter, FsResult, ListBounds, Listing, Usage},
    services::quota::Writer,
};

/// The maximum number of files and folders in one archive.
pub const ARCHIVE_ENTRIES_MAX: usize = 10_000;
/// The maximum depth of folders in one archive.
const ARCHIVE_DEPTH_MAX: usize = 32;
/// Names that an export holds at a time, in bytes. The folder is listed again for the next ones.
const NAMES_BYTES_MAX: usize = 512 << 10;
/// The block size of tar.
const BLOCK_BYTES: u64 = 512;

/// The end of a tar archive: two blocks of zeros.
static END: [u8; 1024] = [0; 1024];

/// The files that were written from an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = ImportResult)]
pub struct Imported {
    /// Number of files.
    pub files: usize,
    /// Their total size, in bytes.
    pub bytes: u64,
}

/// An archive that is made while it is read. An error ends the stream, so that a part is not taken for the whole.
pub type Archive = BoxStream<'static, io::Result<Bytes>>;

/// An entry to write. A folder has no bytes.
struct Item {
    path: SafePath,
    bytes: Option<Bytes>,
}

impl Files {
    /// The plain files of a conversation as a tar archive, without links, pipes, sockets, devices and empty folders.
    ///
    /// # Errors
    /// [`Code::ConversationNotFound`], [`Code::TooLarge`] when there are more files than an archive holds, or folders
    /// that are too deep or too many.
    pub async fn archive(self: &Arc<Self>, conversation: &ConversationKey) -> Result<Archive, Failure> {
        debug!(%conversation, "read an archive");
        let (files, conversation) = (Arc::clone(self), conversation.clone());
        let mut packing =
            Packing { files, conversation, names: VecDeque::new(), after: None, left: ARCHIVE_ENTRIES_MAX };
        let first = packing.list(None).await?;
        if first.total.is_none_or(|total| total > ARCHIVE_ENTRIES_MAX as u64) {
            let why = format!(
                "There are more than {ARCHIVE_ENTRIES_MAX} files, too many folders, or folders deeper than \
                 {ARCHIVE_DEPTH_MAX}: let a program pack them, and download what it made."
            );
            return Err(Failure::new(Code::TooLarge, why));
        }
        packing.add(first);
        Ok(packing.stream())
    }

    /// Writes the entries of an archive. All of it is checked first; then the files are written one after the other.
    ///
    /// # Errors
    /// [`Code::BadArchive`], naming the entry, and [`Code::QuotaExceeded`] before anything is written; otherwise as
    /// [`Files::write`].
    pub async fn import(&self, conversation: &ConversationKey, archive: Bytes) -> Result<Imported, Failure> {
        debug!(%conversation, bytes = archive.len(), "write an archive");
        let _held = self.hold(&conversation.owner, archive.len())?;
        let file_bytes_max = self.options.write_bytes_max;
        let checked = tokio::task::spawn_blocking(move || check(&archive, file_bytes_max));
        let (items, more) = checked.await.map_err(|_| bad("The archive cannot be read: send a plain tar."))??;
        let step = move |at: &Step<'_>, writer: &Writer| {
            writer.reserve(&more)?;
            Ok(at.write(|there| write(at, there, &items))?)
        };
        self.write_step(conversation, step).await
    }
}

fn write(at: &Step<'_>, conversation: &dyn ConversationFolder, items: &[Item]) -> FsResult<Imported> {
    let mut imported = Imported { files: 0, bytes: 0 };
    for Item { path, bytes } in items {
        if let Some(bytes) = bytes {
            imported.bytes += conversation.write(path, bytes)?.size;
            imported.files += 1;
            at.announce(Some(path));
        } else {
            conversation.make_folders(path)?;
        }
    }
    Ok(imported)
}

fn bad(why: impl Into<String>) -> Failure {
    Failure::new(Code::BadArchive, why)
}

/// Parses and checks a whole archive without writing anything. Its entries, and an upper bound of their usage.
fn check(archive: &Bytes, file_bytes_max: u64) -> Result<(Vec<Item>, Usage), Failure> {
    let unreadable = |number: usize| {
        move |_: io::Error| bad(format!("Entry {number} of the archive cannot be read: send a plain tar."))
    };
    if archive.is_empty() {
        return Err(bad("The archive is empty: send a plain tar."));
    }
    let mut items = Vec::new();
    let mut reader = tar::Archive::new(&archive[..]);
    for (index, entry) in reader.entries().map_err(unreadable(1))?.enumerate() {
        if index == ARCHIVE_ENTRIES_MAX {
            return Err(bad(format!(
                "The archive has more than {ARCHIVE_ENTRIES_MAX} entries: send several archives."
            )));
        }
        let entry = entry.map_err(unreadable(index + 1))?;
        let name = entry.path_bytes().into_owned();
        let refuse = |why: &str| bad(format!("{}: {why}", shown(&name)));
        let kind = entry.header().entry_type();
        match kind {
            // Comments on the whole archive.
            EntryType::XGlobalHeader => continue,
            EntryType::Regular | EntryType::Continuous | EntryType::Directory => {}
            _ => return Err(refuse("only plain files and folders are accepted.")),
        }
        let Some(path) = path(&name).map_err(|why| refuse(&why))? else { continue };
        if kind == EntryType::Directory {
            items.push(Item { path, bytes: None });
            continue;
        }
        let size = entry.size();
        if size > file_bytes_max {
            return Err(refuse(&format!("it is longer than the {file_bytes_max} bytes of one file.")));
        }
        let Some(bytes) = part(archive, entry.raw_file_position(), size) else {
            return Err(refuse("the archive ends before it does."));
        };
        items.push(Item { path, bytes: Some(bytes) });
    }
    check_conflicts(&items)?;
    let more = space(&items);
    Ok((items, more))
}

/// A part of the archive, which is not copied: only the memory of the archive is held for an import.
fn part(archive: &Bytes, begin: u64, size: u64) -> Option<Bytes> {
    let (begin, size) = (usize::try_from(begin).ok()?, usize::try_from(size).ok()?);
    let end = begin.checked_add(size).filter(|end| *end <= archive.len())?;
    Some(archive.slice(begin..end))
}

/// An upper bound of the usage of the entries. A folder counts once, however many of them are in it.
fn space(items: &[Item]) -> Usage {
    let mut folders = HashSet::<&[u8]>::new();
    let mut usage = Usage::default();
    for Item { path, bytes } in items {
        folders.extend(path.above());
        if let Some(bytes) = bytes {
            usage = usage.plus(&Usage::of_file(bytes.len() as u64));
        } else {
            folders.insert(path.as_bytes());
        }
    }
    let folders = folders.len() as u64;
    usage.plus(&Usage { bytes: folders * FOLDER_BYTES, entries: folders })
}

/// Refuses a path that is both a file and a folder, which would otherwise fail half way through the import.
fn check_conflicts(items: &[Item]) -> Result<(), Failure> {
    let files = items.iter().filter(|item| item.bytes.is_some());
    let files: BTreeSet<_> = files.map(|item| item.path.as_bytes()).collect();
    for Item { path, bytes } in items {
        let as_folder = bytes.is_none().then(|| path.as_bytes());
        if path.above().chain(as_folder).any(|folder| files.contains(folder)) {
            return Err(bad(format!("{path}: the archive has it both as a file and as a folder.")));
        }
    }
    Ok(())
}

/// The path of an entry; `None` for the top folder itself.
fn path(name: &[u8]) -> Result<Option<SafePath>, String> {
    let mut inside = name;
    while let Some(rest) = inside.strip_prefix(b"./") {
        inside = rest;
    }
    let inside = inside.strip_suffix(b"/").unwrap_or(inside);
    if inside.is_empty() && name.starts_with(b"./") || inside == b"." {
        return Ok(None);
    }
    SafePath::from_components(inside.split(|&byte| byte == b'/')).map(Some).map_err(|why| why.to_string())
}

/// An entry's name, escaped for display.
fn shown(name: &[u8]) -> String {
    const NAME_CHARS_MAX: usize = 120;
    String::from_utf8_lossy(name).escape_debug().take(NAME_CHARS_MAX).collect()
}

/// An export in progress.
struct Packing {
    files: Arc<Files>,
    conversation: ConversationKey,
    /// The next files, in the order of paths.
    names: VecDeque<SafePath>,
    /// The last of them, when more follow.
    after: Option<SafePath>,
    /// Files that may still be listed: a program can add some all the time.
    left: usize,
}

impl Packing {
    fn stream(self) -> Archive {
        let entries = stream::try_unfold(self, |mut packing| async move {
            Ok::<_, io::Error>(packing.next().await?.map(|(path, file)| (entry(&path, &file), packing)))
        });
        let end = stream::once(async { Ok(Bytes::from_static(&END)) });
        entries.try_flatten().chain(end).boxed()
    }

    async fn list(&self, after: Option<SafePath>) -> Result<Listing, Failure> {
        let bounds = ListBounds { entries_max: self.left, bytes_max: NAMES_BYTES_MAX, depth_max: ARCHIVE_DEPTH_MAX };
        let filter = FileFilter { after, ..FileFilter::default() };
        self.files.step(&self.conversation, move |at| Ok(at.existing()?.page(bounds, &filter)?)).await
    }

    fn add(&mut self, listing: Listing) {
        self.left = self.left.saturating_sub(listing.entries.len());
        self.names.extend(listing.entries.into_iter().map(|entry| entry.path));
        self.after = self.names.back().filter(|_| listing.more).cloned();
    }

    /// The next name; an error when more were added meanwhile than an archive holds.
    async fn next_name(&mut self) -> io::Result<Option<SafePath>> {
        if self.names.is_empty()
            && let Some(after) = self.after.take()
        {
            if self.left == 0 {
                return Err(io::Error::other("the folder grew while it was packed"));
            }
            let listing = self.list(Some(after)).await.map_err(io::Error::other)?;
            self.add(listing);
        }
        Ok(self.names.pop_front())
    }

    /// The next file that still exists.
    async fn next(&mut self) -> io::Result<Option<(SafePath, Download)>> {
        while let Some(path) = self.next_name().await? {
            match self.files.open(&self.conversation, &path).await {
                Ok(file) => return Ok(Some((path, file))),
                Err(failure) if failure.code == Code::Internal => return Err(io::Error::other(failure)),
                // A program deleted, replaced or changed the mode of it after the listing.
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

/// One file: its header, its bytes, and zeros up to the next block.
fn entry(path: &SafePath, file: &Download) -> Archive {
    let size = file.size;
    let header = header(path, file);
    let bytes = file.pieces(0, size);
    let rest = usize::try_from(size.next_multiple_of(BLOCK_BYTES) - size).unwrap_or(0);
    let padding = stream::iter((rest > 0).then(|| Ok(Bytes::from(vec![0; rest]))));
    stream::once(async { header }).chain(bytes).chain(padding).boxed()
}

fn header(path: &SafePath, file: &Download) -> io::Result<Bytes> {
    let mut header = tar::Header::new_gnu();
    header.set_size(file.size);
    header.set_mode(0o644);
    header.set_mtime(u64::try_from(file.modified_unix_s).unwrap_or(0));
    let mut builder = tar::Builder::new(Vec::new());
    // No content, only the header; a long name gets entries of its own before it.
    builder.append_data(&mut header, OsStr::from_bytes(path.as_bytes()), io::empty())?;
    Ok(Bytes::copy_from_slice(builder.get_ref()))
}
