//! Downloads over a real socket, so that no client tidies up what is sent.

mod traversal;

use std::{fs, os::unix::ffi::OsStrExt as _, path::PathBuf, time::Duration};

use futures_util::{StreamExt as _, stream};
use secrecy::SecretString;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use super::*;
use crate::{
    adapters::storage::DiskStorage,
    domain::{ConversationKey, RunnerUsers, SafePath, clock::ManualClock},
    services::{files::FilesOptions, links::UrlSigner},
};

const NOW: i64 = 1_800_000_000;
const CANARY: &str = "canary-7c1f";

struct FileServer {
    /// Gone when dropped.
    root: tempfile::TempDir,
    files: Arc<Files>,
    clock: Arc<ManualClock>,
    signer: Arc<UrlSigner>,
    addr: std::net::SocketAddr,
}

impl FileServer {
    async fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        let store = Arc::new(DiskStorage::at(&root.path().join("root"), RunnerUsers::one(1000)).expect("a store"));
        let signer = Arc::new(UrlSigner::new(&[SecretString::from("secret-of-the-test")], ""));
        let clock = Arc::new(ManualClock::at(NOW));
        let files = Arc::new(Files::new(store, Arc::clone(&signer), clock.clone(), FilesOptions::default()));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let addr = listener.local_addr().expect("an address");
        // One id for all requests, so that answers can be compared whole.
        let router = router(Arc::clone(&files), Bodies::new(1 << 20, Duration::from_secs(5), 1 << 20));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let server = Self { root, files, clock, signer, addr };
        server.write("c", "a.txt", b"0123456789").await;
        server.write("other", "secret.txt", CANARY.as_bytes()).await;
        fs::write(server.root.path().join("secret.txt"), CANARY).expect("a canary");
        server
    }

    async fn write(&self, conversation: &str, path: &str, bytes: &'static [u8]) {
        let (conversation, path) = (id(conversation), SafePath::from_text(path).expect("a path"));
        self.files.write(&conversation, &path, bytes.into()).await.expect("written");
    }

    fn data(&self) -> PathBuf {
        self.root.path().join("root/c/files")
    }

    fn url(&self, path: &str) -> String {
        self.signer.mint(&id("c"), &SafePath::from_text(path).expect("a path"), NOW + 60)
    }

    async fn send(&self, method: &str, target: &[u8], headers: &str) -> Answer {
        let mut stream = TcpStream::connect(self.addr).await.expect("a connection");
        let head = [method.as_bytes(), b" ", target, b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"].concat();
        stream.write_all(&head).await.expect("sent");
        stream.write_all(format!("{headers}\r\n").as_bytes()).await.expect("sent");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.expect("an answer");
        Answer::parse(&bytes)
    }

    async fn get(&self, target: &str) -> Answer {
        self.send("GET", target.as_bytes(), "").await
    }
}

fn id(text: &str) -> ConversationKey {
    text.parse().expect("an id")
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").expect("the end of the head");
        let head = String::from_utf8(bytes[..end].to_vec()).expect("text");
        let head: Vec<_> = head.lines().filter(|line| !line.starts_with("date:")).collect();
        let status = head[0].split(' ').nth(1).expect("a status").parse().expect("a number");
        Self { status, head: head.join("\n"), body: bytes[end + 4..].to_vec() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let first = values.next();
        assert_eq!(values.next(), None, "{name} twice");
        first
    }
}

