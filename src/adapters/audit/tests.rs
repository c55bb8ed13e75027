//! The audit log on a real file system.

use std::{fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Duration};

use rustix::fs::{CWD, FileType, mknodat};
use serde_json::Value;
use tempfile::TempDir;

use super::{
    file::{TAIL_BYTES, head_path},
    *,
};
use crate::{
    domain::{
        Change, Code, Ended, Failure, Figures, FileEntry, Limits, Outcome, RunId, SafePath, TraceContext,
        test_scale::until, text::sha256,
    },
    ports::observer::{BeginFacts, ProgramFacts, RunFacts, Stages},
};

const PROGRAM: &[u8] = b"print('the text of a program')";

fn report(audit: &Audit, ended: Ended) {
    report_named(audit, Ok(ended), "a\nb");
}

/// Reports a run that changed a file of this name.
fn report_named(audit: &Audit, end: Result<Ended, Failure>, name: &str) {
    let limits = Limits::default();
    let end = end.map(|ended| Outcome { ended, oom_killed: false, limits, figures: Figures::default() });
    let file = FileEntry {
        path: SafePath::from_text(name).expect("a path"),
        size: 3,
        change: Change::Created,
        modified_unix_s: 0,
        url: String::new(),
        url_expires_unix_s: 0,
    };
    let (conversation, language) = ("c".parse().expect("an id"), "python".parse().expect("a language"));
    let begin = BeginFacts {
        run: RunId::new(),
        conversation: &conversation,
        is_cell: false,
        language: &language,
        image: "sha256:abc",
        program: ProgramFacts { bytes: PROGRAM, sha256: &sha256(PROGRAM) },
    };
    audit.run_over(&RunFacts {
        begin,
        trace: TraceContext::root(),
        args: 1,
        stdin_bytes: 7,
        limits: &limits,
        begun_unix_s: 0,
        ended_unix_s: 61,
        stages: Stages { total: Duration::from_secs(61), ..Stages::default() },
        end: end.as_ref(),
        lost: None,
        files: vec![&file; 65],
        files_truncated: false,
    });
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).expect("the log");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// The path of a log in a folder of its own.
fn log() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.jsonl");
    (folder, path)
}

#[test]
fn a_line_holds_the_outcome_and_not_the_program() {
    let (_folder, path) = log();
    let audit = Audit::open(&path).expect("a log");
    report(&audit, Ended::Exited { code: 3 });
    report_named(&audit, Err(Failure::new(Code::EngineLost, "a sentence")), "a\nb");
    audit.close();
    let lines = lines(&path);
    let [first, second] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&first["outcome"], &first["exit_code"]), (&"exited".into(), &3.into()));
    assert_eq!((&first["begun"], &first["ended"]), (&"1970-01-01T00:00:00Z".into(), &"1970-01-01T00:01:01Z".into()));
    // sha256sum of the text above.
    assert_eq!(first["program_sha256"], "f8b39d24290dd284a55d5b0f7027060c73efcd03579cc7dba009071391929644");
    assert_eq!((&first["files"][0]["path"], &first["files_more"]), (&"a\\u{a}b".into(), &true.into()));
    assert_eq!(first["files"].as_array().map(Vec::len), Some(64));
    assert_eq!((&second["outcome"], &second["failure"]), (&"failed".into(), &"engine_lost".into()));
    assert!(!fs::read_to_string(&path).expect("the log").contains("the text of a program"));
    assert_eq!(fs::metadata(&path).expect("the log").permissions().mode() & 0o777, 0o600);
    assert_eq!(audit.counts(), AuditCounts { written: 2, lost: 0, errors: 0 });
}

