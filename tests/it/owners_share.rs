//! Owners share one server fairly: its memory for sessions, the finished runs that it keeps, its disk, its standbys.
//! Each stays within its own quota.

mod mcp_sessions;
mod standbys;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::support::{
    FakeServer,
    calls::{call, create, metrics, request, value},
    until,
};

/// Memory for four sessions.
const FOUR: (&str, &str) = ("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "1073741824");

/// An owner with a token.
struct Owner<'a> {
    server: &'a FakeServer,
    token: String,
}

impl<'a> Owner<'a> {
    async fn new(server: &'a FakeServer, name: &str) -> Self {
        Self { server, token: create(server, json!({"name": name, "owner": name})).await.1 }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        call(self.server, &self.token, method, path, body).await
    }

    /// Asks for a session in a conversation of its own.
    async fn ask(&self) -> (u16, Value) {
        self.call(Method::POST, "/v1/sessions", Some(json!({}))).await
    }

    /// Opens a session; its path.
    async fn open(&self) -> String {
        let (status, session) = self.ask().await;
        assert_eq!(status, 201, "{session}");
        format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"))
    }

    /// Has a session run a cell until it is cancelled; the path of the run.
    async fn keep_busy(&self, session: &str) -> String {
        let body = json!({"code": "hang", "wait": 0});
        let (status, run) = self.call(Method::POST, &format!("{session}/cells"), Some(body)).await;
        assert_eq!(status, 202, "{run}");
        until("it runs", async || self.call(Method::GET, session, None).await.1["state"] == "busy").await;
        format!("/v1/runs/{}", run["runId"].as_str().expect("an id"))
    }

