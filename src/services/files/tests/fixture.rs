//! Files on disk, for the tests of what uses them.

use std::{path::Path, sync::Arc};

use super::super::{FileList, FileQuery, Files, FilesOptions};
use crate::{
    adapters::storage::DiskStorage,
    domain::{ConversationKey, Failure, RunnerUsers, clock::ManualClock},
    services::{links::UrlSigner, quota::QuotaOptions},
};

/// The time of the clock at first.
pub(super) const NOW: i64 = 1_800_000_000;

impl Default for FilesOptions {
    fn default() -> Self {
        Self {
            url_ttl_s: 24 * 60 * 60,
            entries_max: 200,
            depth_max: 16,
            write_bytes_max: 8 << 20,
            waiting_bytes_max: 256 << 20,
            quota: QuotaOptions::default(),
        }
    }
}

impl Default for QuotaOptions {
    fn default() -> Self {
        Self { bytes_max: 1 << 30, entries_max: 50_000, free_bytes_min: 512 << 20, owner_bytes_max: None }
    }
}

impl Files {
    /// The first page of a conversation's files.
    pub(crate) async fn list(&self, conversation: &ConversationKey) -> Result<FileList, Failure> {
        self.page(conversation, FileQuery::default()).await
    }
}

/// In a folder of the test's own, which need not exist.
pub(in crate::services) fn with_quota(root: &Path, quota: QuotaOptions) -> Arc<Files> {
    with_users(root, RunnerUsers::one(1000), quota)
}

/// As [`with_quota`], for programs that run as these users.
pub(in crate::services) fn with_users(root: &Path, users: RunnerUsers, quota: QuotaOptions) -> Arc<Files> {
    with_options(root, users, FilesOptions { quota, ..FilesOptions::default() }).0
}

pub(super) fn with_options(root: &Path, users: RunnerUsers, options: FilesOptions) -> (Arc<Files>, Arc<ManualClock>) {
    let store = Arc::new(DiskStorage::at(root, users).expect("a store"));
    let (signer, clock) = (Arc::new(UrlSigner::new(&[], "http://x")), Arc::new(ManualClock::at(NOW)));
    (Arc::new(Files::new(store, signer, clock.clone(), options)), clock)
}

/// As [`with_quota`], on a disk that is never too full.
pub(in crate::services) fn with_bytes_max(root: &Path, bytes_max: u64) -> Arc<Files> {
    with_quota(root, QuotaOptions { bytes_max, free_bytes_min: 0, ..QuotaOptions::default() })
}
