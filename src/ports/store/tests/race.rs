//! The store against a program that swaps names while it works.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::RenameFlags;

use super::*;

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

/// A conversation next to a secret, with a file and a folder that have a link to the secret's place as their double.
fn trap() -> (Place, PathBuf) {
    let place = place();
    let outside = place.root.path().join("outside");
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("f"), SECRET).expect("a file");
    let data = place.data();
    fs::create_dir(data.join("dir")).expect("a folder");
    fs::write(data.join("dir/f"), "mine").expect("a file");
    fs::write(data.join("f"), "mine").expect("a file");
    symlink(outside.join("f"), data.join("link")).expect("a link");
    symlink(&outside, data.join("dirlink")).expect("a link");
    (place, outside)
}

fn for_two_seconds(mut step: impl FnMut()) -> u32 {
    let (began, mut rounds) = (Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(2) {
        step();
        rounds += 1;
    }
    rounds
}

#[test]
fn nothing_outside_is_read_or_listed() {
    let (place, _) = trap();
    let (mut served, mut refused) = (0_u32, 0_u32);
    while_swapping(&place.data(), &[("f", "link"), ("dir", "dirlink")], || {
        for_two_seconds(|| {
            for name in ["f", "dir/f", "link", "dirlink/f"] {
                match place.conversation.read(&path(name)) {
                    Ok(opened) => {
                        assert_eq!(bytes(Ok(opened)), b"mine");
                        served += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
            for entry in place.conversation.list(ALL, None).expect("a listing").entries {
                assert_eq!(entry.size, 4, "{}", entry.path);
            }
        })
    });
    // Both ends of the race were met, or it was none.
    assert!(served > 100 && refused > 100, "{served} served, {refused} refused");
}

#[test]
fn nothing_outside_is_written_or_deleted() {
    let (place, outside) = trap();
    let mut reached = 0_u32;
    while_swapping(&place.data(), &[("f", "link"), ("dir", "dirlink")], || {
        for_two_seconds(|| {
            reached += u32::from(place.conversation.write(&path("dir/new/g"), b"mine").is_ok());
            reached += u32::from(place.conversation.write(&path("dir/f"), b"mine").is_ok());
            let _ = place.conversation.write(&path("f"), b"mine");
            let _ = place.conversation.delete(&path("dir/f"));
            let _ = place.conversation.delete(&path("dir/new"));
        })
    });
    assert!(reached > 20, "{reached}");
    let left: Vec<_> = fs::read_dir(&outside).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left, ["f"]);
    assert_eq!(fs::read(outside.join("f")).expect("the secret"), SECRET);
}

#[test]
fn deleting_while_a_program_adds_ends_when_it_ends() {
    let place = place();
    let data = place.data();
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
        place.conversation.delete(&path("busy")).expect("deleted");
    });
    assert_eq!(fs::read_dir(&data).expect("a folder").count(), 0);
    place.store.empty_trash().expect("emptied");
    assert_eq!(fs::read_dir(place.root.path().join("root/.trash")).expect("a folder").count(), 0);
}