#[tokio::test]
async fn file_is_served_unchanged() {
    let server = FileServer::new().await;
    let url = server.url("a.txt");
    let whole = server.get(&url).await;
    assert_eq!((whole.status, whole.body.as_slice()), (200, b"0123456789".as_slice()));
    assert_eq!(whole.header("content-length"), Some("10"));
    assert_eq!(whole.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(whole.header("content-disposition"), Some("inline; filename=\"a.txt\"; filename*=UTF-8''a.txt"));
    let head = server.send("HEAD", url.as_bytes(), "").await;
    assert_eq!((head.status, head.body.len(), head.head), (200, 0, whole.head.clone()));
    let etag = whole.header("etag").expect("an etag").to_owned();
    assert!(whole.header("last-modified").is_some_and(|date| httpdate::parse_http_date(date).is_ok()));

    let part = server.send("GET", url.as_bytes(), &format!("Range: bytes=2-4\r\nIf-Range: {etag}\r\n")).await;
    assert_eq!((part.status, part.body.as_slice()), (206, b"234".as_slice()));
    assert_eq!(part.header("content-range"), Some("bytes 2-4/10"));
    let beyond = server.send("GET", url.as_bytes(), "Range: bytes=10-\r\n").await;
    assert_eq!((beyond.status, beyond.header("content-range")), (416, Some("bytes */10")));
    let several = server.send("GET", url.as_bytes(), "Range: bytes=0-0,-1\r\n").await;
    assert_eq!((several.status, several.body), (200, whole.body));
    let same = server.send("GET", url.as_bytes(), &format!("If-None-Match: {etag}\r\n")).await;
    assert_eq!((same.status, same.body.len(), same.header("etag")), (304, 0, Some(etag.as_str())));
    // A length there would be the whole file's.
    assert!(matches!(same.header("content-length"), None | Some("10")));

    // A link names a path: new bytes have the same link and another tag.
    server.write("c", "a.txt", b"9876543210").await;
    let changed = server.send("GET", url.as_bytes(), &format!("Range: bytes=2-4\r\nIf-Range: {etag}\r\n")).await;
    assert_eq!((changed.status, changed.body.as_slice()), (200, b"9876543210".as_slice()));
    assert_ne!(changed.header("etag"), Some(etag.as_str()));
    server.write("c", "empty.bin", b"").await;
    let empty = server.get(&server.url("empty.bin")).await;
    assert_eq!((empty.status, empty.body.len(), empty.header("content-length")), (200, 0, Some("0")));
}

#[tokio::test]
async fn every_answer_has_the_security_headers() {
    let server = FileServer::new().await;
    let (good, gone) = (server.url("a.txt"), server.url("gone.txt"));
    let cases = [
        (200, server.get(&good).await),
        (200, server.send("HEAD", good.as_bytes(), "").await),
        (206, server.send("GET", good.as_bytes(), "Range: bytes=0-0\r\n").await),
        (304, server.send("GET", good.as_bytes(), "If-None-Match: *\r\n").await),
        (412, server.send("GET", good.as_bytes(), "If-Match: \"x\"\r\n").await),
        (416, server.send("GET", good.as_bytes(), "Range: bytes=99-\r\n").await),
        (403, server.get("/files/c/a.txt").await),
        (403, server.get("/files").await),
        (403, server.get("/files/").await),
        (404, server.get(&gone).await),
        (405, server.send("POST", good.as_bytes(), "Content-Length: 0\r\n").await),
    ];
    for (status, answer) in cases {
        assert_eq!(answer.status, status, "{}", answer.head);
        for (name, value) in ALWAYS {
            assert_eq!(answer.header(name.as_str()), value.to_str().ok(), "{name} of {status}");
        }
        assert_ne!(answer.header("content-type"), Some("text/html"));
    }
}

#[tokio::test]
async fn methods_other_than_get_and_head_are_refused() {
    let server = FileServer::new().await;
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "QUERY"] {
        for target in [server.url("a.txt"), "/files/c/a.txt".to_owned(), "/files".to_owned()] {
            let answer = server.send(method, target.as_bytes(), "Content-Length: 0\r\n").await;
            assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method} {target}");
        }
    }
    let overridden = server.send("GET", server.url("a.txt").as_bytes(), "X-HTTP-Method-Override: DELETE\r\n").await;
    assert_eq!(overridden.status, 200);
}