#[test]
fn a_moved_file_is_created_again_and_an_existing_one_is_appended_to() {
    let (folder, path) = log();
    let kept = folder.path().join("audit.1");
    for _ in 0..2 {
        let audit = Audit::open(&path).expect("a log");
        report(&audit, Ended::TimedOut);
        audit.close();
    }
    assert_eq!(lines(&path).len(), 2);
    let audit = Audit::open(&path).expect("a log");
    fs::rename(&path, &kept).expect("moved");
    report(&audit, Ended::Cancelled);
    audit.close();
    assert_eq!((lines(&kept).len(), lines(&path).len()), (2, 1));
}

#[tokio::test]
async fn failed_writes_are_counted_and_tried_again() {
    let (_folder, path) = log();
    let audit = Audit::open(&path).expect("a log");
    // A folder in place of the file makes every write fail.
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a folder");
    report(&audit, Ended::OutOfMemory);
    until("a write failed", || audit.counts().errors > 0).await;
    assert_eq!(audit.counts().written, 0);
    fs::remove_dir(&path).expect("room");
    until("the line is written", || audit.counts().written > 0).await;
    audit.close();
    assert_eq!(lines(&path).len(), 1);
    report(&audit, Ended::OutOfMemory);
    assert_eq!(audit.counts().lost, 1, "a line after the end is lost and counted");
}

#[tokio::test]
async fn a_line_is_counted_as_lost_when_the_queue_is_full() {
    let (_folder, path) = log();
    let audit = Audit::with_queue(&path, 1).expect("a log");
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a folder");
    // One is tried, one waits, two are lost.
    report(&audit, Ended::OutOfMemory);
    until("a write failed", || audit.counts().errors > 0).await;
    for _ in 0..3 {
        report(&audit, Ended::OutOfMemory);
    }
    assert_eq!(audit.counts().lost, 2);
    audit.close();
    assert_eq!(audit.counts().lost, 4, "the server stopped and could not write the rest");
}

#[test]
fn queue_is_bounded_in_bytes_with_the_longest_names() {
    let (_folder, path) = log();
    let audit = Audit::open(&path).expect("a log");
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("a folder");
    let name = "\u{1f600}".repeat(60);
    while audit.counts().lost == 0 {
        report_named(&audit, Ok(Ended::OutOfMemory), &[name.as_str(); 4].join("/"));
    }
    let (waiting, most) = (audit.counts.waiting_bytes.load(Ordering::Relaxed) as u64, QUEUE_BYTES_MAX as u64);
    assert!(waiting <= most && waiting > most - TAIL_BYTES, "{waiting} bytes wait");
    audit.close();
    assert_eq!(audit.counts.waiting_bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn links_and_devices_are_refused() {
    let (folder, _) = log();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), &link).expect("a link");
    for path in [link.as_path(), Path::new("/dev/null"), &folder.path().join("no/folder")] {
        assert!(Audit::open(path).is_err() && check(path).is_err(), "{}", path.display());
    }
}

/// Writes so many lines as one process does.
fn write(path: &Path, lines: usize) {
    let audit = Audit::open(path).expect("a log");
    for _ in 0..lines {
        report(&audit, Ended::TimedOut);
    }
    audit.close();
    assert_eq!(audit.counts().lost, 0);
}

fn broken(files: &[&Path]) -> (u64, ChainBreak) {
    let files: Vec<_> = files.iter().map(|file| file.to_path_buf()).collect();
    match verify(&files) {
        Err(VerifyError::Broken { line, broken, .. }) => (line, broken),
        other => panic!("{other:?}"),
    }
}

#[test]
fn chain_continues_across_restarts_rotation_and_processes() {
    let (folder, path) = log();
    let old = folder.path().join("audit.1");
    fs::write(&path, "{\"run\":\"of an older version\"}\n").expect("a log");
    write(&path, 2);
    write(&path, 1);
    fs::rename(&path, &old).expect("moved");
    // The server is started again before the next line.
    write(&path, 0);
    assert_eq!(broken(&[&path]), (0, ChainBreak::Absent(3)), "alone it may as well have been emptied");
    assert_eq!(verify(&[old.clone(), path.clone()]).expect("unbroken").lines, 3);
    write(&path, 1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| write(&path, 25));
        }
    });
    let verified = verify(&[old.clone(), path.clone()]).expect("unbroken");
    assert_eq!(verified, Verified { lines: 104, first: 1, unchained: 1, ..Verified::default() });
    assert_eq!(verify(std::slice::from_ref(&path)).expect("unbroken").first, 4);
    assert_eq!(broken(&[&path, &old]), (1, ChainBreak::Added), "not oldest first");
}

