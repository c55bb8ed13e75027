//! Files from one sandbox to another: what was changed, and what is in the way.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
};

use rustix::{
    fs::FileType,
    thread::{CapabilitySet, capabilities, set_capabilities},
};
use tempfile::TempDir;

use super::*;
use crate::{flow::Outbox, frame::HEADER_BYTES};

/// Two sandboxes, of which the second gets what the first sends.
struct Scene {
    from: TempDir,
    to: TempDir,
    sender: Files,
    receiver: Files,
}

impl Scene {
    fn new() -> Self {
        let (from, to) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (sender, receiver) = (Files::open(from.path()).expect("open"), Files::open(to.path()).expect("open"));
        Self { from, to, sender, receiver }
    }

    /// The payloads of one round.
    fn collected(&mut self) -> Vec<Vec<u8>> {
        let (mut collector, mut outbox) = (self.sender.collect().expect("a walk"), Outbox::default());
        while collector.push_next(&mut self.sender, &mut outbox) {}
        let (mut reading, writing) = io::pipe().expect("a pipe");
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            reading.read_to_end(&mut bytes).map(|_| bytes)
        });
        while outbox.can_send() {
            outbox.send(&writing);
        }
        drop(writing);
        let bytes = reader.join().expect("a thread").expect("bytes");
        let mut payloads = Vec::new();
        let mut rest = &bytes[..];
        while let Some((head, after)) = rest.split_at_checked(HEADER_BYTES) {
            assert_eq!(head[0], 0x87);
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            payloads.push(after[..length].to_vec());
            rest = &after[length..];
        }
        payloads
    }

    /// Sends one round; what was left out, and what could not be written.
    fn round(&mut self) -> (u64, u64) {
        let payloads = self.collected();
        let last = payloads.last().expect("the end").clone();
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        for payload in &payloads[..payloads.len() - 1] {
            assert_eq!(self.receiver.take(payload, false).expect("a frame"), Order::Nothing);
        }
        assert_eq!(last[0], END);
        let Order::Taken(failed) = self.receiver.take(&[END], false).expect("the end") else { panic!("no end") };
        (number(&last[1..]), failed)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.from.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("folders");
        fs::write(path, text).expect("a file");
    }

    /// Every path with its mode and text.
    fn tree(root: &Path) -> Vec<(String, u32, Option<Vec<u8>>)> {
        let mut all = Vec::new();
        Self::add_below(root, root, &mut all);
        all.sort();
        all
    }

    fn add_below(root: &Path, folder: &Path, all: &mut Vec<(String, u32, Option<Vec<u8>>)>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let about = path.symlink_metadata().expect("metadata");
            let needed = if about.is_dir() { 0o500 } else { 0o400 };
            let is_closed = !about.is_symlink() && about.mode() & needed != needed;
            let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
            if is_closed {
                set(0o700);
            }
            let text = about.is_file().then(|| fs::read(&path).expect("a file"));
            if about.is_dir() {
                Self::add_below(root, &path, all);
            }
            if is_closed {
                set(about.mode() & 0o7777);
            }
            let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
            all.push((name, about.mode() & 0o7777, text));
        }
    }

    fn assert_same(&self) {
        assert_eq!(Self::tree(self.from.path()), Self::tree(self.to.path()));
    }
}

#[test]
fn what_was_changed_travels_and_nothing_else() {
    let mut scene = Scene::new();
    scene.write("a.txt", "one");
    scene.write("deep/er/b.bin", &"x".repeat(200_000));
    scene.write("empty", "");
    fs::create_dir(scene.from.path().join("bare")).expect("a folder");
    fs::set_permissions(scene.from.path().join("a.txt"), fs::Permissions::from_mode(0o755)).expect("a mode");
    assert_eq!(scene.round(), (0, 0));
    scene.assert_same();
    assert_eq!(scene.collected(), [[&[END], &[0; 8][..]].concat()], "nothing was changed");

    scene.write("a.txt", "two");
    fs::remove_file(scene.from.path().join("deep/er/b.bin")).expect("removed");
    fs::remove_dir(scene.from.path().join("bare")).expect("removed");
    fs::rename(scene.from.path().join("empty"), scene.from.path().join("deep/renamed")).expect("renamed");
    assert_eq!(scene.round(), (0, 0));
    scene.assert_same();
    let sent = scene.to.path().join("a.txt").metadata().expect("metadata").mtime();
    assert_eq!(sent, scene.from.path().join("a.txt").metadata().expect("metadata").mtime());
}

