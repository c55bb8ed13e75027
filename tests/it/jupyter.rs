//! Jupyter's API on the fake engine: models and statuses, tokens, messages, and the clients of one kernel.

mod connections;
mod contents;
mod direct;
mod figures;
mod shared;
mod waiting;

use std::{
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

use mcp_sandbox_server::domain::{error::Code, owner::Principal};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    fake::StartFault,
    support::{
        FakeServer,
        server::TOKEN,
        socket::{Socket, V1, text},
        until,
    },
};

/// An answer: its status, its `Location` and its body.
async fn call(server: &FakeServer, method: Method, path: &str, body: Option<Value>) -> (u16, String, Value) {
    let url = format!("http://{}/jupyter{path}", server.address);
    let request = server.http.request(method, url).header("authorization", format!("token {TOKEN}"));
    let request = match body {
        Some(body) => request.body(body.to_string()),
        None => request.header("content-type", "application/octet-stream"),
    };
    let response = request.send().await.expect("an answer");
    let status = response.status().as_u16();
    let location = response.headers().get("location").map(|to| to.to_str().expect("text").to_owned());
    let bytes = response.bytes().await.expect("a body");
    let body = if bytes.is_empty() { Value::Null } else { serde_json::from_slice(&bytes).expect("JSON") };
    (status, location.unwrap_or_default(), body)
}

async fn get(server: &FakeServer, path: &str) -> Value {
    let (status, _, body) = call(server, Method::GET, path, None).await;
    assert_eq!(status, 200, "{path}: {body}");
    body
}

/// The id of a new kernel.
async fn start(server: &FakeServer, below: &str) -> String {
    let (status, location, kernel) = call(server, Method::POST, &format!("{below}/api/kernels"), None).await;
    assert_eq!(status, 201, "{kernel}");
    let id = kernel["id"].as_str().expect("an id").to_owned();
    assert_eq!(location, format!("/jupyter{below}/api/kernels/{id}"));
    id
}

/// A WebSocket of a kernel, with a query.
async fn socket(server: &FakeServer, kernel: &str, query: &str) -> Socket {
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{kernel}/channels?{query}");
    Socket::connect(server.address, &path, &[]).await.expect("a connection")
}

