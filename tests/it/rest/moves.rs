//! Moving files and folders over `/v1`.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt as _};

use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::{call, refused};
use crate::support::FakeServer;

const OF_F: &str = "/v1/conversations/f";

async fn rename(server: &FakeServer, body: Value, if_match: Option<&str>) -> Response {
    let request = call(server, Method::POST, &format!("{OF_F}/move")).json(&body);
    let request = if_match.into_iter().fold(request, |request, etag| request.header("if-match", etag));
    request.send().await.expect("an answer")
}

async fn moved(server: &FakeServer, body: Value) -> Value {
    let answer = rename(server, body, None).await;
    assert_eq!(answer.status(), 200);
    answer.json().await.expect("JSON")
}

/// Returns the validator.
async fn put(server: &FakeServer, path: &str, text: &'static str) -> String {
    let put = call(server, Method::PUT, &format!("{OF_F}/files/{path}")).body(text);
    let answer = put.send().await.expect("an answer");
    assert_eq!(answer.status(), 201);
    answer.headers()["etag"].to_str().expect("text").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_folders_are_moved_as_they_are() {
    let server = FakeServer::start().await;
    let folder = server.root.join("f/files");
    let etag = put(&server, "a", "one").await;
    let answer = rename(&server, json!({"from": "/data/a", "to": "x/y/b.txt"}), Some(&etag)).await;
    assert_eq!(answer.status(), 200);
    let etag = answer.headers()["etag"].to_str().expect("text").to_owned();
    let file: Value = answer.json().await.expect("JSON");
    assert_eq!((&file["path"], &file["file"]["size"]), (&json!("x/y/b.txt"), &json!(3)), "{file}");
    assert_eq!(file["file"]["path"], "x/y/b.txt");
    let read = call(&server, Method::GET, &format!("{OF_F}/files/x/y/b.txt")).header("if-match", etag).send().await;
    assert_eq!(read.expect("an answer").text().await.expect("text"), "one");
    assert!(!folder.join("a").exists());

    let whole = moved(&server, json!({"from": "x", "to": "z/x"})).await;
    assert_eq!(whole, json!({"path": "z/x"}));
    fs::write(folder.join(OsStr::from_bytes(b"\xff")), "bytes").expect("a file");
    let odd = moved(&server, json!({"from": "%ff", "to": "z/%fe", "encoded": true})).await;
    assert_eq!((&odd["path"], &odd["pathEncoded"]), (&json!("z/\\xfe"), &json!("z/%FE")), "{odd}");
    assert_eq!(fs::read_to_string(folder.join("z/x/y/b.txt")).expect("the file"), "one");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_moves_change_nothing() {
    let server = FakeServer::start().await;
    let folder = server.root.join("f/files");
    put(&server, "a", "one").await;
    put(&server, "b", "two").await;
    put(&server, "d/c", "three").await;
    let invalid = (422, "invalid_argument");
    let unmet = (412, "precondition_failed");
    for (body, if_match, expected) in [
        (json!({"from": "none", "to": "new/x"}), None, (404, "file_not_found")),
        (json!({"from": "a", "to": "b"}), None, unmet),
        (json!({"from": "a", "to": "x"}), Some("\"0\""), unmet),
        (json!({"from": "d", "to": "x"}), Some("*"), unmet),
        (json!({"from": "a", "to": "d"}), None, (409, "not_a_file")),
        (json!({"from": "a", "to": "d", "replace": true}), None, (409, "not_a_file")),
        (json!({"from": "a", "to": "b/x"}), None, (409, "not_a_file")),
        (json!({"from": "d", "to": "d/c/in"}), None, invalid),
        (json!({"from": "..", "to": "x"}), None, invalid),
        (json!({"from": "a", "to": "../x"}), None, invalid),
        (json!({"from": "a", "to": "/etc/x"}), None, invalid),
        (json!({"from": "a", "to": ""}), None, invalid),
        (json!({"from": "a"}), None, invalid),
        (json!({"from": "a", "to": "x%2f..%2f..", "encoded": true}), None, invalid),
        (json!({"from": "a", "to": "%g0", "encoded": true}), None, invalid),
        (json!({"from": "a", "to": "x", "force": true}), None, invalid),
        (json!({"from": "a", "to": "x", "replace": "yes"}), None, invalid),
    ] {
        let (status, code) = refused(rename(&server, body.clone(), if_match).await).await;
        assert_eq!((status, code.as_str()), expected, "{body} {if_match:?}");
    }
    let named: Value = rename(&server, json!({"from": "a", "to": "a/b"}), None).await.json().await.expect("JSON");
    assert_eq!(named["param"], "to", "{named}");
    let elsewhere = call(&server, Method::POST, "/v1/conversations/none/move").json(&json!({"from": "a", "to": "b"}));
    let elsewhere = refused(elsewhere.send().await.expect("an answer")).await;
    assert_eq!(elsewhere, (404, "conversation_not_found".to_owned()));
    assert!(!server.root.join("none").exists() && !folder.join("new").exists());
    for (name, text) in [("a", "one"), ("b", "two"), ("d/c", "three")] {
        assert_eq!(fs::read_to_string(folder.join(name)).expect("the file"), text);
    }
    let replaced = moved(&server, json!({"from": "a", "to": "b", "replace": true})).await;
    assert_eq!(replaced["file"]["size"], 3);
    assert_eq!(fs::read_to_string(folder.join("b")).expect("the file"), "one");
    assert!(!folder.join("a").exists());
    server.stop().await;
}
