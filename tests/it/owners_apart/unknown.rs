//! Ids of another owner and ids that never were: answered with the same bytes, after the same work.

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use super::{World, surfaces::parsed, work::Observer};
use crate::support::postgres::Postgres;

const BOTH: &str = "application/json, text/event-stream";
/// How often each request is sent, in turn with its counterpart.
const ROUNDS: usize = 3;
/// Something else in the server may happen in a round: what tells the two apart does so in each of these.
const TRIES: usize = 3;

/// A file of a conversation, as MCP names it.
const FILE: &str = "sandbox://files/ID/f";
/// What the path of a request ends in whose id is in the header of MCP sessions.
const IN_HEADER: &str = "#ID";

/// What is answered with 200 and not with 404: lists, of what is not there and from an id on, and MCP, which says it in
/// the body.
const ANSWERED: [&str; 7] = [
    "/v1/conversations/ID/files",
    "/v1/runs?conversationId=ID",
    "/v1/sessions?conversationId=ID",
    "/v1/runs?after=ID",
    "/v1/conversations?after=ID",
    "/librechat/v1/files/ID",
    "/mcp",
];

/// A request with an id: its kind, and the request with `ID` in its place.
type Row = (Method, usize, &'static str, Option<Value>);

/// Of each kind one of the other owner and one that never was, of the same length.
struct Ids([[String; 2]; KINDS]);

const KINDS: usize = 10;
const CONVERSATION: usize = 0;
const RUN: usize = 1;
const SESSION: usize = 2;
const KERNEL: usize = 3;
const CONTAINER: usize = 4;
const SANDBOX: usize = 5;
const LIBRECHAT: usize = 6;
const QUESTION: usize = 7;
const MCP_SESSION: usize = 8;
/// What Jupyter calls a session.
const DOCUMENT: usize = 9;

impl Ids {
    /// What the second owner has, all of it in conversations that the first has not.
    async fn make(world: &World) -> Self {
        let made = async |path: &str, body: Value, id: &str| {
            let (status, made) = world.send(1, Method::POST, path, Some(body)).await;
            assert!(matches!(status, 200 | 201), "{path}: {made}");
            parsed(&made)[id].as_str().expect("an id").to_owned()
        };
        let body = json!({"conversationId": "secret", "language": "python", "code": "write f bobs"});
        let keyed = world.server.http.post(format!("http://{}/v1/runs", world.server.address));
        let keyed = keyed.bearer_auth(&world.owners[1].token).header("Idempotency-Key", "their-key").json(&body);
        let run: Value = keyed.send().await.expect("an answer").json().await.expect("JSON");
        let run = run["runId"].as_str().expect("an id").to_owned();
        let session = made("/v1/sessions", json!({"conversationId": "secret"}), "sessionId").await;
        let container = made("/openai/v1/containers", json!({"name": "c"}), "id").await;
        let sandbox = made("/e2b/v2/sandboxes", json!({"timeout": 600}), "sandboxID").await;
        let exec = json!({"lang": "py", "code": "write f bobs"});
        let librechat = made("/librechat/v1/exec", exec, "session_id").await;
        let question = world.owners[1].questions.keys().next().expect("one").clone();
        let pair = |id: String| {
            let never = near(&id);
            [id, never]
        };
        let kernels = [&session, &near(&session)].map(|session| {
            let id = session.trim_start_matches("session-");
            uuid::Uuid::parse_str(id).expect("an id").to_string()
        });
        let document = json!({"path": "n.ipynb", "type": "notebook", "kernel": {"id": kernels[0]}});
        let document = made("/jupyter/api/sessions", document, "id").await;
        Self([
            ["secret".to_owned(), "tertia".to_owned()],
            pair(run),
            pair(session),
            kernels,
            pair(container),
            pair(sandbox),
            pair(librechat),
            pair(question),
            pair(world.mcp_session().await),
            pair(document),
        ])
    }
}

/// An id that never was, with the same time in it.
fn near(id: &str) -> String {
    let (rest, last) = id.split_at(id.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

fn rows() -> Vec<Row> {
    let cell = || Some(json!({"code": "print x"}));
    vec![
        (Method::GET, CONVERSATION, "/v1/conversations/ID/files", None),
        (Method::GET, CONVERSATION, "/v1/conversations/ID/files/f", None),
        (Method::DELETE, CONVERSATION, "/v1/conversations/ID/files/f", None),
        (Method::POST, CONVERSATION, "/v1/conversations/ID/move", Some(json!({"from": "f", "to": "g"}))),
        (Method::GET, CONVERSATION, "/v1/conversations/ID/archive", None),
        (Method::POST, CONVERSATION, "/v1/conversations/ID/archive/link", None),
        (Method::DELETE, CONVERSATION, "/v1/conversations/ID", None),
        (Method::GET, CONVERSATION, "/v1/runs?conversationId=ID", None),
        (Method::GET, CONVERSATION, "/v1/sessions?conversationId=ID", None),
        (Method::GET, CONVERSATION, "/jupyter/c/ID/api/contents/f", None),
        (Method::GET, RUN, "/v1/runs/ID", None),
        (Method::GET, RUN, "/v1/runs/ID/events", None),
        (Method::POST, RUN, "/v1/runs/ID/cancel", None),
        (Method::POST, RUN, "/v1/runs/ID/stdin", None),
        (Method::GET, SESSION, "/v1/sessions/ID", None),
        (Method::POST, SESSION, "/v1/sessions/ID/cells", cell()),
        (Method::POST, SESSION, "/v1/sessions/ID/interrupt", None),
        (Method::POST, SESSION, "/v1/sessions/ID/restart", None),
        (Method::DELETE, SESSION, "/v1/sessions/ID", None),
        (Method::POST, SESSION, "/v1/sessions/ID/complete", cell()),
        (Method::POST, SESSION, "/v1/sessions/ID/inspect", cell()),
        (Method::GET, RUN, "/v1/runs?after=ID", None),
        (Method::GET, CONVERSATION, "/v1/conversations?after=ID", None),
        (Method::POST, KERNEL, "/jupyter/api/kernels/ID/interrupt", None),
        (Method::GET, KERNEL, "/jupyter/api/kernels/ID", None),
        (Method::DELETE, KERNEL, "/jupyter/api/kernels/ID", None),
        (Method::POST, KERNEL, "/jupyter/api/kernels/ID/restart", None),
        (Method::GET, KERNEL, "/jupyter/api/kernels/ID/channels", None),
        (Method::GET, DOCUMENT, "/jupyter/api/sessions/ID", None),
        (Method::PATCH, DOCUMENT, "/jupyter/api/sessions/ID", Some(json!({"path": "m.ipynb"}))),
        (Method::DELETE, DOCUMENT, "/jupyter/api/sessions/ID", None),
        (Method::GET, SESSION, "/v1/sessions/status/ID", None),
        (Method::GET, SESSION, "/v1/sessions/session/ID", None),
        (Method::DELETE, SESSION, "/v1/sessions/session?session_id=ID", None),
        (Method::GET, SESSION, "/v1/browser/sessions/ID", None),
        (Method::POST, SESSION, "/execute_async", Some(json!({"code": "print x", "session_id": "ID"}))),
        (Method::POST, SESSION, "/v1/execute", Some(json!({"code": "print x", "session_id": "ID"}))),
        (Method::POST, SESSION, "/download", Some(json!({"filename": "f", "session_id": "ID"}))),
        (Method::POST, SESSION, "/kill", Some(json!({"session_id": "ID"}))),
        (Method::GET, RUN, "/v1/executions/ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID/files", None),
        (Method::DELETE, CONTAINER, "/openai/v1/containers/ID", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID/files/f", None),
        (Method::GET, CONTAINER, "/openai/v1/containers/ID/files/f/content", None),
        (Method::DELETE, CONTAINER, "/openai/v1/containers/ID/files/f", None),
        (Method::GET, SANDBOX, "/e2b/sandboxes/ID", None),
        (Method::DELETE, SANDBOX, "/e2b/sandboxes/ID", None),
        (Method::POST, SANDBOX, "/e2b/sandboxes/ID/timeout", Some(json!({"timeout": 60}))),
        (Method::POST, SANDBOX, "/e2b/sandboxes/ID/connect", Some(json!({"timeout": 60}))),
        (Method::GET, LIBRECHAT, "/librechat/v1/files/ID", None),
        (Method::GET, LIBRECHAT, "/librechat/v1/download/ID/f", None),
        (Method::GET, LIBRECHAT, "/librechat/v1/sessions/ID/objects/f", None),
        (Method::DELETE, LIBRECHAT, "/librechat/v1/files/ID/f", None),
        (Method::GET, QUESTION, "/v1/approvals/ID", None),
        (Method::POST, QUESTION, "/v1/approvals/ID", Some(json!({"answer": "no"}))),
        (Method::DELETE, QUESTION, "/v1/approvals/ID", None),
        tool(CONVERSATION, "sandbox_read_file", &json!({"conversationId": "ID", "path": "f"})),
        tool(CONVERSATION, "sandbox_delete_file", &json!({"conversationId": "ID", "path": "f"})),
        tool(CONVERSATION, "sandbox_list_files", &json!({"conversationId": "ID"})),
        tool(CONVERSATION, "sandbox_list_sessions", &json!({"conversationId": "ID"})),
        tool(CONVERSATION, "sandbox_interrupt", &json!({"conversationId": "ID"})),
        tool(CONVERSATION, "sandbox_reset_session", &json!({"conversationId": "ID"})),
        (Method::POST, CONVERSATION, "/mcp", Some(mcp(Some(1), "resources/read", &json!({"uri": FILE})))),
        tool(RUN, "sandbox_get_run", &json!({"runId": "ID"})),
        tool(RUN, "sandbox_cancel_run", &json!({"runId": "ID"})),
        (Method::GET, MCP_SESSION, "/mcp#ID", None),
        (Method::POST, MCP_SESSION, "/mcp#ID", Some(mcp(Some(7), "tools/list", &json!({})))),
        (Method::POST, MCP_SESSION, "/mcp#ID", Some(mcp(None, "notifications/cancelled", &json!({"requestId": 1})))),
        (Method::DELETE, MCP_SESSION, "/mcp#ID", None),
    ]
}

fn tool(kind: usize, name: &str, arguments: &Value) -> Row {
    (Method::POST, kind, "/mcp", Some(mcp(Some(1), "tools/call", &json!({"name": name, "arguments": arguments}))))
}

/// A request, or a notification, which has no id.
fn mcp(id: Option<u32>, method: &str, params: &Value) -> Value {
    let mut message = json!({"jsonrpc": "2.0", "method": method, "params": params});
    if let Some(id) = id {
        message["id"] = id.into();
    }
    message
}

impl World {
    /// A request of the first owner.
    fn request(&self, method: &Method, path: &str, body: Option<&Value>, id: &str) -> RequestBuilder {
        let (path, in_header) = path.strip_suffix(IN_HEADER).map_or((path, false), |path| (path, true));
        let url = format!("http://{}{}", self.server.address, path.replace("ID", id));
        let mut request = self.server.http.request(method.clone(), url).bearer_auth(&self.owners[0].token);
        if in_header {
            // The first message of the first stream, which a client asks for that returns.
            request = request.header("mcp-session-id", id).header("last-event-id", "0/1").header("accept", BOTH);
        }
        match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string().replace("ID", id)),
            None => request,
        }
    }

    /// A session over MCP of the second owner, in which one request was answered.
    async fn mcp_session(&self) -> String {
        let send = async |session: Option<&str>, message: Value| {
            let request = self.server.http.post(format!("http://{}/mcp", self.server.address));
            let request = request.bearer_auth(&self.owners[1].token).header("accept", BOTH).json(&message);
            let request = session.into_iter().fold(request, |request, id| request.header("mcp-session-id", id));
            let answer = request.send().await.expect("an answer");
            assert!(answer.status().is_success(), "{message}: {}", answer.status());
            let id = answer.headers().get("mcp-session-id").map(|id| id.to_str().expect("text").to_owned());
            (id, answer.text().await.expect("text"))
        };
        let client = json!({"protocolVersion": "2025-11-25", "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"}});
        let (id, _) = send(None, mcp(Some(0), "initialize", &client)).await;
        let id = id.expect("a session");
        send(Some(&id), mcp(None, "notifications/initialized", &json!({}))).await;
        let (_, listed) = send(Some(&id), mcp(Some(1), "tools/list", &json!({}))).await;
        assert!(listed.contains("sandbox_run_code"), "{listed}");
        id
    }
}

/// What is asked of one id and of the other leads to the same; the status of both.
async fn are_the_same(
    observer: &Observer<'_>,
    name: &str,
    ids: &[String; 2],
    request: impl Fn(&str) -> RequestBuilder,
) -> u16 {
    let mut left = TRIES;
    loop {
        left -= 1;
        let mut all = Vec::new();
        for _ in 0..ROUNDS {
            for id in ids {
                all.push(observer.done(request(id), id).await);
            }
        }
        assert!(all.iter().all(|done| !done.files.iter().any(|at| at.starts_with("@bob"))), "{name}: {all:#?}");
        match all.iter().find(|done| **done != all[0]) {
            None => return all[0].status,
            Some(other) => assert!(left > 0, "{name}: {:#?} {other:#?}", all[0]),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_another_owner_are_answered_as_ids_that_never_were() {
    let cluster = Postgres::start().await;
    let mut world = World::start(15, &[("DATABASE_URL", &Observer::url(&cluster))]).await;
    world.ask(&cluster.url()).await;
    let own = world.server.http.put(format!("http://{}/v1/conversations/own/files/f", world.server.address));
    let own = own.bearer_auth(&world.owners[0].token).body("anns").send().await.expect("an answer");
    assert_eq!(own.status(), 201);
    let Ids(ids) = Ids::make(&world).await;
    let observer = Observer::new(&cluster, &world.server.root, "ann", &["ann", "bob"]);
    for (method, kind, path, body) in rows() {
        let name = format!("{method} {path} {}", body.as_ref().map(ToString::to_string).unwrap_or_default());
        let request = |id: &str| world.request(&method, path, body.as_ref(), id);
        let status = are_the_same(&observer, &name, &ids[kind], request).await;
        assert_eq!(status, if ANSWERED.contains(&path) { 200 } else { 404 }, "{name}");
    }
    // What is observed is there: a run is looked for in the database, and a file on the disk.
    let run = observer.done(world.request(&Method::GET, "/v1/runs/ID", None, &ids[RUN][0]), &ids[RUN][0]).await;
    assert!(run.status == 404 && run.statements.len() == 1, "{run:?}");
    let file = observer.done(world.request(&Method::GET, "/v1/conversations/ID/files/f", None, "own"), "own").await;
    assert!(file.status == 200 && file.body == "anns" && !file.files.is_empty(), "{file:?}");

    links_are_each_owners(&world, &observer).await;
    keys_are_each_owners(&world, &observer).await;
    let (status, kept) = world.send(1, Method::GET, "/v1/conversations/secret/files/f", None).await;
    assert_eq!((status, kept.as_str()), (200, "bobs"), "nothing was changed");
    let session = format!("/v1/sessions/{}", ids[SESSION][0]);
    assert_eq!(world.send(1, Method::GET, &session, None).await.0, 200, "it is open");
    let mcp = world.server.http.delete(format!("http://{}/mcp", world.server.address));
    let mcp = mcp.bearer_auth(&world.owners[1].token).header("mcp-session-id", &ids[MCP_SESSION][0]);
    assert_eq!(mcp.send().await.expect("an answer").status(), 200, "it was open");
    world.server.stop().await;
}

/// A signature of one owner's file is none for another's, whether that is there or not.
async fn links_are_each_owners(world: &World, observer: &Observer<'_>) {
    for (who, conversation) in [(0, "own"), (1, "secret")] {
        let (_, list) = world.send(who, Method::GET, &format!("/v1/conversations/{conversation}/files"), None).await;
        let owner = world.owners[who].mark.trim_end_matches('-');
        let url = parsed(&list)["files"][0]["url"].as_str().expect("a link").to_owned();
        assert!(url.contains(&format!("/files/@{owner}/{conversation}/f?")), "{url}");
        if who == 0 {
            let ids = ["secret".to_owned(), "tertia".to_owned()];
            let forged = |id: &str| world.server.http.get(url.replace("/@ann/own/", &format!("/@bob/{id}/")));
            assert_eq!(are_the_same(observer, "a forged link", &ids, forged).await, 403);
        }
    }
}

/// The key of another owner's request begins a run, as any other key, and with the same statements.
async fn keys_are_each_owners(world: &World, observer: &Observer<'_>) {
    let mut all = Vec::new();
    for key in ["their-key", "other-key"] {
        let body = json!({"conversationId": "own", "language": "python", "code": "print another"});
        let request = world.request(&Method::POST, "/v1/runs", Some(&body), "own");
        let done = observer.done(request.header("Idempotency-Key", key), key).await;
        let run = parsed(&done.body);
        assert_eq!((done.status, &run["result"]["stdout"]), (200, &json!("another\n")), "{run}");
        let of_keys = done.statements.iter().filter(|statement| statement.contains("idempotency_keys"));
        let of_keys: Vec<_> =
            of_keys.filter_map(|statement| statement.split_once(" -- ")).map(|(text, _)| text.to_owned()).collect();
        assert!(!of_keys.is_empty(), "{done:?}");
        all.push(of_keys);
    }
    assert_eq!(all[0], all[1]);
}
