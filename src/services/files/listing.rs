//! Listings: pages of a conversation's files, and what a run changed, bounded in bytes of the answer.

use tracing::debug;

use super::{Files, FilesOptions, Step};
use crate::{
    domain::{Change, ConversationKey, Failure, FileEntry, SafePath, text::json_bytes},
    ports::storage::{FileFilter, ListBounds, Listing, Mark, Skipped},
    services::fitting,
};

/// The files in one answer, in bytes of JSON, and the skipped things. A tool's answer shows a file up to three times
/// and stays below 256 KiB beside the program's output.
pub const LISTING_BYTES_MAX: usize = 72 << 10;
const SKIPPED_BYTES_MAX: usize = 12 << 10;

/// Pages that one visit reads.
const PAGES_MAX: usize = 50;

/// Which files are listed.
#[derive(Debug, Clone, Default)]
pub struct FileQuery {
    /// `after` is [`FileList::after`] of the page before.
    pub filter: FileFilter,
    /// At most so many, within the limit of one answer.
    pub limit: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileList {
    /// Created and changed files first, each group in the order of paths.
    pub files: Vec<FileEntry>,
    /// The number of created and changed files, including those beyond the limits of one answer.
    pub changed: u64,
    /// There is more than is listed.
    pub truncated: bool,
    /// Where the next page of a listing begins, when files follow.
    pub after: Option<SafePath>,
    pub skipped: Vec<Skipped>,
}

impl FileList {
    /// Those that were created or changed.
    pub fn made(&self) -> impl Iterator<Item = &FileEntry> {
        self.files.iter().filter(|file| file.change != Change::Unchanged)
    }
}

impl Files {
    /// Lists a page of a conversation's files; an unknown conversation or folder has an empty list.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn page(&self, conversation: &ConversationKey, query: FileQuery) -> Result<FileList, Failure> {
        debug!(%conversation, "list files");
        let entries_max = query.limit.unwrap_or(usize::MAX).min(self.options.entries_max);
        let bounds = ListBounds { entries_max, ..self.bounds() };
        let page = move |at: &Step<'_>| Ok(at.open()?.map(|there| there.page(bounds, &query.filter)).transpose()?);
        let listing = self.step(conversation, page).await?.unwrap_or_default();
        Ok(self.file_list(conversation, listing))
    }

    /// Visits the files of a conversation, or those below a folder, page by page, and returns whether those are all:
    /// so many pages have room for about ten thousand files; what follows them is left out.
    ///
    /// # Errors
    /// Those of [`Files::page`].
    pub async fn visit(
        &self,
        conversation: &ConversationKey,
        folder: Option<&SafePath>,
        mut visit: impl FnMut(FileEntry),
    ) -> Result<bool, Failure> {
        let mut filter = FileFilter { folder: folder.cloned(), ..FileFilter::default() };
        for _ in 0..PAGES_MAX {
            let page = self.page(conversation, FileQuery { filter: filter.clone(), limit: None }).await?;
            page.files.into_iter().for_each(&mut visit);
            filter.after = page.after;
            if filter.after.is_none() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The file of a conversation that is wanted, as far as [`Files::visit`] gets.
    ///
    /// # Errors
    /// Those of [`Files::page`].
    pub async fn find(
        &self,
        conversation: &ConversationKey,
        is_wanted: impl Fn(&FileEntry) -> bool,
    ) -> Result<Option<FileEntry>, Failure> {
        let mut found = None;
        let visit = |file: FileEntry| {
            if found.is_none() && is_wanted(&file) {
                found = Some(file);
            }
        };
        self.visit(conversation, None, visit).await?;
        Ok(found)
    }

    /// Lists a conversation's files, those created or changed since the mark first.
    ///
    /// # Errors
    /// When the disk fails.
    pub async fn changed_since(&self, conversation: &ConversationKey, mark: Mark) -> Result<FileList, Failure> {
        let bounds = self.bounds();
        let list = move |at: &Step<'_>| Ok(at.open()?.map(|there| there.list(bounds, Some(mark))).transpose()?);
        let Some(listing) = self.step(conversation, list).await? else { return Ok(FileList::default()) };
        self.quota.measured(conversation, listing.usage);
        Ok(self.file_list(conversation, listing))
    }

    fn bounds(&self) -> ListBounds {
        let FilesOptions { entries_max, depth_max, .. } = self.options;
        ListBounds { entries_max, bytes_max: LISTING_BYTES_MAX, depth_max }
    }

    /// What one answer holds of a listing, with links.
    fn file_list(&self, conversation: &ConversationKey, listing: Listing) -> FileList {
        let Listing { entries, changed, more, truncated, skipped, .. } = listing;
        let files = entries.into_iter().map(|entry| self.entry(conversation, entry)).collect();
        let (files, cut) = within(files, LISTING_BYTES_MAX, FileEntry::wire_bytes);
        let (skipped, skipped_cut) = within(skipped, SKIPPED_BYTES_MAX, |one| json_bytes(&one.path) + 32);
        let after = files.last().filter(|_| more || cut).map(|last: &FileEntry| last.path.clone());
        FileList { files, changed, truncated: truncated || cut || skipped_cut, after, skipped }
    }
}

/// As many items as fit into these bytes, at least one, and whether some were left out.
fn within<T>(mut items: Vec<T>, bytes_max: usize, bytes: impl Fn(&T) -> usize) -> (Vec<T>, bool) {
    let (all, bytes) = (items.len(), items.iter().map(|item| bytes(item) as u64));
    let fits = fitting(bytes, bytes_max as u64);
    items.truncate(fits);
    (items, fits < all)
}
