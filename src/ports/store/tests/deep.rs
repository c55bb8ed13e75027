//! Trees that are deeper than there are descriptors.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use rustix::fs::{Mode, OFlags};

use super::*;

#[test]
fn a_tree_of_any_depth_is_deleted_with_few_descriptors() {
    delete_tree(20_000);
}

#[test]
#[ignore = "the long form: half a minute"]
fn a_tree_of_a_hundred_thousand_levels_is_deleted_with_few_descriptors() {
    delete_tree(100_000);
}

fn delete_tree(levels: usize) {
    // In memory where there is such a place: this is about descriptors, and a busy disk takes minutes for it.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { place_in(memory) } else { place() };
    let mut at = rustix::fs::open(place.data(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
    for level in 0..levels {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).expect("a folder");
        if level % 1000 == 0 {
            symlink("/etc/passwd", format!("/proc/self/fd/{}/l", std::os::fd::AsRawFd::as_raw_fd(&at)))
                .expect("a link");
        }
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
    }
    drop(at);
    let listing = place.conversation.list(ALL, None).expect("a listing");
    assert!(listing.entries.is_empty() && listing.skipped.iter().any(|s| s.kind == SkipKind::TooDeep));
    let before = place.descriptors();
    let most = std::thread::scope(|scope| {
        let deleting = scope.spawn(|| place.conversation.delete(&path("d")));
        let mut most = 0;
        while !deleting.is_finished() {
            most = most.max(place.descriptors());
            std::thread::sleep(Duration::from_millis(5));
        }
        deleting.join().expect("no panic").expect("deleted");
        most
    });
    assert!(most <= before + 8, "{before} descriptors, then {most}");
    assert_eq!(place.descriptors(), before);
    let left: Vec<_> =
        fs::read_dir(place.data()).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["l"]);
    assert_eq!(fs::read_dir(place.root.path().join("root/.trash")).expect("a folder").count(), 0);
}
