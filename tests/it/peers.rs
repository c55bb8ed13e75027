//! Several servers of one database behind one address: each answers for every conversation, run and session.
//!
//! The two servers have engines of their own, so what an engine started tells where a program ran.

mod batches;
mod conversations;
mod files;
mod keys;
mod uploads;

use mcp_sandbox_server::domain::{
    id::ConversationId,
    owner::{ConversationKey, Principal},
};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    FakeServer,
    calls::{ask, call},
    fake_server::{BOTH, OWN_ADDRESS, messages},
    postgres::Postgres,
    server::TOKEN,
    socket::Socket,
    sse::Events,
    until,
};

/// Two servers on one folder and one database.
struct Pair {
    a: FakeServer,
    b: FakeServer,
    cluster: Postgres,
    _folder: TempDir,
}

impl Pair {
    async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With some settings of their own.
    async fn with(more: &[(&str, &str)]) -> Self {
        let cluster = Postgres::start().await;
        let folder = tempfile::Builder::new().prefix("sandbox-it-").tempdir().expect("a folder");
        let url = cluster.url();
        let settings = [more, &[("DATABASE_URL", url.as_str()), ("SANDBOX_SERVER__PEER_URL", OWN_ADDRESS)]].concat();
        let root = folder.path().join("root");
        let (a, b) = (FakeServer::again(&root, &settings).await, FakeServer::again(&root, &settings).await);
        for server in [&a, &b] {
            until("each knows the other", async || server.mcp.runs.peers().others().len() == 1).await;
        }
        Self { a, b, cluster, _folder: folder }
    }

    /// How many sandboxes each has started.
    fn started(&self) -> (usize, usize) {
        (self.a.engine.started().len(), self.b.engine.started().len())
    }

    async fn stop(self) {
        self.a.stop().await;
        self.b.stop().await;
    }
}

