//! Names of files, as long and as costly to show as a program can make them: what they add to answers, to the memory
//! of the server, and to archives.

use std::{collections::BTreeMap, fs, os::fd::OwnedFd, path::Path, time::Duration};

use futures_util::future::join_all;
use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use reqwest::{Method, RequestBuilder};
use rustix::fs::{CWD, Mode, OFlags};
use serde_json::{Value, json};

use crate::support::{
    FakeServer,
    alone::is_alone,
    calls::{post, request},
    server::TOKEN,
    until,
};

/// The largest answer beside the program's output, in bytes.
const ANSWER_BYTES_MAX: usize = 256 << 10;
/// The largest list of the interfaces of other products, which has no pages in bytes.
const LIST_BYTES_MAX: usize = 1 << 20;
/// Most bytes of a name; a number is put to some.
const NAME_BYTES_MAX: usize = 244;
/// Each byte of such a name is six characters where it is shown, seven in JSON, three in a link.
const ESCAPES: &[u8] = b"\x1b";
/// What names are made of: no text, what JSON escapes, ends of lines, what is shown by its number, long characters.
const KINDS: [&[u8]; 8] =
    [ESCAPES, b"\xff", b"\"", b"\\", b"\n", "\u{2028}".as_bytes(), "\u{1d4b3}".as_bytes(), b"\xff\"\n\xf0\x9d"];

fn name(kind: &[u8]) -> Vec<u8> {
    kind.repeat(NAME_BYTES_MAX / kind.len())
}

/// This process' memory, in bytes, without the pages of its program, which come as they are first used.
fn memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

fn assert_grew_at_most(mib: u64, before: u64) {
    let grew = memory().saturating_sub(before) >> 20;
    println!("the server grew by {grew} MiB");
    assert!(grew <= mib, "the server grew by {grew} MiB");
}

