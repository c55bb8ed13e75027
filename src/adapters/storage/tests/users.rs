//! The user of a conversation's folder: its own, the same for good, and the one that its files belong to.

use std::os::unix::fs::{chown, lchown};

use super::*;

const RANGE: std::ops::RangeInclusive<u32> = 70_000..=70_999;

fn storage(root: &Path, users: RunnerUsers) -> Arc<DiskStorage> {
    Arc::new(DiskStorage::at(root, users).expect("a root"))
}

fn each() -> RunnerUsers {
    RunnerUsers::each(1000, RANGE)
}

fn uid(path: impl AsRef<Path>) -> u32 {
    let metadata = fs::symlink_metadata(path).expect("it is there");
    assert_eq!(metadata.uid(), metadata.gid());
    metadata.uid()
}

#[test]
fn conversations_have_users_of_their_own_that_last() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let storage_now = storage(root.path(), each());
    let made = |storage: &Arc<DiskStorage>, name: &str| storage.try_create(&id(name)).expect("a conversation").data();
    let (one, other) = (made(&storage_now, "one"), made(&storage_now, "other"));
    assert!(RANGE.contains(&one.uid) && RANGE.contains(&other.uid) && one.uid != other.uid, "{one:?} {other:?}");
    assert_eq!((uid(&one.path), uid(&other.path)), (one.uid, other.uid));

    let conversation = storage_now.try_create(&id("one")).expect("a conversation");
    conversation.write(&path("a/b"), b"1").expect("written");
    conversation.make_folders(&path("c")).expect("made");
    assert!(["a", "a/b", "c"].iter().all(|name| uid(one.path.join(name)) == one.uid));

    let mut unassigned = Arc::clone(&storage_now).create_unassigned().expect("a folder");
    let before = unassigned.data();
    assert_eq!(uid(&before.path), before.uid);
    let assigned = unassigned.assign(&id("named")).expect("renamed").expect("the conversation is new");
    assert!(RANGE.contains(&before.uid) && assigned.data().uid == before.uid);

    drop((conversation, assigned, unassigned, storage_now));
    let storage = storage(root.path(), each());
    assert_eq!((made(&storage, "one"), made(&storage, "other")), (one, other));
    assert_eq!(made(&storage, "named").uid, before.uid);
}

#[test]
fn conversation_of_the_usual_user_keeps_it() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    drop(storage(root.path(), RunnerUsers::one(1000)).try_create(&id("c")).expect("a conversation"));
    let storage = storage(root.path(), each());
    let conversation = storage.try_create(&id("c")).expect("a conversation");
    conversation.write(&path("f"), b"1").expect("written");
    assert_eq!((conversation.data().uid, uid(conversation.data().path.join("f"))), (1000, 1000));
}

#[test]
fn folder_that_a_process_left_half_made_gets_its_user() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let storage = storage(root.path(), each());
    fs::create_dir_all(root.path().join("c/files")).expect("folders");
    let opened = storage.enter(&id("c")).expect("it is there").data();
    assert_eq!(opened.uid, 1000, "never root");
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let storage = Arc::clone(&storage);
            std::thread::spawn(move || storage.try_create(&id("c")).expect("a conversation").data().uid)
        })
        .collect();
    let users: Vec<u32> = threads.into_iter().map(|thread| thread.join().expect("a user")).collect();
    assert!(RANGE.contains(&users[0]) && users.iter().all(|user| *user == users[0]), "{users:?}");
    assert_eq!(uid(root.path().join("c/files")), users[0]);
}

/// What a program made stays usable when the setting changes, and nothing of another conversation changes hands.
#[test]
fn files_follow_their_conversation_to_another_user() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    let outside = tempfile::NamedTempFile::new().expect("a file");
    let before = storage(root.path(), each());
    let data = before.try_create(&id("c")).expect("a conversation").data();
    drop(before);
    let at = |name: &str| data.path.join(name);
    let deep = at("d").join(vec!["e"; 31].join("/"));
    fs::create_dir_all(&deep).expect("folders");
    let made: Vec<PathBuf> = deep.ancestors().take_while(|folder| *folder != data.path).map(Path::to_owned).collect();
    for name in ["f", "d/shut", "package"] {
        fs::write(at(name), "1").expect("written");
    }
    fifo(&at("pipe"));
    symlink(outside.path(), at("link")).expect("a link");
    let names = ["f", "d/shut", "pipe", "link"].map(at);
    for path in made.iter().chain(&names) {
        lchown(path, Some(data.uid), Some(data.uid)).expect("given");
    }
    chown(outside.path(), Some(data.uid), Some(data.uid)).expect("given");
    fs::set_permissions(at("d"), fs::Permissions::from_mode(0o000)).expect("rights");

    let storage = storage(root.path(), RunnerUsers::one(1001));
    let conversation = storage.try_create(&id("c")).expect("a conversation");
    assert_eq!((conversation.data().uid, uid(&data.path)), (1001, 1001));
    for path in made.iter().chain(&names) {
        assert_eq!(uid(path), 1001, "{}", path.display());
    }
    assert_eq!(uid(at("package")), 0, "what no program made stays ours");
    assert_eq!(uid(outside.path()), data.uid, "what is outside stays as it is");
}

/// Only root can give files to others.
#[test]
fn server_that_is_not_root_has_one_user() {
    if !root() {
        let at = tempfile::tempdir().expect("a folder");
        let conversation = storage(at.path(), each()).try_create(&id("c")).expect("a conversation");
        assert_eq!(conversation.data().uid, 1000);
        conversation.write(&path("f"), b"1").expect("written");
        // The first user of a machine has the number of the programs' user, and opens nothing to others.
        let mode = if rustix::process::geteuid().as_raw() == 1000 { 0o644 } else { 0o666 };
        assert_eq!(fs::metadata(conversation.data().path.join("f")).expect("f").mode() & 0o777, mode);
    }
    rerun_unprivileged("users::server_that_is_not_root_has_one_user");
}

#[test]
fn what_root_makes_in_a_root_belongs_to_its_owner() {
    if !as_root() {
        return;
    }
    let root = tempfile::tempdir().expect("a folder");
    chown(root.path(), Some(4242), Some(4242)).expect("given");
    // Of a server that runs as a third user.
    fs::create_dir(root.path().join(".trash")).expect("a folder");
    chown(root.path().join(".trash"), Some(77), Some(77)).expect("given");
    let storage = DiskStorage::shared(root.path(), users()).expect("a root");
    let unassigned = format!(".nameless/{}", storage.instance());
    for name in [".instance-2", ".incoming", &incoming(&storage), ".nameless", &unassigned, ".checks"] {
        assert_eq!(uid(root.path().join(name)), 4242, "{name}");
    }
    assert_eq!(uid(root.path().join(".trash")), 77);
}
