//! Contents: a conversation's files in Jupyter's form.

use std::os::unix::fs::symlink;

use reqwest::Method;
use serde_json::{Value, json};

use super::{call, get};
use crate::support::FakeServer;

const ROOT: &str = "/c/mine/api/contents";

async fn put(server: &FakeServer, name: &str, body: Value) -> (u16, Value) {
    let (status, _, body) = call(server, Method::PUT, &format!("{ROOT}/{name}"), Some(body)).await;
    (status, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_saved_listed_renamed_and_deleted() {
    let server = FakeServer::with_kernel(&[]).await;
    assert_eq!(get(&server, ROOT).await["content"], json!([]), "a conversation without files");
    let text = json!({"type": "file", "format": "text", "content": "a\n"});
    assert_eq!(put(&server, "d/e/a%20b.txt", text.clone()).await.0, 201);
    assert_eq!(put(&server, "d/e/a%20b.txt", text.clone()).await.0, 200, "it is there");
    let bytes = json!({"type": "file", "format": "base64", "content": "AP8=\n"});
    assert_eq!(put(&server, "bytes", bytes).await.1["size"], 2);
    let notebook = json!({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5});
    let saved = put(&server, "n.ipynb", json!({"type": "notebook", "format": "json", "content": notebook})).await;
    assert_eq!((saved.0, &saved.1["type"], &saved.1["content"]), (201, &json!("notebook"), &Value::Null));

    let top = get(&server, &format!("{ROOT}/?content=1")).await;
    let shown = |list: &Value| -> Vec<(String, String)> {
        let text = |item: &Value, name: &str| item[name].as_str().expect("text").to_owned();
        list.as_array().expect("a list").iter().map(|item| (text(item, "path"), text(item, "type"))).collect()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(path, kind)| ((*path).to_owned(), (*kind).to_owned())).collect()
    };
    let expected = [("bytes", "file"), ("d", "directory"), ("n.ipynb", "notebook")];
    assert_eq!((shown(&top["content"]), &top["format"]), (pairs(&expected), &json!("json")));
    assert_eq!(get(&server, &format!("{ROOT}?content=0")).await["content"], Value::Null);
    let folder = get(&server, &format!("{ROOT}/d")).await;
    assert_eq!((shown(&folder["content"]), &folder["name"]), (pairs(&[("d/e", "directory")]), &json!("d")));

    let file = get(&server, &format!("{ROOT}/d/e/a%20b.txt")).await;
    assert_eq!(
        (&file["content"], &file["format"], &file["mimetype"]),
        (&json!("a\n"), &json!("text"), &json!("text/plain"))
    );
    assert_eq!(get(&server, &format!("{ROOT}/bytes")).await["content"], "AP8=");
    assert_eq!(get(&server, &format!("{ROOT}/n.ipynb")).await["content"], notebook);
    assert_eq!(get(&server, &format!("{ROOT}/n.ipynb?type=file&format=text")).await["type"], "file");
    assert_eq!(get(&server, &format!("{ROOT}/n.ipynb/checkpoints")).await, json!([]));

    let rename = async |from: &str, to: &str| {
        call(&server, Method::PATCH, &format!("{ROOT}/{from}"), Some(json!({"path": to}))).await
    };
    assert_eq!(rename("bytes", "n.ipynb").await.0, 409, "there is one");
    let (status, _, renamed) = rename("bytes", "/x/y").await;
    assert_eq!((status, &renamed["path"]), (200, &json!("x/y")));
    assert_eq!(get(&server, &format!("{ROOT}/x/y")).await["content"], "AP8=");
    let (status, _, renamed) = rename("x", "moved/x").await;
    assert_eq!((status, &renamed["path"], &renamed["type"]), (200, &json!("moved/x"), &json!("directory")));
    assert_eq!(rename("moved/x", "d").await.0, 409, "there is a folder");
    let (status, _, why) = rename("d", "d/inside").await;
    assert!(status == 400 && why["message"].as_str().is_some_and(|why| why.starts_with("path: it is inside")), "{why}");
    assert_eq!(get(&server, &format!("{ROOT}/moved/x/y")).await["content"], "AP8=");
    assert_eq!(rename("moved/x", "x").await.0, 200);
    assert_eq!(call(&server, Method::DELETE, &format!("{ROOT}/x"), None).await.0, 204);
    symlink("none", server.root.join("mine/files/link")).expect("a link");
    assert_eq!(put(&server, "link", text.clone()).await.0, 200, "it replaces the link");
    for (method, path, body, expected) in [
        (Method::GET, "bytes", None, 404),
        (Method::GET, "x", None, 404),
        (Method::DELETE, "x", None, 404),
        (Method::PATCH, "x", Some(json!({"path": "z"})), 404),
        (Method::PATCH, "n.ipynb", Some(json!({"path": "../z"})), 400),
        (Method::PUT, "..%2Fz", Some(text), 400),
        (Method::PUT, "z", Some(json!({"type": "directory"})), 400),
        (Method::PUT, "z", Some(json!({"type": "file", "format": "base64", "content": "?"})), 400),
        (Method::PUT, "z", Some(json!({"type": "file", "format": "text", "content": 1})), 400),
        (Method::PUT, "z", Some(json!({"type": "file", "content": "no format"})), 400),
        (Method::PUT, "z", Some(json!({"type": "file", "format": "text", "content": "a", "chunk": 1})), 400),
        (Method::PUT, "z", None, 400),
        (Method::POST, "z", Some(json!({"type": "directory"})), 400),
        (Method::POST, "z", Some(json!({"ext": "/../../z"})), 400),
        (Method::POST, "z", Some(json!({"copy_from": "../z"})), 400),
        (Method::POST, "z", Some(json!({"copy_from": "missing"})), 404),
        (Method::POST, "n.ipynb/checkpoints", None, 400),
    ] {
        let (status, _, why) = call(&server, method.clone(), &format!("{ROOT}/{path}"), body).await;
        assert_eq!((status, why["message"].is_string()), (expected, true), "{method} {path}: {why}");
    }
    assert_eq!(get(&server, "/api/contents").await["content"], json!([]), "another conversation");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn new_files_and_copies_get_names_that_are_free() {
    let server = FakeServer::with_kernel(&[]).await;
    let original = json!({"type": "file", "format": "text", "content": "a,b\n"});
    assert_eq!(put(&server, "d/data.tar.csv", original).await.0, 201);
    for (folder, body, name) in [
        ("", None, "untitled"),
        ("", Some(json!({})), "untitled1"),
        ("/", Some(json!({"type": "file", "ext": ".py"})), "untitled.py"),
        ("/", Some(json!({"type": "notebook"})), "Untitled.ipynb"),
        ("/d", Some(json!({"ext": ".ipynb"})), "d/Untitled.ipynb"),
        ("/d", Some(json!({"type": "notebook"})), "d/Untitled1.ipynb"),
        ("/d", Some(json!({"copy_from": "d/data.tar.csv"})), "d/data.tar-Copy1.csv"),
        ("/d", Some(json!({"copy_from": "/d/data.tar-Copy1.csv"})), "d/data.tar-Copy2.csv"),
        ("", Some(json!({"copy_from": "d/data.tar-Copy1.csv"})), "data.tar.csv"),
        ("/d/new", Some(json!({"copy_from": "d/Untitled.ipynb"})), "d/new/Untitled.ipynb"),
    ] {
        let (status, location, model) = call(&server, Method::POST, &format!("{ROOT}{folder}"), body.clone()).await;
        assert_eq!((status, &model["path"]), (201, &json!(name)), "{folder} {body:?}: {model}");
        assert_eq!(location, format!("/jupyter{ROOT}/{name}"));
        let kind = if name.ends_with("ipynb") { "notebook" } else { "file" };
        let read = get(&server, &format!("{ROOT}/{name}")).await;
        assert_eq!((&model["type"], &read["type"]), (&json!(kind), &json!(kind)), "{read}");
        let content = match (kind, name.contains("data")) {
            ("notebook", _) => json!({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}),
            (_, true) => json!("a,b\n"),
            _ => json!(""),
        };
        assert_eq!(read["content"], content, "{name}");
    }
    server.stop().await;
}

/// An invisible character was escaped, and of a path longer than 512 bytes the middle was left out.
#[tokio::test(flavor = "multi_thread")]
async fn path_of_an_answer_leads_back_to_its_file() {
    let server = FakeServer::with_kernel(&[]).await;
    let text = json!({"type": "file", "format": "text", "content": "a"});
    for path in ["a\u{ad}b.txt".to_owned(), ["x", "y", "z"].map(|name| name.repeat(200)).join("/")] {
        let (status, saved) = put(&server, &path, text.clone()).await;
        assert_eq!((status, &saved["path"]), (201, &json!(path)), "{saved}");
        assert_eq!(get(&server, &format!("{ROOT}/{path}")).await["path"], path);
    }
    let listed = get(&server, ROOT).await;
    assert_eq!(listed["content"][0]["path"], "a\u{ad}b.txt", "{listed}");
    server.stop().await;
}
