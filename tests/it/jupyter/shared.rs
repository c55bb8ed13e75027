//! A kernel that clients of several tokens of one owner use: each cell is its token's.

use mcp_sandbox_server::domain::{error::Code, owner::Principal};
use reqwest::Method;
use serde_json::{Value, json};

use super::{FakeServer, Socket, TOKEN};
use crate::support::{
    calls::{call, create},
    socket::text,
    until,
};

async fn ask(server: &FakeServer, token: &str, method: Method, path: &str, body: Value) -> Value {
    call(server, token, method, path, (!body.is_null()).then_some(body)).await.1
}

/// A new token of Ann: its id and itself.
async fn token(server: &FakeServer, limits: Value) -> (String, String) {
    create(server, json!({"name": "n", "owner": "ann", "limits": limits})).await
}

/// The id of a kernel that a token has started.
async fn start(server: &FakeServer, token: &str) -> String {
    let kernel = ask(server, token, Method::POST, "/jupyter/api/kernels", json!({"name": "fake"})).await;
    kernel["id"].as_str().expect("an id").to_owned()
}

async fn client(server: &FakeServer, token: &str, kernel: &str) -> Socket {
    let path = format!("/jupyter/t/{token}/api/kernels/{kernel}/channels");
    Socket::connect(server.address, &path, &[]).await.expect("a connection")
}

