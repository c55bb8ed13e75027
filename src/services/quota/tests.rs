//! Quotas on a real folder.

use std::{collections::HashSet, fs::File, os::fd::AsRawFd as _, path::Path, time::Duration};

use rustix::{
    fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags},
    mount::{MountFlags, UnmountFlags},
};

use super::{
    between::{BetweenPrograms, ENTRIES_BEYOND_MAX},
    watch::{DiskState, TICK, Watch},
    *,
};
use crate::{
    adapters::storage::DiskStorage,
    domain::{RunnerUsers, SafePath, test_scale::as_root},
};

mod closed;

const ROOM: QuotaOptions =
    QuotaOptions { bytes_max: 1 << 20, entries_max: 10, free_bytes_min: 0, owner_bytes_max: None };
const MIB: u64 = 1 << 20;

fn quota(options: QuotaOptions) -> (tempfile::TempDir, Arc<dyn Storage>, Arc<Quota>) {
    let root = tempfile::tempdir().expect("a folder");
    let uid = rustix::process::geteuid().as_raw();
    let store: Arc<dyn Storage> =
        Arc::new(DiskStorage::at(&root.path().join("root"), RunnerUsers::one(uid)).expect("a store"));
    (root, Arc::clone(&store), Arc::new(Quota::new(store, options)))
}

fn id() -> ConversationKey {
    "c".parse().expect("an id")
}

fn usage(bytes: u64, entries: u64) -> Usage {
    Usage { bytes, entries }
}

fn disk_state(bytes: u64, entries: u64, free: u64) -> DiskState {
    DiskState { usage: usage(bytes, entries), free: usage(free, FREE_ENTRIES_MIN), growth_bytes: 0 }
}

