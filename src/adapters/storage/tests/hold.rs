//! Programs that hold on to what they have: closed folders, leases, deleted folders that are filled again, flags.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

use super::{
    super::delete::open_to_empty,
    disk::{EVERYTHING, Ext4, quick_fixture},
    holder::Holder,
    *,
};

/// Every way to close a folder to its owner. With 0400 its names are readable and nothing about them.
const CLOSED: [u32; 6] = [0o000, 0o100, 0o200, 0o300, 0o400, 0o600];

#[test]
fn files_in_closed_folders_count() {
    let fixture = fixture();
    for (number, mode) in CLOSED.into_iter().enumerate() {
        let folder = fixture.data().join(number.to_string());
        fs::create_dir_all(folder.join("deep")).expect("a folder");
        fs::write(folder.join("deep/f"), vec![1; 1 << 20]).expect("a file");
        for closed in [folder.join("deep"), folder] {
            fs::set_permissions(closed, fs::Permissions::from_mode(mode)).expect("rights");
        }
    }
    let listed = fixture.conversation.list(ALL, None).expect("a listing").usage;
    let usage = fixture.conversation.usage(&EVERYTHING).expect("measured");
    assert!(usage.entries == 18 && usage.bytes >= 6 << 20, "{usage:?}");
    assert!(listed.is_none_or(|listed| listed == usage), "a listing that did not see everything claims nothing");
    fs::set_permissions(fixture.data(), fs::Permissions::from_mode(0o000)).expect("rights");
    assert_eq!(fixture.conversation.usage(&EVERYTHING).expect("measured"), usage, "the folder itself is closed");
    rerun_unprivileged("hold::files_in_closed_folders_count");
}

#[test]
fn walk_reads_files_that_a_program_closed_to_itself() {
    let fixture = fixture();
    let (folder, file) = (fixture.data().join("d"), fixture.data().join("d/f"));
    fs::create_dir(&folder).expect("a folder");
    fs::write(&file, "kept").expect("a file");
    for path in [&file, &folder] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o000)).expect("rights");
    }
    let mut seen = Vec::new();
    let mut visit = |Visited { path, mode, file, .. }: Visited| {
        let text = file.map(|(file, _)| std::io::read_to_string(file)).transpose()?;
        seen.push((path.display(), mode, text));
        Ok(())
    };
    let left_out = fixture.conversation.walk(true, &mut visit).expect("a walk");
    assert!(left_out.is_empty(), "{left_out:?}");
    assert_eq!(seen, [("d".to_owned(), 0, None), ("d/f".to_owned(), 0, Some("kept".to_owned()))]);
    let opened = fixture.conversation.read(&path("d/f")).expect("a file");
    assert_eq!(std::io::read_to_string(opened.file).expect("a text"), "kept");
    assert_eq!(fs::metadata(&file).expect("a file").mode() & 0o777, 0, "it is closed again");
    rerun_unprivileged("hold::walk_reads_files_that_a_program_closed_to_itself");
}

#[test]
fn walk_that_reads_nothing_leaves_the_times_of_closed_files() {
    let fixture = fixture();
    let file = fixture.data().join("f");
    fs::write(&file, "kept").expect("a file");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o000)).expect("rights");
    let about = || fs::metadata(&file).expect("a file");
    let before = (about().ctime(), about().ctime_nsec());
    // The clock of the file system has gone on, so a change would have another time.
    let now = || fixture.conversation.mark().map(|mark| (mark.unix_s, i64::from(mark.ns))).expect("a mark");
    while now() <= before {}
    let mut seen = Vec::new();
    let mut visit = |Visited { mode, file, .. }: Visited| {
        let (file, bytes) = file.expect("a file");
        seen.push((mode, bytes, file.metadata()?.ino()));
        Ok(())
    };
    let left_out = fixture.conversation.walk(false, &mut visit).expect("a walk");
    assert!(left_out.is_empty(), "{left_out:?}");
    assert_eq!(seen, [(0, 4, about().ino())]);
    assert_eq!((about().ctime(), about().ctime_nsec()), before);
    rerun_unprivileged("hold::walk_that_reads_nothing_leaves_the_times_of_closed_files");
}