/// Fourteen folders in each other, and in the last so many files and half as many links.
fn hostile_tree(top: &Path, kind: &[u8], files: usize) {
    let folder = &name(kind)[..];
    let open = |at: &OwnedFd| {
        rustix::fs::openat(at, folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("a folder")
    };
    let mut at = rustix::fs::openat(CWD, top, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("the top");
    for _ in 0..14 {
        rustix::fs::mkdirat(&at, folder, Mode::RWXU).expect("a folder");
        at = open(&at);
    }
    for number in 0..files {
        let name = [folder, format!("{number:06}").as_bytes()].concat();
        rustix::fs::openat(&at, &name[..], OFlags::CREATE | OFlags::WRONLY, Mode::RUSR | Mode::WUSR).expect("a file");
        if number % 2 == 0 {
            let name = [b"l".as_slice(), &name].concat();
            rustix::fs::symlinkat("nowhere", &at, &name[..]).expect("a link");
        }
    }
}

/// A program that runs until it is cancelled: its id.
async fn hanging(server: &FakeServer, conversation: &str) -> String {
    let run = json!({"conversationId": conversation, "language": "python", "code": "print 1\nhang", "wait": 0});
    let begun = post(server, "/v1/runs", run).await;
    let run = begun["runId"].as_str().expect("an id").to_owned();
    let address = format!("/v1/runs/{run}");
    until("it runs", async || get(server, &address).await.contains("\"running\"")).await;
    run
}

/// Cancels it; the answers that tell of it and of the files that were made meanwhile.
async fn answers(server: &FakeServer, conversation: &str, run: &str) -> Vec<(&'static str, String)> {
    let cancelled = tool(server, "sandbox_cancel_run", json!({"runId": run})).await;
    let address = format!("/v1/runs/{run}");
    vec![
        ("cancel_run", cancelled),
        ("GET /v1/runs", get(server, &address).await),
        ("events", get(server, &format!("{address}/events")).await),
        ("listing", get(server, &format!("/v1/conversations/{conversation}/files")).await),
        ("list_files", tool(server, "sandbox_list_files", json!({"conversationId": conversation})).await),
        ("get_run", tool(server, "sandbox_get_run", json!({"runId": run})).await),
    ]
}

fn assert_are_small(answers: &[(&str, String)]) {
    for (what, answer) in answers {
        assert!(answer.len() < ANSWER_BYTES_MAX, "{what}: {} bytes", answer.len());
        assert!(!answer.contains("internal"), "{what}");
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
    if !is_alone("names::costly_names_leave_answers_and_memory_small") {
        return;
    }
    let server = FakeServer::start().await;
    let run = hanging(&server, "c").await;
    hostile_tree(&server.root.join("c/files"), ESCAPES, 400);
    let before = memory();
    let mut answers = answers(&server, "c", &run).await;
    for _ in 0..20 {
        let arguments = json!({"conversationId": "c", "language": "python", "code": "print 1"});
        answers.push(("run_code", tool(&server, "sandbox_run_code", arguments).await));
    }
    assert_are_small(&answers);
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
async fn costly_names_of_every_kind_are_listed_once_in_small_answers() {
    let server = FakeServer::start().await;
    for (number, kind) in KINDS.iter().enumerate() {
        let id = format!("c{number}");
        let run = hanging(&server, &id).await;
        hostile_tree(&server.root.join(&id).join("files"), kind, 200);
        assert_are_small(&answers(&server, &id, &run).await);
        let (mut after, mut listed) = (Some(String::new()), Vec::new());
        while let Some(query) = after {
            let page = get(&server, &format!("/v1/conversations/{id}/files{query}")).await;
            assert!(page.len() < ANSWER_BYTES_MAX, "{number}: {} bytes", page.len());
            let page: Value = serde_json::from_str(&page).expect("JSON");
            let files = page["files"].as_array().expect("files");
            assert!(!files.is_empty(), "{number}: an empty page");
            listed.extend(files.iter().map(|file| file["pathEncoded"].to_string()));
            after = page["after"].as_str().map(|path| format!("?after={}", path.replace('%', "%25")));
        }
        let count = listed.len();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!((count, listed.len()), (200, 200), "{number}");
    }
    server.stop().await;
}

/// Lists of the interfaces of other products.
#[tokio::test(flavor = "multi_thread")]
async fn costly_names_leave_lists_of_other_products_small() {
    let server = FakeServer::start().await;
    for (number, kind) in [ESCAPES, b"\xff", "\u{1d4b3}".as_bytes()].into_iter().enumerate() {
        lists_of_other_products(&server, number, kind).await;
    }
    server.stop().await;
}

async fn lists_of_other_products(server: &FakeServer, number: usize, kind: &[u8]) {
    let sandbox = post(server, "/e2b/sandboxes", json!({})).await;
    let container = post(server, "/openai/v1/containers", json!({"name": "a"})).await;
    let (sandbox, container) = (&sandbox["sandboxID"], &container["id"]);
    let (sandbox, container) = (sandbox.as_str().expect("an id"), container.as_str().expect("an id"));
    let (conversation, session) = (format!("c{number}"), format!("{}{number}", "s".repeat(20)));
    for id in [conversation.as_str(), sandbox, container, &session] {
        let put = request(server, TOKEN, Method::PUT, &format!("/v1/conversations/{id}/files/0")).body("x");
        assert_eq!(put.send().await.expect("an answer").status(), 201, "{id}");
        hostile_tree(&server.root.join(id).join("files"), kind, 400);
    }
    let deepest = vec![percent_encode(&name(kind), NON_ALPHANUMERIC).to_string(); 14].join("/");
    let contents = request(server, TOKEN, Method::GET, &format!("/jupyter/c/{conversation}/api/contents/{deepest}"));
    let folder = request(server, TOKEN, Method::POST, "/e2b/filesystem.Filesystem/ListDir");
    let folder = folder.header("E2b-Sandbox-Id", sandbox).json(&json!({"path": "/home/user", "depth": 20}));
    let files = request(server, TOKEN, Method::GET, &format!("/librechat/v1/files/{session}"));
    for (member, list) in [("/content", contents), ("/entries", folder), ("", files)] {
        let list = truncated(list).await;
        let items = list.pointer(member).and_then(Value::as_array).expect("items");
        assert!(items.len() > 1, "{number}, {member}: {list}");
    }
    let (mut after, mut listed, mut pages) = (Some(String::new()), Vec::new(), 0);
    while let Some(from) = after {
        let path = format!("/openai/v1/containers/{container}/files?limit=100{from}");
        let page = truncated(request(server, TOKEN, Method::GET, &path)).await;
        let files = page["data"].as_array().expect("files");
        assert!(!files.is_empty(), "{number}: an empty page");
        listed.extend(files.iter().map(|file| file["id"].to_string()));
        after = (page["has_more"] == true).then(|| format!("&after={}", page["last_id"].as_str().expect("an id")));
        pages += 1;
    }
    let files = listed.len();
    listed.sort_unstable();
    listed.dedup();
    assert!(files > 100 && pages > 1 && listed.len() == files, "{number}: {files} on {pages} pages");
}

/// An answer of bounded length that says that it leaves something out.
async fn truncated(request: RequestBuilder) -> Value {
    let answer = request.send().await.expect("an answer");
    let truncated = answer.headers().contains_key("sandbox-truncated");
    assert_eq!((answer.status().as_u16(), truncated), (200, true));
    let text = answer.text().await.expect("a body");
    assert!(text.len() < LIST_BYTES_MAX, "{} bytes", text.len());
    serde_json::from_str(&text).expect("JSON")
}

/// What the client named, and not a program.
#[tokio::test(flavor = "multi_thread")]
async fn costly_metadata_and_given_names_leave_answers_of_other_products_small() {
    let server = FakeServer::start().await;
    let metadata: BTreeMap<_, _> = (0..40).map(|number| (format!("k{number}"), "\u{1b}".repeat(256))).collect();
    for _ in 0..30 {
        post(&server, "/e2b/sandboxes", json!({"metadata": metadata})).await;
    }
    let sandboxes = truncated(request(&server, TOKEN, Method::GET, "/e2b/v2/sandboxes")).await;
    let count = sandboxes.as_array().map(Vec::len);
    assert!(count.is_some_and(|count| (2..30).contains(&count)), "{count:?}");

    let session = "s".repeat(21);
    let put = request(&server, TOKEN, Method::PUT, &format!("/v1/conversations/{session}/files/0")).body("x");
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    let files = get(&server, &format!("/librechat/v1/files/{session}")).await;
    let files: Value = serde_json::from_str(&files).expect("JSON");
    let folder = vec!["\"".repeat(NAME_BYTES_MAX); 14].join("/");
    let given = |number: usize| {
        let name = format!("{folder}/{number}");
        json!({"id": files[0]["id"], "storage_session_id": session, "name": name})
    };
    let named: Vec<_> = (0..200).map(given).collect();
    let exec = request(&server, TOKEN, Method::POST, "/librechat/v1/exec");
    let result = truncated(exec.json(&json!({"lang": "py", "code": "print 1", "files": named}))).await;
    assert_eq!(result["stdout"], "1\n");
    assert!(result["files"].as_array().is_some_and(|files| files.len() > 1), "no files");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn archives_of_costly_names_take_little_memory_unread() {
    if !is_alone("names::archives_of_costly_names_take_little_memory_unread") {
        return;
    }
    let server = FakeServer::start().await;
    let url = format!("http://{}/v1/conversations/c", server.address);
    let put = server.http.put(format!("{url}/files/0")).bearer_auth(TOKEN).body("x");
    assert_eq!(put.send().await.expect("an answer").status(), 201);
    hostile_tree(&server.root.join("c/files"), ESCAPES, 9_999);
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
