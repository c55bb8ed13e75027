//! What sessions write between their cells; the test writes it into their conversations' folders.

use std::{fs, time::Duration};

use mcp_sandbox_server::domain::error::Code;
use tokio::time::sleep;

use super::{FakeServer, OK, RunRequest, begin, cell, open, owner, request, shown};

#[tokio::test(start_paused = true)]
async fn a_session_that_writes_on_between_its_cells_ends_and_no_other_does() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let writer = open(&server, "a").await;
    let others = [open(&server, "within").await, open(&server, "beyond").await];
    let files = |conversation: &str| server.root.join(conversation).join("files");
    let write = |conversation: &str, count: usize| {
        let there = fs::read_dir(files(conversation)).expect("the folder").count();
        for n in there..there + count {
            fs::write(files(conversation).join(n.to_string()), "").expect("written");
        }
    };
    write("within", 5);
    // As a cell left them; nothing is written any more.
    write("beyond", 300);
    for _ in 0..60 {
        if server.sessions.get(&owner(), writer).is_err() {
            break;
        }
        write("a", 100);
        sleep(Duration::from_secs(1)).await;
    }
    let gone = server.sessions.get(&owner(), writer).expect_err("it wrote on");
    assert_eq!(gone.code, Code::SessionEnded);
    assert!(gone.message.contains("it wrote on between its cells beyond the limit"), "{gone}");
    sleep(Duration::from_mins(1)).await;
    for other in others {
        server.sessions.get(&owner(), other).expect("it wrote nothing");
    }
    for file in fs::read_dir(files("a")).expect("the folder") {
        fs::remove_file(file.expect("a file").path()).expect("deleted");
    }
    let next = cell(&server, "a", "print again").await;
    assert!(next.stderr.text.starts_with("[The session ended because it wrote on"), "{}", next.stderr.text);
    assert_eq!(shown(&cell(&server, "a", "print again").await), ("again\n", "", OK), "told once");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_program_of_the_conversation_that_writes_too_much_ends_no_session() {
    let server = FakeServer::with_kernel(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let session = open(&server, "a").await;
    let code: Vec<_> = (0..400).map(|n| format!("write {n} x\nsleep 5ms")).collect();
    let run = RunRequest { session: None, ..request("a", &code.join("\n")) };
    let report = begin(&server, run).finished().await.expect("a report");
    assert_eq!(report.outcome.ended.word(), "disk_limit");
    sleep(Duration::from_mins(1)).await;
    server.sessions.get(&owner(), session).expect("it wrote nothing");
    server.stop().await;
}