#[test]
fn verify_finds_every_change() {
    let (_folder, path) = log();
    write(&path, 5);
    let sound = fs::read_to_string(&path).expect("the log");
    let lines: Vec<_> = sound.lines().collect();
    let after = |lines: &[&str]| {
        fs::write(&path, lines.join("\n") + "\n").expect("written");
        broken(&[&path])
    };
    let changed = lines[1].replace("timed_out", "exited");
    assert_ne!(changed, lines[1]);
    let last = lines[4].replace("timed_out", "exited");
    for (what, found) in [
        (after(&[lines[0], &changed, lines[2], lines[3], lines[4]]), (3, ChainBreak::Changed(2))),
        (after(&[lines[0], "junk", lines[2], lines[3], lines[4]]), (2, ChainBreak::Added)),
        (after(&[lines[0], lines[2], lines[3], lines[4]]), (2, ChainBreak::Missing { from: 2, to: 2 })),
        (after(&[lines[0], lines[1], lines[1], lines[2]]), (3, ChainBreak::Moved { found: 2, expected: 3 })),
        (after(&[lines[0], lines[2], lines[1], lines[3], lines[4]]), (2, ChainBreak::Missing { from: 2, to: 2 })),
        (after(&[lines[0], "{\"run\":\"x\"}", lines[1]]), (2, ChainBreak::Added)),
        (after(&[lines[0], lines[1], lines[2]]), (3, ChainBreak::Truncated { last: 3, head: 5 })),
        (after(&["{\"run\":\"x\"}"]), (1, ChainBreak::Absent(5))),
        (after(&[lines[0], lines[1], lines[2], lines[3], &last]), (5, ChainBreak::LastChanged)),
    ] {
        assert_eq!(what, found);
    }
    // Lines that are written after lines were removed do not hide it.
    fs::write(&path, lines[..3].join("\n") + "\n").expect("written");
    write(&path, 1);
    assert_eq!(broken(&[&path]), (4, ChainBreak::Missing { from: 4, to: 5 }));
    fs::write(&path, &sound).expect("written");
    fs::remove_file(head_path(&path)).expect("removed");
    assert!(verify(&[path]).expect("unbroken").end_unknown);
}

#[test]
fn lines_that_are_written_while_the_log_is_read_are_not_missing() {
    let (_folder, path) = log();
    write(&path, 2);
    let (lines, head) = (fs::read(&path).expect("the log"), fs::read(head_path(&path)).expect("a head"));
    write(&path, 1);
    let later = fs::read(head_path(&path)).expect("a head");
    fs::write(head_path(&path), head).expect("the head of before");
    // A pipe ends when its writer does, and that has changed the head by then.
    fs::remove_file(&path).expect("removed");
    mknodat(CWD, &path, FileType::Fifo, 0o600.into(), 0).expect("a pipe");
    let verified = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut pipe = fs::OpenOptions::new().write(true).open(&path).expect("a pipe with a reader");
            pipe.write_all(&lines).expect("written");
            fs::write(head_path(&path), &later).expect("the head of one line more");
        });
        verify(std::slice::from_ref(&path))
    });
    assert_eq!(verified.expect("unbroken").lines, 2);
}

