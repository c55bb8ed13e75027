//! Archives that are no backups, or were changed: each is refused with its reason, and nothing is changed.

use std::{fs, path::Path};

use mcp_sandbox_server::domain::text::sha256;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use super::Machine;

/// An archive whose sums are right, whatever is in it.
struct Forged {
    archive: Builder<Vec<u8>>,
    folders: u64,
    files: u64,
    rows: u64,
    bytes: u64,
}

impl Forged {
    fn new() -> Self {
        let mut forged = Self { archive: Builder::new(Vec::new()), folders: 0, files: 0, rows: 0, bytes: 0 };
        forged.raw("manifest.json", EntryType::Regular, &manifest(1, 1));
        forged.raw("conversations/c/", EntryType::Directory, "");
        forged
    }

    /// An entry with a name that the library would refuse.
    fn raw(&mut self, name: &str, kind: EntryType, content: &str) {
        let mut header = Header::new_gnu();
        header.as_gnu_mut().expect("GNU").name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(content.len() as u64);
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            header.set_link_name("/etc/passwd").expect("a target");
        }
        header.set_cksum();
        self.archive.append(&header, content.as_bytes()).expect("appended");
    }

    fn file(&mut self, name: &str, content: &str) {
        self.raw(name, EntryType::Regular, content);
        self.files += 1;
        self.bytes += content.len() as u64;
    }

    fn link(&mut self, name: &str, target: &str) {
        let mut header = Header::new_gnu();
        let gnu = header.as_gnu_mut().expect("GNU");
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(EntryType::Link);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(0);
        header.set_cksum();
        self.archive.append(&header, std::io::empty()).expect("appended");
        self.files += 1;
    }

    /// A file with holes, of which four bytes are stored.
    fn sparse(&mut self, name: &str, parts: &[(u64, u64)], length: u64) {
        let mut header = Header::new_gnu();
        header.set_path(name).expect("a name");
        let gnu = header.as_gnu_mut().expect("GNU");
        gnu.set_real_size(length);
        for (place, (from, count)) in gnu.sparse.iter_mut().zip(parts) {
            place.set_offset(*from);
            place.set_length(*count);
        }
        header.set_entry_type(EntryType::GNUSparse);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_size(4);
        header.set_cksum();
        self.archive.append(&header, &b"data"[..]).expect("appended");
        self.files += 1;
        self.bytes += 4;
    }

    fn rows(&mut self, content: &str) {
        self.raw("database/tokens/000000.jsonl", EntryType::Regular, content);
        self.rows += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        let sha256 = sha256(self.archive.get_ref());
        let rows = if self.rows > 0 { json!({"tokens": self.rows}) } else { json!({}) };
        let sums = json!({"rows": rows, "conversations": 1, "folders": self.folders, "files": self.files,
            "bytes": self.bytes, "changed": 0, "leftOut": {}, "sha256": sha256});
        self.raw("sums.json", EntryType::Regular, &sums.to_string());
        self.archive.into_inner().expect("an archive")
    }
}

fn manifest(format: u32, tables: i64) -> String {
    json!({"format": format, "server": "9.9.9", "tables": tables, "created": "2026-11-22T00:00:00Z"}).to_string()
}

fn with(change: impl FnOnce(&mut Forged)) -> Vec<u8> {
    let mut forged = Forged::new();
    change(&mut forged);
    forged.finish()
}

fn is_untouched(machine: &Machine) -> bool {
    let names = fs::read_dir(machine.root()).expect("the root").flatten();
    names.map(|entry| entry.file_name()).all(|name| name.to_string_lossy().starts_with('.'))
}

fn put(machine: &Machine, archive: &[u8]) -> std::path::PathBuf {
    let file = machine.folder.path().join("archive.tar");
    fs::write(&file, archive).expect("written");
    file
}

fn refused(archive: &[u8], why: &str) {
    let machine = Machine::sqlite();
    let (worked, told) = machine.restore(&put(&machine, archive), &[]);
    assert!(!worked && told.contains(why) && told.contains("nothing was changed"), "{why}: {told}");
    assert!(is_untouched(&machine), "{why}");
    assert!(!Path::new("/tmp/escaped-backup").exists());
}

#[test]
fn archives_that_are_no_backups_are_refused() {
    let of = |name: &'static str| with(move |forged| forged.file(name, "x"));
    for (name, why) in [
        ("conversations/c/../../escaped-backup", "conversations/c/../../escaped-backup"),
        ("/tmp/escaped-backup", "no such entry"),
        ("conversations/../escaped-backup", "its conversation"),
        ("conversations/@../c/f", "its conversation"),
        ("conversations/@self-test/c/f", "its conversation"),
        ("conversations/c//f", "conversations/c//f"),
        ("conversations/other/f", "its conversation does not come before it"),
        ("database/tokens", "no such entry"),
        ("database/_sqlx_migrations/0.jsonl", "no such table"),
        (".state/sandbox.db", "no such entry"),
    ] {
        refused(&of(name), why);
    }
    for kind in [
        EntryType::Symlink,
        EntryType::Char,
        EntryType::Block,
        EntryType::Fifo,
        EntryType::XHeader,
        EntryType::XGlobalHeader,
    ] {
        refused(&with(|forged| forged.raw("conversations/c/f", kind, "")), "only plain files and folders");
    }
    for (names, why) in [
        (["conversations/c/f", "conversations/c/f"], "twice"),
        (["conversations/c/f", "conversations/c/f/g"], "a file is where it has a folder"),
        (["conversations/c/f/g", "conversations/c/f"], "twice"),
        (["manifest.json", "conversations/c/f"], "manifest.json"),
    ] {
        refused(&with(|forged| names.iter().for_each(|name| forged.file(name, "x"))), why);
    }
    let again = |forged: &mut Forged| forged.raw("conversations/c/", EntryType::Directory, "");
    refused(&with(again), "twice");
}

