//! Listings: their order, their bounds, the owners they keep apart.

use super::*;
use crate::domain::packages::FOLDER;

#[test]
fn list_puts_changed_files_first() {
    let Fixture { conversation, root: _root, .. } = fixture();
    let data = conversation.data().path;
    for name in ["a", "b", "c", "old/x", "gone"] {
        conversation.write(&path(name), b"before").expect("written");
    }
    // The clock of the file system ticks some hundred times a second.
    let early = conversation.mark().expect("a mark");
    let mark = loop {
        let mark = conversation.mark().expect("a mark");
        if mark > early {
            break mark;
        }
    };
    fs::write(data.join("c"), "after").expect("written");
    fs::write(data.join("z"), "new").expect("written");
    fs::write(data.join("old/y"), "new").expect("written");
    fs::set_permissions(data.join("b"), fs::Permissions::from_mode(0o600)).expect("rights");
    fs::remove_file(data.join("gone")).expect("removed");
    // A program may set this time to anything, and it does not hide the file.
    rustix::fs::futimens(
        fs::File::open(data.join("z")).expect("a file").as_fd(),
        &Timestamps {
            last_access: Timespec { tv_sec: 5, tv_nsec: 0 },
            last_modification: Timespec { tv_sec: 5, tv_nsec: 0 },
        },
    )
    .expect("a time");
    let listing = conversation.list(ALL, Some(mark)).expect("a listing");
    let listed: Vec<_> = listing.entries.iter().map(|e| (e.path.display(), e.change)).collect();
    let expected = [
        ("b", Change::Changed),
        ("c", Change::Changed),
        ("old/y", Change::Created),
        ("z", Change::Created),
        ("a", Change::Unchanged),
        ("old/x", Change::Unchanged),
    ];
    assert_eq!(listed, expected.map(|(name, change)| (name.to_owned(), change)));
    assert_eq!(listing.entries[3].modified_unix_s, 5);
    let cut = conversation.list(ListBounds { entries_max: 3, ..ALL }, Some(mark)).expect("a listing");
    assert_eq!((names(&cut), cut.truncated), (vec!["b".to_owned(), "c".to_owned(), "old/y".to_owned()], true));
}

#[test]
fn list_returns_only_conversations_of_the_owner() {
    let fixture = fixture();
    for key in ["c", "d", "@other/c", "@other/e", "@third/c"] {
        fixture.storage.create(&id(key)).expect("a conversation").mark().expect("a mark");
    }
    // Not an owner's folder: the name is none.
    fs::create_dir_all(fixture.root.path().join("root/@-bad/c/files")).expect("a folder");
    // Files of the operator's, whatever they are named.
    for name in ["backup.tar", "@notes"] {
        fs::write(fixture.root.path().join("root").join(name), "x").expect("a file");
    }
    let listed = |owner: &Principal| -> Vec<String> {
        let all = Storage::list(&*fixture.storage, owner, None, 10).expect("a list");
        all.iter().map(|known| known.key.to_string()).collect()
    };
    let other = "other".parse().expect("an owner");
    assert_eq!(listed(&Principal::default()), ["c", "d"]);
    assert_eq!(listed(&other), ["@other/c", "@other/e"]);
    assert_eq!(listed(&"unknown".parse().expect("an owner")), [""; 0]);
    let page = Storage::list(&*fixture.storage, &Principal::default(), None, 1).expect("a list");
    let page: Vec<_> = page.iter().map(|known| known.key.to_string()).collect();
    assert_eq!(page, ["c"], "a file is not in it");
    let mut uses: Vec<_> = fixture.storage.last_uses().expect("uses").iter().map(|last| last.key.to_string()).collect();
    uses.sort();
    assert_eq!(uses, ["@other/c", "@other/e", "@third/c", "c", "d"]);
    assert!(!fixture.storage.remove(&id("backup.tar")).expect("an answer"));
    assert!(fixture.root.path().join("root/backup.tar").exists());
    assert!(fixture.storage.remove(&id("@other/c")).expect("removed"));
    assert_eq!((listed(&Principal::default()).len(), listed(&other)), (2, vec!["@other/e".to_owned()]));
}

