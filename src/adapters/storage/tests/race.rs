//! The store against a program that swaps names while it works.

use std::{
    cell::Cell,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::RenameFlags;

use super::{disk::EVERYTHING, *};
use crate::domain::test_scale::rounds;

const PATIENCE: Duration = Duration::from_mins(15);
const SECRET: &[u8] = b"secret-of-another";

/// Swaps pairs of names as fast as it can until `work` returns.
fn while_swapping<T>(data: &Path, pairs: &[(&str, &str)], work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for (one, two) in pairs {
                    let (one, two) = (data.join(one), data.join(two));
                    // Either name may be gone for a moment.
                    let _ = rustix::fs::renameat_with(CWD, one, CWD, two, RenameFlags::EXCHANGE);
                }
            }
        });
        // Also when the work panics: the scope waits for the swapper.
        let _stop = Stop(&done);
        work()
    })
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A conversation next to a secret, with a file and a folder that have a link to the secret's folder as their double.
fn trap() -> (Fixture, PathBuf) {
    let fixture = fixture();
    let outside = fixture.root.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("f"), SECRET).expect("a file");
    let data = fixture.data();
    fs::create_dir(data.join("dir")).expect("a folder");
    fs::write(data.join("dir/f"), "mine").expect("a file");
    fs::write(data.join("f"), "mine").expect("a file");
    symlink(outside.join("f"), data.join("link")).expect("a link");
    symlink(&outside, data.join("dirlink")).expect("a link");
    (fixture, outside)
}

/// Steps until `enough`, however the threads are scheduled; a race that is never met fails the test.
fn repeat(mut step: impl FnMut(), enough: impl Fn(u32) -> bool) {
    let began = Instant::now();
    for rounds in 0.. {
        if enough(rounds) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "it never came to a race");
        step();
    }
}

#[test]
fn swapped_links_never_lead_reads_or_listings_outside() {
    const NAMES: [&str; 4] = ["f", "dir/f", "link", "dirlink/f"];
    let opens = rounds(20_000, 1_000_000);
    let (fixture, _) = trap();
    let (served, refused) = (Cell::new(0_u32), Cell::new(0_u32));
    let step = || {
        for name in NAMES {
            match fixture.conversation.read(&path(name)) {
                Ok(opened) => {
                    assert_eq!(bytes(Ok(opened)), b"mine");
                    served.set(served.get() + 1);
                }
                Err(_) => refused.set(refused.get() + 1),
            }
        }
        if served.get() % 16 == 0 {
            let listing = fixture.conversation.list(ALL, None).expect("a listing");
            assert!(listing.entries.iter().all(|entry| entry.size == 4), "{listing:?}");
            // A walk through a link would count the secret too.
            let usage = fixture.conversation.usage(&EVERYTHING).expect("measured");
            assert!(usage.entries <= 6, "{usage:?}");
        }
    };
    let enough = |_| served.get() + refused.get() >= opens && served.get() > 100 && refused.get() > 100;
    while_swapping(&fixture.data(), &[("f", "link"), ("dir", "dirlink")], || repeat(step, enough));
    println!("{} opens led to the file, {} were refused, none led out", served.get(), refused.get());
}

#[test]
fn swapped_links_never_lead_writes_or_deletes_outside() {
    let (fixture, outside) = trap();
    let reached = Cell::new(0_u32);
    let step = || {
        for name in ["dir/new/g", "dir/f"] {
            reached.set(reached.get() + u32::from(fixture.conversation.write(&path(name), b"mine").is_ok()));
        }
        let _ = fixture.conversation.write(&path("f"), b"mine");
        let _ = fixture.conversation.delete(&path("dir/f"));
        let _ = fixture.conversation.delete(&path("dir/new"));
    };
    let enough = |rounds| rounds >= 300 && reached.get() > 20;
    while_swapping(&fixture.data(), &[("f", "link"), ("dir", "dirlink")], || repeat(step, enough));
    let left: Vec<_> = fs::read_dir(&outside).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["f"]);
    assert_eq!(fs::read(outside.join("f")).expect("the secret"), SECRET);
}

#[test]
fn swapped_links_never_lead_moves_outside() {
    let (fixture, outside) = trap();
    let (moved, refused) = (Cell::new(0_u32), Cell::new(0_u32));
    let step = || {
        // The file comes back with the next round when its folder is a link.
        for (from, to) in [("dir/f", "taken"), ("taken", "dir/f"), ("dir/f", "dir/new/f"), ("dir/new/f", "dir/f")] {
            let count =
                if fixture.conversation.rename(&path(from), &path(to), true).is_ok() { &moved } else { &refused };
            count.set(count.get() + 1);
        }
    };
    let enough = |rounds| rounds >= 300 && moved.get() > 50 && refused.get() > 50;
    while_swapping(&fixture.data(), &[("dir", "dirlink")], || repeat(step, enough));
    let left: Vec<_> = fs::read_dir(&outside).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["f"]);
    assert_eq!(fs::read(outside.join("f")).expect("the secret"), SECRET);
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert!(listing.entries.iter().all(|entry| entry.size == 4), "{listing:?}");
}

#[test]
fn a_folder_that_was_removed_on_nfs_has_no_more_entries() {
    let read = |errno| next_if_there(&mut std::iter::once(Err(errno))).map(Result::err);
    assert_eq!((read(Errno::STALE), read(Errno::IO)), (None, Some(Some(Errno::IO))));
}

#[test]
fn delete_ends_when_a_program_stops_adding_files() {
    let fixture = fixture();
    let data = fixture.data();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Held open, like the working folder of a program.
            fs::create_dir_all(data.join("busy/in")).expect("a folder");
            let open = |at| rustix::fs::open(at, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder");
            let (busy, inside) = (open(data.join("busy")), open(data.join("busy/in")));
            done.store(true, Ordering::Relaxed);
            for number in 0..3000 {
                for folder in [&busy, &inside] {
                    let _ = rustix::fs::mkdirat(folder, format!("{number}"), Mode::RWXU);
                    let _ = rustix::fs::symlinkat("/etc", folder, format!("l{number}"));
                }
                let _ = rustix::fs::renameat(&inside, format!("{number}"), &busy, format!("{:016x}", number + 1));
            }
        });
        while !done.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        fixture.conversation.delete(&path("busy")).expect("deleted");
    });
    assert_eq!(fs::read_dir(&data).expect("a folder").count(), 0);
    fixture.storage.recover().expect("recovered");
    fixture.storage.drain();
    assert_eq!(fs::read_dir(fixture.root.path().join("root/.trash")).expect("a folder").count(), 0);
}