#[test]
fn links_to_what_is_no_file_before_them_are_refused() {
    for (target, why) in [
        ("/etc/passwd", "no such entry"),
        ("conversations/c/../../etc/passwd", "conversations/c/../../etc/passwd"),
        ("conversations/d/f", "no file of its conversation"),
        ("conversations/c", "no such entry"),
        ("manifest.json", "no file of its conversation"),
        ("conversations/c/absent", "does not come before it"),
        ("conversations/c/link", "does not come before it"),
        ("conversations/c/folder", "does not come before it"),
    ] {
        let archive = with(|forged| {
            forged.raw("conversations/c/folder/", EntryType::Directory, "");
            forged.folders += 1;
            forged.link("conversations/c/link", target);
        });
        refused(&archive, why);
    }
    refused(&with(|forged| forged.link("manifest.json", "conversations/c/f")), "only plain files and folders");
    let named = with(|forged| forged.raw("conversations/c/f", EntryType::GNULongLink, "conversations/c/f"));
    refused(&named, "only a further name of a file is a link");
}

#[test]
fn files_with_parts_that_are_none_are_refused() {
    for (parts, length) in [
        (vec![(0, 1)], 9),
        (vec![(0, 2), (1, 2)], 9),
        (vec![(5, 2), (0, 2)], 9),
        (vec![(6, 4)], 9),
        (vec![(u64::MAX, 4)], 9),
        (vec![(0, 4), (9, 9)], 9),
    ] {
        let archive = with(|forged| forged.sparse("conversations/c/f", &parts, length));
        refused(&archive, "its parts are not those of a file");
    }
    refused(&with(|forged| forged.sparse("sums.json", &[(0, 4)], 9)), "only plain files and folders");
}

#[test]
fn files_that_no_disk_can_have_are_refused_before_anything_is_deleted() {
    let machine = Machine::sqlite();
    let good = with(|forged| forged.file("conversations/c/f", "kept"));
    let (worked, told) = machine.restore(&put(&machine, &good), &[]);
    assert!(worked, "{told}");
    let long = with(|forged| forged.sparse("conversations/c/f", &[(0, 4)], 1 << 63));
    let (worked, told) = machine.restore(&put(&machine, &long), &["--force"]);
    assert!(!worked && told.contains("nothing was changed"), "{told}");
    assert_eq!(fs::read_to_string(machine.root().join("c/files/f")).expect("it is there"), "kept");
}

#[test]
fn rows_that_no_table_has_are_refused() {
    for row in
        ["x", "[]", "{}", r#"{"id) VALUES ('x'); --": "x"}"#, r#"{"id": null}"#, r#"{"id": 1.5}"#, r#"{"id": {}}"#]
    {
        refused(&with(|forged| forged.rows(row)), "tokens");
    }
    // The database itself refuses the rest, and takes nothing of it.
    let machine = Machine::sqlite();
    let archive = with(|forged| forged.rows(r#"{"id": "x", "unknown": 1}"#));
    let (worked, told) = machine.restore(&put(&machine, &archive), &[]);
    assert!(!worked && told.contains("unknown"), "{told}");
}

#[test]
fn parts_of_archives_and_changed_ones_are_refused() {
    let good = with(|forged| forged.file("conversations/c/f", "some content"));
    let machine = Machine::sqlite();
    let (worked, told) = machine.restore(&put(&machine, &good), &[]);
    assert!(worked, "the forged one is a backup: {told}");
    assert_eq!(fs::read_to_string(machine.root().join("c/files/f")).expect("restored"), "some content");

    for length in (0..good.len()).step_by(512).filter(|length| length + 1024 < good.len()) {
        let machine = Machine::sqlite();
        let (worked, told) = machine.restore(&put(&machine, &good[..length]), &[]);
        assert!(!worked && told.contains("refused") && is_untouched(&machine), "{length}: {told}");
    }
    let mut changed = good.clone();
    let at = changed.windows(12).position(|part| part == b"some content").expect("it is there");
    changed[at] = b'S';
    refused(&changed, "it was changed");
    refused(&with(|forged| forged.files += 1), "it was changed");
    refused(b"no archive at all", "no tar archive");
    // Whatever that version writes.
    for newer in [manifest(3, 1), manifest(2, i64::MAX)] {
        let mut forged = Forged { archive: Builder::new(Vec::new()), folders: 0, files: 0, rows: 0, bytes: 0 };
        forged.raw("manifest.json", EntryType::Regular, &newer);
        forged.raw("database/later/000000.jsonl", EntryType::Regular, "{}");
        forged.raw("later.json", EntryType::Regular, "{}");
        refused(&forged.finish(), "newer version 9.9.9");
    }
    // It says that it is larger than the disk.
    let mut bomb = Header::new_gnu();
    bomb.set_path("conversations/c/f").expect("a name");
    bomb.set_size(u64::MAX / 4);
    bomb.set_cksum();
    let mut archive = Forged::new().archive.into_inner().expect("an archive");
    archive.truncate(archive.len() - 1024);
    archive.extend_from_slice(bomb.as_bytes());
    refused(&archive, "ends before it does");
}
