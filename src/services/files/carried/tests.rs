//! The difference that is sent, what is stored of what comes back, and what is refused.

mod closed;

use std::fs::File;

use super::{sending::send_bytes, *};
use crate::{
    domain::RunnerUsers,
    services::{files::tests::fixture, quota::QuotaOptions},
};

const ROOM: u64 = 64 << 20;
const FILE_BYTES_MAX: u64 = 16 << 20;

struct Scene {
    root: tempfile::TempDir,
    files: Arc<Files>,
    id: ConversationKey,
    carried: Carried,
    /// What the sandbox has: a folder is `None`.
    sandbox: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

fn path(text: &str) -> SafePath {
    SafePath::from_text(text).expect("a path")
}

fn file(path: &str, bytes: &[u8]) -> Vec<FileMessage> {
    let path = Bytes::copy_from_slice(path.as_bytes());
    let mut messages = vec![FileMessage::Entry { is_folder: false, mode: 0o640, modified_unix_s: 7, path }];
    messages.extend(bytes.chunks(1000).map(|piece| FileMessage::Bytes(Bytes::copy_from_slice(piece))));
    messages
}

fn folder(path: &str) -> FileMessage {
    folder_of_mode(path, 0o755)
}

fn folder_of_mode(path: &str, mode: u32) -> FileMessage {
    let path = Bytes::copy_from_slice(path.as_bytes());
    FileMessage::Entry { is_folder: true, mode, modified_unix_s: 0, path }
}

fn gone(path: &str) -> FileMessage {
    FileMessage::Gone(Bytes::copy_from_slice(path.as_bytes()))
}

impl Scene {
    fn new(quota: QuotaOptions) -> Self {
        Self::of_users(RunnerUsers::one(1000), quota)
    }

    fn of_users(users: RunnerUsers, quota: QuotaOptions) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let files = fixture::with_users(&root.path().join("root"), users, quota);
        let id = "c".parse().expect("an id");
        Self { root, files, id, carried: Carried::default(), sandbox: BTreeMap::new() }
    }

    /// Its files belong to the user of this process.
    fn own() -> Self {
        let users = RunnerUsers::one(rustix::process::geteuid().as_raw());
        Self::of_users(users, QuotaOptions { free_bytes_min: 0, ..QuotaOptions::default() })
    }

    fn usual() -> Self {
        Self::new(QuotaOptions { free_bytes_min: 0, ..QuotaOptions::default() })
    }

    async fn write(&self, name: &str, bytes: &[u8]) {
        self.files.write(&self.id, &path(name), Bytes::copy_from_slice(bytes)).await.expect("written");
    }

    fn disk_path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join("root/c/files").join(name)
    }

    fn disk_file(&self, name: &str) -> File {
        File::options().write(true).open(self.disk_path(name)).expect("a file")
    }

    async fn read(&self, name: &str) -> Result<Vec<u8>, Code> {
        let read = self.files.read(&self.id, &path(name), 0, u64::MAX).await;
        read.map(|content| content.bytes.to_vec()).map_err(|failure| failure.code)
    }

    async fn listed(&self) -> Vec<String> {
        let listed = self.files.list(&self.id).await.expect("a list");
        listed.files.iter().map(|file| file.path.display()).collect()
    }

    /// Sends what the sandbox does not have; the number of frames.
    async fn carry_in(&mut self) -> Result<usize, Failure> {
        let (sender, mut frames) = mpsc::channel(1);
        let sending = self.files.carry_in(&self.id, &mut self.carried, ROOM, FILE_BYTES_MAX, sender);
        let sandbox = &mut self.sandbox;
        let receiving = async {
            let (mut count, mut open) = (0, Vec::new());
            while let Some(frame) = frames.recv().await {
                count += 1;
                let payload = &frame[5..];
                match payload[0] {
                    1 => {
                        let is_folder = payload[2..4] == [0x41, 0xed];
                        open = payload[13..].to_vec();
                        sandbox.insert(open.clone(), (!is_folder).then(Vec::new));
                    }
                    2 => sandbox.get_mut(&open).expect("an entry").as_mut().expect("a file").extend(&payload[1..]),
                    3 => drop(sandbox.remove(&payload[1..])),
                    4 => {}
                    other => panic!("a frame of the kind {other}"),
                }
            }
            count
        };
        let (sent, count) = tokio::join!(sending, receiving);
        sent?;
        Ok(count)
    }

    async fn carry_out(&mut self, messages: impl IntoIterator<Item = FileMessage>) -> Returned {
        let carried = mem::take(&mut self.carried);
        let mut returning = self.files.carry_out(&self.id, carried).await;
        for message in messages {
            returning.take(message).await.expect("taken");
        }
        let mut returned = returning.finish().await.expect("stored");
        self.carried = mem::take(&mut returned.carried);
        returned
    }
}