    /// The status of each session.
    async fn states(&self, sessions: &[&str]) -> Vec<u16> {
        let mut states = Vec::new();
        for session in sessions {
            states.push(self.call(Method::GET, session, None).await.0);
        }
        states
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn session_of_another_owner_ends_only_where_that_owner_holds_more() {
    let server = FakeServer::with_kernel(&[FOUR]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    // Alone she may hold all of it.
    let of_ann = [ann.open().await, ann.open().await, ann.open().await, ann.open().await];
    let of_ann = of_ann.each_ref().map(String::as_str);
    let first = bob.open().await;
    assert_eq!(ann.states(&of_ann).await, [410, 200, 200, 200], "the least recently used one");
    let (_, why) = ann.call(Method::GET, of_ann[0], None).await;
    assert!(why["detail"].as_str().expect("a sentence").contains("needed for another session"), "{why}");

    // From now on three quarters, so she ends her own.
    let fifth = ann.open().await;
    assert_eq!(ann.states(&of_ann).await, [410, 410, 200, 200]);
    assert_eq!(bob.states(&[&first]).await, [200]);
    let second = bob.open().await;
    assert_eq!(ann.states(&of_ann).await, [410, 410, 410, 200], "she held three, and he two with the new one");
    let third = bob.open().await;
    assert_eq!(bob.states(&[&first, &second, &third]).await, [410, 200, 200], "each holds two");
    assert_eq!(ann.states(&[of_ann[3], &fifth]).await, [200, 200]);
    let text = metrics(&server).await;
    for (series, wanted) in
        [("sessions", 4), ("sessions_memory_bytes", 1 << 30), ("owner_sessions_memory_bytes_max", 1 << 29)]
    {
        assert_eq!(value(&text, &format!("sandbox_{series}")), wanted, "{series}");
    }
    assert!(!text.contains("\"ann\"") && !text.contains("\"bob\""), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owner_whose_sessions_are_all_busy_leaves_memory_to_others() {
    let server = FakeServer::with_kernel(&[FOUR, ("SANDBOX_ADMISSION__SLOTS", "8")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let known = bob.open().await;
    assert_eq!(bob.call(Method::DELETE, &known, None).await.0, 200);
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(ann.keep_busy(&ann.open().await).await);
    }
    let (status, why) = ann.ask().await;
    assert_eq!((status, &why["code"]), (503, &json!("sessions_full")), "{why}");
    assert!(why["detail"].as_str().expect("a sentence").contains("your share"), "{why}");
    let session = bob.open().await;
    let run = bob.keep_busy(&session).await;
    let (status, why) = bob.ask().await;
    assert_eq!((status, &why["code"]), (503, &json!("sessions_full")), "{why}");
    assert!(why["detail"].as_str().expect("a sentence").contains("close a session of your own"), "{why}");
    assert_eq!(bob.call(Method::POST, &format!("{run}/cancel"), None).await.0, 200);
    for run in runs {
        assert_eq!(ann.call(Method::POST, &format!("{run}/cancel"), None).await.0, 200);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_runs_of_one_owner_drop_none_of_another() {
    let server = FakeServer::with(&[("SANDBOX_RUNS__KEPT_MAX", "3")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let run = async |owner: &Owner<'_>, code: &str| {
        let body = json!({"conversationId": "c", "language": "python", "code": code, "wait": 60});
        let (status, run) = owner.call(Method::POST, "/v1/runs", Some(body)).await;
        assert_eq!((status, &run["state"]), (200, &json!("finished")), "{run}");
        format!("/v1/runs/{}", run["runId"].as_str().expect("an id"))
    };
    let kept = run(&bob, "print kept").await;
    let mut of_ann = Vec::new();
    for _ in 0..6 {
        of_ann.push(run(&ann, "print x").await);
    }
    for dropped in &of_ann[..4] {
        let is_dropped = async || ann.call(Method::GET, dropped, None).await.1["fromHistory"] == true;
        until("it is in the history only", is_dropped).await;
    }
    let (_, found) = bob.call(Method::GET, &kept, None).await;
    assert_eq!((&found["result"]["stdout"], &found["fromHistory"]), (&json!("kept\n"), &Value::Null), "{found}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_one_owner_leave_memory_to_others() {
    let settings = [("SANDBOX_SERVER__BODY_BYTES_MAX", "65536"), ("SANDBOX_SERVER__BODIES_BYTES_MAX", "262144")];
    let server = FakeServer::with(&settings).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let run = async |owner: &Owner<'_>| {
        let code = format!("print {}", "x".repeat(16 << 10));
        let body = json!({"conversationId": "c", "language": "python", "code": code});
        owner.call(Method::POST, "/v1/runs", Some(body)).await
    };
    let head = format!(
        "POST /v1/runs HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: 65536\r\n\r\n",
        ann.token
    );
    // Bodies whose ends never come.
    let mut sockets = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        stream.write_all(head.as_bytes()).await.expect("sent");
        stream.write_all(" ".repeat(60 << 10).as_bytes()).await.expect("sent");
        sockets.push(stream);
    }
    until("her share is used up", async || run(&ann).await.1["code"] == "queue_full").await;
    let (status, answered) = run(&bob).await;
    assert_eq!(status, 200, "{answered}");
    drop(sockets);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_one_owner_that_wait_leave_memory_to_others() {
    let bodies = [("SANDBOX_SERVER__BODY_BYTES_MAX", "65536"), ("SANDBOX_SERVER__BODIES_BYTES_MAX", "262144")];
    let server = FakeServer::with(&[bodies[0], bodies[1], ("SANDBOX_ADMISSION__SLOTS", "1")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let begin = async |owner: &Owner<'_>, code: &str| {
        let body = json!({"language": "python", "code": code, "wait": 0});
        owner.call(Method::POST, "/v1/runs", Some(body)).await
    };
    let long = format!("print {}", "x".repeat(60 << 10));
    let (status, running) = begin(&ann, "hang").await;
    assert_eq!(status, 202, "{running}");
    let running = format!("/v1/runs/{}", running["runId"].as_str().expect("an id"));
    until("it runs", async || ann.call(Method::GET, &running, None).await.1["state"] == "running").await;
    for _ in 0..2 {
        let (status, waiting) = begin(&ann, &long).await;
        assert_eq!(status, 202, "{waiting}");
    }
    let (status, why) = begin(&ann, &long).await;
    assert_eq!((status, &why["code"]), (429, &json!("queue_full")), "{why}");
    let (status, of_bob) = begin(&bob, &long).await;
    assert_eq!(status, 202, "{of_bob}");
    assert_eq!(ann.call(Method::POST, &format!("{running}/cancel"), None).await.0, 200);
    until("those that waited are over", async || begin(&ann, &long).await.0 == 202).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_for_their_runs_hold_no_memory_for_bodies() {
    let bodies = [("SANDBOX_SERVER__BODY_BYTES_MAX", "65536"), ("SANDBOX_SERVER__BODIES_BYTES_MAX", "131072")];
    let server = FakeServer::with(&[bodies[0], bodies[1], ("SANDBOX_ADMISSION__SLOTS", "4")]).await;
    let ann = Owner::new(&server, "ann").await;
    let piston = |code: &str| json!({"language": "python", "version": "*", "files": [{"content": code}]});
    let own = |code: &str| json!({"language": "python", "code": code});
    for (path, hang, print) in
        [("/v1/runs", own("hang"), own("print x")), ("/api/v2/execute", piston("hang"), piston("print x"))]
    {
        // Two of them are more than one owner may have sent at once; the programs are short.
        let send = |body: &Value| {
            let body = format!("{}{body}", " ".repeat(60 << 10));
            let post = request(&server, &ann.token, Method::POST, path).header("content-type", "application/json");
            post.body(body).send()
        };
        let waiting = tokio::spawn(send(&hang));
        let newest = async || ann.call(Method::GET, "/v1/runs?limit=1", None).await.1["runs"][0].clone();
        until("it runs", async || newest().await["state"] == "running").await;
        let run = newest().await["runId"].as_str().expect("an id").to_owned();
        let answer = send(&print).await.expect("an answer");
        assert_eq!(answer.status(), 200, "{path}: {}", answer.text().await.expect("text"));
        assert_eq!(ann.call(Method::POST, &format!("/v1/runs/{run}/cancel"), None).await.0, 200);
        waiting.await.expect("a task").expect("an answer");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_costs_the_owner_who_has_the_most() {
    const DAY: Duration = Duration::from_hours(24);
    let server = FakeServer::with(&[("SANDBOX_QUOTA__TOTAL_BYTES_MAX", "716800")]).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    // Three quarters of a megabyte, which do not fit. Bob's was used before those of Ann.
    for (owner, name, conversation, days) in [(&bob, "bob", "a", 9), (&ann, "ann", "b", 3), (&ann, "ann", "c", 2)] {
        let file = json!({"type": "file", "format": "text", "content": "x".repeat(256 << 10)});
        let path = format!("/jupyter/c/{conversation}/api/contents/f");
        assert_eq!(owner.call(Method::PUT, &path, Some(file)).await.0, 201);
        server.used_ago(&format!("@{name}/{conversation}"), DAY * days);
    }
    assert_eq!(server.retention.round().await, Ok(1));
    let left = ["@bob/a", "@ann/b", "@ann/c"].map(|folder| server.root.join(folder).exists());
    assert_eq!(left, [true, false, true], "the least recently used one of hers");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_of_an_owner_holds_over_all_conversations_and_costs_no_other() {
    let settings = [("SANDBOX_QUOTA__OWNER_BYTES_MAX", "1048576")];
    let server = FakeServer::with(&settings).await;
    let (ann, bob) = (Owner::new(&server, "ann").await, Owner::new(&server, "bob").await);
    let put = async |owner: &Owner<'_>, conversation: &str, name: &str| {
        let file = json!({"type": "file", "format": "text", "content": "x".repeat(400 << 10)});
        owner.call(Method::PUT, &format!("/jupyter/c/{conversation}/api/contents/{name}"), Some(file)).await
    };
    let run = async |owner: &Owner<'_>, conversation: &str| {
        let body = json!({"conversationId": conversation, "language": "python", "code": "print x"});
        owner.call(Method::POST, "/v1/runs", Some(body)).await
    };
    let files = |conversation: &str, name: &str| format!("/v1/conversations/{conversation}/files/{name}");
    for (conversation, name) in [("a", "f"), ("b", "f")] {
        assert_eq!(put(&ann, conversation, name).await.0, 201);
    }
    // Three do not fit, wherever the third one is.
    for (conversation, name) in [("a", "g"), ("c", "f")] {
        let (_, refused) = put(&ann, conversation, name).await;
        assert!(refused.to_string().contains("all your conversations take"), "{refused}");
    }
    assert_eq!((put(&bob, "a", "f").await.0, put(&bob, "b", "f").await.0), (201, 201), "he has a quota of his own");
    assert_eq!(run(&ann, "c").await.0, 200, "she is within hers");
    // What a client deletes counts no longer, in another conversation too; what a program wrote does.
    assert_eq!(ann.call(Method::DELETE, &files("a", "f"), None).await.0, 204);
    assert_eq!(put(&ann, "c", "f").await.0, 201);
    let body =
        json!({"conversationId": "d", "language": "python", "code": format!("write f {}", "x".repeat(600 << 10))});
    let (status, written) = ann.call(Method::POST, "/v1/runs", Some(body)).await;
    assert_eq!((status, &written["outcome"]["ended"]), (200, &json!("exited")), "{written}");
    for conversation in ["b", "d", "e"] {
        let (_, refused) = run(&ann, conversation).await;
        assert_eq!(refused["code"], "quota_exceeded", "{refused}");
    }
    assert_eq!(run(&bob, "d").await.0, 200);
    server.stop().await;
}