#[tokio::test]
async fn bad_links_get_identical_answers() {
    let server = FileServer::new().await;
    let good = server.url("a.txt");
    let (path, query) = good.split_once('?').expect("a query");
    let (expires, signature) = query.split_once('&').expect("two parameters");
    let reference = server.get("/files/nobody/nothing").await;
    assert_eq!(reference.status, 403);
    let other = server.url("b.txt");
    let other_signature = other.split_once('&').expect("two parameters").1;
    let mut bad = vec![
        path.to_owned(),
        format!("{path}?"),
        format!("{path}?{expires}"),
        format!("{path}?{signature}"),
        format!("{path}?{signature}&{expires}&{signature}"),
        format!("{path}?{expires}&{expires}&{signature}"),
        format!("{path}?{expires}&{signature}&x=1"),
        format!("{path}?{expires}&{signature}&"),
        format!("{path}?&{expires}&{signature}"),
        format!("{path}?{expires};{signature}"),
        format!("{path}?{expires}&sig[]={}", &signature[4..]),
        format!("{path}?{expires}&SIG={}", &signature[4..]),
        format!("{path}?{expires}&sig="),
        format!("{path}?{expires}&{signature}="),
        format!("{path}?{expires}&{signature}%00"),
        format!("{path}?{expires}&{other_signature}"),
        format!("{path}?expires=0{}&{signature}", &expires[8..]),
        format!("{path}?expires=+{}&{signature}", &expires[8..]),
        format!("{path}/?{query}"),
        format!("/files/other/secret.txt?{query}"),
        format!("/files/c/gone.txt?{query}"),
        format!("/files/C/a.txt?{query}"),
        format!("/files/c/A.txt?{query}"),
        format!("/files/c?{query}"),
        format!("/files?{query}"),
        format!("/files//c/a.txt?{query}"),
    ];
    for at in 0..query.len() {
        let other = if query.as_bytes()[at] == b'1' { "2" } else { "1" };
        bad.push(format!("{path}?{}{other}{}", &query[..at], &query[at + 1..]));
    }
    for target in bad {
        assert_eq!(server.get(&target).await, reference, "{target}");
    }
    // Parameters are a set, and what is unreserved may be encoded: the signature is over what it means.
    assert_eq!(server.get(&format!("{path}?{signature}&{expires}")).await.status, 200);
    assert_eq!(server.get(&good.replace("/c/a.txt", "/%63/%61%2Etxt")).await.status, 200);
    server.clock.set(NOW + 59);
    assert_eq!(server.get(&good).await.status, 200);
    server.clock.set(NOW + 60);
    assert_eq!(server.get(&good).await, reference);
}

