//! Storage against the files that hostile programs create.

mod disk;
mod hold;
pub(crate) mod holder;
mod list;
mod packages;
mod project;
mod race;
mod rename;
mod users;

use std::{
    fs,
    io::Read as _,
    os::{
        fd::AsFd as _,
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, PermissionsExt as _, symlink},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType};

use super::*;
use crate::{
    domain::{ConversationKey, Principal, RunnerUsers, test_scale::as_root},
    ports::storage::{Change, SkipKind, Skipped, Storage},
};

const ALL: ListBounds = ListBounds { entries_max: 1000, bytes_max: 1 << 20, depth_max: 16 };

fn users() -> RunnerUsers {
    RunnerUsers::one(1000)
}

struct Fixture {
    /// Gone when dropped.
    root: tempfile::TempDir,
    storage: Arc<DiskStorage>,
    conversation: Folder,
}

fn fixture() -> Fixture {
    fixture_in(&std::env::temp_dir())
}

fn fixture_in(folder: &Path) -> Fixture {
    let root = tempfile::tempdir_in(folder).expect("a folder");
    let storage = Arc::new(DiskStorage::at(&root.path().join("root"), users()).expect("a root"));
    let conversation = storage.try_create(&id("c")).expect("a conversation");
    Fixture { root, storage, conversation }
}

impl Fixture {
    fn data(&self) -> PathBuf {
        self.conversation.data().path
    }

    /// Descriptors of this process below this fixture's root: those of other tests do not count.
    fn descriptors(&self) -> usize {
        let below = |entry: std::io::Result<fs::DirEntry>| fs::read_link(entry.ok()?.path()).ok();
        let links = fs::read_dir("/proc/self/fd").expect("descriptors").filter_map(below);
        links.filter(|to| to.starts_with(self.root.path())).count()
    }
}

fn fifo(at: &Path) {
    rustix::fs::mknodat(CWD, at, FileType::Fifo, 0o644.into(), 0).expect("a pipe");
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

fn id(text: &str) -> ConversationKey {
    text.parse().expect("an id")
}

fn path(text: &str) -> SafePath {
    SafePath::from_text(text).expect("a path")
}

fn bytes(opened: Result<OpenFile, StorageError>) -> Vec<u8> {
    let mut bytes = Vec::new();
    opened.expect("a file").file.read_to_end(&mut bytes).expect("its bytes");
    bytes
}

fn names(listing: &Listing) -> Vec<String> {
    listing.entries.iter().map(|entry| entry.path.display()).collect()
}

#[test]
fn read_returns_what_write_stored_until_delete() {
    let Fixture { conversation, storage, root } = fixture();
    let written = conversation.write(&path("a/b/c.txt"), b"one").expect("written");
    assert_eq!((written.size, written.change), (3, Change::Created));
    assert_eq!(conversation.write(&path("a/b/c.txt"), b"three").expect("written").change, Change::Changed);
    assert_eq!(bytes(conversation.read(&path("a/b/c.txt"))), b"three");
    let listing = conversation.list(ALL, None).expect("a listing");
    assert_eq!((names(&listing), listing.truncated), (vec!["a/b/c.txt".to_owned()], false));
    assert!(matches!(conversation.read(&path("a/b")), Err(StorageError::NotAFile)));
    assert!(matches!(conversation.read(&path("a/x")), Err(StorageError::NotFound)));
    assert!(matches!(conversation.read(&path("a/b/c.txt/d")), Err(StorageError::NotFound)));
    assert!(matches!(conversation.write(&path("a/b"), b""), Err(StorageError::FolderInTheWay)));
    assert!(matches!(conversation.write(&path("a/b/c.txt/d"), b""), Err(StorageError::FolderBlocked)));
    conversation.delete(&path("a/b/c.txt")).expect("deleted");
    assert!(matches!(conversation.delete(&path("a/b/c.txt")), Err(StorageError::NotFound)));
    conversation.delete(&path("a")).expect("deleted");
    let nothing = Listing { usage: Some(Usage::default()), total: Some(0), ..Listing::default() };
    assert_eq!(conversation.list(ALL, None).expect("a listing"), nothing);
    assert!(storage.remove(&id("c")).expect("removed"));
    assert!(!storage.remove(&id("c")).expect("removed"));
    assert!(storage.open(&id("c")).expect("opened").is_none());
    for folder in [".trash".to_owned(), incoming(&storage)] {
        assert_eq!(fs::read_dir(root.path().join("root").join(&folder)).expect("a folder").count(), 0, "{folder}");
    }
}

/// Where a server writes files.
fn incoming(storage: &DiskStorage) -> String {
    format!(".incoming/{}", storage.instance())
}

#[test]
fn each_server_on_a_root_keeps_its_own_identity() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("a/b");
    let refused = |root: &Path| match DiskStorage::at(root, users()) {
        Err(error) => error,
        other => panic!("{other:?}"),
    };
    let store = DiskStorage::at(&root, users()).expect("a store");
    assert_eq!(fs::metadata(&root).expect("the root").mode() & 0o777, 0o700);
    let instance = store.instance();
    let beside: Vec<_> = (0..15).map(|_| DiskStorage::at(&root, users()).expect("a store beside it")).collect();
    let identities: std::collections::HashSet<_> = beside.iter().map(DiskStorage::instance).chain([instance]).collect();
    assert_eq!(identities.len(), 16);
    assert!(matches!(refused(&root), RootError::InUse { .. }));
    let own = root.join(incoming(&store));
    fs::write(own.join("file"), "x").expect("a file");
    fs::create_dir(own.join("folder")).expect("a folder");
    drop(beside);
    drop(DiskStorage::at(&root, users()).expect("a store beside it"));
    assert!(own.join("file").exists(), "what another server writes is not taken away");
    fs::write(root.join(".incoming/of-an-older-version"), "x").expect("a file");
    fs::create_dir_all(root.join(".trash/begun/deep")).expect("a folder");
    let beside = DiskStorage::at(&root, users()).expect("a store beside it");
    drop(store);
    let store = DiskStorage::at(&root, users()).expect("a store");
    assert_eq!(fs::read_dir(&own).expect("a folder").count(), 0, "what the last server of this identity left is gone");
    assert!(root.join(".incoming/of-an-older-version").exists(), "the other server may be writing it");
    let other = root.join(incoming(&beside));
    fs::write(other.join("file"), "x").expect("a file");
    drop((store, beside));
    let store = DiskStorage::at(&root, users()).expect("a store");
    assert_eq!(store.instance(), instance);
    assert!(!root.join(".incoming/of-an-older-version").exists());
    assert_eq!(fs::read_dir(&other).expect("one that starts now has it open").count(), 0);
    store.recover().expect("recovered");
    store.drain();
    assert_eq!(fs::read_dir(root.join(".trash")).expect("a folder").count(), 0);
    drop(store);
    fs::set_permissions(&root, fs::Permissions::from_mode(0o1777)).expect("rights");
    assert!(matches!(refused(&root), RootError::OpenToAll { .. }));
    fs::set_permissions(&root, fs::Permissions::from_mode(0o700)).expect("rights");
    fs::write(root.join(".instance"), "nonsense").expect("a file");
    assert!(matches!(refused(&root), RootError::Damaged { .. }));
    fs::write(root.join("file"), "").expect("a file");
    assert!(matches!(refused(&root.join("file")), RootError::Open { .. }));
    assert!(matches!(refused(Path::new("/proc/nowhere")), RootError::Open { .. }));
}