#[test]
fn file_that_became_a_folder_travels_and_back() {
    let mut scene = Scene::new();
    scene.write("x", "a file");
    scene.write("y/inside", "a folder");
    scene.round();
    fs::remove_file(scene.from.path().join("x")).expect("removed");
    fs::remove_dir_all(scene.from.path().join("y")).expect("removed");
    scene.write("x/inside", "a folder");
    scene.write("y", "a file");
    assert_eq!(scene.round(), (0, 0));
    scene.assert_same();
}

#[test]
fn change_with_its_old_length_and_time_is_seen() {
    let mut scene = Scene::new();
    scene.write("a", "one");
    scene.round();
    let path = scene.from.path().join("a");
    let before = path.metadata().expect("metadata").modified().expect("a time");
    fs::write(&path, "two").expect("a file");
    fs::File::options().write(true).open(&path).expect("open").set_modified(before).expect("a time");
    scene.round();
    scene.assert_same();
}

#[test]
fn links_and_pipes_are_left_out_and_counted() {
    let mut scene = Scene::new();
    scene.write("a", "one");
    symlink("/etc/passwd", scene.from.path().join("link")).expect("a link");
    rustix::fs::mknodat(CWD, scene.from.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    assert_eq!(scene.round(), (2, 0));
    assert_eq!(Scene::tree(scene.to.path()).len(), 1);
}

#[test]
fn nothing_is_written_through_a_link() {
    let mut scene = Scene::new();
    let outside = tempfile::tempdir().expect("a folder");
    fs::write(outside.path().join("kept"), "kept").expect("a file");
    scene.write("way/in", "new");
    scene.write("kept", "new");
    symlink(outside.path(), scene.to.path().join("way")).expect("a link");
    symlink(outside.path().join("kept"), scene.to.path().join("kept")).expect("a link");
    let (_, failed) = scene.round();
    assert!(failed > 0, "a folder that is a link");
    assert_eq!(Scene::tree(outside.path()), [("kept".to_owned(), 0o644, Some(b"kept".to_vec()))]);
    assert_eq!(fs::read(scene.to.path().join("kept")).expect("a file"), b"new", "the link is replaced");
    let gone = [&[GONE], &b"way/kept"[..]].concat();
    scene.receiver.take(&gone, false).expect("a frame");
    assert!(outside.path().join("kept").exists());
}

#[test]
fn frames_that_the_server_does_not_send_are_errors() {
    let mut scene = Scene::new();
    let entry = |mode: u32, path: &[u8]| [&[ENTRY], &mode.to_be_bytes()[..], &[0; 8], path].concat();
    for bad in [
        vec![],
        vec![0],
        vec![9],
        vec![ENTRY, 1, 2],
        entry(S_IFREG, b""),
        entry(S_IFREG, b"/etc/x"),
        entry(S_IFREG, b"../x"),
        entry(S_IFREG, b"a//b"),
        entry(S_IFREG, b"a/."),
        entry(S_IFREG, b"a\0b"),
        entry(S_IFREG, &[b'x'; PATH_BYTES_MAX + 1]),
        entry(0o120_000, b"a"),
        vec![GONE],
    ] {
        assert!(scene.receiver.take(&bad, false).is_err(), "{bad:?}");
    }
    assert!(Scene::tree(scene.to.path()).is_empty());
}

#[test]
fn first_failure_is_an_error_before_the_start_alone() {
    let mut scene = Scene::new();
    let file = [&[ENTRY], &S_IFREG.to_be_bytes()[..], &[0; 8], b"a"].concat();
    fs::create_dir(scene.to.path().join("a")).expect("a folder");
    assert!(scene.receiver.take(&file, true).is_err());
    assert_eq!(scene.receiver.take(&file, false).expect("counted"), Order::Nothing);
    assert_eq!(scene.receiver.take(&[BYTES, 1], false).expect("of no file"), Order::Nothing);
    assert_eq!(scene.receiver.take(&[END], false).expect("the end"), Order::Taken(1));
    assert_eq!(scene.receiver.take(&[COLLECT], false).expect("a request"), Order::Collect);
}

#[test]
fn folder_that_is_gone_does_not_keep_others_from_their_modes() {
    let mut scene = Scene::new();
    let folder = |path: &[u8]| [&[ENTRY], &(S_IFDIR | 0o755).to_be_bytes()[..], &[0; 8], path].concat();
    for path in [&b"stays"[..], b"was removed"] {
        assert_eq!(scene.receiver.take(&folder(path), false).expect("a frame"), Order::Nothing);
    }
    fs::remove_dir(scene.to.path().join("was removed")).expect("removed");
    assert_eq!(scene.receiver.take(&[END], false).expect("the end"), Order::Taken(1));
    assert_eq!(Scene::tree(scene.to.path()), [("stays".to_owned(), 0o755, None)]);
}

#[test]
fn what_was_not_written_whole_does_not_go_back() {
    let mut scene = Scene::new();
    let entry = |path: &[u8]| [&[ENTRY], &(S_IFREG | 0o600).to_be_bytes()[..], &[0; 8], path].concat();
    let mut take = |payload: &[u8]| scene.receiver.take(payload, false).expect("a frame");
    for payload in [&entry(b"half"), &[&[BYTES], &b"old"[..]].concat(), &entry(b"never"), &vec![END]] {
        take(payload);
    }
    take(&entry(b"half"));
    take(&[&[BYTES], &b"a part"[..]].concat());
    // From here on there is no room.
    let full = fs::File::options().write(true).open("/dev/full").expect("a device");
    scene.receiver.open.as_mut().expect("a file").file = full;
    let mut take = |payload: &[u8]| scene.receiver.take(payload, false).expect("a frame");
    take(&[&[BYTES], &b"the rest"[..]].concat());
    take(&[&[BYTES], &b"of no file"[..]].concat());
    assert_eq!(take(&[END]), Order::Taken(1));
    assert_eq!(Scene::tree(scene.to.path()).len(), 1, "no part of it");
    // Neither as changed nor as removed.
    scene.sender = scene.receiver;
    scene.receiver = Files::open(scene.from.path()).expect("open");
    assert_eq!(scene.collected(), [[&[END], &[0; 8][..]].concat()]);
}

#[test]
fn round_that_was_not_stored_is_told_again() {
    let mut scene = Scene::new();
    scene.write("kept", "old");
    scene.write("way", "a file");
    assert_eq!(scene.round(), (0, 0));
    scene.write("new", "new");
    scene.write("big", "big");
    scene.write("kept", "changed");
    fs::remove_file(scene.from.path().join("way")).expect("removed");
    scene.write("way/in", "a folder");
    // The server stores a part.
    for payload in scene.collected().iter().filter(|payload| payload.ends_with(b"big")) {
        scene.receiver.take(payload, false).expect("a frame");
    }
    fs::remove_file(scene.from.path().join("big")).expect("removed");
    assert_eq!(scene.sender.take(&[COLLECT, 1], false).expect("a request"), Order::Collect);
    assert_eq!(scene.round(), (0, 0));
    scene.assert_same();
    // What the server has sent since is as it says.
    scene.write("new", "newer");
    scene.collected();
    for payload in [&[&[ENTRY], &S_IFREG.to_be_bytes()[..], &[0; 8], b"new"].concat()[..], &[END], &[COLLECT, 1]] {
        scene.sender.take(payload, false).expect("a frame");
    }
    assert_eq!(scene.collected().len(), 1, "the end");
}

#[test]
fn what_a_program_closed_to_itself_travels() {
    let mut scene = Scene::new();
    // Another thread has root's right to remove what is closed.
    std::thread::scope(|scope| scope.spawn(|| send_what_is_closed(&mut scene)).join().expect("it passes"));
}

fn send_what_is_closed(scene: &mut Scene) {
    let mut sets = capabilities(None).expect("its capabilities");
    sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
    set_capabilities(None, sets).expect("fewer capabilities");
    scene.write("d/e/a", "one");
    let from = scene.from.path().to_path_buf();
    let close =
        |path: &str, mode| fs::set_permissions(from.join(path), fs::Permissions::from_mode(mode)).expect("a mode");
    for (path, mode) in [("d/e/a", 0), ("d/e", 0o2400), ("d", 0), ("", 0)] {
        close(path, mode);
    }
    assert_eq!(scene.round(), (0, 0));
    let tree = Scene::tree(scene.to.path());
    let modes: Vec<_> = tree.iter().map(|(name, mode, _)| (name.as_str(), *mode)).collect();
    assert_eq!(modes, [("d", 0), ("d/e", 0o400), ("d/e/a", 0)]);
    assert_eq!(scene.collected(), [[&[END], &[0; 8][..]].concat()], "that they were opened is no change");
    // Into folders that are closed where it arrives, and out of them.
    close("d/e/a", 0o600);
    fs::write(from.join("d/e/a"), "two").expect("a file");
    for path in ["d/b", "d/f/a"] {
        scene.write(path, "new");
    }
    assert_eq!(scene.round(), (0, 0));
    fs::remove_file(from.join("d/b")).expect("removed");
    fs::remove_dir_all(from.join("d/f")).expect("removed");
    assert_eq!(scene.round(), (0, 0));
    let text = Some(b"two".to_vec());
    let expected = [("d", 0, None), ("d/e", 0o400, None), ("d/e/a", 0o600, text)];
    assert_eq!(Scene::tree(scene.to.path()), expected.map(|(name, mode, text)| (name.to_owned(), mode, text)));
    close("d", 0o500);
    assert_eq!(scene.round(), (0, 0));
    assert_eq!(Scene::tree(scene.to.path())[0].1, 0o500);
    std::mem::swap(&mut scene.sender, &mut scene.receiver);
    assert_eq!(scene.collected(), [[&[END], &[0; 8][..]].concat()], "that they were opened here is no change");
}

#[test]
fn what_cannot_be_read_is_not_reported_as_removed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut scene = Scene::new();
    // Another thread has root's right to read it.
    std::thread::scope(|scope| scope.spawn(|| keep_what_cannot_be_read(&mut scene)).join().expect("it passes"));
}