#[test]
fn verify_finds_added_text_that_no_crash_leaves() {
    let (_folder, path) = log();
    write(&path, 3);
    let sound = fs::read_to_string(&path).expect("the log");
    let lines: Vec<_> = sound.lines().collect();
    let hash_at = lines[2].find("\"prev\":\"").expect("a hash") + 8;
    let cut = |line: &str, chars: usize| line[..chars].to_owned();
    let verify_with = |added: &str| {
        fs::write(&path, format!("{}\n{}\n{added}\n{}\n", lines[0], lines[1], lines[2])).expect("written");
        verify(std::slice::from_ref(&path))
    };
    for added in [
        "junk".to_owned(),
        String::new(),
        " ".to_owned(),
        "\u{0}".repeat(100),
        "null".to_owned(),
        "{\"run\":\"x\"".to_owned(),
        // Parts of other lines of the chain.
        cut(lines[0], 20),
        cut(lines[1], 120),
        cut(lines[2], 120).replace("\"seq\":3", "\"seq\":4"),
        // The number that follows, with another hash.
        format!("{}{}", cut(lines[2], hash_at), "0".repeat(20)),
        format!(" {}", cut(lines[2], 120)),
        // Longer than any line.
        "x".repeat(usize::try_from(TAIL_BYTES).expect("a size") + 10),
    ] {
        let (found, shown) = (verify_with(&added), cut(&added, added.len().min(60)));
        let is_found = matches!(found, Err(VerifyError::Broken { line: 3, broken: ChainBreak::Added, .. }));
        assert!(is_found, "{shown:?}: {found:?}");
    }
    // What a full disk or a crash leaves of the next line.
    for chars in [1, 7, hash_at, hash_at + 20, 120, lines[2].len() - 1] {
        let verified = verify_with(&cut(lines[2], chars)).expect("unbroken");
        assert_eq!((verified.lines, verified.cut_off), (3, 1), "{chars}");
    }
}

#[test]
fn chain_continues_after_a_crash_in_the_middle_of_a_line_or_between_the_writes() {
    let (_folder, path) = log();
    write(&path, 1);
    let early = fs::read(head_path(&path)).expect("a head");
    write(&path, 1);
    fs::write(head_path(&path), &early).expect("the head of before");
    write(&path, 1);
    let whole = fs::read_to_string(&path).expect("the log");
    fs::write(&path, format!("{whole}{{\"seq\":4,\"prev")).expect("cut off");
    assert_eq!(verify(std::slice::from_ref(&path)).expect("unbroken").cut_off, 1);
    write(&path, 1);
    let verified = verify(std::slice::from_ref(&path)).expect("unbroken");
    assert_eq!((verified.lines, verified.cut_off), (4, 1));
    fs::write(head_path(&path), "nonsense").expect("a broken head");
    write(&path, 1);
    assert_eq!(verify(std::slice::from_ref(&path)).expect("unbroken").lines, 5, "the log itself says where it ends");
    // Only the line feed is missing, and the head is that of the line before.
    let early = fs::read(head_path(&path)).expect("a head");
    write(&path, 1);
    let whole = fs::read_to_string(&path).expect("the log");
    fs::write(&path, whole.trim_end()).expect("cut off");
    fs::write(head_path(&path), &early).expect("the head of before");
    write(&path, 1);
    let verified = verify(&[path]).expect("unbroken");
    assert_eq!((verified.lines, verified.cut_off), (7, 1), "the other one is in the middle");
}

#[test]
fn longest_line_is_shorter_than_what_is_searched_for_the_last_one() {
    let (_folder, path) = log();
    let audit = Audit::open(&path).expect("a log");
    report_named(&audit, Ok(Ended::OutOfMemory), &vec!["\u{1f600}".repeat(63); 4].join("/"));
    report_named(&audit, Ok(Ended::OutOfMemory), &"\"".repeat(255));
    audit.close();
    let text = fs::read_to_string(&path).expect("the log");
    let longest = text.lines().map(str::len).max().expect("a line");
    assert!(longest as u64 > 30 << 10 && (longest as u64) < TAIL_BYTES, "{longest}");
}