#[test]
fn created_files_belong_to_the_program_user() {
    let fixture = fixture();
    fixture.conversation.write(&path("d/f"), b"x").expect("written");
    let owner = |at: PathBuf| fs::metadata(at).map(|m| (m.uid(), m.mode() & 0o7777)).expect("it is there");
    let (conversation, files) = (owner(fixture.root.path().join("root/c")), owner(fixture.data()));
    assert_eq!(conversation, (rustix::process::geteuid().as_raw(), 0o700));
    if root() {
        assert_eq!(files, (1000, 0o700));
        assert_eq!(
            (owner(fixture.data().join("d")), owner(fixture.data().join("d/f"))),
            ((1000, 0o755), (1000, 0o644))
        );
        // An earlier process ended before it gave the folder away.
        std::os::unix::fs::chown(fixture.data(), Some(0), Some(0)).expect("chown");
        fixture.storage.create(&id("c")).expect("a conversation");
        assert_eq!(owner(fixture.data()).0, 1000);
    }
}

#[test]
fn try_create_from_many_threads_makes_one_folder() {
    let fixture = fixture();
    let made: Vec<_> = std::thread::scope(|scope| {
        let make = || fixture.storage.try_create(&id("new")).expect("a conversation");
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(make)).collect();
        threads
            .into_iter()
            .map(|t| rustix::fs::fstat(&t.join().expect("made").files).expect("a folder").st_ino)
            .collect()
    });
    assert!(made.iter().all(|inode| *inode == made[0]));
}

