//! Names of files, as long and as costly to show as a program can make them: what they add to answers, to the memory
//! of the server, and to archives.

use std::{fs, os::fd::OwnedFd, path::Path, time::Duration};

use futures_util::future::join_all;
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::{Value, json};

use crate::support::{FakeServer, server::TOKEN, until};

/// The largest answer beside the program's output, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// Each byte of such a name is six characters where it is shown, seven in JSON, three in a link.
const NAME: [u8; 244] = [0x1b; 244];

/// This process' memory, in bytes, without the pages of its program, which come as they are first used.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// Only where each test has a process of its own does the memory say something about one test.
fn assert_grew_at_most(mib: u64, before: u64) {
    let grew = memory().saturating_sub(before) >> 20;
    println!("the server grew by {grew} MiB");
    assert!(std::env::var_os("NEXTEST").is_none() || grew <= mib, "the server grew by {grew} MiB");
}

/// Fourteen folders in each other, and in the last so many files and half as many links.
fn hostile_tree(top: &Path, files: usize) {
    let open = |at: &OwnedFd| {
        rustix::fs::openat(at, &NAME[..], OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder")
    };
    let mut at = rustix::fs::openat(CWD, top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("the top");
    for _ in 0..14 {
        rustix::fs::mkdirat(&at, &NAME[..], Mode::RWXU).expect("a folder");
        at = open(&at);
    }
    for number in 0..files {
        let name = [&NAME[..], format!("{number:06}").as_bytes()].concat();
        rustix::fs::openat(&at, &name[..], OFlags::CREATE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR).expect("a file");
        if number % 2 == 0 {
            let name = [b"l".as_slice(), &name].concat();
            rustix::fs::symlinkat("nowhere", &at, &name[..]).expect("a link");
        }
    }
}

async fn get(server: &FakeServer, path: &str) -> String {
    let url = format!("http://{}{path}", server.address);
    let response = server.http.get(url).bearer_auth(TOKEN).send().await.expect("an answer");
    assert_eq!(response.status(), 200, "{path}");
    response.text().await.expect("a body")
}

async fn tool(server: &FakeServer, name: &str, arguments: Value) -> String {
    server.rpc("tools/call", json!({"name": name, "arguments": arguments})).await.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn costly_names_leave_answers_and_memory_small() {
    let server = FakeServer::start().await;
    let run = json!({"conversationId": "c", "language": "python", "code": "print 1\nhang", "wait": 0});
    let begun = server.http.post(format!("http://{}/v1/runs", server.address)).bearer_auth(TOKEN).json(&run);
    let begun: Value = begun.send().await.expect("an answer").json().await.expect("JSON");
    let run = begun["runId"].as_str().expect("an id");
    let address = format!("/v1/runs/{run}");
    until("it runs", async || get(&server, &address).await.contains("\"running\"")).await;
    hostile_tree(&server.root.join("c/files"), 400);
    let before = memory();
    let cancelled = tool(&server, "sandbox_cancel_run", json!({"runId": run})).await;
    let mut answers = vec![("cancel_run", cancelled)];
    answers.push(("GET /v1/runs", get(&server, &address).await));
    answers.push(("events", get(&server, &format!("{address}/events")).await));
    answers.push(("listing", get(&server, "/v1/conversations/c/files").await));
    answers.push(("list_files", tool(&server, "sandbox_list_files", json!({"conversationId": "c"})).await));
    answers.push(("get_run", tool(&server, "sandbox_get_run", json!({"runId": run})).await));
    for _ in 0..20 {
        let arguments = json!({"conversationId": "c", "language": "python", "code": "print 1"});
        answers.push(("run_code", tool(&server, "sandbox_run_code", arguments).await));
    }
    for (what, answer) in &answers {
        assert!(answer.len() < ANSWER_BYTES_MAX, "{what}: {} bytes", answer.len());
        assert!(!answer.contains("internal"), "{what}");
    }
    drop(answers);
    assert_grew_at_most(16, before);
    // The next pages are as small, and none is empty.
    let mut after = String::new();
    for _ in 0..5 {
        let page = get(&server, &format!("/v1/conversations/c/files{after}")).await;
        assert!(page.len() < ANSWER_BYTES_MAX, "{} bytes", page.len());
        let page: Value = serde_json::from_str(&page).expect("JSON");
        assert!(page["files"].as_array().is_some_and(|files| files.len() > 1), "{page}");
        after = format!("?after={}", page["after"].as_str().expect("more").replace('%', "%25"));
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_of_costly_names_take_little_memory_unread() {
    let server = FakeServer::start().await;
    let url = format!("http://{}/v1/conversations/c", server.address);
    let put = server.http.put(format!("{url}/files/0")).bearer_auth(TOKEN).body("x");
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    hostile_tree(&server.root.join("c/files"), 9_999);
    let archive = || {
        let request = server.http.get(format!("{url}/archive")).bearer_auth(TOKEN);
        request.timeout(Duration::from_mins(5)).send()
    };
    let before = memory();
    let mut unread = join_all((0..4).map(|_| archive())).await;
    assert!(unread.iter().all(|response| response.as_ref().is_ok_and(|response| response.status() == 200)));
    assert_grew_at_most(64, before);
    let one = unread.pop().expect("four").expect("an answer");
    drop(unread);
    let bytes = one.bytes().await.expect("the archive");
    assert_eq!(tar::Archive::new(&bytes[..]).entries().expect("entries").count(), 10_000);
    server.stop().await;
}
