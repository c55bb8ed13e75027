//! Files from the server before the program, and those that were changed after its end.

use std::collections::BTreeMap;

use tempfile::TempDir;

use crate::client::{Init, frame, request};

const FILES_IN: u8 = 0x09;
const FILES_OUT: u8 = 0x87;

fn entry(mode: u32, path: &str) -> Vec<u8> {
    frame(FILES_IN, &[&[1], &mode.to_be_bytes()[..], &0_i64.to_be_bytes(), path.as_bytes()].concat())
}

fn bytes(bytes: &[u8]) -> Vec<u8> {
    frame(FILES_IN, &[&[2], bytes].concat())
}

fn end() -> Vec<u8> {
    frame(FILES_IN, &[4])
}

fn init(data: &TempDir) -> Init {
    Init::start(&["--data", data.path().to_str().expect("text")], &["bash"])
}

/// One round of changes: files with their contents (a folder has none), what is gone, and what was left out.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    entries: BTreeMap<String, Vec<u8>>,
    gone: Vec<String>,
    left_out: u64,
}

/// The changes, and the kinds of the other frames before their end.
fn changes(init: &mut Init) -> (Changes, Vec<u8>) {
    let (mut changes, mut kinds, mut open) = (Changes::default(), Vec::new(), String::new());
    loop {
        let (kind, payload) = init.next().expect("the end of the files");
        if kind != FILES_OUT {
            kinds.push(kind);
            continue;
        }
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        match payload[0] {
            1 => {
                open = text(&payload[13..]);
                changes.entries.insert(open.clone(), Vec::new());
            }
            2 => changes.entries.get_mut(&open).expect("a file").extend(&payload[1..]),
            3 => changes.gone.push(text(&payload[1..])),
            4 => {
                changes.left_out = u64::from_be_bytes(payload[1..].try_into().expect("a number"));
                return (changes, kinds);
            }
            5 => assert_eq!(payload[1..], [0; 8], "all were written"),
            other => panic!("files of the kind {other}"),
        }
    }
}

#[test]
fn program_finds_the_files_and_its_changes_follow_its_end() {
    let data = tempfile::tempdir().expect("a folder");
    let mut init = init(&data);
    let large = vec![b'x'; 300_000];
    init.send(&[entry(0o040_755, "in"), entry(0o100_644, "in/a"), bytes(b"one"), entry(0o100_644, "b")].concat());
    init.send(&[bytes(&large[..100_000]), bytes(&large[100_000..]), entry(0o100_644, "same"), end()].concat());
    let program = format!(
        "cd {}; [ $(wc -c < b) = 300000 ] && cat in/a b > out; rm b; echo -n 2 >> in/a; ln -s out link",
        data.path().display()
    );
    init.send(&request("{}", &program));
    let (changes, kinds) = changes(&mut init);
    assert_eq!(kinds.last(), Some(&0x84), "EXIT comes first: {kinds:x?}");
    let out = [&b"one"[..], &large].concat();
    let entries = BTreeMap::from([("in/a".to_owned(), b"one2".to_vec()), ("out".to_owned(), out)]);
    assert_eq!(changes, Changes { entries, gone: vec!["b".to_owned()], left_out: 1 });
    assert_eq!((init.next(), init.status()), (None, 0));
}

#[test]
fn program_that_leaves_a_child_cannot_change_files_after_its_end() {
    let data = tempfile::tempdir().expect("a folder");
    let mut init = init(&data);
    init.send(&end());
    let program = format!(
        "cd {}; (while :; do echo x >> late; done) & until [ -s late ]; do sleep 0.1; done",
        data.path().display()
    );
    init.send(&request("{}", &program));
    let (changes, _) = changes(&mut init);
    let there = std::fs::read(data.path().join("late")).expect("a file");
    assert_eq!(changes.entries["late"], there, "nothing was written while it was sent");
    assert_eq!(init.status(), 0);
}

#[test]
fn changes_are_sent_on_request_while_the_program_runs() {
    let data = tempfile::tempdir().expect("a folder");
    let mut init = init(&data);
    init.send(&end());
    let program = format!("cd {}; while read line; do echo $line > $line; echo did; done", data.path().display());
    init.send(&[frame(1, b"{}"), frame(2, program.as_bytes()), frame(3, b"")].concat());
    for name in ["one", "two"] {
        init.send(&frame(4, format!("{name}\n").as_bytes()));
        init.until("did");
        init.send(&[entry(0o100_644, "theirs"), bytes(name.as_bytes()), end(), frame(FILES_IN, &[5])].concat());
        let (changes, _) = changes(&mut init);
        assert_eq!(changes.entries, BTreeMap::from([(name.to_owned(), format!("{name}\n").into_bytes())]));
        assert_eq!(std::fs::read(data.path().join("theirs")).expect("a file"), name.as_bytes());
    }
    init.send(&frame(5, b""));
    assert_eq!(changes(&mut init).0, Changes::default());
}

#[test]
fn deep_folders_travel_with_the_lowest_limit_on_open_files() {
    let data = tempfile::tempdir().expect("a folder");
    let limited = ["sh", "-c", "ulimit -n 32; exec \"$@\"", "sh"];
    let mut init = Init::with(&limited, &["--data", data.path().to_str().expect("text")], &["bash"]);
    let folder = ["d"; 31].join("/");
    let file = format!("{folder}/file");
    init.send(&[entry(0o100_644, &file), bytes(b"1"), end()].concat());
    init.send(&request("{}", &format!("cd {}/{folder}; echo -n 2 >> file", data.path().display())));
    let (changes, _) = changes(&mut init);
    assert_eq!((changes.gone.len(), changes.left_out), (0, 0));
    assert_eq!(changes.entries[&file], b"12");
    assert_eq!(init.status(), 0);
}

#[test]
fn slow_reader_of_the_files_gets_all_of_them() {
    let data = tempfile::tempdir().expect("a folder");
    let mut init = init(&data);
    init.send(&end());
    let program = format!("cd {}; head -c 20000000 /dev/zero > big; seq 3000 | xargs touch", data.path().display());
    init.send(&request("{}", &program));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let before = init.memory_kib();
    let (changes, _) = changes(&mut init);
    assert_eq!((changes.entries.len(), changes.entries["big"].len()), (3001, 20_000_000));
    assert!(before < 16 << 10, "{before} KiB wait in memory");
    assert_eq!(init.status(), 0);
}

#[test]
fn files_that_cannot_be_written_before_the_start_are_refused() {
    let data = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(data.path().join("a")).expect("a folder");
    let mut init = init(&data);
    init.send(&[entry(0o100_644, "a"), end()].concat());
    let reply = init.reply();
    let message = reply.error.expect("an error")["message"].to_string();
    assert!(message.contains("the files of the conversation"), "{message}");
    assert_eq!(init.status(), 125);
}
