//! On a real folder.

use std::sync::Arc;

use super::{
    super::{KNOWN_MAX, Quota, QuotaOptions, watch::Watch},
    *,
};
use crate::{adapters::storage::DiskStorage, domain::RunnerUsers};

#[tokio::test]
async fn measurements_beyond_the_bound_are_forgotten_and_what_none_shows_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let uid = rustix::process::geteuid().as_raw();
    let store = DiskStorage::at(&folder.path().join("root"), RunnerUsers::one(uid)).expect("a store");
    let id = |name: &str| name.parse::<ConversationKey>().expect("an id");
    let options = QuotaOptions { bytes_max: 1 << 20, entries_max: 10, free_bytes_min: 0, owner_bytes_max: None };
    let quota = Arc::new(Quota::new(Arc::new(store), options));
    let usage = Usage { bytes: 1, entries: 1 };
    for number in 0..KNOWN_MAX {
        quota.measured(&id(&format!("c{number}")), Some(usage));
    }
    quota.trim();
    assert_eq!(quota.cached(&id("c0")), Some(usage), "there are not too many");
    quota.known.lock().add_closed(&id("closed"), &usage);
    let _watch = Watch::begin(Arc::clone(&quota), id("watched"));
    let writer = quota.writer(&id("written")).await;
    writer.reserve(&usage).expect("room");
    quota.trim();
    let mut left: Vec<_> = quota.known.lock().conversations.keys().map(|key| key.id.to_string()).collect();
    left.sort();
    assert_eq!(left, ["closed", "watched", "written"]);
    assert_eq!(quota.usage(&id("c0")).expect("measured"), Usage::default());
}