#[tokio::test]
async fn reserve_measures_before_it_refuses() {
    let (_root, store, quota) = quota(ROOM);
    let path = |name: &str| SafePath::from_text(name).expect("a path");
    assert!(!quota.fits_surely(&id(), &Usage::default()), "nothing is known yet");
    quota.writer(&id()).await.reserve(&usage(700 << 10, 1)).expect("room");
    for _ in 0..9 {
        assert!(quota.fits_surely(&id(), &usage(300 << 10, 1)), "that reserves nothing");
        quota.writer(&id()).await.check_room(&usage(300 << 10, 1)).expect("neither does this");
    }
    quota.writer(&id()).await.reserve(&usage(300 << 10, 1)).expect("room");
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
    let sample = disk_state;
    let (small, full) = (sample(1, 1, 1000), sample(1, 1, 999));
    let no_names = DiskState { free: usage(u64::MAX, FREE_ENTRIES_MIN - 1), ..small };
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
        assert_eq!(quota.check(before.as_ref(), &now), expected, "{before:?} {now:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn breach_returns_when_a_limit_is_exceeded() {
    // Other programs write on this disk too: what they write within the reserve is no growth of this conversation.
    let (_root, store, quota) = quota(QuotaOptions { free_bytes_min: 1 << 30, ..ROOM });
    let there = store.create(&id()).expect("a conversation");
    let mut breach = std::pin::pin!(quota.breach(id()));
    let early = tokio::time::timeout(TICK * 3, &mut breach).await;
    assert!(early.is_err(), "an empty folder breaks none");
    let path = SafePath::from_text("big").expect("a path");
    there.write(&path, &vec![1; 2 << 20]).expect("written");
    assert_eq!(breach.await, DiskLimit::Bytes { max: 1 << 20 });
}

#[test]
fn lost_space_is_unexplained_beyond_growth_quota_and_reserve() {
    let (_root, _, quota) = quota(QuotaOptions { free_bytes_min: 3 * MIB, ..ROOM });
    let first = disk_state(MIB / 2, 1, 100 * MIB);
    // Half of the quota and the reserve may be lost without an explanation.
    let rest = 100 * MIB - 3 * MIB - MIB / 2;
    assert!(!quota.is_unexplained(&first, &disk_state(MIB / 2, 1, rest)));
    assert!(quota.is_unexplained(&first, &disk_state(MIB / 2, 1, rest - 1)));
    assert!(!quota.is_unexplained(&first, &disk_state(MIB / 4, 1, rest - 1)), "more of the quota is left");
    assert!(!quota.is_unexplained(&first, &DiskState { growth_bytes: 1, ..disk_state(MIB / 2, 1, rest - 1) }));
    assert!(!quota.is_unexplained(&first, &disk_state(MIB / 2, 1, 200 * MIB)), "the disk won space");
}

#[test]
fn growth_that_is_seen_beyond_a_limit_ends_a_session_and_nothing_else_does() {
    let options = QuotaOptions { bytes_max: 10 * MIB, entries_max: 1000, free_bytes_min: 5 * MIB, ..ROOM };
    let (_root, _, quota) = quota(options);
    let (bytes, entries) = (DiskLimit::Bytes { max: 10 * MIB }, DiskLimit::Entries { max: 1000 });
    let free = DiskLimit::Free { min: 5 * MIB };
    // The files in MiB, their number and the free MiB at each walk; what the last walk says.
    let rows = [
        ([(1, 1, 90), (9, 1, 80), (2, 1, 90)], None),
        ([(12, 1, 90), (12, 1, 90), (12, 1, 90)], None),
        ([(1, 1, 90), (12, 1, 80), (12, 1, 80)], None),
        ([(1, 1, 90), (12, 1, 80), (13, 1, 80)], Some(bytes)),
        ([(1, 1001, 90), (1, 1200, 90), (1, 1257, 90)], Some(entries)),
        ([(12, 1, 90), (9, 1, 90), (12, 1, 90)], None),
        ([(12, 1, 90), (11, 1, 90), (12, 1, 90)], Some(bytes)),
        // Others fill the disk.
        ([(1, 1, 90), (1, 1, 4), (1, 10, 3)], None),
        ([(1, 1, 90), (2, 1, 4), (3, 1, 3)], Some(free)),
    ];
    for (walks, expected) in rows {
        let mut files = BetweenPrograms::begin(Arc::clone(&quota), id());
        let checked = walks.map(|(used, entries, free)| files.check(disk_state(used * MIB, entries, free * MIB)));
        assert_eq!(checked, [None, None, expected], "{walks:?}");
    }
}

/// A walk without an end holds the name of each folder.
#[test]
fn a_walk_between_programs_ends_and_so_does_a_session_with_more_entries() {
    let (_root, store, quota) = quota(QuotaOptions { bytes_max: 1 << 40, ..ROOM });
    let data = store.create(&id()).expect("a conversation").data().path;
    let fill = |folders: std::ops::Range<u64>| {
        folders.for_each(|number| std::fs::create_dir(data.join(number.to_string())).expect("a folder"));
    };
    let most = ROOM.entries_max + ENTRIES_BEYOND_MAX;
    fill(0..most);
    let mut files = BetweenPrograms::begin(Arc::clone(&quota), id());
    assert_eq!(files.check(quota.measure_all(&id()).expect("walked")), None, "it may be as a cell left it");
    fill(most..most + 100);
    let state = quota.measure_all(&id()).expect("walked");
    assert_eq!(state.usage.entries, most + 1, "it went no further");
    assert_eq!(files.check(state), Some(DiskLimit::Entries { max: ROOM.entries_max }));
}

#[tokio::test(start_paused = true)]
async fn files_that_grow_beyond_a_limit_are_not_blamed_on_a_session_while_a_program_is_watched() {
    let (_root, store, quota) = quota(ROOM);
    let there = store.create(&id()).expect("a conversation");
    let mut written = 0;
    let mut write = || {
        written += 1;
        let path = SafePath::from_text(&written.to_string()).expect("a path");
        there.write(&path, &vec![1; 2 << 20]).expect("written");
    };
    let watch = Watch::begin(Arc::clone(&quota), id());
    let mut outgrown = std::pin::pin!(Arc::clone(&quota).outgrown(id(), || false));
    for _ in 0..5 {
        write();
        assert!(tokio::time::timeout(TICK * 20, &mut outgrown).await.is_err(), "the program is watched itself");
    }
    drop(watch);
    assert!(tokio::time::timeout(TICK * 100, &mut outgrown).await.is_err(), "nothing is written any more");
    write();
    assert_eq!(outgrown.await, DiskLimit::Bytes { max: 1 << 20 });
}

/// A file system of 64 MiB of its own, so that nothing else on this machine changes its free space.
struct OwnDisk(tempfile::TempDir);

impl OwnDisk {
    fn mount() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let size = c"size=64m,mode=700";
        rustix::mount::mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), size).expect("mounted");
        Self(folder)
    }
}

impl Drop for OwnDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH).expect("unmounted");
    }
}

/// A file without a name that takes `mib` on disk.
fn unnamed(folder: &Path, mib: u64) -> File {
    let file = rustix::fs::open(folder, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).expect("a file without a name");
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mib * MIB).expect("its space");
    file.into()
}

