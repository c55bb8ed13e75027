//! Quotas on a real folder.

use super::*;
use crate::{
    adapters::storage::{DiskStorage, Owner},
    domain::path::SafePath,
};

const ROOM: QuotaOptions = QuotaOptions { bytes_max: 1 << 20, entries_max: 10, free_bytes_min: 0 };

fn quota(options: QuotaOptions) -> (tempfile::TempDir, Arc<dyn Storage>, Arc<Quota>) {
    let root = tempfile::tempdir().expect("a folder");
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let store: Arc<dyn Storage> =
        Arc::new(DiskStorage::at(&root.path().join("root"), Owner { uid, gid }).expect("a store"));
    (root, Arc::clone(&store), Arc::new(Quota::new(store, options)))
}

fn id() -> ConversationKey {
    "c".parse().expect("an id")
}

fn usage(bytes: u64, entries: u64) -> Usage {
    Usage { bytes, entries }
}

#[tokio::test]
async fn reserve_measures_before_it_refuses() {
    let (_root, store, quota) = quota(ROOM);
    let path = |name: &str| SafePath::from_text(name).expect("a path");
    assert!(!quota.fits_surely(&id(), &Usage::default()), "nothing is known yet");
    quota.writer(&id()).await.reserve(&usage(700 << 10, 1)).expect("room");
    assert!(quota.fits_surely(&id(), &usage(300 << 10, 1)));
    // The reservations fill the quota, and nothing was written.
    assert!(!quota.fits_surely(&id(), &usage(300 << 10, 1)));
    quota.writer(&id()).await.reserve(&usage(300 << 10, 1)).expect("it was measured");
    let there = store.create(&id()).expect("a conversation");
    there.write(&path("big"), &vec![1; 900 << 10]).expect("written");
    // As after a run: its usage is not known before its files are listed.
    quota.measured(&id(), None);
    let refused = quota.writer(&id()).await.reserve(&usage(300 << 10, 1)).expect_err("too much");
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert!(refused.message.contains("1 MiB"), "{refused}");
    for name in 0..8 {
        there.write(&path(&name.to_string()), b"").expect("written");
    }
    let refused = quota.writer(&id()).await.reserve(&usage(0, 2)).expect_err("too many");
    assert!(refused.code == Code::QuotaExceeded && refused.message.contains("9 files"), "{refused}");
    quota.writer(&id()).await.reserve(&usage(0, 1)).expect("one more");
    store.remove(&id()).expect("removed");
    quota.keep(&HashSet::from([&"other".parse().expect("an id")]));
    assert_eq!(quota.usage(&id()).expect("measured"), Usage::default());
}

#[tokio::test]
async fn reserve_refuses_when_the_disk_is_nearly_full() {
    let (root, _, quota) = quota(QuotaOptions { free_bytes_min: 1 << 50, ..ROOM });
    let refused = quota.writer(&id()).await.reserve(&Usage::default()).expect_err("no room");
    assert_eq!(refused.code, Code::NoSpace);
    quota.measured(&id(), Some(Usage::default()));
    assert!(!quota.fits_surely(&id(), &Usage::default()), "although the conversation has room");
    assert!(!root.path().join("root/c").exists());
}

#[test]
fn judge_stops_the_program_that_exceeds_a_limit() {
    let (_root, _, quota) = quota(QuotaOptions { free_bytes_min: 1000, ..ROOM });
    let sample = |bytes, entries, free| Sample { usage: usage(bytes, entries), free: usage(free, FREE_ENTRIES_MIN) };
    let (small, full) = (sample(1, 1, 1000), sample(1, 1, 999));
    let no_names = Sample { free: usage(u64::MAX, FREE_ENTRIES_MIN - 1), ..small };
    let rows = [
        (None, sample(1 << 20, 10, 1000), None),
        (None, sample((1 << 20) + 1, 10, 1000), Some(DiskLimit::Bytes { max: 1 << 20 })),
        (Some(small), sample(1, 11, 1000), Some(DiskLimit::Entries { max: 10 })),
        // The disk is full: a program whose files grew is stopped at once, others at the next sample.
        (None, full, None),
        (Some(small), full, None),
        (Some(small), sample(2, 1, 999), Some(DiskLimit::Free { min: 1000 })),
        (Some(small), sample(1, 2, 999), Some(DiskLimit::Free { min: 1000 })),
        (Some(full), full, Some(DiskLimit::Free { min: 1000 })),
        (Some(full), small, None),
        (Some(no_names), no_names, Some(DiskLimit::Free { min: 1000 })),
    ];
    for (before, now, expected) in rows {
        assert_eq!(quota.judge(before.as_ref(), &now), expected, "{before:?} {now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn breach_returns_when_a_limit_is_exceeded() {
    let (_root, store, quota) = quota(ROOM);
    let there = store.create(&id()).expect("a conversation");
    let mut breach = std::pin::pin!(quota.breach(id()));
    let early = tokio::time::timeout(MEASURE_EVERY * 3, &mut breach).await;
    assert!(early.is_err(), "an empty folder breaks none");
    let path = SafePath::from_text("big").expect("a path");
    there.write(&path, &vec![1; 2 << 20]).expect("written");
    assert_eq!(breach.await, DiskLimit::Bytes { max: 1 << 20 });
}
