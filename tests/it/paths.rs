//! A corpus of paths over raw TCP: no path behind `/files/` or `/v1/conversations/{id}/files/` serves a file outside
//! that conversation, and every answer is well formed.
//!
//! Rows combine parts that have escaped from other servers: dots, slashes and NULs in every encoding, overlong UTF-8,
//! backslashes, absolute paths, long names, and links that a program planted. `LONG=1` makes ten times as many.

use std::{collections::BTreeSet, fmt::Write as _, os::unix::fs::symlink};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{FakeServer, dice::Dice, scale::how_many, server::TOKEN};

const CANARY: &str = "canary-5b7e21";
const MINE: &str = "mine-91c2";

/// What goes up, or is taken for it somewhere.
const UPWARD: [&str; 24] = [
    "..",
    "%2e%2e",
    "%2E%2e",
    ".%2e",
    "%2e.",
    "%252e%252e",
    "%25252e%25252e",
    "..%00",
    "%00..",
    "..%20",
    "%20..",
    "...",
    "....",
    "..;",
    "..;x=1",
    "..%09",
    "%c0%ae%c0%ae",
    "%e0%80%ae%e0%80%ae",
    "%f0%80%80%ae",
    "%uff0e%uff0e",
    "%ef%bc%8e%ef%bc%8e",
    "..%0d",
    "..%0a",
    "..%23",
];
/// What separates, or is taken for it somewhere.
const BETWEEN: [&str; 14] =
    ["/", "//", "/./", "%2f", "%2F", "%252f", "\\", "%5c", "%255c", "/%2e/", "%c0%af", "%e0%80%af", "%ef%bc%8f", "/;/"];
/// Where to.
const TARGETS: [&str; 16] = [
    "secret.txt",
    "other/files/secret.txt",
    "files/secret.txt",
    "root/other/files/secret.txt",
    "etc/passwd",
    ".mark",
    "a.txt",
    "link",
    "dirlink/secret.txt",
    "up/secret.txt",
    "proc/self/environ",
    "secret.txt%00.txt",
    "secret.txt%00",
    "other%2ffiles%2fsecret.txt",
    "pipe",
    "s%65cret.txt",
];
/// What stands in front.
const FRONTS: [&str; 14] = [
    "",
    "/",
    "//",
    "%2f",
    "a.txt/",
    "sub/",
    "dirlink/",
    "link/",
    "~/",
    "file:///",
    "http://127.0.0.1/",
    "C:\\",
    "%00/",
    "./",
];

fn row(numbers: &mut Dice) -> Vec<u8> {
    let mut path = numbers.one_of(&FRONTS).to_owned();
    for _ in 0..numbers.below(6) {
        path += numbers.one_of(&UPWARD);
        path += numbers.one_of(&BETWEEN);
    }
    path += numbers.one_of(&TARGETS);
    let mut path = path.into_bytes();
    match numbers.below(12) {
        // A byte that has no place in a path, or one that is no UTF-8.
        0 => {
            path.insert(numbers.index(path.len()), numbers.one_of(&[0x00, 0x7f, 0x80, 0xc0, 0xff, b' ', b'\t', b'#']));
        }
        // All of it encoded, once or twice.
        1 => path = encoded(&path),
        2 => path = encoded(&encoded(&path)),
        3 => path.extend_from_slice(&b"x".repeat(300)),
        4 => path.splice(..0, b"y/".repeat(3000)).for_each(drop),
        _ => {}
    }
    path
}

fn encoded(path: &[u8]) -> Vec<u8> {
    let mut text = String::new();
    for byte in path {
        write!(text, "%{byte:02x}").expect("a text");
    }
    text.into_bytes()
}

/// Sends a request line as it is; the answer's status and all of its bytes.
async fn get(server: &FakeServer, target: &[u8], token: bool) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(server.address).await.expect("a connection");
    let authorization = if token { format!("Authorization: Bearer {TOKEN}\r\n") } else { String::new() };
    let rest = format!(" HTTP/1.1\r\nHost: {}\r\n{authorization}Connection: close\r\n\r\n", server.address);
    let request = [b"GET ", target, rest.as_bytes()].concat();
    stream.write_all(&request).await.expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.expect("an answer");
    let line = answer.split(|&byte| byte == b'\r').next().map(String::from_utf8_lossy).unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok()).unwrap_or(0);
    (status, answer)
}

fn holds(answer: &[u8], text: &str) -> bool {
    answer.windows(text.len()).any(|window| window == text.as_bytes())
}

/// A conversation with a file and with whatever a program can plant, and the canary everywhere else.
async fn planted(server: &FakeServer) -> String {
    for (conversation, name, text) in [("c", "a.txt", MINE), ("c", "sub/b.txt", MINE), ("other", "secret.txt", CANARY)]
    {
        let url = format!("http://{}/v1/conversations/{conversation}/files/{name}", server.address);
        let put = server.http.put(url).bearer_auth(TOKEN).body(text).send().await.expect("an answer");
        assert_eq!(put.status(), 201);
    }
    let data = server.root.join("c/files");
    for outside in [server.root.join("secret.txt"), server.root.join("c/secret.txt")] {
        std::fs::write(outside, CANARY).expect("a canary");
    }
    for (name, to) in [("link", "../../other/files/secret.txt"), ("dirlink", "../../other/files"), ("up", "..")] {
        symlink(to, data.join(name)).expect("a link");
    }
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, data.join("pipe"), kind, 0o644.into(), 0).expect("a pipe");
    let listed = server.call("sandbox.list_files", serde_json::json!({"conversationId": "c"})).await;
    let url = listed["structuredContent"]["files"][0]["url"].as_str().expect("a link").to_owned();
    url.split_once('?').expect("a signature").1.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_outside_a_conversation_are_never_served() {
    let rows = how_many(500, 5000);
    let server = FakeServer::start().await;
    let query = planted(&server).await;
    // What is looked for would be found, by either way, and the links are good.
    let (status, canary) = get(&server, b"/v1/conversations/other/files/secret.txt", true).await;
    assert!(status == 200 && holds(&canary, CANARY));
    let (status, mine) = get(&server, format!("/files/c/a.txt?{query}").as_bytes(), false).await;
    assert!(status == 200 && holds(&mine, MINE));
    let mut numbers = Dice::new(0);
    let mut corpus = BTreeSet::new();
    while corpus.len() < rows {
        corpus.insert(row(&mut numbers));
    }
    let (mut nowhere, mut own) = (0, 0);
    for path in corpus {
        let signed = [b"/files/c/", &path[..], b"?", query.as_bytes()].concat();
        let with_token = [b"/v1/conversations/c/files/", &path[..]].concat();
        for (target, token) in [(signed, false), (with_token, true)] {
            let (status, answer) = get(&server, &target, token).await;
            let shown = target.escape_ascii();
            assert!(!holds(&answer, CANARY), "{shown} led out: {}", answer.escape_ascii());
            assert!(status == 200 || (400..500).contains(&status), "{shown}: {status} {}", answer.escape_ascii());
            if status == 200 {
                assert!(holds(&answer, MINE), "{shown}: {}", answer.escape_ascii());
                own += 1;
            } else {
                nowhere += 1;
            }
        }
    }
    println!("{nowhere} requests were refused, {own} served the conversation's own file, none the canary");
    assert!(nowhere > rows, "most rows lead nowhere");
    server.stop().await;
}