#[test]
fn special_files_are_reported_and_never_opened() {
    let fixture = fixture();
    let data = fixture.data();
    fs::write(fixture.root.path().join("secret"), "secret").expect("a file");
    fs::write(data.join("plain"), "plain").expect("a file");
    fs::create_dir(data.join("sub")).expect("a folder");
    let links = [
        ("absolute", "/etc/passwd"),
        ("magic", "/proc/self/environ"),
        ("magic-root", "/proc/self/root"),
        ("up", "../../../secret"),
        ("folder", "../.."),
        ("inside", "plain"),
        ("inside-folder", "sub"),
        ("self", "self"),
        ("dangling", "nothing"),
    ];
    for (name, to) in links {
        symlink(to, data.join(name)).expect("a link");
    }
    fifo(&data.join("pipe"));
    let _socket = std::os::unix::net::UnixListener::bind(data.join("socket")).expect("a socket");
    if root() {
        rustix::fs::mknodat(CWD, data.join("device"), FileType::CharacterDevice, 0o644.into(), 0).expect("a device");
    }
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert_eq!(names(&listing), ["plain"]);
    let count = |kind| listing.skipped.iter().filter(|s| s.kind == kind).count();
    let counts = [SkipKind::Link, SkipKind::Pipe, SkipKind::Socket, SkipKind::Device].map(count);
    assert_eq!(counts, [links.len(), 1, 1, usize::from(root())]);
    let more = ["pipe", "socket", "sub", "magic-root/etc/passwd", "inside-folder/x", "folder/c/files/plain"];
    for name in links.iter().map(|(name, _)| *name).chain(more) {
        let refused = fixture.conversation.read(&path(name));
        assert!(matches!(refused, Err(StorageError::NotAFile)), "{name}: {refused:?}");
    }
    // Through a link nothing is written and nothing is deleted; a link itself is replaced and deleted.
    for name in ["folder/planted", "magic-root/tmp/planted", "inside-folder/planted"] {
        assert!(matches!(fixture.conversation.write(&path(name), b"x"), Err(StorageError::FolderBlocked)), "{name}");
        assert!(matches!(fixture.conversation.delete(&path(name)), Err(StorageError::NotFound)), "{name}");
    }
    fixture.conversation.write(&path("up"), b"mine").expect("written");
    assert_eq!(bytes(fixture.conversation.read(&path("up"))), b"mine");
    for name in ["absolute", "pipe", "socket", "folder", "self"].into_iter().chain(root().then_some("device")) {
        fixture.conversation.delete(&path(name)).expect("deleted");
        assert!(fs::symlink_metadata(data.join(name)).is_err(), "{name}");
    }
    assert_eq!(fs::read(fixture.root.path().join("secret")).expect("the secret"), b"secret");
}

#[test]
fn read_of_a_pipe_does_not_block() {
    let fixture = fixture();
    fifo(&fixture.data().join("pipe"));
    let began = Instant::now();
    for _ in 0..600 {
        assert!(matches!(fixture.conversation.read(&path("pipe")), Err(StorageError::NotAFile)));
    }
    assert!(began.elapsed() < Duration::from_mins(1));
    fixture.conversation.write(&path("pipe"), b"x").expect("written");
}

/// As root, which may do everything, and as a user, who is refused by the rights a program left.
#[test]
fn folders_without_permissions_are_deleted() {
    let fixture = fixture();
    let data = fixture.data();
    for folder in ["top", "top/in/deep", "top/other"] {
        fs::create_dir_all(data.join(folder)).expect("a folder");
    }
    fs::write(data.join("top/in/deep/f"), "").expect("a file");
    for (folder, mode) in [("top/in/deep", 0o000), ("top/in", 0o555), ("top/other", 0o000), ("top", 0o000)] {
        fs::set_permissions(data.join(folder), fs::Permissions::from_mode(mode)).expect("rights");
    }
    let listing = fixture.conversation.list(ALL, None).expect("a listing");
    assert_eq!(listing.skipped.iter().any(|s| s.kind == SkipKind::Unreadable), !root());
    fixture.conversation.delete(&path("top")).expect("deleted");
    assert_eq!(fs::read_dir(&data).expect("a folder").count(), 0);
    assert_eq!(fs::read_dir(fixture.root.path().join("root/.trash")).expect("a folder").count(), 0);
    // The folder itself, closed by the program: opened again when it is ours, left as it is when root needs no leave.
    fs::set_permissions(&data, fs::Permissions::from_mode(0o000)).expect("rights");
    let again = fixture.storage.open(&id("c")).expect("opened").expect("it is there");
    again.write(&path("f"), b"x").expect("written");
    assert_eq!(names(&again.list(ALL, None).expect("a listing")), ["f"]);
    assert!(fixture.storage.remove(&id("c")).expect("removed"));
    rerun_unprivileged("folders_without_permissions_are_deleted");
}

#[test]
fn storage_works_without_root() {
    read_returns_what_write_stored_until_delete();
    created_files_belong_to_the_program_user();
    special_files_are_reported_and_never_opened();
    rerun_unprivileged("storage_works_without_root");
}

/// Runs one of these tests again as a user without rights. Only root can.
fn rerun_unprivileged(test: &str) {
    rerun_unprivileged_in(test, |_, _| {});
}

/// The same, with what `prepare` puts into the folder that is its `TMPDIR`; it is given that user's id.
fn rerun_unprivileged_in(test: &str, prepare: impl FnOnce(&Path, u32)) {
    const UNPRIVILEGED: u32 = 65534;
    if !as_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("rights");
    prepare(folder.path(), UNPRIVILEGED);
    let binary = folder.path().join("tests");
    fs::copy(std::env::current_exe().expect("the tests"), &binary).expect("a copy");
    let name = format!("adapters::storage::tests::{test}");
    let mut command = std::process::Command::new(binary);
    // In CI a skipped test fails; the second run does not count as one.
    command.env_remove("CI");
    command.args(["--exact", &name, "--nocapture"]).env("TMPDIR", folder.path()).current_dir(folder.path());
    let output = command.uid(UNPRIVILEGED).gid(UNPRIVILEGED).output().expect("it runs");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
