//! What takes space: measured whatever a program made of it, and deleted however deep or wide it is.

use std::ffi::OsStr;

use rustix::fs::FallocateFlags;

use super::{
    super::{command, own_disk},
    *,
};
use crate::domain::test_scale::rounds;

pub(super) const EVERYTHING: Usage = Usage { bytes: u64::MAX, entries: u64::MAX };

/// In memory where that is possible: this is about names and descriptors, and a busy disk takes minutes for them.
pub(super) fn quick_fixture() -> Fixture {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { fixture_in(memory) } else { fixture() }
}

/// An ext4 of its own with blocks of 1 KiB, mounted until it is dropped. Needs root.
pub(super) struct Ext4(tempfile::TempDir);

impl Ext4 {
    pub(super) fn mount() -> Self {
        let disk = Self(tempfile::tempdir().expect("a folder"));
        let (image, at) = (disk.0.path().join("image"), disk.at());
        fs::create_dir(&at).expect("a folder");
        fs::File::create(&image).and_then(|file| file.set_len(8 << 20)).expect("an image");
        let format = ["-q", "-F", "-b", "1024", "-N", "2048", "-m", "0"].map(OsStr::new);
        run("mkfs.ext4", format.into_iter().chain([image.as_os_str()]));
        run("mount", ["-o", "loop"].map(OsStr::new).into_iter().chain([image.as_os_str(), at.as_os_str()]));
        disk
    }

    pub(super) fn at(&self) -> PathBuf {
        self.0.path().join("disk")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let at = self.at();
        drop(command::run("umount", [OsStr::new("-l"), at.as_os_str()], &[0], Duration::from_mins(1)));
    }
}

fn run<'a>(program: &str, args: impl IntoIterator<Item = &'a OsStr>) {
    command::run(program, args, &[0], Duration::from_mins(1)).expect("it ends well");
}

fn measure(fixture: &Fixture, ceiling: &Usage) -> Usage {
    fixture.conversation.usage(ceiling).expect("measured")
}

#[test]
fn usage_counts_blocks_once_and_no_lengths() {
    let fixture = fixture();
    let data = fixture.data();
    assert_eq!(measure(&fixture, &EVERYTHING), Usage::default());
    let sparse = fs::File::create(data.join("sparse")).expect("a file");
    sparse.set_len(1 << 40).expect("a length");
    let holes = measure(&fixture, &EVERYTHING);
    assert!(holes.entries == 1 && holes.bytes < 1 << 20, "{holes:?}");
    fs::write(data.join("one"), vec![1; 1 << 20]).expect("a file");
    let one = measure(&fixture, &EVERYTHING);
    assert!(one.entries == 2 && (1 << 20..3 << 20).contains(&one.bytes), "{one:?}");
    for name in ["two", "three"] {
        fs::hard_link(data.join("one"), data.join(name)).expect("another name");
    }
    symlink("/", data.join("out")).expect("a link");
    let linked = measure(&fixture, &EVERYTHING);
    assert!(linked.entries == 5 && linked.bytes < one.bytes + (1 << 20), "{linked:?}");
    // Space that is reserved behind the end of a file is taken, and a listing that saw everything knows the same.
    rustix::fs::fallocate(&sparse, FallocateFlags::KEEP_SIZE, 0, 4 << 20).expect("space");
    let reserved = measure(&fixture, &EVERYTHING);
    assert!(reserved.bytes >= linked.bytes + (4 << 20), "{reserved:?}");
    assert_eq!(fixture.conversation.list(ALL, None).expect("a listing").usage, Some(reserved));
}

#[test]
fn usage_stops_at_the_ceiling() {
    let fixture = quick_fixture();
    for folder in 0..20 {
        let folder = fixture.data().join(format!("{folder}/in"));
        fs::create_dir_all(&folder).expect("a folder");
        for file in 0..100 {
            fs::write(folder.join(file.to_string()), "").expect("a file");
        }
    }
    assert_eq!(measure(&fixture, &EVERYTHING).entries, 20 * 102);
    let ceiling = Usage { entries: 500, ..EVERYTHING };
    assert_eq!(measure(&fixture, &ceiling).entries, 501, "no step more than it takes to know");
    let truncated = fixture.conversation.list(ListBounds { depth_max: 1, ..ALL }, None).expect("a listing");
    assert_eq!(truncated.usage, None, "what was not seen is not reported");
}