fn on(disk: &OwnDisk, bytes_max: u64) -> (Arc<dyn Storage>, Arc<Quota>) {
    let root = disk.0.path().join("root");
    let store: Arc<dyn Storage> = Arc::new(DiskStorage::at(&root, RunnerUsers::one(0)).expect("a store"));
    let options = QuotaOptions { bytes_max, entries_max: 10_000, free_bytes_min: 4 * MIB, owner_bytes_max: None };
    (Arc::clone(&store), Arc::new(Quota::new(store, options)))
}

#[tokio::test(start_paused = true)]
async fn space_that_is_lost_unseen_stops_a_program_that_runs_alone() {
    if !as_root() {
        return;
    }
    let disk = OwnDisk::mount();
    let (store, quota) = on(&disk, 8 * MIB);
    let data = store.create(&id()).expect("a conversation").data().path;
    let ten = Duration::from_secs(10);
    // What fits into the quota and the reserve is not suspected.
    let mut alone = std::pin::pin!(Arc::clone(&quota).breach(id()));
    let within = unnamed(&data, 11);
    assert!(tokio::time::timeout(ten, &mut alone).await.is_err());
    let beyond = unnamed(&data, 5);
    assert_eq!(tokio::time::timeout(ten, &mut alone).await, Ok(DiskLimit::Bytes { max: 8 * MIB }));
    drop((within, beyond));
    // With another program beside it, it is not known whose the space is. What gets a name is measured.
    let other = Arc::clone(&quota).breach("other".parse().expect("an id"));
    let mut one = std::pin::pin!(Arc::clone(&quota).breach(id()));
    let hidden = unnamed(&data, 16);
    assert!(tokio::time::timeout(ten, &mut one).await.is_err());
    drop(other);
    let path = format!("/proc/self/fd/{}", hidden.as_raw_fd());
    rustix::fs::linkat(CWD, path, CWD, data.join("named"), AtFlags::SYMLINK_FOLLOW).expect("a name");
    assert_eq!(one.await, DiskLimit::Bytes { max: 8 * MIB });
}

#[tokio::test(start_paused = true)]
async fn space_that_is_lost_during_a_walk_stops_a_program_before_its_end() {
    if !as_root() {
        return;
    }
    let disk = OwnDisk::mount();
    let (store, quota) = on(&disk, 8 * MIB);
    let data = store.create(&id()).expect("a conversation").data().path;
    let mut watch = Watch::begin(Arc::clone(&quota), id());
    let mut follow = async || {
        let endless = tokio::spawn(std::future::pending());
        let followed = watch.follow(tokio::time::Instant::now(), endless);
        tokio::time::timeout(Duration::from_secs(10), followed).await.ok()
    };
    let within = unnamed(&data, 11);
    assert_eq!(follow().await, None, "it fits into the quota and the reserve");
    let beyond = unnamed(&data, 5);
    assert_eq!(follow().await, Some(Some(DiskLimit::Bytes { max: 8 * MIB })));
    let other = Watch::begin(quota, "other".parse().expect("an id"));
    assert_eq!(follow().await, None, "it may be the other's");
    let full = unnamed(&data, 46);
    assert_eq!(follow().await, Some(Some(DiskLimit::Free { min: 4 * MIB })));
    drop((within, beyond, full, other));
}

#[tokio::test(start_paused = true)]
async fn space_that_is_lost_while_walks_fail_stops_a_program() {
    if !as_root() {
        return;
    }
    let disk = OwnDisk::mount();
    let (store, quota) = on(&disk, 8 * MIB);
    let data = store.create(&id()).expect("a conversation").data().path;
    let mut watch = Watch::begin(Arc::clone(&quota), id());
    let mut failed = async || {
        let walk = tokio::spawn(std::future::ready(Err(StorageError::NotFound)));
        watch.follow(tokio::time::Instant::now(), walk).await
    };
    let beyond = unnamed(&data, 16);
    assert_eq!([failed().await, failed().await], [None, Some(DiskLimit::Bytes { max: 8 * MIB })]);
    let other = Watch::begin(quota, "other".parse().expect("an id"));
    let full = unnamed(&data, 46);
    assert_eq!([failed().await, failed().await], [None, Some(DiskLimit::Free { min: 4 * MIB })]);
    drop((beyond, full, other));
}