#[tokio::test]
async fn only_the_difference_is_sent() {
    let mut scene = Scene::usual();
    scene.write("a", b"one").await;
    scene.write("d/e/b", &vec![b'x'; 600_000]).await;
    scene.carry_in().await.expect("sent");
    let names: Vec<_> = scene.sandbox.keys().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
    assert_eq!(names, ["a", "d", "d/e", "d/e/b"]);
    assert_eq!(scene.sandbox[&b"d/e/b"[..]].as_ref().map(Vec::len), Some(600_000));
    assert_eq!(scene.carry_in().await.expect("sent"), 1, "the end alone");

    scene.write("a", b"two").await;
    scene.files.delete(&scene.id, &path("d"), None).await.expect("deleted");
    scene.carry_in().await.expect("sent");
    assert_eq!(scene.sandbox, BTreeMap::from([(b"a".to_vec(), Some(b"two".to_vec()))]));
}

#[tokio::test]
async fn file_in_place_of_a_folder_comes_after_it_is_gone() {
    let mut scene = Scene::usual();
    scene.write("x/y", b"one").await;
    scene.carry_in().await.expect("sent");
    scene.files.delete(&scene.id, &path("x"), None).await.expect("deleted");
    scene.write("x", b"two").await;
    scene.carry_in().await.expect("sent");
    assert_eq!(scene.sandbox, BTreeMap::from([(b"x".to_vec(), Some(b"two".to_vec()))]));
}

#[tokio::test]
async fn what_comes_back_is_stored_and_not_sent_again() {
    let mut scene = Scene::usual();
    scene.write("old", b"old").await;
    scene.carry_in().await.expect("sent");
    let large = vec![b'x'; 3_000_000];
    let messages = [vec![folder("d")], file("d/large", &large), file("old", b"new"), file("empty", b"")].concat();
    let returned = scene.carry_out(messages).await;
    assert_eq!((returned.limit, returned.left_out), (None, 0));
    assert_eq!(returned.replaced, BTreeSet::from([path("old")]));
    assert_eq!(scene.read("d/large").await, Ok(large));
    assert_eq!((scene.read("old").await, scene.read("empty").await), (Ok(b"new".to_vec()), Ok(Vec::new())));
    let listed = scene.files.list(&scene.id).await.expect("a list");
    assert!(listed.files.iter().all(|file| file.modified_unix_s == 7), "{listed:?}");
    assert_eq!(scene.carry_in().await.expect("sent"), 1, "the sandbox has them");

    let returned = scene.carry_out([gone("d/large"), gone("d"), gone("never")]).await;
    assert_eq!(returned.left_out, 0);
    assert_eq!(scene.read("d/large").await, Err(Code::FileNotFound));
    assert_eq!(scene.carry_in().await.expect("sent"), 1);
}

#[tokio::test]
async fn upload_of_a_client_meanwhile_is_kept_and_sent() {
    let mut scene = Scene::usual();
    scene.write("d/old", b"old").await;
    scene.carry_in().await.expect("sent");
    scene.write("d/upload", b"theirs").await;
    // The program has removed the folder, in which it saw one file.
    scene.carry_out([gone("d/old"), gone("d")]).await;
    assert_eq!(scene.listed().await, ["d/upload"]);
    scene.carry_in().await.expect("sent");
    assert_eq!(scene.sandbox[&b"d/upload"[..]], Some(b"theirs".to_vec()));
}