#[test]
fn a_deep_tree_with_forks_is_measured_with_few_descriptors() {
    let fixture = quick_fixture();
    let levels = 3000;
    let mut at = rustix::fs::open(fixture.data(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
    for _ in 0..levels {
        for name in ["d", "e"] {
            rustix::fs::mkdirat(&at, name, Mode::RWXU).expect("a folder");
        }
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
    }
    drop(at);
    let (usage, most) = while_counting(&fixture, || measure(&fixture, &EVERYTHING));
    assert_eq!(usage.entries, levels * 2);
    assert!(most <= fixture.descriptors() + 40, "{most} descriptors");
    fixture.conversation.delete(&path("d")).expect("deleted");
    fixture.storage.drain();
}

#[test]
fn a_deep_tree_is_deleted_with_few_descriptors() {
    delete_deep(rounds(20_000, 100_000));
}

#[test]
fn a_wide_tree_is_deleted_with_few_descriptors() {
    delete_wide(rounds(50_000, 1_000_000));
}

fn delete_deep(levels: u32) {
    let fixture = quick_fixture();
    let mut at = rustix::fs::open(fixture.data(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
    for level in 0..levels {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("a folder");
        if level % 1000 == 0 {
            symlink("/etc/passwd", format!("/proc/self/fd/{}/l", std::os::fd::AsRawFd::as_raw_fd(&at)))
                .expect("a link");
        }
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
    }
    drop(at);
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert!(listing.entries.is_empty() && listing.skipped.iter().any(|s| s.kind == SkipKind::TooDeep));
    delete(&fixture, "d", &["l"]);
}

fn delete_wide(entries: u32) {
    const FOLDER: u32 = 10_000;
    let fixture = quick_fixture();
    for folder in 0..entries / FOLDER {
        let at = fixture.data().join(format!("w/{folder}"));
        fs::create_dir_all(&at).expect("a folder");
        for number in 0..FOLDER {
            fs::File::create(at.join(format!("{number}"))).expect("a file");
        }
    }
    let began = Instant::now();
    assert_eq!(measure(&fixture, &EVERYTHING).entries, u64::from(entries + entries / FOLDER + 1));
    println!("{entries} names were measured in {:?}", began.elapsed());
    delete(&fixture, "w", &[]);
}

/// Deletes a folder that takes long: its name is free at once, the rest goes later.
fn delete(fixture: &Fixture, name: &str, left: &[&str]) {
    let (before, trash) = (fixture.descriptors(), fixture.root.path().join("root/.trash"));
    let began = Instant::now();
    let ((), most) = while_counting(fixture, || fixture.conversation.delete(&path(name)).expect("deleted"));
    let at_once = began.elapsed();
    assert!(most <= before + 8, "{before} descriptors, then {most}");
    let there: Vec<_> =
        fs::read_dir(fixture.data()).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(there, left);
    let ((), most) = while_counting(fixture, || fixture.storage.drain());
    assert!(most <= before + 8, "{before} descriptors, then {most}");
    assert_eq!(fixture.descriptors(), before);
    assert_eq!(fs::read_dir(&trash).expect("a folder").count(), 0);
    println!("the name was free after {at_once:?}, all of it was gone after {:?}, {most} descriptors", began.elapsed());
}

/// Wakes a thread when it is dropped.
struct Awake(std::thread::Thread);

impl Drop for Awake {
    fn drop(&mut self) {
        self.0.unpark();
    }
}

/// Does it, and tells the most descriptors below the root that were open meanwhile.
fn while_counting<T: Send>(fixture: &Fixture, work: impl FnOnce() -> T + Send) -> (T, usize) {
    let mut most = 0;
    let result = std::thread::scope(|scope| {
        let counting = std::thread::current();
        let working = scope.spawn(move || {
            // Also when the work panics.
            let _awake = Awake(counting);
            work()
        });
        while !working.is_finished() {
            most = most.max(fixture.descriptors());
            std::thread::park_timeout(Duration::from_millis(2));
        }
        working.join()
    });
    (result.expect("no panic"), most.max(fixture.descriptors()))
}

/// Takes every free block of the disk that a folder is on.
fn fill(folder: &Path) {
    let filler = fs::File::create(folder.join("filler")).expect("a file");
    let mut length = 0;
    for piece in [1 << 20, 1 << 10] {
        while rustix::fs::fallocate(&filler, FallocateFlags::empty(), length, piece).is_ok() {
            length += piece;
        }
    }
}

/// Each folder's content is moved up on the way, and the full disk has no room for one more name.
#[test]
fn folders_on_a_full_disk_are_deleted() {
    const FOLDERS: usize = 300;
    if !as_root() {
        return;
    }
    let disk = Ext4::mount();
    let fixture = fixture_in(&disk.at());
    let folder = |parent: &str, number: usize| fixture.data().join(parent).join(number.to_string());
    fs::create_dir(fixture.data().join("d")).expect("a folder");
    for number in 0..FOLDERS {
        fs::create_dir_all(folder("stock", number).join("a/b/c")).expect("folders");
    }
    fill(&fixture.data());
    let fits = |number: &usize| fs::rename(folder("stock", *number), folder("d", *number)).is_ok();
    let moved = (0..FOLDERS).take_while(fits).count();
    assert!((1..FOLDERS).contains(&moved), "{moved} folders fill the last block");
    fixture.conversation.delete(&path("d")).expect("deleted");
    fixture.storage.drain();
    assert_eq!(fs::read_dir(fixture.root.path().join("root/.trash")).expect("a folder").count(), 0);
    assert!(!fixture.data().join("d").exists());
}

/// Their names in the trash would take more room than there is.
#[test]
fn unfinished_files_on_a_full_disk_are_gone_at_the_start() {
    if !as_root() {
        return;
    }
    let disk = Ext4::mount();
    let Fixture { root, storage, conversation } = fixture_in(&disk.at());
    let folders = [incoming(&storage), ".trash".to_owned()];
    drop((storage, conversation));
    let at = root.path().join("root");
    for number in 0..300 {
        fs::write(at.join(&folders[0]).join(number.to_string()), "").expect("a file");
    }
    fill(root.path());
    let _storage = DiskStorage::at(&at, users()).expect("a root");
    for folder in folders {
        assert_eq!(fs::read_dir(at.join(&folder)).expect("a folder").count(), 0, "{folder}");
    }
}

/// The first request after the mount has the whole quota: it does not wait for the thread that empties the trash.
#[test]
fn unfinished_files_take_no_room_of_a_disk_that_is_mounted_again() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let most = Usage { bytes: 32 << 20, entries: 500 };
    let storage = DiskStorage::at(&root.path().join("root"), users()).and_then(|storage| storage.with_own_disks(&most));
    let storage = storage.expect("a root");
    let before = storage.try_create(&id("c")).expect("a conversation");
    fs::write(root.path().join("root/c/disk/.incoming/unfinished"), vec![1; 1 << 20]).expect("a file");
    own_disk::lazy_unmount(&before.dir);
    let (go_on, blocked) = std::sync::mpsc::channel::<()>();
    storage.background.post(move || blocked.recv().unwrap_or_default());
    let again = storage.enter(&id("c")).expect("mounted again");
    let usage = again.usage(&EVERYTHING);
    own_disk::lazy_unmount(&again.dir);
    drop(go_on);
    assert!(usage.as_ref().is_ok_and(|usage| usage.bytes < 1 << 20), "{usage:?}");
}

/// A mount outlives the server that made it. What another server on this root is writing stays.
#[test]
fn unfinished_files_take_no_room_of_a_disk_that_is_still_mounted() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let most = Usage { bytes: 32 << 20, entries: 500 };
    let storage = DiskStorage::at(&root.path().join("root"), users()).and_then(|storage| storage.with_own_disks(&most));
    let storage = storage.expect("a root");
    let mut writing = storage.create(&id("c")).and_then(|conversation| conversation.incoming()).expect("a file");
    let left = root.path().join("root/c/disk/.incoming/unfinished");
    fs::write(&left, vec![1; 1 << 20]).expect("a file");
    drop(storage.enter(&id("c")).expect("still mounted"));
    assert!(left.exists(), "a server that lives may be writing it");
    writing.append(b"text").expect("written");
    assert_eq!(writing.persist(&path("whole")).expect("moved into place").size, 4);
    let again = storage.enter(&id("c")).expect("still mounted");
    let usage = again.usage(&EVERYTHING);
    let is_left = left.exists();
    own_disk::lazy_unmount(&again.dir);
    assert!(!is_left && usage.as_ref().is_ok_and(|usage| usage.bytes < 1 << 20), "{usage:?}");
}