#[tokio::test(flavor = "multi_thread")]
async fn kernels_have_jupyters_models_and_statuses() {
    let server = FakeServer::with_kernel(&[]).await;
    assert!(get(&server, "/api").await["version"].is_string());
    let specs = get(&server, "/api/kernelspecs").await;
    assert_eq!((&specs["default"], &specs["kernelspecs"]["fake"]["name"]), (&json!("fake"), &json!("fake")));
    assert_eq!(specs["kernelspecs"]["fake"]["spec"]["language"], "python");
    assert!(specs["kernelspecs"]["bash"].is_null(), "it has no kernel");
    assert_eq!(get(&server, "/api/kernelspecs/python").await["spec"]["argv"], json!([]));

    let id = start(&server, "").await;
    let kernel = get(&server, &format!("/api/kernels/{id}")).await;
    for (member, value) in [("name", json!("fake")), ("execution_state", json!("idle")), ("connections", json!(0))] {
        assert_eq!(kernel[member], value, "{kernel}");
    }
    let foreign = json!({"name": "fake", "env": {"KERNEL_WORKING_DIR": "/home/x"}, "path": null, "what": [1]});
    let (status, _, second) = call(&server, Method::POST, "/api/kernels", Some(foreign)).await;
    assert_eq!((status, second["id"] == kernel["id"]), (201, false), "each kernel is a session of its own");
    assert_eq!(get(&server, "/api/kernels/").await.as_array().map(Vec::len), Some(2));
    let status = get(&server, "/api/status").await;
    assert_eq!(status["kernels"], 2);
    let started = status["started"].clone();

    let path = format!("/api/kernels/{id}");
    assert_eq!(call(&server, Method::POST, &format!("{path}/interrupt"), None).await.0, 204);
    let (status, _, again) = call(&server, Method::POST, &format!("{path}/restart"), Some(json!({}))).await;
    assert_eq!((status, &again["id"]), (200, &json!(id)));
    assert_eq!(get(&server, "/api/status").await["started"], started, "that of the server");
    assert_eq!(call(&server, Method::GET, &format!("{path}/channels"), None).await.0, 400, "no WebSocket");
    assert_eq!(call(&server, Method::DELETE, &path, None).await.0, 204);
    for (method, path, body, expected) in [
        (Method::GET, path.clone(), None, 404),
        (Method::DELETE, path.clone(), None, 404),
        (Method::POST, format!("{path}/restart"), None, 404),
        (Method::GET, format!("{path}/channels"), None, 404),
        (Method::GET, "/api/kernels/x".to_owned(), None, 404),
        (Method::GET, "/api/kernelspecs/none".to_owned(), None, 404),
        (Method::POST, "/api/kernels".to_owned(), Some(json!({"name": "none"})), 404),
        (Method::POST, "/api/kernels".to_owned(), Some(json!([])), 400),
        (Method::PUT, "/api/kernels".to_owned(), None, 405),
        (Method::POST, "/c/-x/api/kernels".to_owned(), None, 400),
        (Method::GET, "/none".to_owned(), None, 404),
    ] {
        let (status, _, why) = call(&server, method, &path, body).await;
        assert_eq!((status, why["message"].is_string()), (expected, true), "{path}: {why}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_name_the_kernels_of_documents() {
    let server = FakeServer::with_kernel(&[]).await;
    let asked = json!({"name": "a", "path": "a.ipynb", "type": "notebook", "kernel": {"name": "python"}});
    let (status, location, session) = call(&server, Method::POST, "/api/sessions", Some(asked.clone())).await;
    assert_eq!((status, &session["path"], &session["kernel"]["name"]), (201, &json!("a.ipynb"), &json!("fake")));
    let path = location.strip_prefix("/jupyter").expect("a path").to_owned();
    assert_eq!(call(&server, Method::POST, "/api/sessions", Some(asked)).await.2["id"], session["id"], "the same");
    let (all, one) = (get(&server, "/api/sessions").await, get(&server, &path).await);
    assert_eq!((all.as_array().map(Vec::len), &all[0]["id"]), (Some(1), &one["id"]));
    let (status, _, renamed) = call(&server, Method::PATCH, &path, Some(json!({"path": "b.ipynb"}))).await;
    assert_eq!((status, &renamed["path"], &renamed["name"]), (200, &json!("b.ipynb"), &json!("a")));
    let (_, _, other) = call(&server, Method::PATCH, &path, Some(json!({"kernel": {"name": "fake"}}))).await;
    assert_ne!(other["kernel"]["id"], session["kernel"]["id"]);
    assert_eq!(get(&server, "/api/kernels").await.as_array().map(Vec::len), Some(1), "the old one has ended");
    assert_eq!(call(&server, Method::DELETE, &path, None).await.0, 204);
    assert_eq!(get(&server, "/api/kernels").await, json!([]));
    assert_eq!(call(&server, Method::GET, &path, None).await.0, 404);
    let long = json!({"path": "x".repeat(5000), "type": "notebook", "kernel": {"name": "python"}});
    assert_eq!(call(&server, Method::POST, "/api/sessions", Some(long)).await.0, 413);
    assert_eq!(get(&server, "/api/kernels").await, json!([]), "no kernel was started for it");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_for_the_session_of_a_path_get_one_kernel() {
    let server = FakeServer::with_kernel(&[]).await;
    let create = async |path: &str| {
        let asked = json!({"path": path, "type": "notebook", "kernel": {"name": "python"}});
        call(&server, Method::POST, "/api/sessions", Some(asked)).await
    };
    let kernels = async || get(&server, "/api/kernels").await.as_array().map(Vec::len);
    assert_eq!(create("other.ipynb").await.0, 201);
    server.engine.faults().start_delay = Duration::from_millis(500);
    let (first, second) = tokio::join!(create("a.ipynb"), create("a.ipynb"));
    assert_eq!((first.0, second.0, &first.2["id"]), (201, 201, &second.2["id"]));
    assert_eq!(kernels().await, Some(2));

    // Where one fails, the other starts the kernel.
    server.engine.fail_next_start(StartFault::Refused);
    let (first, second) = tokio::join!(create("b.ipynb"), create("b.ipynb"));
    let made: Vec<_> = [&first, &second].into_iter().filter(|answer| answer.0 == 201).collect();
    assert_eq!(made.len(), 1, "{first:?} {second:?}");
    assert_eq!(create("b.ipynb").await.2["id"], made[0].2["id"]);
    assert_eq!(kernels().await, Some(3));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_for_a_session_that_is_removed_meanwhile_ends() {
    let server = FakeServer::with_kernel(&[]).await;
    let asked = json!({"path": "a.ipynb", "type": "notebook", "kernel": {"name": "python"}});
    let (_, location, _) = call(&server, Method::POST, "/api/sessions", Some(asked)).await;
    let path = location.strip_prefix("/jupyter").expect("a path");
    server.engine.faults().start_delay = Duration::from_secs(2);
    let before = server.engine.attempts();
    let changed = call(&server, Method::PATCH, path, Some(json!({"kernel": {"name": "python"}})));
    let removed = async {
        until("its kernel is starting", async || server.engine.attempts() > before).await;
        call(&server, Method::DELETE, path, None).await
    };
    let (changed, removed) = tokio::join!(changed, removed);
    assert_eq!((changed.0, removed.0), (404, 204));
    assert_eq!(get(&server, "/api/kernels").await, json!([]));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_gets_two_kernels_at_once_keeps_one() {
    let server = FakeServer::with_kernel(&[]).await;
    let asked = json!({"path": "a.ipynb", "type": "notebook", "kernel": {"name": "python"}});
    let (_, location, _) = call(&server, Method::POST, "/api/sessions", Some(asked)).await;
    let path = location.strip_prefix("/jupyter").expect("a path");
    server.engine.faults().start_delay = Duration::from_millis(500);
    let change = async || call(&server, Method::PATCH, path, Some(json!({"kernel": {"name": "python"}}))).await.0;
    tokio::join!(change(), change());
    until("one kernel is left", async || {
        let (session, kernels) = (get(&server, path).await, get(&server, "/api/kernels").await);
        let kernels: Vec<_> = kernels.as_array().expect("a list").iter().map(|kernel| &kernel["id"]).collect();
        kernels == [&session["kernel"]["id"]]
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_pins_the_conversation() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "/c/mine").await;
    assert_eq!(start(&server, "/c/mine").await, id, "one session for a conversation and a language");
    assert_ne!(start(&server, "").await, id);
    assert_eq!(get(&server, "/c/mine/api/kernels").await.as_array().map(Vec::len), Some(1));
    let path = format!("/jupyter/t/{TOKEN}/c/mine/api/kernels/{id}/channels");
    let mut socket = Socket::connect(server.address, &path, &[]).await.expect("a connection");
    socket.run("write f text").await;
    assert_eq!(get(&server, "/c/mine/api/contents/f").await["content"], "text");

    // One path is a notebook of its own at each address, in whatever order they are asked.
    let notebook = async |below: &str| {
        let asked = json!({"path": "n.ipynb", "type": "notebook", "kernel": {"name": "python"}});
        let (status, _, session) = call(&server, Method::POST, &format!("{below}/api/sessions"), Some(asked)).await;
        assert_eq!(status, 201, "{below}: {session}");
        session
    };
    let (other, unpinned, mine) = (notebook("/c/other").await, notebook("").await, notebook("/c/mine").await);
    assert_eq!(mine["kernel"]["id"], id);
    for (below, session) in [("", &unpinned), ("/c/other", &other), ("/c/mine", &mine)] {
        assert_eq!(notebook(below).await["id"], session["id"], "{below}");
    }
    let kernels = [&other, &unpinned, &mine].map(|session| session["kernel"]["id"].as_str().expect("an id"));
    assert!(kernels[1] != kernels[0] && kernels[1] != kernels[2], "{kernels:?}");

    // What is in another conversation is not there.
    let (kernel, session) = (kernels[0], other["id"].as_str().expect("an id"));
    let (kernel_path, session_path) = (format!("/api/kernels/{kernel}"), format!("/api/sessions/{session}"));
    let given = json!({"path": "x.ipynb", "kernel": {"id": kernel}});
    for (method, path, body) in [
        (Method::GET, kernel_path.clone(), None),
        (Method::POST, format!("{kernel_path}/interrupt"), None),
        (Method::POST, format!("{kernel_path}/restart"), None),
        (Method::GET, format!("{kernel_path}/channels"), None),
        (Method::GET, session_path.clone(), None),
        (Method::PATCH, session_path.clone(), Some(json!({"path": "x.ipynb"}))),
        (Method::POST, "/api/sessions".to_owned(), Some(given.clone())),
        (Method::PATCH, format!("/api/sessions/{}", mine["id"].as_str().expect("an id")), Some(given)),
        (Method::DELETE, session_path.clone(), None),
        (Method::DELETE, kernel_path.clone(), None),
    ] {
        let (status, _, why) = call(&server, method, &format!("/c/mine{path}"), body).await;
        assert_eq!(status, 404, "{path}: {why}");
    }
    assert_eq!(get(&server, &format!("/c/other{session_path}")).await["path"], "n.ipynb");
    assert_eq!(call(&server, Method::DELETE, &format!("/c/other{kernel_path}"), None).await.0, 204);
    server.stop().await;
}

/// The lines that the server logs in this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_in_four_ways_and_are_in_no_log() {
    let lines = Lines::default();
    let written = lines.clone();
    let level = tracing::Level::TRACE;
    tracing_subscriber::fmt().with_max_level(level).with_writer(move || written.clone()).init();
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "/c/any").await;
    let (kernel, wrong) = (format!("api/kernels/{id}"), "wrong-token-0123456789");
    let ways = |token: &str| {
        [
            (format!("/jupyter/{kernel}"), Some(format!("Bearer {token}"))),
            (format!("/jupyter/{kernel}"), Some(format!("token {token}"))),
            (format!("/jupyter/{kernel}?token={token}"), None),
            (format!("/jupyter/t/{token}/{kernel}"), None),
            (format!("/jupyter//t/{token}/c/any/{kernel}/"), None),
        ]
    };
    for (token, status) in [(TOKEN, 200), (wrong, 401)] {
        for (path, header) in ways(token) {
            let request = server.http.get(format!("http://{}{path}", server.address));
            let request = header.iter().fold(request, |request, value| request.header("authorization", value));
            let response = request.send().await.expect("an answer");
            assert_eq!(response.status(), status, "{path}");
            let body = response.text().await.expect("a body");
            assert!(!body.contains(token), "{body}");
        }
        for (path, header) in ways(token) {
            let path = match path.split_once('?') {
                Some((path, query)) => format!("{path}/channels?{query}"),
                None => format!("{path}/channels"),
            };
            let headers: Vec<_> = header.iter().map(|value| ("authorization", value.as_str())).collect();
            let connected = Socket::connect(server.address, &path, &headers).await.map(drop);
            assert_eq!(connected, if status == 200 { Ok(()) } else { Err(401) }, "{path}");
        }
    }
    let origin = [("origin", "https://evil.test")];
    let path = format!("/jupyter/t/{TOKEN}/{kernel}/channels");
    assert_eq!(Socket::connect(server.address, &path, &origin).await.map(drop), Err(403), "a foreign page");
    assert_eq!(
        server
            .http
            .get(format!("http://{}/v1/sessions?token={TOKEN}", server.address))
            .send()
            .await
            .expect("an answer")
            .status(),
        401
    );
    server.stop().await;
    let logged = String::from_utf8_lossy(&lines.0.lock().expect("no panic")).into_owned();
    let ours: Vec<_> = logged.lines().filter(|line| line.contains("mcp_sandbox_server")).collect();
    assert!(ours.iter().any(|line| line.contains("/jupyter/api/kernels")), "requests are logged");
    for line in logged.lines().filter(|line| line.contains(TOKEN) || line.contains(wrong)) {
        // The client of this test logs what it sends.
        assert!(
            line.contains("tungstenite") || line.contains("hyper_util::client") || line.contains("reqwest"),
            "{line}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn kernels_of_another_owner_are_not_there() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let session = format!("session-{}", id.replace('-', "")).parse().expect("an id");
    let other = "another".parse::<Principal>().expect("a name");
    let not_found = Err(Code::SessionNotFound);
    assert_eq!(server.kernels.get(&other, session).map(drop).map_err(|why| why.code), not_found);
    assert_eq!(server.kernels.connect(&other, session, None).map(drop).map_err(|why| why.code), not_found);
    assert_eq!(server.kernels.restart(&other, session).await.map(drop).map_err(|why| why.code), not_found);
    assert!(server.kernels.list(&other, None).is_empty());
    let mut mine = socket(&server, &id, "").await;
    assert_eq!(server.kernels.connect(&other, session, None).map(drop).map_err(|why| why.code), not_found);
    assert_eq!(mine.run("print still").await, "still\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_parents_reach_the_clients_of_their_kernel_only_and_end_no_cell() {
    let server = FakeServer::with_kernel(&[]).await;
    let (id, other) = (start(&server, "").await, start(&server, "").await);
    let (mut one, mut two) = (socket(&server, &id, "").await, socket(&server, &id, "").await);
    let mut elsewhere = socket(&server, &other, "").await;
    let path = format!("/api/kernels/{id}");
    until("both are connected", async || get(&server, &path).await["connections"] == 2).await;
    let forged = |messages: &[Value]| -> Vec<Value> {
        let is_forged = |message: &&Value| message["parent_header"]["msg_id"] == "another";
        messages.iter().filter(is_forged).map(|message| message["msg_type"].clone()).collect()
    };
    let request = one.execute("print one\nforge\nprint two").await;
    for client in [&mut one, &mut two] {
        let seen = client
            .until(|message| {
                message["parent_header"]["msg_id"] == request && message["content"]["execution_state"] == "idle"
            })
            .await;
        // Broadcasts are passed on as they are; a reply to what no client has sent reaches none.
        assert_eq!(forged(&seen), ["stream", "status"]);
        let own: Vec<_> = seen.into_iter().filter(|message| message["parent_header"]["msg_id"] == request).collect();
        assert_eq!(text(&own), "one\ntwo\n");
    }
    elsewhere.execute("print own").await;
    let seen = elsewhere.until(|message| message["msg_type"] == "execute_reply").await;
    assert!(text(&seen) == "own\n" && forged(&seen).is_empty(), "{seen:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_forms_carry_the_same_messages() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{id}/channels");
    for offered in [None, Some(V1), Some("other, v1.kernel.websocket.jupyter.org"), Some("other")] {
        let headers: Vec<_> = offered.iter().map(|name| ("sec-websocket-protocol", *name)).collect();
        // A client that offers names ends the connection when none of them is chosen.
        let mut socket = match offered {
            Some("other") => continue,
            _ => Socket::connect(server.address, &path, &headers).await.expect("a connection"),
        };
        assert_eq!(socket.protocol.as_deref(), offered.map(|_| V1));
        let request = socket.execute("set x 41\nget x").await;
        let messages = socket.answers(&request).await;
        let kinds: Vec<_> = messages.iter().map(|message| message["msg_type"].as_str().unwrap_or_default()).collect();
        assert_eq!(kinds, ["status", "execute_result", "execute_reply", "status"]);
        assert_eq!(messages[1]["content"]["data"]["text/plain"], "41");
        assert_eq!(messages[1]["parent_header"]["date"], "", "as it was sent");
        let info = socket.send("shell", "kernel_info_request", json!({})).await;
        let reply = socket.until(|message| message["msg_type"] == "kernel_info_reply").await;
        assert_eq!(reply.last().expect("a reply")["parent_header"]["msg_id"], info);
    }
    server.stop().await;
}