/// A server that is neither root nor the program's user cannot open what the program closed.
#[test]
fn usage_is_refused_when_a_closed_folder_belongs_to_another_user() {
    let at = std::env::temp_dir().join("closed");
    if let (false, true) = (root(), at.exists()) {
        let storage = DiskStorage::at(&at, users()).expect("a root");
        let conversation = storage.try_create(&id("c")).expect("a conversation");
        let refused = conversation.usage(&EVERYTHING);
        assert!(matches!(refused, Err(StorageError::Denied { .. })), "{refused:?}");
    }
    rerun_unprivileged_in("hold::usage_is_refused_when_a_closed_folder_belongs_to_another_user", |folder, uid| {
        let files = folder.join("closed/c/files");
        fs::create_dir_all(files.join("shut")).expect("a folder");
        for ours in ["closed", "closed/c", "closed/c/files"] {
            std::os::unix::fs::chown(folder.join(ours), Some(uid), Some(uid)).expect("chown");
        }
        fs::set_permissions(folder.join("closed"), fs::Permissions::from_mode(0o700)).expect("rights");
        fs::set_permissions(files.join("shut"), fs::Permissions::from_mode(0o000)).expect("rights");
    });
}

#[test]
fn a_leased_file_is_busy_until_its_holder_ends() {
    let fixture = fixture();
    fixture.conversation.write(&path("held"), b"x").expect("written");
    let began = Instant::now();
    let holder = Holder::of(&fixture.data().join("held"));
    let refused = fixture.conversation.read(&path("held"));
    let busy = matches!(refused, Err(StorageError::Busy { .. }));
    assert!(busy && refused.expect_err("busy").failure().code == crate::domain::error::Code::FileBusy);
    assert_eq!(names(&fixture.conversation.list(ALL, None).expect("a listing")), ["held"]);
    fixture.conversation.write(&path("held"), b"replaced").expect("another file with the name");
    assert_eq!(bytes(fixture.conversation.read(&path("held"))), b"replaced");
    drop(holder);
    let holder = Holder::of(&fixture.data().join("held"));
    assert!(fixture.conversation.read(&path("held")).is_err());
    drop(holder);
    assert_eq!(bytes(fixture.conversation.read(&path("held"))), b"replaced");
    assert!(began.elapsed() < Duration::from_secs(40), "the kernel itself ends a lease after 45 s");
}

#[test]
fn a_leased_file_is_moved_without_being_opened() {
    let fixture = fixture();
    fixture.conversation.write(&path("held"), b"x").expect("written");
    let holder = Holder::of(&fixture.data().join("held"));
    fixture.conversation.rename(&path("held"), &path("d/held"), false).expect("moved");
    assert!(matches!(fixture.conversation.read(&path("d/held")), Err(StorageError::Busy { .. })));
    drop(holder);
    assert_eq!(bytes(fixture.conversation.read(&path("d/held"))), b"x");
}

