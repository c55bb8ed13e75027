//! Tokens: made, used, limited and revoked, over every surface; and the database that keeps them.

mod database;
mod failing;
mod followed;
mod installs;
mod races;
mod scopes;
mod sessions;
mod usage;

use std::os::unix::fs::PermissionsExt as _;

use reqwest::{Method, Response};
use serde_json::{Value, json};

use crate::support::{
    FakeServer,
    calls::{call, create, request},
    fake_server::{Kind, on_each_database},
    server::TOKEN,
    until,
};

on_each_database! {
    what_cannot_be_a_token_is_refused_by_the_name_of_the_member
    languages_and_limits_of_a_token_hold_on_every_way_to_run
    revocation_ends_streams_programs_and_sessions_at_once
    a_token_ends_at_its_time
}

async fn send(server: &FakeServer, token: &str, method: Method, path: &str, body: Option<Value>) -> Response {
    let request = request(server, token, method, path);
    let request = if let Some(body) = body { request.json(&body) } else { request };
    request.send().await.expect("an answer")
}

fn run(conversation: &str, code: &str) -> Value {
    json!({"conversationId": conversation, "language": "python", "code": code})
}

/// Reads a stream until the server ends it. An error would be the client's, which waits for a minute.
async fn ends(mut stream: Response) {
    while stream.chunk().await.expect("it ends in order").is_some() {}
}