#[test]
fn folders_of_the_isolation_check_are_conversations_of_no_owner() {
    let Fixture { root, storage, conversation } = fixture();
    let check = ConversationKey::new(Principal::self_test(), "check".parse().expect("an id"));
    for _ in 0..2 {
        let data = storage.create(&check).expect("a folder").data();
        assert!(data.path.is_dir() && storage.open(&check).expect("opened").is_some());
        let listed = Storage::list(&*storage, &Principal::default(), None, 10).expect("a list");
        let used = storage.last_uses().expect("uses");
        for known in [listed, used] {
            assert_eq!(known.iter().map(|one| one.key.to_string()).collect::<Vec<_>>(), ["c"]);
        }
        assert!(storage.remove(&check).expect("removed") && !data.path.exists());
    }
    // A server that is killed leaves it to the next one.
    let left = storage.create(&check).expect("a folder").data().path;
    drop((storage, conversation));
    let storage = DiskStorage::at(&root.path().join("root"), users()).expect("a root");
    assert!(!left.exists());
    storage.recover().expect("begun");
    storage.drain();
    assert_eq!(fs::read_dir(root.path().join("root/.trash")).expect("a folder").count(), 0);
}

#[test]
fn list_is_bounded_in_entries_and_depth() {
    let fixture = fixture();
    let deep = vec!["d"; 20].join("/");
    fs::create_dir_all(fixture.data().join(&deep)).expect("folders");
    fs::write(fixture.data().join(&deep).join("too-deep"), "").expect("a file");
    fs::write(fixture.data().join("d/d/here"), "").expect("a file");
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert_eq!(names(&listing), ["d/d/here"]);
    assert_eq!(listing.skipped, [Skipped { path: vec!["d"; 16].join("/"), kind: SkipKind::TooDeep }]);
    let wide = fixture.data().join("a");
    fs::create_dir(&wide).expect("a folder");
    for number in 0..30_000 {
        fs::File::create(wide.join(format!("{number:05}"))).expect("a file");
    }
    let began = Instant::now();
    let listing = fixture.conversation.list(ListBounds { entries_max: 200, ..ALL }, None).expect("a listing");
    assert!(began.elapsed() < Duration::from_mins(1), "{:?}", began.elapsed());
    let expected: Vec<_> = (0..200).map(|number| format!("a/{number:05}")).collect();
    assert_eq!((names(&listing), listing.truncated), (expected, true));
    fixture.conversation.delete(&path("a")).expect("deleted");
    assert!(!wide.exists());
    fixture.storage.drain();
    assert_eq!(fs::read_dir(fixture.root.path().join("root/.trash")).expect("a folder").count(), 0);
}

#[test]
fn names_that_differ_in_bytes_are_different_files() {
    let fixture = fixture();
    let twins: [&[u8]; 4] = ["\u{e9}".as_bytes(), "e\u{301}".as_bytes(), b"\xff", b"\\xff"];
    for name in twins {
        fs::write(fixture.data().join(std::ffi::OsStr::from_bytes(name)), name).expect("a file");
    }
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert_eq!(listing.entries.len(), twins.len());
    for entry in listing.entries {
        assert_eq!(bytes(fixture.conversation.read(&entry.path)), entry.path.as_bytes());
    }
}

/// A shorter path that is found later fits where a longer one did not.
#[test]
fn pages_that_are_bounded_in_bytes_leave_nothing_out() {
    let fixture = fixture();
    // Of those at the top, all are found before what is in a folder.
    let all = ["a0123456789", "m0123456789", "n/z", "o/012345678901234567890123456789", "p/q/r"];
    for name in all {
        let file = fixture.data().join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        fs::write(file, "").expect("a file");
    }
    for bytes_max in 0..100 {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let bounds = ListBounds { bytes_max, ..ALL };
            let page =
                fixture.conversation.page(bounds, &FileFilter { after, ..FileFilter::default() }).expect("a page");
            seen.extend(names(&page));
            after = page.entries.last().filter(|_| page.more).map(|last| last.path.clone());
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen, all, "{bytes_max}");
    }
}

#[test]
fn files_that_a_walk_does_not_reach_leave_their_number_unknown() {
    let fixture = fixture();
    let total = |depth_max| {
        let page = fixture.conversation.page(ListBounds { depth_max, ..ALL }, &FileFilter::default());
        page.expect("a page").total
    };
    let make = |folder: String| fs::create_dir_all(fixture.data().join(folder)).expect("a folder");
    make(format!("{FOLDER}/x/y"));
    make("d".to_owned());
    fs::write(fixture.data().join("d/f"), "").expect("a file");
    assert_eq!((total(2), total(1)), (Some(1), None), "packages are not listed");
    make("d/e".to_owned());
    assert_eq!((total(3), total(2)), (Some(1), None));
    (0..20_000).for_each(|number| make(number.to_string()));
    assert_eq!(total(3), None, "more folders than a walk remembers");
}