/// A squatter keeps filling a folder that was deleted: its trash entry is never empty.
#[test]
fn a_deleted_folder_that_is_filled_again_delays_no_other_deletion() {
    const OTHERS: usize = 4;
    const FILES: usize = 3000;
    let fill = |folder: &Path| {
        fs::create_dir(folder).expect("a folder");
        (0..FILES).for_each(|file| fs::write(folder.join(file.to_string()), "").expect("a file"));
    };
    // A squatter that got no processor time has lost its folder, and nothing was shown.
    let shown = (0..5).any(|_| {
        let (fixture, done) = (quick_fixture(), AtomicBool::new(false));
        for name in 0..OTHERS {
            fill(&fixture.data().join(name.to_string()));
        }
        fill(&fixture.data().join("squatted"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let squatted = rustix::fs::open(fixture.data().join("squatted"), flags, Mode::empty()).expect("a folder");
        let squat = |thread: usize| {
            for number in 0.. {
                let made = rustix::fs::mkdirat(&squatted, format!("{thread}-{number}"), Mode::RWXU);
                if made.is_err() || done.load(Ordering::Relaxed) {
                    return made.is_ok();
                }
            }
            false
        };
        std::thread::scope(|scope| {
            let squatters: Vec<_> = (0..3).map(|thread| scope.spawn(move || squat(thread))).collect();
            for name in 0..OTHERS {
                fixture.conversation.delete(&path(&name.to_string())).expect("deleted");
            }
            fixture.conversation.delete(&path("squatted")).expect("deleted");
            let trash = fixture.root.path().join("root/.trash");
            let left = || fs::read_dir(&trash).expect("a folder").count();
            let until = Instant::now() + Duration::from_mins(1);
            while left() > 1 && Instant::now() < until {
                std::thread::yield_now();
            }
            let others_are_gone = left() <= 1;
            done.store(true, Ordering::Relaxed);
            let stayed = squatters.into_iter().any(|squatter| squatter.join().expect("it ends"));
            assert!(others_are_gone || !stayed, "{} folders are left", left());
            fixture.storage.drain();
            assert_eq!(left(), 0);
            stayed
        })
    });
    assert!(shown, "the squatter never stayed");
}

#[test]
fn synchronous_folders_are_made_ordinary_before_they_are_emptied() {
    if !as_root() {
        return;
    }
    // Not every file system has such flags.
    let disk = Ext4::mount();
    let fixture = fixture_in(&disk.at());
    fs::create_dir(fixture.data().join("d")).expect("a folder");
    let folder = fs::File::open(fixture.data().join("d")).expect("a folder");
    let slow = IFlags::SYNC | IFlags::DIRSYNC;
    let flags = ioctl_getflags(&folder).expect("flags");
    ioctl_setflags(&folder, flags | slow).expect("flags");
    assert!(ioctl_getflags(&folder).expect("flags").contains(slow));
    open_to_empty(&fixture.conversation.files, b"d").expect("opened");
    assert_eq!(ioctl_getflags(&folder).expect("flags"), flags);
}

#[test]
fn set_user_id_is_taken_from_files_of_a_run() {
    let fixture = fixture();
    let mode = |name: &str| fs::metadata(fixture.data().join(name)).expect("it is there").mode() & 0o7777;
    let mark = fixture.conversation.mark().expect("a mark");
    fs::create_dir_all(fixture.data().join("in")).expect("a folder");
    for (name, mode) in [("in", 0o2755), ("plain", 0o755), ("u", 0o4755), ("in/g", 0o2751), ("both", 0o7000)] {
        if name != "in" {
            fs::write(fixture.data().join(name), "").expect("a file");
        }
        fs::set_permissions(fixture.data().join(name), fs::Permissions::from_mode(mode)).expect("rights");
    }
    symlink("/bin/sh", fixture.data().join("link")).expect("a link");
    let outside = fs::metadata("/bin/sh").expect("a shell").mode();
    fixture.conversation.list(ALL, None).expect("a listing");
    assert_eq!(mode("u"), 0o4755, "a listing without a mark changes nothing");
    fixture.conversation.list(ALL, Some(mark)).expect("a listing");
    assert_eq!(["in", "plain", "u", "in/g", "both"].map(mode), [0o2755, 0o755, 0o755, 0o751, 0o1000]);
    assert_eq!(fs::metadata("/bin/sh").expect("a shell").mode(), outside);
    // What that listing does not reach, the measurement that follows an incomplete one does.
    let deep = "d/".repeat(40);
    let files = [format!("{deep}f"), "closed/f".to_owned()];
    for file in &files {
        fs::create_dir_all(fixture.data().join(file).parent().expect("a folder")).expect("folders");
        fs::write(fixture.data().join(file), "").expect("a file");
        fs::set_permissions(fixture.data().join(file), fs::Permissions::from_mode(0o6755)).expect("rights");
    }
    fs::set_permissions(fixture.data().join("closed"), fs::Permissions::from_mode(0o000)).expect("rights");
    let listing = fixture.conversation.list(ALL, Some(mark)).expect("a listing");
    assert_eq!((listing.usage, mode(&files[0])), (None, 0o6755));
    fixture.conversation.usage(&EVERYTHING).expect("measured");
    fs::set_permissions(fixture.data().join("closed"), fs::Permissions::from_mode(0o755)).expect("rights");
    assert_eq!(files.map(|file| mode(&file)), [0o755; 2]);
    rerun_unprivileged("hold::set_user_id_is_taken_from_files_of_a_run");
}

/// A mount stands for what cannot be deleted now: an error of the disk, or no descriptor that is free.
#[test]
fn what_cannot_be_deleted_now_is_gone_for_the_caller_and_deleted_later() {
    if !as_root() {
        return;
    }
    let fixture = fixture();
    let mounted = fixture.data().join("d/mounted");
    fs::create_dir_all(&mounted).expect("folders");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("tmpfs", &mounted, "tmpfs", flags, c"size=1m").expect("mounted");
    let deleted = fixture.conversation.delete(&path("d"));
    fixture.storage.drain();
    let trash = fixture.root.path().join("root/.trash");
    let left: Vec<_> = fs::read_dir(&trash).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    for folder in &left {
        rustix::mount::unmount(folder.join("mounted"), rustix::mount::UnmountFlags::DETACH).expect("unmounted");
    }
    deleted.expect("its name is free");
    assert!(left.len() == 1 && !fixture.data().join("d").exists());
    fixture.storage.recover().expect("begun");
    fixture.storage.drain();
    assert_eq!(fs::read_dir(&trash).expect("a folder").count(), 0);
}