/// A walk of a large tree takes long, and so does the pause after it.
#[tokio::test]
async fn loss_of_free_space_ends_the_pause_between_two_walks() {
    if !as_root() {
        return;
    }
    let disk = OwnDisk::mount();
    let (store, quota) = on(&disk, 8 * MIB);
    let data = store.create(&id()).expect("a conversation").data().path;
    let mut watch = Watch::begin(quota, id());
    assert_eq!(watch.measure_if_due().await, None);
    let hour = tokio::time::Instant::now() + Duration::from_hours(1);
    watch.schedule.due = hour;
    let file = File::create(data.join("f")).expect("a file");
    let grow = |mib: u64| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, mib * MIB).expect("its space");
    grow(4);
    assert_eq!(
        (watch.measure_if_due().await, watch.schedule.due),
        (None, hour),
        "a walk for half of the quota or less is not due"
    );
    grow(9);
    watch.schedule.soonest = hour;
    assert_eq!(watch.measure_if_due().await, None, "walks in haste have a pause too");
    watch.schedule.soonest = tokio::time::Instant::now();
    assert_eq!(watch.measure_if_due().await, Some(DiskLimit::Bytes { max: 8 * MIB }));
}

#[tokio::test]
async fn a_walk_that_ends_after_its_program_changes_nothing() {
    let (_root, store, quota) = quota(ROOM);
    let there = store.create(&id()).expect("a conversation");
    let watch = Watch::begin(Arc::clone(&quota), id());
    let number = watch.number;
    quota.sample(&id(), number).expect("walked");
    assert_eq!(quota.exceeded(&id()).await, None);
    drop(watch);
    quota.measured(&id(), Some(usage(2 << 20, 1)));
    there.write(&SafePath::from_text("f").expect("a path"), b"x").expect("written");
    quota.sample(&id(), number).expect("walked");
    assert_eq!(quota.exceeded(&id()).await, Some(DiskLimit::Bytes { max: 1 << 20 }));
    quota.measured(&id(), None);
    assert_eq!(quota.exceeded(&id()).await, None, "it is measured when it is not known");
}

#[tokio::test(flavor = "multi_thread")]
async fn writers_of_one_owner_share_its_quota_in_any_order() {
    let (_root, _, quota) = quota(QuotaOptions { owner_bytes_max: Some(1 << 20), ..ROOM });
    let reserve = async |key: &ConversationKey| quota.writer(key).await.reserve(&usage(300 << 10, 1));
    let keys: Vec<ConversationKey> = (0..8).map(|name| format!("c{name}").parse().expect("an id")).collect();
    let writes = keys.iter().cloned().map(|key| {
        let quota = Arc::clone(&quota);
        tokio::spawn(async move { quota.writer(&key).await.reserve(&usage(300 << 10, 1)) })
    });
    let done = futures_util::future::join_all(writes).await;
    assert_eq!(done.iter().filter(|one| matches!(one, Ok(Ok(())))).count(), 3, "{done:?}");
    let has_some = |key: &&ConversationKey| quota.cached(key).is_some_and(|there| there.bytes > 0);
    let (held, others): (Vec<_>, Vec<_>) = keys.iter().partition(has_some);
    let full = reserve(others[0]).await.expect_err("full");
    assert!(full.code == Code::QuotaExceeded && full.message.contains("all your conversations"), "{full}");
    // Nothing was written, which is found where something may have been deleted.
    quota.shrunk(held[0]);
    reserve(others[0]).await.expect("one of them is measured again");
    assert_eq!(reserve(others[1]).await.map_err(|full| full.code), Err(Code::QuotaExceeded));
    quota.forget(held[1]);
    reserve(others[1]).await.expect("one of them is gone");
    let bob = ConversationKey::new("bob".parse().expect("an owner"), "c".parse().expect("an id"));
    reserve(&bob).await.expect("another owner has a quota of its own");
}

/// Otherwise one owner uses up the inodes of the disk within its quota, which costs all others.
#[tokio::test(flavor = "multi_thread")]
async fn entries_without_bytes_count_in_the_quota_of_their_owner() {
    let options = QuotaOptions { entries_max: 10_000, owner_bytes_max: Some(MIB), ..ROOM };
    let (_root, store, quota) = quota(options);
    let reserve = async |name: &str| {
        let key: ConversationKey = name.parse().expect("an id");
        quota.writer(&key).await.reserve(&usage(0, 200)).map_err(|full| full.code)
    };
    assert_eq!(reserve("a").await, Ok(()));
    assert_eq!(reserve("b").await, Err(Code::QuotaExceeded));
    // Nothing is there, so a measurement finds room again; what is there counts.
    quota.shrunk(&"a".parse().expect("an id"));
    assert_eq!(reserve("b").await, Ok(()));
    let there = store.create(&id()).expect("a conversation");
    for name in 0..100 {
        there.write(&SafePath::from_text(&name.to_string()).expect("a path"), b"").expect("written");
    }
    quota.usage(&id()).expect("measured");
    let known = quota.known.lock();
    assert_eq!(known.owner_bytes(&id().owner), 300 * 4096);
}
