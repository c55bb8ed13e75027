//! Several clients of one kernel: who gets what, who comes back, who is ended.

use futures_util::SinkExt as _;
use mcp_sandbox_server::{
    domain::owner::{ConversationKey, Principal},
    services::sessions::message::{Channel, KernelMessage},
};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use super::{call, get, socket, start};
use crate::support::{
    FakeServer,
    calls::post,
    server::TOKEN,
    socket::{Socket, text},
    until,
};

async fn connections(server: &FakeServer, kernel: &str) -> Value {
    get(server, &format!("/api/kernels/{kernel}")).await["connections"].clone()
}

/// A cell over REST in a kernel's session; whether it is over in time is for the caller to wait for.
async fn rest_cell(server: &FakeServer, kernel: &str, code: &str, wait_s: u64) -> Value {
    let path = format!("/v1/sessions/session-{}/cells", kernel.replace('-', ""));
    post(server, &path, json!({"code": code, "wait": wait_s})).await
}

fn is(kind: &str) -> impl Fn(&Value) -> bool {
    move |message| message["msg_type"] == kind
}

fn state(word: &str) -> impl Fn(&Value) -> bool {
    move |message| message["content"]["execution_state"] == word
}

#[tokio::test(flavor = "multi_thread")]
async fn output_goes_to_all_and_answers_to_the_client_that_asked() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let (mut one, mut two) = (socket(&server, &id, "session_id=one").await, socket(&server, &id, "").await);
    until("both are connected", async || connections(&server, &id).await == 2).await;
    let request = one.execute("print hello\nask name?").await;
    let asked = one.until(is("input_request")).await;
    assert_eq!(asked.last().expect("a request")["content"]["prompt"], "name?");
    one.send("stdin", "input_reply", json!({"value": "Ada"})).await;
    assert_eq!(text(&one.answers(&request).await), "Ada\n");
    let seen = two.until(state("idle")).await;
    assert_eq!(text(&seen), "hello\nAda\n");
    assert!(seen.iter().all(|message| message["channel"] == "iopub"), "{seen:?}");
    // What runs over REST is seen by both, and its question by neither.
    assert_eq!(rest_cell(&server, &id, "print rest", 30).await["result"]["stdout"], "rest\n");
    for client in [&mut one, &mut two] {
        assert_eq!(text(&client.until(state("idle")).await), "rest\n");
    }
    let comm = one.execute("comm payload").await;
    let Some(Message::Binary(bytes)) = ({
        one.next().await;
        one.frame().await
    }) else {
        panic!("a message with buffers is binary")
    };
    assert_eq!(bytes[..4], 3_u32.to_be_bytes());
    assert!(bytes.ends_with(b"payload"));
    one.answers(&comm).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_not_passed_on_twice() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "").await;
    let content = json!({"code": "ask go on?", "allow_stdin": true});
    for _ in 0..3 {
        client.send_as("same", "shell", "execute_request", content.clone()).await;
    }
    client.until(is("input_request")).await;
    client.send("stdin", "input_reply", json!({"value": "yes"})).await;
    client.answers("same").await;
    assert_eq!(client.run("print end").await, "end\n");
    let session = server.sessions.list(&Principal::default(), None);
    assert_eq!(session.len(), 1);
    let cells = client.execute("get nothing").await;
    let reply = client.answers(&cells).await.into_iter().find(is("execute_reply")).expect("a reply");
    assert_eq!(reply["content"]["status"], "error");
    let count = client.execute("set x 1\nget x").await;
    let result = client.answers(&count).await.into_iter().find(is("execute_result")).expect("a result");
    assert_eq!(result["content"]["execution_count"], 4, "one, and three others");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_may_use_one_id_at_once() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let (mut one, mut two) = (socket(&server, &id, "").await, socket(&server, &id, "").await);
    until("both are connected", async || connections(&server, &id).await == 2).await;
    // Both wait for their turn meanwhile.
    rest_cell(&server, &id, "sleep 500ms", 0).await;
    one.send_as("same", "shell", "execute_request", json!({"code": "print one"})).await;
    two.send_as("same", "shell", "execute_request", json!({"code": "print two"})).await;
    for (client, printed) in [(&mut one, "one\n"), (&mut two, "two\n")] {
        let seen = client.until(is("execute_reply")).await;
        assert!(text(&seen).contains(printed), "{seen:?}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_comes_back_gets_what_it_missed() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "/c/mine").await;
    let gone = async || until("it is gone", async || connections(&server, &id).await == 0).await;
    let mut first = socket(&server, &id, "session_id=one").await;
    let request = first.execute("print before\nask go?").await;
    first.until(is("input_request")).await;
    drop(first);
    gone().await;
    // The cell goes on, and prints more than is kept.
    let flood = rest_cell(&server, &id, "print rest", 0).await;
    assert_eq!(flood["state"], "queued", "the notebook has the turn: {flood}");
    let mut other = socket(&server, &id, "").await;
    other.send("stdin", "input_reply", json!({"value": "on"})).await;
    other.until(|message| message["content"]["text"] == "rest\n").await;
    drop(other);
    gone().await;
    let mut back = socket(&server, &id, "session_id=one").await;
    assert_eq!(back.run("print now").await, "now\n", "another client was there meanwhile");

    let late = back.execute("wait-file go\nprint missed\nflood 3000000\nprint more").await;
    back.until(state("busy")).await;
    drop(back);
    gone().await;
    std::fs::write(server.root.join("mine/files/go"), "").expect("written");
    until("the cell is over", async || get(&server, &format!("/api/kernels/{id}")).await["execution_state"] == "idle")
        .await;
    let mut back = socket(&server, &id, "session_id=one").await;
    let answers = back.answers(&late).await;
    let missed = text(&answers);
    assert!(missed.starts_with("missed\nxxx") && !missed.contains("more"), "{}", missed.len());
    assert!(missed.len() < 1 << 20 && missed.ends_with("did not read or was away.]\n"), "{}", missed.len());
    let is_note = |message: &&Value| message["content"]["name"] == "stderr";
    let note = answers.iter().find(is_note).expect("a note before the reply");
    assert_eq!(note["header"]["session"], "fake", "JupyterLab leaves out what stands before another session's message");
    assert_eq!(note["parent_header"]["msg_id"], late);
    assert_ne!(request, late);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_connection_of_a_client_replaces_the_first() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut first = socket(&server, &id, "session_id=one").await;
    let request = first.execute("ask go?").await;
    first.until(is("input_request")).await;
    let mut second = socket(&server, &id, "session_id=one").await;
    assert_eq!(first.closed().await, (1000, "the client has connected again".to_owned()));
    second.send("stdin", "input_reply", json!({"value": "yes"})).await;
    assert_eq!(text(&second.answers(&request).await), "yes\n", "the reply comes to where the client is now");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernels_clients_are_bounded_and_one_that_leaves_gives_its_place() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(socket(&server, &id, "").await);
    }
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{id}/channels");
    let connect = async || Socket::connect(server.address, &path, &[]).await;
    assert_eq!(connect().await.map(drop), Err(503));
    assert_eq!(clients[0].run("print on").await, "on\n");
    clients.pop();
    until("the place is free", async || connect().await.is_ok()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_all_kernels_of_an_owner_are_bounded() {
    let server = FakeServer::with_kernel(&[]).await;
    let mut clients = Vec::new();
    for _ in 0..4 {
        let id = start(&server, "").await;
        for _ in 0..32 {
            clients.push(socket(&server, &id, "").await);
        }
    }
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{}/channels", start(&server, "").await);
    let connect = async || Socket::connect(server.address, &path, &[]).await;
    assert_eq!(connect().await.map(drop), Err(503));
    clients.pop();
    until("the place is free", async || connect().await.is_ok()).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_ended_and_holds_up_no_other() {
    let server = FakeServer::with_kernel(&[("SANDBOX_SERVER__WRITE_STALL_MS", "5000")]).await;
    let id = start(&server, "").await;
    let slow = socket(&server, &id, "session_id=slow").await;
    let mut quick = socket(&server, &id, "").await;
    until("both are connected", async || connections(&server, &id).await == 2).await;
    let request = quick.execute("flood 40000000\nprint end").await;
    let printed = text(&quick.answers(&request).await);
    assert!(printed.len() == 40_000_004 && printed.ends_with("end\n"), "{}", printed.len());
    until("it was ended", async || connections(&server, &id).await == 1).await;
    drop(slow);
    assert_eq!(quick.run("print on").await, "on\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_messages_end_their_connection_only() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut good = socket(&server, &id, "").await;
    good.run("set x 41").await;
    let message = |member: &str, value: Value| {
        let header = json!({"msg_id": "1", "msg_type": "execute_request"});
        let mut message = json!({"channel": "shell", "header": header, "content": {"code": "x"}});
        message[member] = value;
        Message::Text(message.to_string().into())
    };
    for (frame, code) in [
        (Message::Text("no JSON".into()), 1007),
        (Message::Text("{}".into()), 1007),
        (Message::Binary(vec![0, 0, 0, 1].into()), 1007),
        (Message::Binary(vec![0xff; 64].into()), 1007),
        (message("channel", json!("iopub")), 1008),
        (message("channel", json!("bridge")), 1008),
        (message("channel", json!("none")), 1007),
        (message("header", json!({"msg_type": "x"})), 1008),
        (message("header", json!({"msg_id": "i".repeat(300), "msg_type": "x"})), 1008),
        (message("header", json!({"msg_id": "1", "msg_type": "x", "more": "x".repeat(9 << 10)})), 1008),
        (message("content", json!({"code": 1})), 1008),
        (message("content", json!({"code": "x".repeat(5 << 20)})), 1009),
    ] {
        let mut client = socket(&server, &id, "").await;
        client.stream.send(frame.clone()).await.expect("it is sent");
        let (got, why) = client.closed().await;
        assert_eq!((got, why.is_empty()), (code, false), "{why}");
    }
    let headers = [("sec-websocket-protocol", crate::support::socket::V1)];
    let path = format!("/jupyter/t/{TOKEN}/api/kernels/{id}/channels");
    let mut client = Socket::connect(server.address, &path, &headers).await.expect("a connection");
    client.stream.send(Message::Binary(vec![6, 0, 0, 0, 0, 0, 0, 0, 1].into())).await.expect("it is sent");
    assert_eq!(client.closed().await.0, 1007);
    assert_eq!(good.run("get x").await, "41", "the session lives");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_connections_and_a_death_ends_them() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let path = format!("/api/kernels/{id}");
    let mut client = socket(&server, &id, "session_id=one").await;
    client.run("set x 41").await;
    let lost = [client.execute("hang").await, client.execute("print never").await];
    client.until(state("busy")).await;
    client.is_read().await;
    assert_eq!(call(&server, Method::POST, &format!("{path}/restart"), None).await.0, 200);
    for lost in lost {
        let answers = client.answers(&lost).await;
        assert!(text(&answers).contains("it was restarted"), "{answers:?}");
        assert!(!answers.iter().any(state("restarting")), "JupyterLab would show a death");
    }
    assert!(client.run("get x").await.contains("not defined"), "a new interpreter, without what was queued");
    assert_eq!(server.sessions.list(&Principal::default(), None)[0].cells, 1);

    let session = format!("http://{}/v1/sessions/session-{}/restart", server.address, id.replace('-', ""));
    assert_eq!(server.http.post(session).bearer_auth(TOKEN).send().await.expect("an answer").status(), 200);
    let seen = client.until(state("restarting")).await;
    assert_eq!(seen.last().expect("a status")["parent_header"], json!({}));

    let dying = client.execute("exit 3").await;
    let seen = client.until(state("dead")).await;
    let reply = seen.iter().find(|message| is("execute_reply")(message)).expect("a reply");
    assert_eq!(
        (&reply["parent_header"]["msg_id"], &reply["content"]["ename"]),
        (&json!(dying), &json!("session_ended"))
    );
    let (code, why) = client.closed().await;
    assert_eq!((code, why.as_str()), (1000, "the kernel is gone: its interpreter ended with status 3"));
    assert_eq!(call(&server, Method::GET, &path, None).await.0, 404);
    // A person who restarts a dead kernel finds it under its id.
    assert_eq!(call(&server, Method::POST, &format!("{path}/restart"), None).await.2["id"], id.as_str());
    let mut client = socket(&server, &id, "session_id=one").await;
    assert_eq!(client.run("print again").await, "again\n");
    assert_eq!(call(&server, Method::DELETE, &path, None).await.0, 204);
    client.until(state("dead")).await;
    assert_eq!(client.closed().await.0, 1000);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn notebooks_and_runs_of_a_conversation_take_turns() {
    let more = [("SANDBOX_ADMISSION__CONVERSATION_MAX", "2"), ("SANDBOX_LIMITS__WALL_MS", "4000")];
    let server = FakeServer::with_kernel(&more).await;
    let id = start(&server, "/c/mine").await;
    let mut client = socket(&server, &id, "").await;
    let cell = client.execute("ask go?").await;
    client.until(is("input_request")).await;
    assert_eq!(get(&server, &format!("/api/kernels/{id}")).await["execution_state"], "busy");
    let run = json!({"conversationId": "mine", "language": "python", "code": "print run", "wait": 0});
    let runs = format!("http://{}/v1/runs", server.address);
    let begin = async || -> Value {
        let request = server.http.post(&runs).bearer_auth(TOKEN).json(&run);
        request.send().await.expect("an answer").json().await.expect("JSON")
    };
    let waiting = begin().await;
    assert_eq!(waiting["state"], "queued", "{waiting}");
    let path = format!("{runs}/{}?wait=30", waiting["runId"].as_str().expect("an id"));
    // It is longer than a run may take.
    tokio::time::sleep(std::time::Duration::from_millis(4500)).await;
    client.send("stdin", "input_reply", json!({"value": "yes"})).await;
    assert_eq!(text(&client.answers(&cell).await), "yes\n");
    let over: Value =
        server.http.get(path).bearer_auth(TOKEN).send().await.expect("an answer").json().await.expect("JSON");
    assert_eq!(over["result"]["stdout"], "run\n", "{over}");

    // Two of the conversation run or wait already: the notebook is told, and nothing is executed.
    let run = rest_cell(&server, &id, "hang", 0).await;
    rest_cell(&server, &id, "print second", 0).await;
    let refused = client.execute("print no").await;
    let answers = client.answers(&refused).await;
    let reply = answers.iter().find(|message| is("execute_reply")(message)).expect("a reply");
    assert_eq!((&reply["content"]["status"], &reply["content"]["ename"]), (&json!("error"), &json!("queue_full")));
    assert!(run["runId"].is_string(), "{run}");
    until("both are over", async || get(&server, &format!("/api/kernels/{id}")).await["execution_state"] == "idle")
        .await;
    until("there is room", async || client.run("print yes").await == "yes\n").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_without_an_idle_status_gives_its_turn_back() {
    let server = FakeServer::with_kernel(&[]).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "").await;
    client.execute("noidle\nprint on").await;
    client.until(is("execute_reply")).await;
    assert_eq!(rest_cell(&server, &id, "print rest", 30).await["result"]["stdout"], "rest\n");
    assert_eq!(client.run("print again").await, "again\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_not_idle_and_ends_with_the_server() {
    let more = [("SANDBOX_SERVER__IDLE_MS", "2000"), ("SANDBOX_SERVER__HEADER_READ_MS", "2000")];
    let server = FakeServer::with_kernel(&more).await;
    let id = start(&server, "").await;
    let mut client = socket(&server, &id, "").await;
    let mut idle = tokio::net::TcpStream::connect(server.address).await.expect("a connection");
    let mut end = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut idle, &mut end).await.expect("the server ends it");
    assert_eq!(client.run("print on").await, "on\n", "an idle connection was ended meanwhile");
    let mut hanging = socket(&server, &id, "").await;
    hanging.execute("hang").await;
    hanging.until(state("busy")).await;
    let (stopped, closed) = tokio::join!(server.stop(), client.closed());
    assert_eq!((stopped, closed), ((), (1001, "the server stops".to_owned())));
}

/// A hub that could not run in between finds the client and its message at once, in two channels.
#[tokio::test]
async fn a_message_that_comes_right_behind_its_client_is_passed_on() {
    let server = FakeServer::with_kernel(&[]).await;
    let who = Principal::default();
    let conversation = ConversationKey::new(who.clone(), "a".parse().expect("an id"));
    let kernel =
        server.kernels.start(&conversation, &"python".parse().expect("a language")).await.expect("a kernel").id;
    for n in 0..30 {
        let mut connection = server.kernels.connect(&who, kernel, None).expect("a connection");
        let id = format!("question-{n}");
        let header = json!({"msg_id": id, "msg_type": "kernel_info_request", "session": "s"});
        connection.send(KernelMessage::new(Channel::Shell, &header, &json!({}))).await.expect("sent");
        let answered = async {
            while let Some(message) = connection.next().await {
                if message.channel == Channel::Shell && message.read_parent().msg_id == id {
                    return;
                }
            }
            panic!("the connection is over");
        };
        timeout(until::PATIENCE, answered).await.expect("an answer");
    }
    server.stop().await;
}