fn run(conversation: &str, code: &str) -> Value {
    json!({"conversationId": conversation, "language": "python", "code": code, "wait": 60})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_read_followed_and_ended_at_any_server() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let asked = json!({"conversationId": "c", "language": "python", "code": "print begun\nhang", "wait": 0});
    let (status, begun) = ask(a, Method::POST, "/v1/runs", Some(asked)).await;
    assert_eq!(status, 202, "{begun}");
    let id = begun["runId"].as_str().expect("an id");
    let path = format!("/v1/runs/{id}");
    until("it runs", async || ask(b, Method::GET, &path, None).await.1["state"] == "running").await;
    let mut events = Events::open(&b.http, &format!("http://{}", b.address), id).await;
    while events.next().await.expect("an event")["text"] != "begun\n" {}
    let busy = ask(b, Method::DELETE, "/v1/conversations/c", None).await;
    assert_eq!((busy.0, &busy.1["code"]), (409, &json!("conversation_busy")), "the other server knows");
    let asked = json!({"runId": id, "waitSeconds": 0});
    let (mine, theirs) = (a.call("sandbox_get_run", asked.clone()).await, b.call("sandbox_get_run", asked).await);
    assert_eq!(mine["structuredContent"]["state"], theirs["structuredContent"]["state"]);
    let (status, ended) = ask(b, Method::POST, &format!("{path}/cancel"), None).await;
    assert_eq!((status, &ended["result"]["outcome"]["ended"]), (200, &json!("cancelled")), "{ended}");
    while events.next().await.is_some() {}
    assert_eq!(pair.started(), (1, 0));
    assert_eq!(ask(b, Method::DELETE, "/v1/conversations/c", None).await.0, 204);
    assert_eq!(ask(b, Method::GET, &format!("/v1/runs/run-{}", "0".repeat(32)), None).await.0, 404);
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_of_a_conversation_are_at_one_server() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let (status, first) = ask(b, Method::POST, "/v1/runs", Some(run("c", "write f 1"))).await;
    assert_eq!((status, &first["state"]), (200, &json!("finished")), "{first}");
    // The same two, again and again, with all ways to run.
    for n in 0..4 {
        assert_eq!(ask(a, Method::POST, "/v1/runs", Some(run("c", "print 1"))).await.0, 200);
        let result = a.run("c", "print 2").await;
        assert_eq!(result["structuredContent"]["stdout"], "2\n", "{n}: {result}");
    }
    assert_eq!(pair.started().0, 0, "{:?}", pair.started());
    let fresh = a.call("sandbox_run_code", json!({"language": "python", "code": "print 3"})).await;
    let id = fresh["structuredContent"]["conversationId"].as_str().expect("an id").to_owned();
    assert_eq!(pair.started().0, 1, "a new conversation is where it began");
    let (before, there) = (pair.started(), b.run(&id, "print 4").await);
    assert_eq!((&there["structuredContent"]["stdout"], pair.started().1), (&json!("4\n"), before.1), "{there}");

    let both = [a, b].map(|server| ask(server, Method::POST, "/v1/runs", Some(run("new", "print 5"))));
    for (status, answer) in futures_util::future::join_all(both).await {
        assert_eq!((status, &answer["result"]["stdout"]), (200, &json!("5\n")), "{answer}");
    }
    let now = pair.started();
    assert_eq!((now.0 - 1) % 2 * ((now.1 - before.1) % 2), 0, "one server had both: {before:?}, {now:?}");
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_keep_their_variables_whichever_server_is_asked() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let (status, session) = ask(a, Method::POST, "/v1/sessions", Some(json!({"conversationId": "c"}))).await;
    assert_eq!(status, 201, "{session}");
    let path = format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"));
    let cells = format!("{path}/cells");
    assert_eq!(ask(b, Method::POST, &cells, Some(json!({"code": "set x 41"}))).await.0, 200);
    for server in [a, b] {
        let (_, shown) = ask(server, Method::POST, &cells, Some(json!({"code": "get x"}))).await;
        assert_eq!(shown["result"]["stdout"], "41\n", "{shown}");
        let asked = json!({"conversationId": "c", "code": "get x"});
        let by_mcp = server.call("sandbox_run_cell", asked).await;
        assert_eq!(by_mcp["structuredContent"]["stdout"], "41\n", "{by_mcp}");
        let (status, again) = ask(server, Method::POST, "/v1/sessions", Some(json!({"conversationId": "c"}))).await;
        assert_eq!((status, &again["sessionId"]), (201, &session["sessionId"]), "the open one");
        let named = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                           "params": {"name": "execute_python_code", "arguments": {"command": "set y 1"}}});
        let answer = server.post_to("?tools=coderunner", named.to_string()).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    assert_eq!(a.sessions.load().open + b.sessions.load().open, 2, "one for c, one for clients without a session");
    let kernel = ask(a, Method::POST, "/jupyter/api/kernels", None).await.1;
    let channels = format!("/jupyter/t/{TOKEN}/api/kernels/{}/channels", kernel["id"].as_str().expect("an id"));
    let mut socket = Socket::connect(b.address, &channels, &[]).await.expect("a connection through the other server");
    let asked = socket.execute("print through").await;
    let shown = socket.answers(&asked).await;
    assert!(shown.iter().any(|message| message.to_string().contains("through")), "{shown:?}");
    drop(socket);
    assert_eq!(ask(b, Method::DELETE, &path, None).await.0, 200);
    assert_eq!(ask(b, Method::GET, &path, None).await.0, 410, "how it ended is told where it was");
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_those_of_all_servers() {
    let pair = Pair::start().await;
    let mut made: [Vec<Value>; 5] = Default::default();
    for (server, conversation) in [(&pair.a, "of-a"), (&pair.b, "of-b"), (&pair.a, "of-a")] {
        let (status, ran) = ask(server, Method::POST, "/v1/runs", Some(run(conversation, "print 1"))).await;
        assert_eq!(status, 200, "{ran}");
        made[0].push(ran["runId"].clone());
    }
    for (server, conversation) in [(&pair.a, "of-a"), (&pair.b, "of-b")] {
        let asked = json!({"conversationId": conversation});
        made[1].push(ask(server, Method::POST, "/v1/sessions", Some(asked)).await.1["sessionId"].clone());
        made[2].push(ask(server, Method::POST, "/e2b/v2/sandboxes", Some(json!({}))).await.1["sandboxID"].clone());
        made[3].push(ask(server, Method::POST, "/jupyter/api/kernels", None).await.1["id"].clone());
        let asked = json!({"name": conversation});
        made[4].push(ask(server, Method::POST, "/openai/v1/containers", Some(asked)).await.1["id"].clone());
    }
    let ids = |all: &Value, id: &str| all.as_array().expect("a list").iter().map(|one| one[id].clone()).collect();
    for server in [&pair.a, &pair.b] {
        let list = async |path: &str| ask(server, Method::GET, path, None).await.1;
        let runs: Vec<Value> = ids(&list("/v1/runs").await["runs"], "runId");
        assert!(runs.iter().eq(made[0].iter().rev()), "newest first: {runs:?}, {:?}", made[0]);
        let (mut page, mut pages) = (list("/v1/runs?limit=1").await, 0);
        for run in &runs {
            assert_eq!(ids(&page["runs"], "runId"), vec![run.clone()], "{page}");
            pages += 1;
            let Some(after) = page["after"].as_str() else { break };
            page = list(&format!("/v1/runs?limit=1&after={after}")).await;
        }
        assert_eq!((pages, page.get("after")), (runs.len(), None), "{page}");
        assert_eq!(ids(&list("/v1/runs?conversationId=of-b").await["runs"], "runId"), made[0][1..2]);
        let sessions: Vec<Value> = ids(&list("/v1/sessions").await["sessions"], "sessionId");
        let sandboxes: Vec<Value> = ids(&list("/e2b/v2/sandboxes").await, "sandboxID");
        let kernels: Vec<Value> = ids(&list("/jupyter/api/kernels").await, "id");
        let containers: Vec<Value> = ids(&list("/openai/v1/containers").await["data"], "id");
        for (all, listed) in made[1..].iter().zip([sessions, sandboxes, kernels, containers]) {
            assert!(all.iter().all(|id| listed.contains(id)), "{all:?}: {listed:?}");
        }
        assert_eq!(ids(&list("/openai/v1/containers?name=of-b").await["data"], "id"), made[4][1..]);
        assert_eq!(ask(server, Method::GET, "/openai/v1/containers?after=none", None).await.0, 400);
    }
    // Each page by another server.
    let (_, first) = ask(&pair.a, Method::GET, "/openai/v1/containers?limit=1", None).await;
    let after = format!("/openai/v1/containers?limit=1&after={}", first["last_id"].as_str().expect("an id"));
    let (_, second) = ask(&pair.b, Method::GET, &after, None).await;
    assert_eq!((&first["has_more"], &second["has_more"]), (&json!(true), &json!(false)), "{first}, {second}");
    assert_ne!(first["last_id"], second["last_id"]);
    pair.stop().await;
}