fn keep_what_cannot_be_read(scene: &mut Scene) {
    for path in ["closed/in/a", "closed/b", "closed beside", "open/c"] {
        scene.write(path, "one");
    }
    let closed = scene.from.path().join("closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("a mode");
    assert_eq!(scene.round(), (0, 0));
    std::os::unix::fs::chown(&closed, Some(4242), None).expect("another user's");
    let mut sets = capabilities(None).expect("its capabilities");
    let rights = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH | CapabilitySet::FOWNER;
    sets.effective.remove(rights);
    set_capabilities(None, sets).expect("fewer capabilities");
    scene.write("open/c", "two");
    assert_eq!(scene.round(), (1, 0));
    sets.effective |= rights;
    set_capabilities(None, sets).expect("all capabilities");
    std::os::unix::fs::chown(&closed, Some(0), None).expect("its own again");
    assert_eq!(scene.collected().len(), 1, "nothing was changed");
    scene.assert_same();
}

#[test]
fn file_that_was_not_found_as_it_was_to_be_sent_travels_with_the_next_round() {
    let mut scene = Scene::new();
    scene.write("d/a", "one");
    let (mut collector, mut outbox) = (scene.sender.collect().expect("a walk"), Outbox::default());
    let [here, away] = ["d", "away"].map(|name| scene.from.path().join(name));
    fs::rename(&here, &away).expect("renamed");
    while collector.push_next(&mut scene.sender, &mut outbox) {}
    fs::rename(&away, &here).expect("renamed");
    assert_eq!(scene.round(), (0, 0));
    assert_eq!(fs::read(scene.to.path().join("d/a")).expect("a file"), b"one");
}
