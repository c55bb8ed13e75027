//! E2B's calls with E2B's own SDK, on the fake engine and with real kernels.

use mcp_sandbox_server::domain::owner::Principal;
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    mcp_clients::{client, tool},
    support::{
        FakeServer, Server,
        calls::{ask, request},
        server::TOKEN,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn the_sdk_works_unchanged() {
    let server = FakeServer::with_kernel(&[]).await;
    let base = format!("http://{}/e2b", server.address);
    client(&tool("e2b/bin/python"), &["e2b_client.py", &base, TOKEN, "fake"]).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn real_kernels_serve_the_sdk() {
    let server = Server::start().await;
    client(&tool("e2b/bin/python"), &["e2b_client.py", &server.url("/e2b"), TOKEN, "real"]).await;
    server.stop().await;
}

/// Connect's clients of other languages than Python read words only.
#[tokio::test(flavor = "multi_thread")]
async fn files_have_the_names_that_they_were_given_and_errors_connects_words() {
    const NAME: &str = "/home/user/folder/a\u{ad}b.txt";
    let server = FakeServer::start().await;
    let post = async |path: &str, sandbox: &str, body: Value| {
        let call = server.http.post(format!("http://{}/e2b/{path}", server.address)).header("x-access-token", TOKEN);
        let answer = call.header("E2b-Sandbox-Id", sandbox).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let (_, opened) = post("sandboxes", "", json!({})).await;
    let id = opened["sandboxID"].as_str().expect("an id");
    let files = server.http.post(format!("http://{}/e2b/files", server.address)).query(&[("path", NAME)]);
    let files = files.header("x-access-token", TOKEN).header("E2b-Sandbox-Id", id).body("text");
    let written: Value = files.send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(written[0]["path"], NAME, "{written}");
    let (_, listed) = post("filesystem.Filesystem/ListDir", id, json!({"path": "/home/user/folder"})).await;
    assert_eq!(listed["entries"][0]["path"], NAME, "{listed}");
    let step = json!({"source": NAME, "destination": "/home/user/other/b.txt"});
    let (status, moved) = post("filesystem.Filesystem/Move", id, step.clone()).await;
    assert_eq!(
        (status, &moved["entry"]["type"], &moved["entry"]["size"]),
        (200, &json!("FILE_TYPE_FILE"), &json!("4"))
    );
    let folder = json!({"source": "other", "destination": "last"});
    let (status, moved) = post("filesystem.Filesystem/Move", id, folder).await;
    assert_eq!((status, &moved["entry"]["type"]), (200, &json!("FILE_TYPE_DIRECTORY")), "{moved}");
    let (status, home) = post("filesystem.Filesystem/Stat", id, json!({"path": "/home/user"})).await;
    let entry = &home["entry"];
    assert_eq!((status, &entry["path"], &entry["type"]), (200, &json!("/home/user"), &json!("FILE_TYPE_DIRECTORY")));
    for (call, sandbox, body, expected) in [
        ("filesystem.Filesystem/MakeDir", id, json!({"path": "/home/user"}), (409, "already_exists")),
        ("filesystem.Filesystem/Remove", id, json!({"path": "/home/user"}), (400, "invalid_argument")),
        ("filesystem.Filesystem/Move", id, step, (404, "not_found")),
        ("filesystem.Filesystem/Stat", id, json!({"path": NAME}), (404, "not_found")),
        ("filesystem.Filesystem/Stat", id, json!({"path": "../x"}), (400, "invalid_argument")),
        ("filesystem.Filesystem/Stat", "none", json!({"path": "x"}), (502, "unavailable")),
        ("process.Process/Start", "none", json!({}), (502, "unavailable")),
    ] {
        let (status, why) = post(call, sandbox, body).await;
        assert_eq!((status, why["code"].as_str()), (expected.0, Some(expected.1)), "{call}: {why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_member_of_the_request() {
    let server = FakeServer::start().await;
    let (_, opened) = ask(&server, Method::POST, "/e2b/sandboxes", json!({})).await;
    let id = opened["sandboxID"].as_str().expect("an id");
    let (start, rename) = ("process.Process/Start", "filesystem.Filesystem/Move");
    for (call, body, name) in [
        ("sandboxes", json!({"envVars": {"A": "b"}}), "envVars"),
        ("contexts", json!({"cwd": "/etc"}), "cwd"),
        (rename, json!({"source": "/etc/a", "destination": "a"}), "source"),
        (rename, json!({"source": "a", "destination": "/etc/a"}), "destination"),
        (rename, json!({"source": "a", "destination": "a/b"}), "destination"),
        (start, json!({"process": {}}), "process.cmd"),
        (start, json!({"process": {"cmd": "ls", "cwd": "/etc"}}), "process.cwd"),
        (start, json!({"process": {"cmd": "ls", "envs": {"A": "b"}}}), "process.envs"),
        (start, json!({"process": {"cmd": "bash", "args": ["-c", "x".repeat(2 << 20)]}}), "process.args"),
    ] {
        let message = body.to_string();
        let length = u32::try_from(message.len()).expect("a length").to_be_bytes();
        let head = if call == start { [&[0_u8][..], &length].concat() } else { Vec::new() };
        let request = request(&server, TOKEN, Method::POST, &format!("/e2b/{call}")).header("e2b-sandbox-id", id);
        let request = request.header("content-type", "application/json").body([head, message.into()].concat());
        let answer = request.send().await.expect("an answer");
        let (status, why) = (answer.status(), answer.json::<Value>().await.expect("JSON"));
        let said = why["message"].as_str().expect("a sentence");
        assert!(status == 400 && said.starts_with(&format!("{name}: ")), "{call} {name}: {status} {said}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_made_once_within_the_quota_and_by_no_program() {
    let server = FakeServer::with(&[("SANDBOX_QUOTA__ENTRIES_MAX", "10")]).await;
    let (_, opened) = ask(&server, Method::POST, "/e2b/sandboxes", json!({})).await;
    let id = opened["sandboxID"].as_str().expect("an id");
    let make = async |path: &str| {
        let call = request(&server, TOKEN, Method::POST, "/e2b/filesystem.Filesystem/MakeDir");
        let call = call.header("e2b-sandbox-id", id).json(&json!({"path": path}));
        let answer = call.send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let (status, answer) = make("/home/user/a/b").await;
    let entry = &answer["entry"];
    assert_eq!((status, &entry["path"]), (200, &json!("/home/user/a/b")), "{answer}");
    assert_eq!(entry["type"], "FILE_TYPE_DIRECTORY", "{answer}");
    let files = server.root.join(id).join("files");
    assert!(files.join("a/b").is_dir());
    std::fs::write(files.join("file"), "").expect("written");
    for (path, expected) in [
        ("a/b", (409, "already_exists")),
        ("/home/user/a/", (409, "already_exists")),
        ("file", (400, "invalid_argument")),
        ("file/c", (400, "invalid_argument")),
        ("1/2/3/4/5/6/7/8/9/10/11", (507, "resource_exhausted")),
    ] {
        let (status, why) = make(path).await;
        assert_eq!((status, why["code"].as_str()), (expected.0, Some(expected.1)), "{path}: {why}");
    }
    assert!(!files.join("1").exists());
    assert_eq!(make("a/c").await.0, 200, "there is room for it");
    assert!(server.mcp.runs.list(&Principal::default(), None, None, 1).runs.is_empty());
    server.stop().await;
}

/// A second file with a path is refused, as by E2B, so that none replaces another of the same form.
#[tokio::test(flavor = "multi_thread")]
async fn a_form_writes_each_path_once() {
    let server = FakeServer::start().await;
    let (_, opened) = ask(&server, Method::POST, "/e2b/sandboxes", json!({})).await;
    let id = opened["sandboxID"].as_str().expect("an id");
    let file = |name: &str, text: &str| {
        format!("--cut\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\n\r\n{text}\r\n")
    };
    let write = async |query: &str, files: &[String; 2]| {
        let call = request(&server, TOKEN, Method::POST, &format!("/e2b/files{query}")).header("e2b-sandbox-id", id);
        let call = call.header("content-type", "multipart/form-data; boundary=cut");
        let answer = call.body(format!("{}--cut--\r\n", files.concat())).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let read = async |path: &str| {
        let call = request(&server, TOKEN, Method::GET, &format!("/e2b/files?path={path}"));
        let answer = call.header("e2b-sandbox-id", id).send().await.expect("an answer");
        answer.text().await.expect("text")
    };
    let two = [file("a", "first"), file("b", "second")];
    let same = [file("c", "first"), file("/home/user/c", "second")];
    for (query, files, path) in [("?path=one", &two, "one"), ("", &same, "c")] {
        let (status, why) = write(query, files).await;
        assert_eq!((status, &why["code"]), (400, &json!(400)), "{query}: {why}");
        assert!(why["message"].as_str().is_some_and(|why| why.starts_with("path: two files")), "{query}: {why}");
        assert_eq!(read(path).await, "first", "{query}");
    }
    let (status, written) = write("", &two).await;
    assert_eq!((status, &written[1]["path"]), (200, &json!("/home/user/b")), "{written}");
    assert_eq!((read("a").await, read("b").await), ("first".to_owned(), "second".to_owned()));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_its_owners_alone() {
    let server = FakeServer::with_kernel(&[]).await;
    let url = |path: &str| format!("http://{}{path}", server.address);
    let call = async |method: Method, path: &str, key: (&str, &str), sandbox: &str, body: Value| {
        let call = server.http.request(method, url(path)).header(key.0, key.1).header("E2b-Sandbox-Id", sandbox);
        let answer = call.json(&body).send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.json::<Value>().await.unwrap_or_default())
    };
    let bearer = format!("Bearer {TOKEN}");
    let made = call(Method::POST, "/v1/tokens", ("authorization", &bearer), "", json!({"owner": "other", "name": "t"}));
    let made = made.await.1;
    let other = made["token"].as_str().expect("a token");

    let (status, opened) =
        call(Method::POST, "/e2b/v2/sandboxes", ("x-api-key", TOKEN), "", json!({"timeout": 60})).await;
    assert_eq!(status, 201, "{opened}");
    let id = opened["sandboxID"].as_str().expect("an id");
    for (path, method) in [("/e2b/health", Method::GET), ("/e2b/contexts", Method::GET), ("/e2b/execute", Method::POST)]
    {
        let body = json!({"code": "get x"});
        for (key, expected) in [(("x-access-token", other), 502), (("x-access-token", "wrong"), 401), (("x", "y"), 401)]
        {
            let (status, why) = call(method.clone(), path, key, id, body.clone()).await;
            assert_eq!(status, expected, "{path} {key:?}: {why}");
            assert_eq!(why["code"], expected, "{why}");
        }
    }
    assert_eq!(call(Method::GET, "/e2b/v2/sandboxes", ("x-api-key", other), "", json!({})).await.1, json!([]));
    for (method, path) in [(Method::GET, ""), (Method::DELETE, ""), (Method::POST, "/timeout")] {
        let path = format!("/e2b/sandboxes/{id}{path}");
        assert_eq!(call(method, &path, ("x-api-key", other), "", json!({"timeout": 0})).await.0, 404, "{path}");
    }
    let traffic = ("e2b-traffic-access-token", TOKEN);
    assert_eq!(call(Method::GET, "/e2b/health", traffic, id, json!({})).await.0, 204);
    for (path, body) in [
        ("/e2b/filesystem.Filesystem/Remove", json!({"path": "/etc/passwd"})),
        ("/e2b/filesystem.Filesystem/Stat", json!({"path": "../x"})),
        ("/e2b/execute", json!({"code": "x", "env_vars": {"PATH": "/"}})),
        ("/e2b/execute", json!({"code": "x", "context_id": "session-0"})),
        ("/e2b/contexts", json!({"cwd": "/etc"})),
    ] {
        let (status, why) = call(Method::POST, path, traffic, id, body.clone()).await;
        assert!(matches!(status, 400 | 404) && why["message"].is_string(), "{path} {body}: {status} {why}");
    }
    let timeout = format!("/e2b/sandboxes/{id}/timeout");
    assert_eq!(call(Method::POST, &timeout, ("x-api-key", TOKEN), "", json!({"timeout": 0})).await.0, 204);
    assert_eq!(call(Method::GET, "/e2b/health", traffic, id, json!({})).await.0, 502, "it expired");
    let mut refused = None;
    for _ in 0..101 {
        let (status, _) = call(Method::POST, "/e2b/sandboxes", ("x-api-key", other), "", json!({})).await;
        refused = Some(status).filter(|status| *status != 201);
    }
    assert_eq!(refused, Some(429), "an owner holds a bounded number");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_with_a_key_makes_one_sandbox() {
    let server = FakeServer::start().await;
    let create = async |key: &str, body: Value| {
        let request = request(&server, TOKEN, Method::POST, "/e2b/v2/sandboxes").header("idempotency-key", key);
        let answer = request.json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.expect("JSON"))
    };
    let body = json!({"timeout": 60, "metadata": {"a": "b"}});
    let both = futures_util::future::join(create("first", body.clone()), create("first", body.clone()));
    let ((status, made), again) = both.await;
    assert_eq!((status, &(201, made.clone())), (201, &again));
    let (status, other) = create("first", json!({"timeout": 61})).await;
    assert_eq!((status, &other["code"]), (422, &json!(422)), "the key is another request's: {other}");
    let (status, second) = create("second", body.clone()).await;
    assert_eq!(status, 201, "{second}");
    assert_ne!(second["sandboxID"], made["sandboxID"]);
    assert_eq!(ask(&server, Method::GET, "/e2b/v2/sandboxes", None).await.1.as_array().map(Vec::len), Some(2));
    let path = format!("/e2b/sandboxes/{}", made["sandboxID"].as_str().expect("an id"));
    assert_eq!(ask(&server, Method::DELETE, &path, None).await.0, 204);
    assert_eq!(create("first", body).await.0, 404, "no second one is made when the first is gone");
    server.stop().await;
}