/// Where containers are made, the member that names one, and the status of removing it.
const CONTAINERS: [(&str, &str, u16); 2] = [("/openai/v1/containers", "id", 200), ("/e2b/sandboxes", "sandboxID", 204)];

/// Each server is asked to begin something in it first.
#[tokio::test(flavor = "multi_thread")]
async fn programs_of_a_container_run_where_it_is_and_it_is_removed_through_any_server() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    for (containers, id, removed) in CONTAINERS {
        for server in [a, b] {
            let (_, made) = ask(a, Method::POST, containers, Some(json!({"name": "n"}))).await;
            let id = made[id].as_str().expect("an id");
            let before = pair.started();
            let (status, ran) = ask(b, Method::POST, "/v1/runs", Some(run(id, "write f 1"))).await;
            assert_eq!((status, &ran["state"]), (200, &json!("finished")), "{ran}");
            assert_eq!(pair.started().1, before.1, "the other server has the container");
            let path = format!("{containers}/{id}");
            assert_eq!(ask(server, Method::DELETE, &path, None).await.0, removed, "{path}");
            let file = format!("http://{}/v1/conversations/{id}/files/f", b.address);
            assert_eq!(b.http.get(&file).bearer_auth(TOKEN).send().await.expect("an answer").status(), 404, "{path}");
        }
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_are_removed_with_their_files_through_any_server() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    for (containers, id, removed) in CONTAINERS {
        for server in [a, b] {
            let (_, made) = ask(a, Method::POST, containers, Some(json!({"name": "n"}))).await;
            let id = made[id].as_str().expect("an id");
            let file = format!("http://{}/v1/conversations/{id}/files/f", a.address);
            let put = a.http.put(&file).bearer_auth(TOKEN).body("text").send().await.expect("an answer");
            assert!(put.status().is_success(), "{}", put.status());
            let path = format!("{containers}/{id}");
            assert_eq!(ask(server, Method::DELETE, &path, None).await.0, removed, "{path}");
            let read = a.http.get(&file).bearer_auth(TOKEN).send().await.expect("an answer");
            assert_eq!(read.status(), 404, "{path}");
            assert_eq!(ask(server, Method::DELETE, &path, None).await.0, 404, "{path}");
        }
    }
    pair.stop().await;
}

