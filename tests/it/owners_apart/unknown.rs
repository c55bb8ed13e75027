//! Ids of another owner and ids that never were: answered with the same bytes, after the same work.

mod rows;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use self::rows::{IN_HEADER, KINDS, MCP_SESSION, RUN, SESSION, expected, mcp, rows};
use super::{World, surfaces::parsed, work::Observer};
use crate::{
    skills::{skill_md, zipped},
    support::postgres::Postgres,
};

const BOTH: &str = "application/json, text/event-stream";
/// How often each request is sent, in turn with its counterpart.
const ROUNDS: usize = 3;
/// Something else in the server may happen in a round: what tells the two apart does so in each of these.
const TRIES: usize = 3;

/// Of each kind one of the other owner and one that never was, of the same length.
struct Ids([[String; 2]; KINDS]);

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
        let skill = world.server.http.put(format!("http://{}/v1/skills/theirs", world.server.address));
        let skill = skill.bearer_auth(&world.owners[1].token);
        let skill = skill.body(zipped(&[("SKILL.md", skill_md("theirs", "bobs").as_bytes())]));
        assert_eq!(skill.send().await.expect("an answer").status(), 201);
        let token = world.owners[1].shared.trim_start_matches("mcp-").to_owned();
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
            pair("bob_tools".to_owned()),
            pair("theirs".to_owned()),
            pair(token),
        ])
    }
}

/// An id that never was, with the same time in it.
fn near(id: &str) -> String {
    let (rest, last) = id.split_at(id.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
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
            request = request.header("e2b-sandbox-id", id);
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
    let (url, folder) = (Observer::url(&cluster), tempfile::tempdir().expect("a folder"));
    let skills = ("SANDBOX_SKILLS__ROOT", folder.path().to_str().expect("text"));
    let mut world = World::start(15, &[("DATABASE_URL", &url), skills]).await;
    world.ask(&cluster.url()).await;
    world.allow_browser().await;
    let own = world.server.http.put(format!("http://{}/v1/conversations/own/files/f", world.server.address));
    let own = own.bearer_auth(&world.owners[0].token).body("anns").send().await.expect("an answer");
    assert_eq!(own.status(), 201);
    let Ids(ids) = Ids::make(&world).await;
    let observer = Observer::new(&cluster, &world.server.root, "ann", &["ann", "bob"]);
    for (method, kind, path, body) in rows() {
        let name = format!("{method} {path} {}", body.as_ref().map(ToString::to_string).unwrap_or_default());
        let request = |id: &str| world.request(&method, path, body.as_ref(), id);
        let status = are_the_same(&observer, &name, &ids[kind], request).await;
        assert_eq!(status, expected(path), "{name}");
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
    assert_eq!(world.send(1, Method::GET, "/v1/skills/theirs", None).await.0, 200, "it is kept");
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