async fn revoke(server: &FakeServer, id: &str) {
    ask(server, TOKEN, Method::DELETE, &format!("/v1/tokens/{id}"), Value::Null).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_counts_for_the_token_that_sent_it_and_is_its_in_the_history() {
    let server = FakeServer::with_kernel(&[]).await;
    let (opener, opens) = token(&server, json!({})).await;
    let (limited, limits) = token(&server, json!({"outputBytesPerDay": 10})).await;
    let id = start(&server, &opens).await;
    let (mut first, mut second) = (client(&server, &opens, &id).await, client(&server, &limits, &id).await);
    assert_eq!(first.run("print 1234567890").await, "1234567890\n");
    assert_eq!(second.run("print 1234567890").await, "1234567890\n", "what the other token printed is not its own");
    let refused = second.run("print no").await;
    assert!(refused.contains("10 bytes of output a day"), "{refused}");
    assert_eq!(first.run("print on").await, "on\n");
    until("each cell is in the history", async || {
        let history = ask(&server, TOKEN, Method::GET, "/v1/history?owner=ann", Value::Null).await;
        let runs = history["runs"].as_array().expect("a list");
        let of = |token: &str| runs.iter().filter(|run| run["tokenId"] == token && run["cell"] == true).count();
        runs.len() == 3 && of(&opener) == 2 && of(&limited) == 1
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_at_once_and_a_minute_are_those_of_the_token_that_sends() {
    let server = FakeServer::with_kernel(&[]).await;
    let (_, opens) = token(&server, json!({})).await;
    let (_, one) = token(&server, json!({"runsAtOnce": 1})).await;
    let (_, three) = token(&server, json!({"runsPerMinute": 3})).await;
    let id = start(&server, &opens).await;
    let (mut first, mut second) = (client(&server, &opens, &id).await, client(&server, &one, &id).await);
    // Two cells of one kernel run one after the other.
    second.execute("print a").await;
    assert_eq!(second.run("print b").await, "b\n");
    let hang = json!({"language": "python", "code": "hang", "detach": true, "wait": 0});
    until("the cells' place is free", async || {
        ask(&server, &one, Method::POST, "/v1/runs", hang.clone()).await["runId"].is_string()
    })
    .await;
    let refused = second.run("print no").await;
    assert!(refused.contains("1 programs at once"), "{refused}");
    assert_eq!(first.run("print on").await, "on\n");

    // Sent together, and passed on in one turn.
    let mut third = client(&server, &three, &id).await;
    let mut sent = Vec::new();
    for _ in 0..4 {
        sent.push(third.execute("print yes").await);
    }
    let mut refused = Vec::new();
    for _ in 0..4 {
        let seen = third.until(|message| message["msg_type"] == "execute_reply").await;
        let reply = seen.last().expect("a reply");
        if reply["content"]["status"] == "error" {
            refused.push((reply["parent_header"]["msg_id"].clone(), reply["content"]["evalue"].to_string()));
        }
    }
    assert!(refused.len() == 1 && refused[0].0 == *sent[3], "{refused:?}");
    assert!(refused[0].1.contains("3 programs a minute"), "{refused:?}");
    assert_eq!(first.run("print on").await, "on\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_tokens_cells_end_and_those_of_others_go_on() {
    let server = FakeServer::with_kernel(&[]).await;
    let (_, opens) = token(&server, json!({})).await;
    let ((runs, running), (waits, waiting)) = (token(&server, json!({})).await, token(&server, json!({})).await);
    let id = start(&server, &opens).await;
    let mut first = client(&server, &opens, &id).await;
    let mut second = client(&server, &running, &id).await;
    second.execute("hang").await;
    second.until(|message| message["content"]["execution_state"] == "busy").await;
    let mine = first.execute("print mine").await;
    revoke(&server, &runs).await;
    assert_eq!(second.closed().await, (1008, "the token was revoked or has expired".to_owned()));
    let told = first.until(|message| message["content"]["text"].is_string()).await;
    assert!(told.last().expect("a note")["content"]["text"].to_string().contains("was revoked"), "{told:?}");
    assert_eq!(text(&first.answers(&mine).await), "mine\n");

    let asked = |message: &Value| message["msg_type"] == "input_request";
    let asks = first.execute("ask one?\nask two?").await;
    first.until(asked).await;
    let mut third = client(&server, &waiting, &id).await;
    let never = third.execute("print never").await;
    // It comes behind the code, so the code waits when it has come.
    third.send("stdin", "input_reply", json!({"value": "1"})).await;
    first.until(asked).await;
    revoke(&server, &waits).await;
    third.closed().await;
    first.send("stdin", "input_reply", json!({"value": "2"})).await;
    assert_eq!(text(&first.answers(&asks).await), "2\n");
    let seen =
        first.until(|message| message["parent_header"]["msg_id"] == never && message["msg_type"] == "error").await;
    assert_eq!(seen.last().expect("an error")["content"]["ename"], "unauthorized");
    assert_eq!(first.run("print on").await, "on\n");
    server.stop().await;
}

/// The cell before it has replied, and its idle status is awaited.
#[tokio::test(flavor = "multi_thread")]
async fn why_a_cell_is_stopped_stands_beside_its_own_output() {
    let server = FakeServer::with_kernel(&[]).await;
    let ((_, opens), (sends, sending)) = (token(&server, json!({})).await, token(&server, json!({})).await);
    let id = start(&server, &opens).await;
    let (mut first, mut second) = (client(&server, &opens, &id).await, client(&server, &sending, &id).await);
    // Both are passed on in one turn.
    second.execute("noidle\nprint replied").await;
    let stopped = second.execute("print running\nhang").await;
    first.until(|message| message["content"]["text"] == "running\n").await;
    revoke(&server, &sends).await;
    let told = first.until(|message| message["content"]["text"].to_string().contains("was revoked")).await;
    assert_eq!(told.last().expect("a note")["parent_header"]["msg_id"], stopped, "{told:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_is_not_started_again_by_a_token_that_has_ended_or_is_for_other_languages() {
    let server = FakeServer::with_kernel(&[]).await;
    let (opener, opens) = token(&server, json!({})).await;
    let id = start(&server, &opens).await;
    let mut first = client(&server, &opens, &id).await;
    let (_, bash) = create(&server, json!({"name": "n", "owner": "ann", "languages": ["bash"]})).await;
    for path in [format!("/jupyter/api/kernels/{id}/restart"), "/jupyter/api/kernels".to_owned()] {
        let refused = ask(&server, &bash, Method::POST, &path, json!({"name": "fake"})).await;
        let why = refused["message"].as_str().unwrap_or_default();
        assert!(why.contains("this token is for bash only"), "{refused}");
    }
    assert_eq!(first.run("print still").await, "still\n");

    // A kernel that has died may be started again; not by a request that was under way when its token ended.
    first.execute("exit 3").await;
    first.closed().await;
    revoke(&server, &opener).await;
    let who = "ann".parse::<Principal>().expect("a name").by(opener.parse().expect("an id"));
    let session = format!("session-{}", id.replace('-', "")).parse().expect("an id");
    let restarted = server.kernels.restart(&who, session).await;
    assert_eq!(restarted.map(drop).map_err(|why| why.code), Err(Code::Unauthorized));
    assert!(server.kernels.list(&who, None).is_empty());
    server.stop().await;
}
