//! Sessions that another token of the owner opened: they are used by tokens that have at least their network.

use std::time::Duration;

use mcp_sandbox_server::domain::{
    error::Code,
    id::{ConversationId, Language},
    owner::{ConversationKey, Principal},
};
use reqwest::Method;
use serde_json::{Value, json};

use super::{call, create, run};
use crate::support::{FakeServer, server::TOKEN, socket::Socket, until};

/// A policy for every token that names none.
const POLICY: (&str, &str) = ("SANDBOX_NETWORK__SET", "set.example");
/// What a refusal says.
const REFUSED: &str = "open a session of your own in another conversation";

async fn post(server: &FakeServer, token: &str, path: &str, body: Value) -> (u16, Value) {
    call(server, token, Method::POST, path, Some(body)).await
}

/// Opens the session of a conversation; its id.
async fn open(server: &FakeServer, token: &str, conversation: &str) -> String {
    let (status, opened) = post(server, token, "/v1/sessions", json!({"conversationId": conversation})).await;
    assert_eq!(status, 201, "{opened}");
    opened["sessionId"].as_str().expect("an id").to_owned()
}

/// What a cell of a session prints.
async fn cell(server: &FakeServer, token: &str, session: &str, code: &str) -> Value {
    let (status, ran) = post(server, token, &format!("/v1/sessions/{session}/cells"), json!({"code": code})).await;
    assert_eq!(status, 200, "{ran}");
    ran["result"]["stdout"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_network_uses_no_session_of_one_with_it() {
    let server = FakeServer::with_kernel(&[POLICY]).await;
    let (_, wide) = create(&server, json!({"name": "wide", "owner": "ann"})).await;
    let (_, none) = create(&server, json!({"name": "none", "owner": "ann", "network": []})).await;
    let id = open(&server, &wide, "c").await;
    cell(&server, &wide, &id, "set x 41").await;

    let session = format!("/v1/sessions/{id}");
    for (path, body) in [
        ("/v1/sessions", Some(json!({"conversationId": "c"}))),
        (&format!("{session}/cells"), Some(json!({"code": "get x"}))),
        (&format!("{session}/complete"), Some(json!({"code": "x"}))),
        (&format!("{session}/inspect"), Some(json!({"code": "x"}))),
        (&format!("{session}/restart"), None),
    ] {
        let (status, why) = call(&server, &none, Method::POST, path, body).await;
        assert_eq!((status, &why["code"]), (403, &json!("insufficient_scope")), "{path}: {why}");
        assert!(why["detail"].as_str().expect("a sentence").contains(REFUSED), "{path}: {why}");
    }
    let kernel = uuid::Uuid::parse_str(id.trim_start_matches("session-")).expect("an id");
    let tool = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "sandbox_run_cell", "arguments": {"conversationId": "c", "code": "get x"}}});
    for (path, body) in [
        ("/mcp", tool),
        ("/execute", json!({"session_id": id, "code": "get x"})),
        (&format!("/jupyter/api/kernels/{kernel}/restart"), json!({})),
    ] {
        let (_, why) = post(&server, &none, path, body).await;
        assert!(why.to_string().contains(REFUSED), "{path}: {why}");
    }
    let channels = format!("/jupyter/t/{none}/api/kernels/{kernel}/channels");
    assert_eq!(Socket::connect(server.address, &channels, &[]).await.map(drop), Err(403));

    assert_eq!(cell(&server, &wide, &id, "get x").await, "41\n", "it was neither restarted nor changed");
    let (status, ran) = post(&server, &none, "/v1/runs", run("c", "print x")).await;
    assert_eq!(status, 200, "a program has a sandbox of its own: {ran}");
    let own = open(&server, &none, "own").await;
    cell(&server, &none, &own, "set x 1").await;
    assert_eq!(cell(&server, &wide, &own, "get x").await, "1\n", "its token has all that the session has");
    assert_eq!(call(&server, &none, Method::DELETE, &session, None).await.0, 200, "the files' owner may close it");
    open(&server, &none, "c").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_session_has_the_network_of_the_token_that_opened_it() {
    let server = FakeServer::with_kernel(&[POLICY]).await;
    let (_, wide) = create(&server, json!({"name": "wide", "owner": "ann"})).await;
    let (_, none) = create(&server, json!({"name": "none", "owner": "ann", "network": []})).await;
    let id = open(&server, &none, "c").await;
    let (status, again) = call(&server, &wide, Method::POST, &format!("/v1/sessions/{id}/restart"), None).await;
    assert_eq!(status, 200, "{again}");
    assert_eq!(cell(&server, &none, &id, "print x").await, "x\n", "it has no more than before");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_ended_is_restarted_with_the_network_of_who_asks() {
    let server = FakeServer::with_kernel(&[POLICY]).await;
    let (_, wide) = create(&server, json!({"name": "wide", "owner": "ann"})).await;
    let (_, none) = create(&server, json!({"name": "none", "owner": "ann", "network": []})).await;
    let (_, other) = create(&server, json!({"name": "other", "owner": "ann", "network": []})).await;
    let id = open(&server, &wide, "c").await;
    cell(&server, &wide, &id, "exit 3").await;
    let session = format!("/v1/sessions/{id}");
    until("it has ended", async || call(&server, &none, Method::GET, &session, None).await.0 == 410).await;
    let (status, again) = call(&server, &none, Method::POST, &format!("{session}/restart"), None).await;
    assert_eq!(status, 200, "{again}");
    assert_eq!(cell(&server, &other, &id, "print x").await, "x\n", "it has nothing of the first token");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_without_network_does_not_borrow_that_of_an_e2b_sandbox() {
    let server = FakeServer::with_kernel(&[POLICY]).await;
    let (_, wide) = create(&server, json!({"name": "wide", "owner": "ann"})).await;
    let (_, none) = create(&server, json!({"name": "none", "owner": "ann", "network": []})).await;
    let ask = async |path: &str, key: (&str, &str), sandbox: &str, body: Value| {
        let request = server.http.post(format!("http://{}{path}", server.address)).header(key.0, key.1);
        let request = request.header("E2b-Sandbox-Id", sandbox).json(&body);
        request.send().await.expect("an answer").text().await.expect("a text")
    };
    for (wanted, answered) in [(json!({}), REFUSED), (json!({"allow_internet_access": false}), "end_of_execution")] {
        let made = ask("/e2b/v2/sandboxes", ("x-api-key", &wide), "", wanted).await;
        let made: Value = serde_json::from_str(&made).expect("JSON");
        let sandbox = made["sandboxID"].as_str().expect("an id");
        let cell = json!({"code": "print x"});
        let first = ask("/e2b/execute", ("x-access-token", &wide), sandbox, cell.clone()).await;
        assert!(first.contains("end_of_execution"), "{first}");
        let second = ask("/e2b/execute", ("x-access-token", &none), sandbox, cell).await;
        assert!(second.contains(answered), "{second}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_being_opened_when_its_token_ends_is_not_left_open() {
    let server = FakeServer::with_kernel(&[]).await;
    let (id, _) = create(&server, json!({"name": "a", "owner": "ann"})).await;
    let who = "ann".parse::<Principal>().expect("a name").by(id.parse().expect("an id"));
    let place = ConversationKey::new(who.clone(), ConversationId::fresh());
    server.engine.faults().start_delay = Duration::from_secs(3);
    let attempts = server.engine.attempts();
    let language = Language::default();
    // Not over HTTP: a request ends with its token, but what it began may be about to be done.
    let opens = server.sessions.open(&place, &language);
    let ends_token = async {
        until("it starts", async || server.engine.attempts() > attempts).await;
        call(&server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), None).await.0
    };
    let (opened, revoked) = tokio::join!(opens, ends_token);
    assert_eq!((revoked, opened.map(drop).map_err(|why| why.code)), (204, Err(Code::Unauthorized)));
    assert!(server.sessions.list(&who, None).is_empty());
    let again = server.sessions.open(&place, &language).await;
    assert_eq!(again.map(drop).map_err(|why| why.code), Err(Code::Unauthorized));
    assert_eq!(server.engine.attempts(), attempts + 1, "nothing is started for a token that has ended");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_other_languages_opens_and_restarts_no_session() {
    let server = FakeServer::with_kernel(&[]).await;
    let (_, any) = create(&server, json!({"name": "any", "owner": "ann"})).await;
    let (_, bash) = create(&server, json!({"name": "bash", "owner": "ann", "languages": ["bash"]})).await;
    let id = open(&server, &any, "c").await;
    for path in ["/v1/sessions".to_owned(), format!("/v1/sessions/{id}/restart")] {
        let (status, why) = call(&server, &bash, Method::POST, &path, None).await;
        assert_eq!((status, &why["code"]), (403, &json!("insufficient_scope")), "{path}: {why}");
    }
    assert_eq!(cell(&server, &any, &id, "print still").await, "still\n");
    server.stop().await;
}