#[tokio::test]
async fn upload_in_place_of_a_removed_file_is_kept_and_sent() {
    let mut scene = Scene::usual();
    for name in ["same", "replaced", "folder"] {
        scene.write(name, b"old").await;
    }
    scene.carry_in().await.expect("sent");
    scene.write("replaced", b"theirs").await;
    scene.files.delete(&scene.id, &path("folder"), None).await.expect("deleted");
    scene.write("folder/upload", b"theirs").await;
    scene.carry_out([gone("same"), gone("replaced"), gone("folder")]).await;
    assert_eq!(scene.listed().await, ["folder/upload", "replaced"]);
    for name in ["same", "replaced", "folder"] {
        scene.sandbox.remove(name.as_bytes());
    }
    scene.carry_in().await.expect("sent");
    assert_eq!(scene.sandbox[&b"replaced"[..]], Some(b"theirs".to_vec()));
    assert_eq!(scene.sandbox[&b"folder/upload"[..]], Some(b"theirs".to_vec()));
}

#[tokio::test]
async fn folder_that_comes_again_and_again_is_held_once() {
    let scene = Scene::usual();
    let mut returning = scene.files.carry_out(&scene.id, Carried::default()).await;
    for _ in 0..100_000 {
        returning.take(folder("d")).await.expect("taken");
    }
    let modes = returning.incoming.as_ref().map(|incoming| incoming.modes.len());
    assert_eq!((modes, returning.finish().await.expect("stored").limit), (Some(1), None));
}

#[tokio::test]
async fn paths_that_wait_are_counted() {
    let scene = Scene::usual();
    let mut returning = scene.files.carry_out(&scene.id, Carried::default()).await;
    let name = vec!["d".repeat(200); 20].join("/");
    for message in [gone(&name), folder(&name), gone(&name)] {
        returning.take(message).await.expect("taken");
    }
    assert_eq!(returning.held_bytes, 3 * name.len());
}

#[tokio::test]
async fn paths_that_leave_the_folder_are_left_out() {
    let mut scene = Scene::usual();
    let (deep, long) = (vec!["d"; 200].join("/"), "n".repeat(300));
    let bad = ["", "/etc/x", "../x", "a/../../x", "a//b", ".", "a/.", &deep, &long];
    let messages: Vec<_> = bad.iter().flat_map(|name| file(name, b"bad")).chain(file("good", b"good")).collect();
    assert_eq!(scene.carry_out(messages).await.left_out, bad.len() as u64);
    assert_eq!(scene.listed().await, ["good"]);
    scene.carry_out(bad.iter().map(|name| gone(name))).await;
    assert_eq!(scene.listed().await, ["good"]);
}

#[tokio::test]
async fn file_and_folder_in_each_others_way_are_left_out() {
    let mut scene = Scene::usual();
    scene.write("f", b"file").await;
    scene.write("d/x", b"x").await;
    let messages = [file("f/inside", b"1"), file("d", b"2"), vec![folder("f")], file("ok", b"3")].concat();
    assert_eq!(scene.carry_out(messages).await.left_out, 3);
    assert_eq!((scene.read("f").await, scene.read("ok").await), (Ok(b"file".to_vec()), Ok(b"3".to_vec())));
    assert_eq!(scene.listed().await, ["d/x", "f", "ok"]);
}

#[tokio::test]
async fn quota_holds_for_what_comes_back() {
    let quota = QuotaOptions { bytes_max: 1 << 20, entries_max: 20, free_bytes_min: 0, owner_bytes_max: None };
    let mut scene = Scene::new(quota);
    scene.write("kept", &vec![b'k'; 600_000]).await;
    let returned = scene.carry_out(file("large", &vec![b'x'; 600_000])).await;
    assert_eq!(returned.limit, Some(DiskLimit::Bytes { max: 1 << 20 }));
    assert_eq!(scene.listed().await, ["kept"]);

    // One that never ends is refused before it is whole.
    let endless = std::iter::repeat_n(FileMessage::Bytes(vec![0; 1 << 16].into()), 10_000);
    let returned = scene.carry_out(file("endless", b"").into_iter().chain(endless)).await;
    assert_eq!(returned.limit, Some(DiskLimit::Bytes { max: 1 << 20 }));

    let many = (0..1000).flat_map(|n| file(&format!("many/{n}"), b""));
    assert_eq!(scene.carry_out(many).await.limit, Some(DiskLimit::Entries { max: 20 }));
    assert!(scene.listed().await.len() <= 20);
}

