//! Files over `/v1`: conditions, pages, subfolders as generated clients write them, uploads of any length.

use std::{fs, path::Path, time::Duration};

use futures_util::stream;
use reqwest::{Body, Method, Response};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use super::{call, create, get, refused};
use crate::support::{FakeServer, server::TOKEN, until};

const FILES: &str = "/v1/conversations/f/files";

async fn put(server: &FakeServer, path: &str, condition: Option<(&str, &str)>, body: impl Into<Body>) -> Response {
    let request = call(server, Method::PUT, &format!("{FILES}/{path}")).body(body);
    let request = condition.into_iter().fold(request, |request, (name, value)| request.header(name, value));
    request.send().await.expect("an answer")
}

/// What uploads that were refused or broken off left on the disk.
fn left(root: &Path) -> usize {
    let servers = fs::read_dir(root.join(".incoming")).expect("a folder").map(|entry| entry.expect("an entry").path());
    servers.map(|server| fs::read_dir(server).expect("a folder").count()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_guard_writes_and_deletions() {
    let server = FakeServer::start().await;
    let failed = (412, "precondition_failed".to_owned());
    let delete = async |path: &str, (name, value): (&str, &str)| {
        let request = call(&server, Method::DELETE, &format!("{FILES}/{path}")).header(name, value);
        request.send().await.expect("an answer")
    };
    for path in ["a", "d/e/a", "g%2Fh%2Fa"] {
        let on_disk = server.root.join("f/files").join(path.replace("%2F", "/"));
        let made = put(&server, path, Some(("if-none-match", "*")), "one").await;
        assert_eq!(made.status(), 201, "{path}");
        let first = made.headers()["etag"].to_str().expect("text").to_owned();
        assert_eq!(refused(put(&server, path, Some(("if-none-match", "*")), "two").await).await, failed, "{path}");
        let second = put(&server, path, Some(("if-match", &first)), "two").await;
        assert_eq!(second.status(), 200, "{path}");
        let second = second.headers()["etag"].to_str().expect("text").to_owned();
        assert_eq!(refused(put(&server, path, Some(("if-match", &first)), "three").await).await, failed, "{path}");
        assert_eq!(
            refused(put(&server, path, Some(("if-none-match", &second)), "three").await).await,
            failed,
            "{path}"
        );
        let other = format!("{path}-2");
        assert_eq!(refused(put(&server, &other, Some(("if-match", "*")), "three").await).await, failed, "{path}");
        assert_eq!(fs::read_to_string(&on_disk).expect("a file"), "two", "{path}");
        for condition in [("if-match", first.as_str()), ("if-none-match", "*"), ("if-none-match", second.as_str())] {
            assert_eq!(refused(delete(path, condition).await).await, failed, "{path} {condition:?}");
        }
        assert!(on_disk.exists(), "{path}");
        assert_eq!(delete(path, ("if-match", second.as_str())).await.status(), 204, "{path}");
        assert!(!on_disk.exists() && left(&server.root) == 0, "{path}");
        // Another version is not the one that must not be deleted.
        assert_eq!(put(&server, path, None, "four").await.status(), 201, "{path}");
        assert_eq!(delete(path, ("if-none-match", first.as_str())).await.status(), 204, "{path}");
        assert!(!on_disk.exists(), "{path}");
    }
    // A folder has no version.
    assert_eq!(refused(delete("d", ("if-match", "*")).await).await, failed);
    assert!(server.root.join("f/files/d/e").is_dir());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_that_a_condition_or_a_range_refuses_are_problems() {
    let server = FakeServer::start().await;
    let etag = put(&server, "a", None, "one").await.headers()["etag"].clone();
    for (name, value, status, code, content_range) in [
        ("if-match", "\"x\"", 412, "precondition_failed", None),
        ("range", "bytes=999-", 416, "invalid_request", Some("bytes */3")),
    ] {
        let request = call(&server, Method::GET, &format!("{FILES}/a")).header(name, value);
        let answer = request.send().await.expect("an answer");
        let headers = answer.headers().clone();
        assert_eq!(refused(answer).await, (status, code.to_owned()));
        assert_eq!(headers["etag"], etag, "{code}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{code}");
        let found = headers.get("content-range").map(|value| value.to_str().expect("text"));
        assert_eq!(found, content_range, "{code}");
    }
    server.stop().await;
}

/// Of clients that change one file at the same time, each sees what the others wrote or is refused.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_conditional_writes_lose_nothing() {
    let server = FakeServer::start().await;
    assert_eq!(put(&server, "n", None, "0").await.status(), 201);
    let add = async || {
        for _ in 0..5 {
            loop {
                let read = call(&server, Method::GET, &format!("{FILES}/n")).send().await.expect("an answer");
                let etag = read.headers()["etag"].to_str().expect("text").to_owned();
                let number: u32 = read.text().await.expect("text").parse().expect("a number");
                let body = (number + 1).to_string();
                if put(&server, "n", Some(("if-match", &etag)), body).await.status() == 200 {
                    break;
                }
            }
        }
    };
    futures_util::future::join_all((0..4).map(|_| add())).await;
    assert_eq!(fs::read_to_string(server.root.join("f/files/n")).expect("a file"), "20");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_file_is_on_one_page_and_folders_are_listed_alone() {
    let server = FakeServer::start().await;
    assert_eq!(put(&server, "out/a%20%ff%25", None, "x").await.status(), 201);
    let folder = server.root.join("f/files");
    fs::create_dir_all(folder.join("out-2")).expect("a folder");
    for number in 0..450 {
        fs::write(folder.join(format!("{}/{number:03}", ["out", "out-2"][number % 2])), "").expect("a file");
    }
    let pages = async |query: &str| {
        let (mut after, mut paths) = (String::new(), Vec::new());
        loop {
            let page = get(&server, &format!("{FILES}?{query}{after}")).await;
            let files = page["files"].as_array().expect("files");
            assert_eq!(page["truncated"], page["after"].is_string(), "{page}");
            paths.extend(files.iter().map(|file| file["path"].as_str().expect("a path").to_owned()));
            let Some(next) = page["after"].as_str() else { return paths };
            after = format!("&after={}", next.replace('%', "%25"));
        }
    };
    let all = pages("").await;
    assert_eq!(all.len(), 451);
    let mut once = all.clone();
    once.dedup();
    assert_eq!((once.len(), pages("limit=7").await), (451, all.clone()));
    let below = pages("folder=out/&limit=100").await;
    assert!(below.len() == 226 && below.iter().all(|path| path.starts_with("out/")), "{below:?}");
    assert!(pages("folder=missing").await.is_empty());
    // Of files and of folders, a part of a name is enough; the order and the pages are the same.
    let at_the_top = [("out", "out"), ("./out-", "out-"), ("/data/out", "out")];
    let below = [("out/", "out/"), ("out-2/1", "out-2/1"), ("/data/out/00", "out/00")];
    for (prefix, begins) in [at_the_top, below].concat() {
        let expected: Vec<_> = all.iter().filter(|path| path.starts_with(begins)).cloned().collect();
        assert!(!expected.is_empty());
        assert_eq!(pages(&format!("prefix={prefix}&limit=9")).await, expected, "{prefix}");
    }
    assert_eq!(pages("folder=out/&prefix=00").await, pages("prefix=out/00").await);
    assert!(pages("prefix=out/missing").await.is_empty());
    for name in ["my%20notes/a.txt", "c%2B%2B/a.txt"] {
        let sent = call(&server, Method::PUT, &format!("{FILES}/{name}")).body("x").send().await.expect("an answer");
        assert_eq!(sent.status(), 201);
    }
    assert_eq!(pages("folder=my+notes").await, ["my notes/a.txt"], "as forms write a space");
    assert_eq!(pages("folder=my%20notes").await, ["my notes/a.txt"]);
    assert_eq!(pages("folder=c%2B%2B").await, ["c++/a.txt"]);
    for wrong in ["limit=0", "folder=..", "prefix=../x", "prefix=/x", "after=%25", "after=..", "page=1"] {
        let response = call(&server, Method::GET, &format!("{FILES}?{wrong}")).send().await.expect("an answer");
        assert_eq!(refused(response).await, (422, "invalid_argument".to_owned()), "{wrong}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_encoded_slash_reaches_a_subfolder_and_nothing_else() {
    let server = FakeServer::start().await;
    assert_eq!(put(&server, "out%2Fdeep%2freport.csv", None, "1,2").await.status(), 201);
    assert_eq!(fs::read_to_string(server.root.join("f/files/out/deep/report.csv")).expect("a file"), "1,2");
    let read = call(&server, Method::GET, &format!("{FILES}/out%2Fdeep%2Freport.csv")).send().await.expect("an answer");
    assert_eq!(read.text().await.expect("text"), "1,2");
    for hostile in ["..%2F..%2Fx", "%2Fetc%2Fpasswd", "out%2F..%2F..%2Fx", "out%2F", "%252F..%2Fx%2F..%2F.."] {
        assert_eq!(refused(put(&server, hostile, None, "x").await).await.0, 422, "{hostile}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_uploads_are_streamed_and_broken_ones_leave_nothing() {
    let limits = [("SANDBOX_SERVER__BODY_BYTES_MAX", "1048576"), ("SANDBOX_QUOTA__BYTES_MAX", "24MiB")];
    let server = FakeServer::with(&limits).await;
    let long: Vec<u8> = (0..12_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
    assert_eq!(put(&server, "long", None, long.clone()).await.status(), 201);
    assert!(fs::read(server.root.join("f/files/long")).expect("a file") == long);

    // Announced, it is refused before it is sent; otherwise when it is too long. The old file stays.
    let pieces = || Body::wrap_stream(stream::iter((0..200).map(|_| Ok::<_, std::io::Error>(vec![1_u8; 100_000]))));
    let full = (507, "quota_exceeded".to_owned());
    assert_eq!(refused(put(&server, "long", None, vec![0_u8; 15_000_000]).await).await, full);
    assert_eq!(refused(put(&server, "long", None, pieces()).await).await, full);
    assert_eq!(refused(put(&server, "more", None, vec![0_u8; 14_000_000]).await).await, full);
    assert!(fs::read(server.root.join("f/files/long")).expect("a file") == long);

    let mut broken = TcpStream::connect(server.address).await.expect("a connection");
    let head = format!(
        "PUT {FILES}/part HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\
         Content-Length: 5000000\r\n\r\n"
    );
    broken.write_all(head.as_bytes()).await.expect("sent");
    broken.write_all(&vec![1; 1_000_000]).await.expect("sent");
    until("it arrives", async || left(&server.root) == 1).await;
    drop(broken);
    until("it is gone", async || left(&server.root) == 0).await;
    assert_eq!(get(&server, FILES).await["files"].as_array().map(Vec::len), Some(1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_drips_is_ended() {
    let server = FakeServer::with(&[("SANDBOX_SERVER__BODY_READ_MS", "300")]).await;
    let drops = stream::unfold(0, |sent| async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        (sent < 200).then_some((Ok::<_, std::io::Error>(vec![1_u8]), sent + 1))
    });
    let answer = put(&server, "slow", None, Body::wrap_stream(drops)).await;
    assert_eq!(refused(answer).await, (408, "body_timeout".to_owned()));
    until("nothing is left", async || left(&server.root) == 0).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_output_limit_is_exact_and_the_source_is_kept() {
    let server = FakeServer::start().await;
    for code in ["flood 100001", "print a\nflood 998", "stderr 12345\nflood 995"] {
        let run = json!({"language": "python", "code": code, "limits": {"outputBytesMax": 1000}});
        let run: Value = create(&server, run).await.json().await.expect("JSON");
        let (figures, result) = (&run["figures"], &run["result"]);
        let printed = figures["stdoutBytes"].as_u64().zip(figures["stderrBytes"].as_u64()).map(|(out, err)| out + err);
        let over = code != "print a\nflood 998";
        assert_eq!(
            (printed, &run["outcome"]["ended"]),
            (Some(1000), &json!(if over { "output_limit" } else { "exited" }))
        );
        let shown = result["stdout"].as_str().map(str::len).zip(result["stderr"].as_str().map(str::len));
        assert_eq!(shown.map(|(out, err)| out + err), Some(1000), "{run}");
        assert_eq!(run["outcome"]["sentence"].as_str().is_some_and(|text| text.contains("1000 bytes")), over, "{run}");
        assert!(run["source"].is_null(), "its sender has it: {run}");
        let again = get(&server, &format!("/v1/runs/{}", run["runId"].as_str().expect("an id"))).await;
        assert_eq!((&again["source"], &again["sourceTruncated"]), (&json!(code), &json!(false)));
    }
    assert!(get(&server, "/v1/runs").await["runs"][0]["source"].is_null());
    server.stop().await;
}
