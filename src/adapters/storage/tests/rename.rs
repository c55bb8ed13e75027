//! Moving files and folders.

use std::time::UNIX_EPOCH;

use super::*;

const THEN_S: i64 = 1_000_000_000;

#[test]
fn rename_keeps_bytes_mode_and_time_across_folders() {
    let fixture = fixture();
    let data = fixture.data();
    let descriptors = fixture.descriptors();
    fixture.conversation.write(&path("a/f.txt"), b"one").expect("written");
    fs::set_permissions(data.join("a/f.txt"), fs::Permissions::from_mode(0o751)).expect("rights");
    let file = fs::File::options().write(true).open(data.join("a/f.txt")).expect("the file");
    file.set_modified(UNIX_EPOCH + Duration::from_secs(THEN_S.unsigned_abs())).expect("a time");
    drop(file);
    let rename = |from: &str, to: &str| fixture.conversation.rename(&path(from), &path(to), false).expect("moved");

    let moved = rename("a/f.txt", "b/c/g.txt").expect("a file");
    assert_eq!((moved.path, moved.size, moved.modified_unix_s), (path("b/c/g.txt"), 3, THEN_S));
    assert_eq!(moved.change, Change::Unchanged);
    let about = fs::metadata(data.join("b/c/g.txt")).expect("it is there");
    assert_eq!((about.mode() & 0o777, about.mtime()), (0o751, THEN_S));
    assert!(data.join("a").exists() && !data.join("a/f.txt").exists());

    // A folder with what is in it, a link and a pipe, which have no entry.
    symlink("/etc/passwd", data.join("link")).expect("a link");
    fifo(&data.join("pipe"));
    for (from, to) in [("b", "deep/er"), ("link", "deep/link"), ("pipe", "deep/pipe")] {
        assert_eq!(rename(from, to), None, "{from}");
    }
    assert_eq!(bytes(fixture.conversation.read(&path("deep/er/c/g.txt"))), b"one");
    assert_eq!(fs::read_link(data.join("deep/link")).expect("the link"), Path::new("/etc/passwd"));
    assert!(matches!(fixture.conversation.read(&path("deep/pipe")), Err(StorageError::NotAFile)));

    // The longest names and the deepest path.
    let long = format!("{0}/{0}", "n".repeat(255));
    assert_eq!(rename("deep", &long), None);
    let deepest = vec!["d"; crate::domain::path::COMPONENTS_MAX].join("/");
    assert!(rename(&format!("{long}/er/c/g.txt"), &deepest).is_some());
    assert_eq!(bytes(fixture.conversation.read(&path(&deepest))), b"one");
    assert_eq!(rename("d", &"m".repeat(255)), None);
    assert_eq!(fixture.descriptors(), descriptors);
    let own = fixture.root.path().join("root").join(incoming(&fixture.storage));
    assert_eq!(fs::read_dir(own).expect("a folder").count(), 0);
    rerun_unprivileged("rename::rename_keeps_bytes_mode_and_time_across_folders");
}

#[test]
fn rename_leaves_what_has_the_path() {
    let fixture = fixture();
    let data = fixture.data();
    for file in ["f", "g", "d/x", "e/y"] {
        fixture.conversation.write(&path(file), file.as_bytes()).expect("written");
    }
    symlink(".", data.join("l")).expect("a link");
    let refused = |from: &str, to: &str, replace| {
        let refused = fixture.conversation.rename(&path(from), &path(to), replace);
        let why = format!("{from} to {to}, {replace}: {refused:?}");
        (refused.expect_err(&why), why)
    };
    for (from, to, replace) in [("f", "g", false), ("f", "l", false), ("d", "g", false), ("d", "g", true)] {
        let (error, why) = refused(from, to, replace);
        assert!(matches!(error, StorageError::FileInTheWay), "{why}");
    }
    for (from, to) in [("f", "d"), ("d", "e"), ("d/x", "d")] {
        for replace in [false, true] {
            let (error, why) = refused(from, to, replace);
            assert!(matches!(error, StorageError::FolderInTheWay), "{why}");
        }
    }
    for (from, to) in [("none", "new/f"), ("f/x", "h"), ("l/f", "h")] {
        let (error, why) = refused(from, to, false);
        assert!(matches!(error, StorageError::NotFound), "{why}");
    }
    for to in ["g/x", "l/x"] {
        let (error, why) = refused("f", to, false);
        assert!(matches!(error, StorageError::FolderBlocked), "{why}");
    }
    let (error, why) = refused("d", "d/in", false);
    assert!(matches!(error, StorageError::Busy { .. }), "{why}");
    assert!(!data.join("new").exists(), "nothing was made for what is not there");
    for file in ["f", "g", "d/x", "e/y"] {
        assert_eq!(bytes(fixture.conversation.read(&path(file))), file.as_bytes());
    }

    // A file replaces a file, and a link without following it; a path that stays replaces itself.
    for (from, to) in [("f", "g"), ("g", "l")] {
        let moved = fixture.conversation.rename(&path(from), &path(to), true).expect("moved");
        assert_eq!(moved.map(|entry| entry.size), Some(1));
    }
    assert_eq!(bytes(fixture.conversation.read(&path("l"))), b"f");
    assert_eq!(fixture.conversation.rename(&path("d"), &path("d"), true).expect("moved"), None);
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert_eq!(names(&listing), ["d/x", "e/y", "l"]);
}

#[test]
fn rename_takes_the_old_name_from_a_file_that_has_both() {
    let fixture = fixture();
    let data = fixture.data();
    let rename = |from: &str, to: &str, replace| fixture.conversation.rename(&path(from), &path(to), replace);
    for folder in ["", "d/"] {
        let (from, to) = (format!("{folder}from"), format!("{folder}to"));
        fixture.conversation.write(&path(&from), b"one").expect("written");
        fs::hard_link(data.join(&from), data.join(&to)).expect("a second name");
        assert!(matches!(rename(&from, &to, false), Err(StorageError::FileInTheWay)));
        assert!(data.join(&from).exists());
        assert!(rename(&from, &to, true).expect("moved").is_some());
        assert!(!data.join(&from).exists());
        assert!(rename(&to, &to, true).expect("it stays").is_some());
        assert_eq!(bytes(fixture.conversation.read(&path(&to))), b"one");
    }
}