#[tokio::test]
async fn conversation_that_does_not_fit_is_not_sent() {
    let mut scene = Scene::usual();
    for n in 0..9 {
        scene.write(&format!("{n}"), &vec![b'x'; 8 << 20]).await;
    }
    let failure = scene.carry_in().await.expect_err("72 MiB");
    assert_eq!(failure.code, Code::QuotaExceeded);
    assert!(failure.message.contains("72 MiB") && failure.message.contains("64 MiB"), "{}", failure.message);
    assert!(scene.sandbox.is_empty());
}

#[tokio::test]
async fn file_longer_than_the_limit_of_one_is_not_sent() {
    let mut scene = Scene::usual();
    scene.write("fits", b"short").await;
    scene.write("long", b"").await;
    scene.disk_file("long").set_len(FILE_BYTES_MAX + 1).expect("a length");
    let failure = scene.carry_in().await.expect_err("too long");
    assert_eq!(failure.code, Code::QuotaExceeded);
    assert!(failure.message.contains("file long has") && failure.message.contains("FILE_BYTES_MAX"), "{failure}");
    scene.disk_file("long").set_len(FILE_BYTES_MAX).expect("a length");
    scene.carry_in().await.expect("sent");
}

#[tokio::test]
async fn more_entries_than_a_sandbox_holds_are_not_sent() {
    let mut scene = Scene::usual();
    scene.write("d/a", b"").await;
    for n in 0..19_998 {
        std::fs::create_dir(scene.disk_path(&format!("d/{n}"))).expect("a folder");
    }
    let failure = scene.carry_in().await.expect_err("20 000");
    assert_eq!(failure.code, Code::QuotaExceeded);
    assert!(failure.message.contains("20000 files and folders"), "{failure}");
    scene.files.delete(&scene.id, &path("d/a"), None).await.expect("deleted");
    scene.carry_in().await.expect("sent");
}

#[tokio::test]
async fn sandbox_that_takes_nothing_ends_the_sending() {
    let mut scene = Scene::usual();
    scene.write("a", &vec![b'x'; 4 << 20]).await;
    let (sender, frames) = mpsc::channel(1);
    drop(frames);
    scene.files.carry_in(&scene.id, &mut scene.carried, ROOM, FILE_BYTES_MAX, sender).await.expect("ended");
    assert_eq!(scene.carry_in().await.expect("sent"), 18, "all of it");
}

#[tokio::test]
async fn sending_leaves_the_steps_to_others() {
    let scene = Scene::usual();
    scene.write("a", &vec![b'x'; 4 << 20]).await;
    let sending = (0..32).map(|_| async {
        let (sender, mut frames) = mpsc::channel(1);
        let mut carried = Carried::default();
        let sent = scene.files.carry_in(&scene.id, &mut carried, ROOM, FILE_BYTES_MAX, sender);
        let first = async {
            frames.recv().await.expect("a frame");
            frames
        };
        // It is not received further.
        tokio::join!(first, sent).1
    });
    let others = async {
        tokio::task::yield_now().await;
        scene.read("a").await.map(|bytes| bytes.len())
    };
    tokio::select! {
        read = tokio::time::timeout(std::time::Duration::from_mins(1), others) => assert_eq!(read, Ok(Ok(4 << 20))),
        _ = futures_util::future::join_all(sending) => panic!("sent"),
    }
}

#[test]
fn file_that_cannot_be_read_is_no_sandbox_that_takes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let sent = send_bytes(File::open(folder.path()).expect("open"), &|_| Ok(()));
    assert!(matches!(sent, Err(SendError::Storage(StorageError::Io { .. }))), "{sent:?}");
}
