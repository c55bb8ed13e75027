//! A conversation's folder as a tar archive: export, import, and hostile archives.

use std::io::Read as _;

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, refused};
use crate::support::FakeServer;

#[tokio::test(flavor = "multi_thread")]
async fn folder_is_exported_and_imported_as_a_tar() {
    let server = FakeServer::start().await;
    let long = format!("{}/{}/{}.txt", "a".repeat(120), "b".repeat(120), "c".repeat(60));
    let files = [("x.txt", "one".to_owned()), ("d/e.bin", "y".repeat(200_000)), (long.as_str(), String::new())];
    for (path, content) in &files {
        let path = format!("/v1/conversations/out/files/{path}");
        let answer = call(&server, Method::PUT, &path).body(content.clone()).send().await.expect("an answer");
        assert_eq!(answer.status(), 201);
    }
    std::os::unix::fs::symlink("/etc/passwd", server.root.join("out/files/link")).expect("a link");
    let read = call(&server, Method::GET, "/v1/conversations/out/archive").send().await.expect("an answer");
    assert_eq!(read.headers()["content-type"], "application/x-tar");
    let bytes = read.bytes().await.expect("bytes");
    let mut archive = tar::Archive::new(&bytes[..]);
    let mut seen = Vec::new();
    for entry in archive.entries().expect("entries") {
        let mut entry = entry.expect("an entry");
        let mut content = String::new();
        entry.read_to_string(&mut content).expect("text");
        seen.push((entry.path().expect("a path").display().to_string(), content));
    }
    let mut expected: Vec<_> = files.iter().map(|(path, content)| ((*path).to_owned(), content.clone())).collect();
    expected.sort();
    assert_eq!(seen, expected);
    let put = call(&server, Method::PUT, "/v1/conversations/in/archive").header("content-type", "application/x-tar");
    let written: Value = put.body(bytes).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(written, json!({"files": 3, "bytes": 200_003}));
    for (path, content) in &files {
        assert_eq!(&std::fs::read_to_string(server.root.join("in/files").join(path)).expect("a file"), content);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_would_leave_files_out_is_refused() {
    let server = FakeServer::start().await;
    let put = call(&server, Method::PUT, "/v1/conversations/d/files/a").body("one").send().await.expect("an answer");
    assert_eq!(put.status(), 201);
    let folder = |levels: usize| server.root.join("d/files").join(vec!["d"; levels].join("/"));
    std::fs::create_dir_all(folder(31)).expect("folders");
    std::fs::write(folder(31).join("f"), "x").expect("a file");
    let read = async || call(&server, Method::GET, "/v1/conversations/d/archive").send().await.expect("an answer");
    let bytes = read().await.bytes().await.expect("bytes");
    assert_eq!(tar::Archive::new(&bytes[..]).entries().expect("entries").count(), 2);
    std::fs::create_dir(folder(32)).expect("a folder");
    std::fs::write(folder(32).join("f"), "x").expect("a file");
    assert_eq!(refused(read().await).await, (413, "too_large".to_owned()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_downloads_the_archive_without_a_token() {
    let server = FakeServer::start().await;
    let link = async |conversation: &str| {
        let path = format!("/v1/conversations/{conversation}/archive/link");
        call(&server, Method::POST, &path).send().await.expect("an answer")
    };
    assert_eq!(refused(link("f").await).await, (404, "conversation_not_found".to_owned()));
    let put = call(&server, Method::PUT, "/v1/conversations/f/files/a").body("one").send().await.expect("an answer");
    let file: Value = put.json().await.expect("JSON");
    let made: Value = link("f").await.json().await.expect("JSON");
    assert!(made["urlExpiresAt"].is_string(), "{made}");
    let url = made["url"].as_str().expect("a link");
    let read = server.http.get(url).send().await.expect("an answer");
    assert_eq!(read.status(), 200);
    assert_eq!(read.headers()["content-type"], "application/x-tar");
    assert_eq!(read.headers()["content-disposition"], "attachment; filename=\"f.tar\"");
    let bytes = read.bytes().await.expect("bytes");
    let mut archive = tar::Archive::new(&bytes[..]);
    let names =
        archive.entries().expect("entries").map(|entry| entry.expect("an entry").path().expect("a path").into());
    assert_eq!(names.collect::<Vec<std::path::PathBuf>>(), [std::path::PathBuf::from("a")]);

    let to_file = file["url"].as_str().expect("a link");
    for forged in [
        url.replace("/files/f?", "/files/g?"),
        url.replace("/files/f?", "/files/@ann/f?"),
        url.replace("/files/f?", "/files/f/?"),
        url.replace("/files/f?", "/files/f/a?"),
        url.replace("&sig=", "&max=9&sig="),
        to_file.replace("/files/f/a?", "/files/f?"),
    ] {
        assert_eq!(server.http.get(&forged).send().await.expect("an answer").status(), 403, "{forged}");
    }
    assert_eq!(server.http.put(url).body("x").send().await.expect("an answer").status(), 405);
    server.stop().await;
}

/// One entry, written by hand: the builder refuses to make what an attacker sends.
fn entry(kind: tar::EntryType, name: &[u8], link: &[u8], size: u64, content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(0o4777);
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_tar_writes_no_file() {
    use tar::EntryType as Kind;
    let server = FakeServer::start().await;
    let good = entry(Kind::Regular, b"good.txt", b"", 4, b"good");
    let file = |name: &[u8]| entry(Kind::Regular, name, b"", 1, b"x");
    let of = |kind| entry(kind, b"bad", b"/etc/passwd", 0, b"");
    let deep: Vec<u8> = b"a/".repeat(45);
    let rows: Vec<(&str, Vec<u8>)> = vec![
        ("absolute", file(b"/etc/evil")),
        ("dots", file(b"../evil")),
        ("dots inside", file(b"a/../../evil")),
        ("dots at the end", file(b"a/..")),
        ("empty name inside", file(b"a//b")),
        ("no name", file(b"")),
        ("too deep", file(&deep)),
        ("symbolic link", of(Kind::Symlink)),
        ("hard link", of(Kind::Link)),
        ("pipe", of(Kind::Fifo)),
        ("character device", of(Kind::Char)),
        ("block device", of(Kind::Block)),
        ("sparse", of(Kind::GNUSparse)),
        ("unknown kind", of(Kind::new(b'Z'))),
        ("a huge size", entry(Kind::Regular, b"bad", b"", 1 << 40, b"x")),
        ("longer than one file may be", entry(Kind::Regular, b"bad", b"", 9 << 20, &vec![0; 9 << 20])),
        ("cut short", entry(Kind::Regular, b"bad", b"", 4000, b"x")),
        ("a file and a folder", [file(b"a"), file(b"a/b")].concat()),
        ("a folder and a file", [entry(Kind::Directory, b"a/", b"", 0, b""), file(b"a")].concat()),
        ("not a tar", vec![7; 2048]),
        ("a broken checksum", {
            let mut bytes = file(b"x");
            bytes[0] = b'y';
            bytes
        }),
        ("many entries", file(b"x").repeat(10_001)),
    ];
    for (what, bad) in rows {
        let put = call(&server, Method::PUT, "/v1/conversations/t/archive").header("content-type", "application/x-tar");
        let response = put.body([good.clone(), bad].concat()).send().await.expect("an answer");
        let status = response.status().as_u16();
        assert_eq!(status, 422, "{what}");
        assert_eq!(refused(response).await.1, "bad_archive", "{what}");
        assert!(!server.root.join("t").exists(), "{what}: nothing was written");
    }
    for (what, kind, status) in [("compressed", "application/gzip", 415), ("json", "application/json", 415)] {
        let put = call(&server, Method::PUT, "/v1/conversations/t/archive").header("content-type", kind);
        assert_eq!(put.body(good.clone()).send().await.expect("an answer").status(), status, "{what}");
    }
    server.stop().await;
}