async fn is_listed(server: &FakeServer, token: &str) -> bool {
    call(server, token, Method::GET, "/v1/runs", None).await.0 == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_shown_once_and_opens_its_owners_conversations_only() {
    let server = FakeServer::start().await;
    let (id, token) = create(&server, json!({"name": "Ann's laptop", "owner": "ann", "network": ["Web"]})).await;
    assert!(token.starts_with("mcps_") && token.len() == 48, "{token}");
    let (_, listed) = call(&server, TOKEN, Method::GET, "/v1/tokens", None).await;
    let one = &listed["tokens"][0];
    assert_eq!(one["network"], json!(["web"]), "in the case of a policy's name");
    let shown = (&one["id"], &one["owner"], &one["prefix"], &one["scopes"]);
    assert_eq!(shown, (&json!(id), &json!("ann"), &json!(&token[..11]), &json!(["run", "files"])));
    assert!(!listed.to_string().contains(&token), "a token is shown once");

    for (who, text) in [(TOKEN, "mine"), (&token, "theirs")] {
        let (status, _) =
            call(&server, who, Method::POST, "/v1/runs", Some(run("c", &format!("write f {text}")))).await;
        assert_eq!(status, 200);
        let file = send(&server, who, Method::GET, "/v1/conversations/c/files/f", None).await;
        assert_eq!(file.text().await.expect("text"), text);
    }
    assert!(server.root.join("@ann/c/files/f").exists() && server.root.join("c/files/f").exists());
    let (_, runs) = call(&server, &token, Method::GET, "/v1/runs", None).await;
    assert_eq!(runs["runs"].as_array().expect("a list").len(), 1);
    let mine = call(&server, TOKEN, Method::GET, "/v1/runs", None).await.1["runs"][0]["runId"].clone();
    let path = format!("/v1/runs/{}", mine.as_str().expect("an id"));
    assert_eq!(call(&server, &token, Method::GET, &path, None).await.0, 404, "another owner's run");
    let used = call(&server, TOKEN, Method::GET, "/v1/tokens?owner=ann", None).await.1["tokens"][0]["lastUsed"].clone();
    assert!(used.is_string());
    assert_eq!(call(&server, TOKEN, Method::GET, "/v1/tokens?owner=bob", None).await.1, json!({"tokens": []}));
    server.stop().await;
}

async fn what_cannot_be_a_token_is_refused_by_the_name_of_the_member(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let long = "x".repeat(101);
    for (wanted, name) in [
        (json!({}), "name"),
        (json!({"name": ""}), "name"),
        (json!({"name": long}), "name"),
        (json!({"name": "a\u{7}"}), "name"),
        (json!({"name": "a", "owner": "../b"}), "owner"),
        (json!({"name": "a", "owner": "self-test"}), "owner"),
        (json!({"name": "a", "scopes": []}), "scopes"),
        (json!({"name": "a", "scopes": ["root"]}), "scopes"),
        (json!({"name": "a", "languages": ["no language"]}), "languages"),
        (json!({"name": "a", "expiresInSeconds": 0}), "expiresInSeconds"),
        (json!({"name": "a", "expiresInSeconds": 172_800_000_001_u64}), "expiresInSeconds"),
        (json!({"name": "a", "expiresInSeconds": (1_u64 << 53) - 1}), "expiresInSeconds"),
        (json!({"name": "a", "limits": {"runs": 1}}), "limits.runs"),
        (json!({"name": "a", "network": vec!["web"; 65]}), "network: "),
        (json!({"name": "a", "scope": "run"}), "scope"),
    ] {
        let (status, why) = call(&server, TOKEN, Method::POST, "/v1/tokens", Some(wanted.clone())).await;
        assert_eq!((status, &why["code"]), (422, &json!("invalid_argument")), "{wanted}: {why}");
        assert!(why["detail"].as_str().expect("a sentence").contains(name), "{wanted}: {why}");
    }
    let unknown = format!("/v1/tokens/token-{}", "0".repeat(32));
    let (status, why) = call(&server, TOKEN, Method::DELETE, &unknown, None).await;
    assert_eq!((status, &why["code"]), (404, &json!("token_not_found")));
    server.stop().await;
}

async fn languages_and_limits_of_a_token_hold_on_every_way_to_run(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let wanted = json!({"name": "a", "owner": "ann", "languages": ["python"], "limits": {"runsAtOnce": 1}});
    let (_, token) = create(&server, wanted).await;
    let refused = async |language: &str, code: &str, sentence: &str| {
        let arguments = json!({"language": language, "code": "print x"});
        let tool = json!({"name": "sandbox_run_code", "arguments": arguments});
        for (path, body) in [
            ("/v1/runs", arguments),
            ("/api/v2/execute", json!({"language": language, "version": "*", "files": [{"content": "print x"}]})),
            ("/execute", json!({"language": language, "command": "print x"})),
            ("/mcp", json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": tool})),
        ] {
            let (_, why) = call(&server, &token, Method::POST, path, Some(body)).await;
            let has_code = path == "/mcp" || why["code"] == code;
            assert!(has_code && why.to_string().contains(sentence), "{path}: {why}");
        }
    };
    refused("bash", "insufficient_scope", "this token is for python only").await;

    let detached = json!({"language": "python", "code": "hang", "wait": 0, "detach": true});
    let (status, first) = call(&server, &token, Method::POST, "/v1/runs", Some(detached)).await;
    assert_eq!(status, 202, "{first}");
    let id = first["runId"].as_str().expect("an id");
    refused("python", "rate_limited", "1 programs at once").await;
    assert_eq!(call(&server, TOKEN, Method::POST, "/v1/runs", Some(run("c", "print x"))).await.0, 200);
    call(&server, &token, Method::POST, &format!("/v1/runs/{id}/cancel"), None).await;
    until("the place is free", async || {
        call(&server, &token, Method::POST, "/v1/runs", Some(run("other", "print x"))).await.0 == 200
    })
    .await;
    server.stop().await;
}

async fn revocation_ends_streams_programs_and_sessions_at_once(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let (id, token) = create(&server, json!({"name": "a", "owner": "ann"})).await;
    let (_, other) = create(&server, json!({"name": "b", "owner": "ann"})).await;
    let (status, session) = call(&server, &token, Method::POST, "/v1/sessions", None).await;
    assert_eq!(status, 201, "{session}");
    let (_, kept) = call(&server, &other, Method::POST, "/v1/sessions", None).await;
    let hang = Some(json!({"language": "python", "code": "hang", "detach": true, "wait": 0}));
    let (_, begun) = call(&server, &token, Method::POST, "/v1/runs", hang).await;
    let path = format!("/v1/runs/{}", begun["runId"].as_str().expect("an id"));
    let mut stream = send(&server, &token, Method::GET, &format!("{path}/events"), None).await;
    assert!(stream.chunk().await.expect("a stream").is_some());

    let waits = async {
        let body = Some(run("waits", "hang"));
        call(&server, &token, Method::POST, "/v1/runs", body).await
    };
    let revoke = async {
        until("both run", async || {
            let (_, all) = call(&server, &other, Method::GET, "/v1/runs", None).await;
            all["runs"].as_array().is_some_and(|runs| runs.len() == 2)
        })
        .await;
        call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await
    };
    let ((status, why), (revoked, _)) = tokio::join!(waits, revoke);
    assert_eq!((revoked, status, &why["code"]), (204, 401, &json!("unauthorized")), "{why}");
    ends(stream).await;
    assert!(!is_listed(&server, &token).await);
    let (status, over) = call(&server, &other, Method::GET, &path, None).await;
    assert_eq!(status, 200, "its owner still sees it: {over}");
    until("the programs are cancelled", async || server.engine.live().len() == 1).await;
    let address = |session: &Value| format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"));
    assert_eq!(call(&server, &other, Method::GET, &address(&session), None).await.0, 410);
    assert_eq!(call(&server, &other, Method::GET, &address(&kept), None).await.0, 200, "another token opened it");
    assert_eq!(call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0, 404, "a second time");
    server.stop().await;
}

async fn a_token_ends_at_its_time(kind: Kind) {
    let server = FakeServer::by(kind, &[]).await;
    let (_, token) = create(&server, json!({"name": "a", "expiresInSeconds": 6})).await;
    assert!(is_listed(&server, &token).await);
    let events = send(&server, &token, Method::GET, "/mcp/events", None).await;
    assert_eq!(events.status(), 200);
    ends(events).await;
    assert!(!is_listed(&server, &token).await);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_of_the_database_is_its_owners_alone() {
    let server = FakeServer::start().await;
    let (_, token) = create(&server, json!({"name": "a"})).await;
    let folder = server.root.join(".state");
    assert_eq!(folder.metadata().expect("a folder").permissions().mode() & 0o777, 0o700);
    assert!(folder.join("sandbox.db").exists());
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let entry = entry.expect("an entry");
        assert_eq!(entry.metadata().expect("a file").permissions().mode() & 0o777, 0o600, "{:?}", entry.path());
        let bytes = std::fs::read(entry.path()).expect("bytes");
        assert!(!bytes.windows(token.len()).any(|part| part == token.as_bytes()), "only a digest is stored");
    }
    server.stop().await;
}