#[tokio::test]
async fn planted_special_files_are_not_found_and_do_not_block() {
    let server = FileServer::new().await;
    let data = server.data();
    let plant = |to: &str, at: &str| std::os::unix::fs::symlink(to, data.join(at)).expect("a link");
    plant("../../other/files/secret.txt", "up");
    plant("/etc/passwd", "absolute");
    plant("/proc/self/environ", "magic");
    plant("a.txt", "inside");
    plant("loop", "loop");
    plant("../../other/files", "folder");
    fs::create_dir(data.join("sub")).expect("a folder");
    rustix::fs::mknodat(rustix::fs::CWD, data.join("pipe"), rustix::fs::FileType::Fifo, 0o644.into(), 0)
        .expect("a pipe");
    let _socket = std::os::unix::net::UnixListener::bind(data.join("socket")).expect("a socket");
    for name in
        ["up", "absolute", "magic", "inside", "loop", "folder/secret.txt", "sub", "pipe", "socket", "a.txt/x", "gone"]
    {
        let answer = server.get(&server.url(name)).await;
        assert_eq!(answer.status, 404, "{name}");
    }
    let pipe = server.url("pipe");
    let began = std::time::Instant::now();
    // All at once where files are opened; over the socket as many as a machine's backlog takes.
    let opened = (0..600).map(|_| server.files.open_signed(link(&pipe.parse().expect("a link"))));
    assert!(futures_util::future::join_all(opened).await.iter().all(Result::is_err));
    let answers = stream::iter((0..600).map(|_| server.get(&pipe))).buffer_unordered(64);
    assert!(answers.all(|answer| std::future::ready(answer.status == 404)).await);
    assert_eq!(server.get(&server.url("a.txt")).await.status, 200);
    // One that waited for a writer would wait for ever.
    assert!(began.elapsed() < Duration::from_mins(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn hostile_file_names_are_listed_linked_served_and_deleted() {
    let server = FileServer::new().await;
    let long = "n".repeat(255);
    let names: [&[u8]; 22] = [
        b"a\nb",
        b"a\r\nX-Evil: 1",
        b"\x1b[31mred",
        b"\xff\xfe\x80",
        long.as_bytes(),
        b"..\\..\\x",
        b"%2e%2e%2f",
        b"-rf",
        b"...",
        b" ",
        "gpj.\u{202e}exe".as_bytes(),
        "\u{e9}".as_bytes(),
        "e\u{301}".as_bytes(),
        b"\\xff\\xfe\\x80",
        b"a?b=c&d#e",
        b"a+b",
        b"<script>alert(1)<",
        b"\"",
        b"'",
        b"\x7f\x01",
        "日本語/🦀".as_bytes(),
        b"CON",
    ];
    for (index, name) in names.iter().enumerate() {
        let path = server.data().join(std::ffi::OsStr::from_bytes(name));
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, format!("bytes {index}")).expect("a file");
    }
    let list = server.files.list(&id("c")).await.expect("a list");
    assert_eq!(list.files.len(), names.len() + 1);
    for entry in list.files.iter().filter(|entry| entry.path.as_bytes() != b"a.txt") {
        assert!(!entry.path.display().chars().any(crate::domain::path::is_misleading), "{}", entry.path);
        let path = match &entry.path_encoded() {
            Some(encoded) => SafePath::from_encoded(encoded),
            None => SafePath::from_text(&entry.path.display()),
        };
        let path = path.expect("a path");
        let index = names.iter().position(|name| *name == path.as_bytes()).expect("one of ours");
        let answer = server.get(&entry.url).await;
        assert_eq!((answer.status, answer.body), (200, format!("bytes {index}").into_bytes()), "{}", entry.path);
        let read = server.files.read(&id("c"), &path, 6, 1 << 20).await.expect("read");
        assert_eq!(read.bytes, index.to_string());
        server.files.delete(&id("c"), &path, None).await.expect("deleted");
        assert_eq!(server.get(&entry.url).await.status, 404);
    }
    assert_eq!(server.files.list(&id("c")).await.expect("a list").files.len(), 1);
}

#[tokio::test]
async fn length_is_fixed_when_a_file_shrinks_or_grows() {
    let server = FileServer::new().await;
    let path = server.data().join("big.bin");
    for (len_after, whole) in [(1_u64 << 20, false), (64 << 20, true)] {
        const SIZE: u64 = 32 << 20;
        let file = fs::File::create(&path).expect("a file");
        file.set_len(SIZE).expect("a size");
        let mut stream = TcpStream::connect(server.addr).await.expect("a connection");
        let request = format!("GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", server.url("big.bin"));
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut bytes = vec![0; 4096];
        stream.read_exact(&mut bytes).await.expect("the beginning");
        file.set_len(len_after).expect("a size");
        // A reset is as good an end as any.
        let _ = stream.read_to_end(&mut bytes).await;
        let answer = Answer::parse(&bytes);
        assert_eq!(answer.header("content-length"), Some(SIZE.to_string().as_str()));
        assert_eq!(answer.body.len() as u64 == SIZE, whole);
        assert!(answer.body.len() as u64 <= SIZE);
    }
}
