//! Installed packages: kept apart from what programs reach, put into conversations, deleted.

use super::*;
use crate::{
    domain::packages::Tool,
    ports::packages::{PackageStore as _, Tree},
};

const ROOM: Usage = Usage { bytes: 64 << 20, entries: 1000 };

fn owner() -> Principal {
    Principal::default()
}

/// What an installation leaves, hostile parts too.
fn keep(storage: &Arc<DiskStorage>, key: &str, code: &str) -> Tree {
    let stage = Arc::clone(storage).stage(&owner()).expect("a folder");
    let tree = stage.data().path.join(".packages/python");
    fs::create_dir_all(tree.join("inner/deeper")).expect("folders");
    fs::write(tree.join(".sandbox.json"), "{}").expect("written");
    fs::write(tree.join("inner/code.py"), code).expect("written");
    fs::set_permissions(tree.join("inner/code.py"), fs::Permissions::from_mode(0o6777)).expect("a mode");
    symlink("/etc/passwd", tree.join("link")).expect("a link");
    rustix::fs::mknodat(CWD, tree.join("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    stage.keep(Tool::Uv, key, &ROOM).expect("kept")
}

#[test]
fn tree_is_kept_put_into_conversations_and_counted_without_being_listed() {
    let Fixture { storage, conversation, root } = fixture();
    let tree = keep(&storage, "k", "good");
    assert_eq!(tree.note, b"{}");
    assert_eq!(storage.find(&owner(), "k", 0).expect("answered"), Some(tree.clone()));
    assert_eq!(storage.find(&owner(), "k", i64::MAX).expect("answered"), None, "it is too old");
    assert_eq!(storage.find(&owner(), "other", 0).expect("answered"), None);
    assert_eq!(storage.find(&"ann".parse().expect("an owner"), "k", 0).expect("answered"), None);
    for (key, code) in [("k", "good"), ("l", "newer")] {
        keep(&storage, key, code);
        storage.put(key, &id("c"), Tool::Uv).expect("placed");
        let file = conversation.data().path.join(".packages/python/inner/code.py");
        assert_eq!(fs::read_to_string(&file).expect("the file"), code);
        assert_eq!(fs::metadata(&file).expect("the file").mode() & 0o7777, 0o755, "set-user-id is not kept");
        assert!(!conversation.data().path.join(".packages/python/pipe").exists());
    }
    let there = storage.placed(&id("c"), Tool::Uv).expect("measured");
    assert_eq!((there.note.as_slice(), there.usage.entries), (b"{}".as_slice(), 5));
    assert_eq!(storage.placed(&id("c"), Tool::Npm).expect("measured"), Tree::default());
    let listing = conversation.list(ALL, None).expect("a listing");
    assert_eq!((listing.entries.len(), listing.skipped.len(), listing.total), (0, 0, Some(0)));
    assert_eq!(listing.usage.expect("measured"), conversation.usage(&ROOM).expect("measured"));
    assert_eq!(listing.usage.expect("measured").entries, 7);
    storage.drain();
    for (folder, left) in [(".packages/default".to_owned(), 2), (format!(".nameless/{}", storage.instance()), 0)] {
        assert_eq!(fs::read_dir(root.path().join("root").join(&folder)).expect("a folder").count(), left, "{folder}");
    }
}

#[test]
fn use_of_a_tree_is_noted_without_writing_its_usage_again() {
    let Fixture { storage, root, .. } = fixture();
    let tree = keep(&storage, "k", "good");
    let used = root.path().join("root/.packages/default/k/.used");
    // The same numbers, which are never written like this.
    let text = format!("00{}", fs::read_to_string(&used).expect("its usage"));
    fs::write(&used, &text).expect("written");
    let file = fs::File::options().write(true).open(&used).expect("a file");
    file.set_modified(std::time::UNIX_EPOCH).expect("a time");
    assert_eq!(storage.find(&owner(), "k", 0).expect("answered"), Some(tree));
    assert_eq!(fs::read_to_string(&used).expect("its usage"), text, "a full disk would have left nothing of it");
    assert!(file.metadata().and_then(|about| about.modified()).expect("a time") > std::time::UNIX_EPOCH);
}

#[test]
fn program_that_has_something_else_in_the_place_hurts_itself_alone() {
    let Fixture { storage, conversation, root: _root } = fixture();
    keep(&storage, "k", "good");
    let outside = tempfile::tempdir().expect("a folder");
    symlink(outside.path(), conversation.data().path.join(".packages")).expect("a link");
    assert!(matches!(storage.put("k", &id("c"), Tool::Uv), Err(StorageError::FolderBlocked | StorageError::NotAFile)));
    assert_eq!(storage.placed(&id("c"), Tool::Uv).expect("measured"), Tree::default());
    assert_eq!(fs::read_dir(outside.path()).expect("a folder").count(), 0);
    fs::remove_file(conversation.data().path.join(".packages")).expect("removed");
    // A file, a link and a folder in the tree's own path are replaced.
    fs::create_dir(conversation.data().path.join(".packages")).expect("a folder");
    let own = conversation.data().path.join(".packages/python");
    fs::write(&own, "x").expect("written");
    storage.put("k", &id("c"), Tool::Uv).expect("placed");
    fs::remove_dir_all(&own).expect("removed");
    symlink(outside.path(), &own).expect("a link");
    storage.put("k", &id("c"), Tool::Uv).expect("placed");
    assert!(own.join("inner/code.py").exists() && !own.is_symlink());
    assert_eq!(fs::read_dir(outside.path()).expect("a folder").count(), 0);
}

#[test]
fn trees_are_deleted_by_age_and_size_and_what_is_too_large_is_not_kept() {
    let Fixture { storage, root, .. } = fixture();
    let tree = keep(&storage, "a", &"x".repeat(100_000));
    keep(&storage, "b", &"y".repeat(100_000));
    let all = storage.trim(0, u64::MAX).expect("trimmed");
    assert_eq!((all.trees, all.bytes), (2, 2 * tree.usage.bytes));
    assert_eq!(storage.trim(0, tree.usage.bytes).expect("trimmed").trees, 1);
    assert_eq!(storage.trim(i64::MAX, u64::MAX).expect("trimmed").trees, 0);
    let stage = Arc::clone(&storage).stage(&owner()).expect("a folder");
    fs::create_dir_all(stage.data().path.join(".packages/python")).expect("folders");
    fs::write(stage.data().path.join(".packages/python/big"), vec![1; 1 << 20]).expect("written");
    let small = Usage { bytes: 4096, ..ROOM };
    assert!(matches!(stage.keep(Tool::Uv, "c", &small), Err(StorageError::NoSpace { .. })));
    // A file of holes takes no space until it is copied.
    let big = stage.data().path.join(".packages/python/big");
    let holes = fs::File::create(&big).expect("made");
    holes.set_len(1 << 30).expect("longer");
    assert!(matches!(stage.keep(Tool::Uv, "c", &ROOM), Err(StorageError::NoSpace { .. })));
    // Nor does another name of a file.
    fs::write(&big, vec![1; 1 << 20]).expect("written");
    for number in 0..3 {
        fs::hard_link(&big, big.with_file_name(number.to_string())).expect("another name");
    }
    let two = Usage { bytes: 2 << 20, ..ROOM };
    assert!(matches!(stage.keep(Tool::Uv, "c", &two), Err(StorageError::NoSpace { .. })));
    // The installations above are gone: a start finds only what a process that was killed leaves.
    storage.drain();
    std::mem::forget(stage);
    storage.recover().expect("recovered");
    storage.drain();
    for folder in [".packages/default".to_owned(), format!(".nameless/{}", storage.instance())] {
        assert_eq!(fs::read_dir(root.path().join("root").join(&folder)).expect("a folder").count(), 0, "{folder}");
    }
}