/// A request goes from one server to the next until one does not answer 404.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_of_e2b_is_gone_only_when_no_server_has_it() {
    let pair = Pair::start().await;
    for (sent_on, expected) in [(None, 502), (Some("1"), 404)] {
        let request = pair.b.http.get(format!("http://{}/e2b/health", pair.b.address)).bearer_auth(TOKEN);
        let request = request.header("e2b-sandbox-id", "none");
        let request = sent_on.into_iter().fold(request, |request, hops| request.header("sandbox-sent-on", hops));
        assert_eq!(request.send().await.expect("an answer").status(), expected, "{sent_on:?}");
    }
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_mcp_is_used_through_any_server() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let hello = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let opened = a.post(hello.to_string()).header("accept", BOTH).send().await.expect("an answer");
    let session = opened.headers()["mcp-session-id"].to_str().expect("an id").to_owned();
    let send = async |server: &FakeServer, message: Value| {
        let request = server.post(message.to_string()).header("accept", BOTH);
        request.header("mcp-session-id", &session).send().await.expect("an answer")
    };
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(send(b, initialized).await.status(), 202);
    // In a conversation of each server, asked of each.
    assert_eq!(ask(a, Method::POST, "/v1/runs", Some(run("of-a", "print 1"))).await.0, 200);
    assert_eq!(ask(b, Method::POST, "/v1/runs", Some(run("of-b", "print 1"))).await.0, 200);
    let (before, mut id) = (pair.started(), 0);
    for server in [a, b] {
        for conversation in ["of-a", "of-b"] {
            id += 1;
            let arguments = json!({"conversationId": conversation, "language": "python", "code": "print 2"});
            let asked = json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
                               "params": {"name": "sandbox_run_code", "arguments": arguments}});
            let answers = messages(send(server, asked).await).await;
            let answer = answers.last().expect("an answer");
            assert_eq!(answer["id"], id, "{answer}");
            assert!(answer["result"]["content"][0]["text"].as_str().expect("text").starts_with("2\n"), "{answer}");
        }
    }
    assert_eq!(pair.started(), (before.0 + 2, before.1 + 2));
    // Sent on as often as may be: it is refused here.
    let asked = json!({"jsonrpc": "2.0", "id": "refused", "method": "tools/call",
                       "params": {"name": "sandbox_run_code", "arguments": run("of-b", "print 3")}});
    let refused = a.post(asked.to_string()).header("sandbox-sent-on", "2").send().await.expect("an answer");
    let refused: Value = refused.json().await.expect("JSON");
    assert_eq!((&refused["id"], &refused["error"]["data"]["code"]), (&json!("refused"), &json!("held_elsewhere")));
    let url = format!("http://{}/mcp", b.address);
    let ended =
        b.http.delete(&url).bearer_auth(TOKEN).header("mcp-session-id", &session).send().await.expect("an answer");
    assert_eq!(ended.status(), 200);
    let ping = json!({"jsonrpc": "2.0", "id": 99, "method": "ping"});
    assert_eq!(send(b, ping).await.status(), 404);
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_owner_learns_nothing_through_another_server() {
    let pair = Pair::start().await;
    let (a, b) = (&pair.a, &pair.b);
    let (status, made) = ask(a, Method::POST, "/v1/tokens", Some(json!({"name": "n", "owner": "ann"}))).await;
    assert_eq!(status, 201, "{made}");
    let token = made["token"].as_str().expect("a token");
    assert_eq!(call(b, token, Method::GET, "/v1/runs", None).await.0, 200, "the other server knows it at once");
    let (_, mine) = ask(a, Method::POST, "/v1/runs", Some(run("c", "print mine"))).await;
    let path = format!("/v1/runs/{}", mine["runId"].as_str().expect("an id"));
    for server in [a, b] {
        assert_eq!(call(server, token, Method::GET, &path, None).await.0, 404);
    }
    let before = pair.started();
    let (status, theirs) = call(b, token, Method::POST, "/v1/runs", Some(run("c", "print theirs"))).await;
    assert_eq!((status, &theirs["result"]["stdout"]), (200, &json!("theirs\n")));
    assert_eq!(pair.started(), (before.0, before.1 + 1), "their conversation of that name is another one");
    // What marks a request that was sent on opens nothing.
    let forged = a.http.get(format!("http://{}{path}", a.address)).header("sandbox-sent-on", "1");
    assert_eq!(forged.send().await.expect("an answer").status(), 401);
    pair.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_leaves_its_conversations_to_the_others() {
    let Pair { a, b, cluster: _cluster, _folder } = Pair::start().await;
    assert_eq!(ask(&a, Method::POST, "/v1/runs", Some(run("c", "write f text"))).await.0, 200);
    let asked = json!({"conversationId": "c", "language": "python", "code": "print before"});
    let (_, before) = ask(&a, Method::POST, "/v1/runs", Some(asked)).await;
    let path = format!("/v1/runs/{}", before["runId"].as_str().expect("an id"));
    let (status, session) = ask(&a, Method::POST, "/v1/sessions", Some(json!({"conversationId": "c"}))).await;
    assert_eq!(status, 201, "{session}");
    a.stop().await;
    let (status, after) = ask(&b, Method::POST, "/v1/runs", Some(run("c", "print after"))).await;
    assert_eq!((status, &after["result"]["stdout"]), (200, &json!("after\n")), "{after}");
    let (status, told) = ask(&b, Method::GET, &path, None).await;
    assert_eq!((status, &told["state"], &told["fromHistory"]), (200, &json!("finished"), &json!(true)), "{told}");
    let path = format!("/v1/sessions/{}", session["sessionId"].as_str().expect("an id"));
    assert_eq!(ask(&b, Method::GET, &path, None).await.0, 404);
    let file = b.http.get(format!("http://{}/v1/conversations/c/files/f", b.address)).bearer_auth(TOKEN).send().await;
    assert_eq!(file.expect("an answer").text().await.expect("text"), "text");
    b.stop().await;
}

/// Programs that begin meanwhile are not held up, and nothing that was begun is lost.
#[tokio::test(flavor = "multi_thread")]
async fn servers_go_on_while_the_database_is_away() {
    let Pair { a, b, mut cluster, _folder } = Pair::start().await;
    assert_eq!(ask(&a, Method::POST, "/v1/runs", Some(run("known", "print 1"))).await.0, 200);
    cluster.pause();
    for server in [&a, &b] {
        let (status, answer) = ask(server, Method::POST, "/v1/runs", Some(run("unknown", "print 2"))).await;
        assert_eq!((status, &answer["result"]["stdout"]), (200, &json!("2\n")), "{answer}");
    }
    assert_eq!(ask(&a, Method::POST, "/v1/runs", Some(run("known", "print 3"))).await.0, 200);
    cluster.resume().await;
    let key = |id: &str| ConversationKey::new(Principal::default(), id.parse::<ConversationId>().expect("an id"));
    until("one of them has it", async || {
        let held = [&a, &b].map(|server| server.mcp.runs.peers().check(&key("unknown")).is_ok());
        held.iter().filter(|held| **held).count() == 1
    })
    .await;
    a.stop().await;
    b.stop().await;
}
