//! The rules of quotas, on a real folder.

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
    // So much was promised that no more would fit, and nothing of it was written.
    assert!(!quota.fits_surely(&id(), &usage(300 << 10, 1)));
    quota.writer(&id()).await.reserve(&usage(300 << 10, 1)).expect("it was measured");
    let there = store.create(&id()).expect("a conversation");
    there.write(&path("big"), &vec![1; 900 << 10]).expect("written");
    // As after a run: what it wrote is not known before its files were listed.
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
async fn reserve_refuses_on_a_disk_that_is_nearly_full() {
    let (root, _, quota) = quota(QuotaOptions { free_bytes_min: 1 << 50, ..ROOM });
    let refused = quota.writer(&id()).await.reserve(&Usage::default()).expect_err("no room");
    assert_eq!(refused.code, Code::NoSpace);
    quota.measured(&id(), Some(Usage::default()));
    assert!(!quota.fits_surely(&id(), &Usage::default()), "what is known of the conversation does not help");
    assert!(!root.path().join("root/c").exists());
}

#[test]
fn looks_are_judged() {
    let (_root, _, quota) = quota(QuotaOptions { free_bytes_min: 1000, ..ROOM });
    let look = |bytes, entries, free| Look { usage: usage(bytes, entries), free: usage(free, FREE_ENTRIES_MIN) };
    let (small, full) = (look(1, 1, 1000), look(1, 1, 999));
    let no_names = Look { free: usage(u64::MAX, FREE_ENTRIES_MIN - 1), ..small };
    let rows = [
        (None, look(1 << 20, 10, 1000), None),
        (None, look((1 << 20) + 1, 10, 1000), Some(DiskLimit::Bytes { max: 1 << 20 })),
        (Some(small), look(1, 11, 1000), Some(DiskLimit::Entries { max: 10 })),
        // The disk ran full: at once who grew, the others at their next look.
        (None, full, None),
        (Some(small), full, None),
        (Some(small), look(2, 1, 999), Some(DiskLimit::Free { min: 1000 })),
        (Some(small), look(1, 2, 999), Some(DiskLimit::Free { min: 1000 })),
        (Some(full), full, Some(DiskLimit::Free { min: 1000 })),
        (Some(full), small, None),
        (Some(no_names), no_names, Some(DiskLimit::Free { min: 1000 })),
    ];
    for (before, now, expected) in rows {
        assert_eq!(quota.judge(before.as_ref(), &now), expected, "{before:?} {now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_program_is_looked_at_until_it_breaks_a_limit() {
    let (_root, store, quota) = quota(ROOM);
    let there = store.create(&id()).expect("a conversation");
    let mut breach = std::pin::pin!(quota.breach(id()));
    let early = tokio::time::timeout(LOOK_EVERY * 3, &mut breach).await;
    assert!(early.is_err(), "an empty folder breaks none");
    let path = SafePath::from_text("big").expect("a path");
    there.write(&path, &vec![1; 2 << 20]).expect("written");
    assert_eq!(breach.await, DiskLimit::Bytes { max: 1 << 20 });
}
