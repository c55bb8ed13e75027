//! Two owners with the same conversation ids, over every surface: random operations against a model, and a table of
//! what one owner tries with the ids of the other.
//!
//! In the long form the operations differ each time. A failure names its seed: `OWNERS_SEED=7 LONG=1 cargo test --test
//! it owners_with_the_same_ids`.

mod audited;
mod browser;
mod containers;
mod others;
mod page;
mod products;
mod sandboxed;
mod surfaces;
mod unknown;
mod work;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use crate::{
    support::{
        FakeServer,
        dice::Dice,
        postgres::Postgres,
        scale::{how_many, seed},
        server::TOKEN,
    },
    tools::upstream::{Upstream, tool},
};

const CONVERSATIONS: [&str; 3] = ["a", "b", "c"];
/// Of an id, as LibreChat wants it.
const LIBRECHAT_CHARS: usize = 21;
const NAMES: [&str; 4] = ["f", "g", "h.txt", "i"];

/// An owner, as the server should see it. Every text of an owner begins with the owner's mark.
struct Owner {
    token: String,
    mark: &'static str,
    /// The conversation of its tools that name none.
    shared: String,
    conversations: BTreeMap<String, BTreeMap<&'static str, String>>,
    runs: BTreeSet<String>,
    /// Each that is open, and its conversation.
    sessions: BTreeMap<String, String>,
    /// What clients of other products hold, by the product.
    held: BTreeMap<&'static str, String>,
    /// The variable of a session, by its conversation.
    variables: BTreeMap<String, String>,
    /// Whether the question was answered.
    questions: BTreeMap<String, bool>,
    /// The runs of requests with a key.
    keyed: BTreeMap<u64, String>,
    events: JoinHandle<String>,
}

struct World {
    server: FakeServer,
    dice: Dice,
    owners: [Owner; 2],
    /// The tool servers of both are here.
    tools: Upstream,
}

impl World {
    async fn start(seed: u64, more: &[(&str, &str)]) -> Self {
        // No session ends for another one.
        let settings = [("SANDBOX_RUNS__KEPT_MAX", "100000"), ("SANDBOX_SESSIONS__MEMORY_BYTES_MAX", "17179869184")];
        let server = FakeServer::with_kernels(&["python", "browser"], &[&settings, more].concat()).await;
        let tools = Upstream::start(json!([tool("look")])).await;
        let mut owners = Vec::new();
        for mark in ["ann-", "bob-"] {
            let owner = mark.trim_end_matches('-');
            let wanted = json!({"name": mark, "owner": owner, "scopes": ["run", "files", "approve"]});
            let (_, made) = send(&server, TOKEN, Method::POST, "/v1/tokens", Some(wanted)).await;
            let made: Value = serde_json::from_str(&made).expect("JSON");
            let token = made["token"].as_str().expect("a token").to_owned();
            let events = server.http.get(format!("http://{}/mcp/events", server.address)).bearer_auth(&token);
            let mut events = events.timeout(Duration::from_hours(1)).send().await.expect("events").bytes_stream();
            let events = tokio::spawn(async move {
                let mut all = Vec::new();
                while let Ok(Some(Ok(bytes))) = timeout(Duration::from_mins(2), events.next()).await {
                    all.extend_from_slice(&bytes);
                }
                String::from_utf8(all).expect("text")
            });
            owners.push(Owner {
                token,
                mark,
                shared: format!("mcp-{}", made["id"].as_str().expect("an id")),
                events,
                conversations: BTreeMap::new(),
                runs: BTreeSet::new(),
                sessions: BTreeMap::new(),
                held: BTreeMap::new(),
                variables: BTreeMap::new(),
                questions: BTreeMap::new(),
                keyed: BTreeMap::new(),
            });
        }
        let owners = owners.try_into().unwrap_or_else(|_| unreachable!("two were made"));
        Self { server, dice: Dice::new(seed), owners, tools }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.dice.below(of.len() as u64)).expect("small")]
    }

    /// Sends a request of an owner.
    async fn send(&self, who: usize, method: Method, path: &str, body: Option<Value>) -> (u16, String) {
        let answer = send(&self.server, &self.owners[who].token, method, path, body).await;
        self.is_own(who, path, &answer.1);
        answer
    }

    /// No answer to an owner holds a text, a run, a session or a container of the other.
    fn is_own(&self, who: usize, path: &str, answer: &str) {
        let other = &self.owners[1 - who];
        assert!(!answer.contains(other.mark), "{path}: {answer}");
        let mut ids = other.runs.iter().chain(other.sessions.keys()).chain(other.held.values());
        assert!(!ids.any(|id| answer.contains(id)), "{path}: {answer}");
    }

    /// The other owner tries what is `who`'s, and learns no more than that there is no such thing.
    async fn is_refused(&self, who: usize, method: Method, path: &str, body: Option<Value>) {
        let (status, answer) = send(&self.server, &self.owners[1 - who].token, method, path, body).await;
        assert!(status == 404 && !answer.contains(self.owners[who].mark), "{path}: {status}: {answer}");
    }

    async fn step(&mut self, number: usize) {
        let (who, conversation, name) =
            (usize::from(self.dice.below(2) == 1), self.pick(&CONVERSATIONS), self.pick(&NAMES));
        let text = format!("{}{number}", self.owners[who].mark);
        let file = format!("/v1/conversations/{conversation}/files/{name}");
        let known = self.owners[who].conversations.get(conversation).cloned();
        let have = known.as_ref().and_then(|files| files.get(name)).cloned();
        match self.dice.below(29) {
            0 => {
                let put = self.server.http.put(format!("http://{}{file}", self.server.address));
                let put = put.bearer_auth(&self.owners[who].token).body(text.clone());
                assert!(put.send().await.expect("an answer").status().is_success());
                self.wrote(who, conversation, name, text);
            }
            1 => {
                let code = format!("write {name} {text}");
                let body = json!({"conversationId": conversation, "language": "python", "code": code});
                let (status, run) = self.send(who, Method::POST, "/v1/runs", Some(body)).await;
                assert_eq!(status, 200, "{run}");
                let run: Value = serde_json::from_str(&run).expect("JSON");
                self.owners[who].runs.insert(run["runId"].as_str().expect("an id").to_owned());
                self.wrote(who, conversation, name, text);
            }
            2 => {
                let code = format!("write {name} {text}");
                let arguments = json!({"conversationId": conversation, "language": "python", "code": code});
                assert!(self.tool(who, "sandbox_run_code", arguments).await.contains(name));
                self.wrote(who, conversation, name, text);
            }
            3 => {
                let (status, read) = self.send(who, Method::GET, &file, None).await;
                assert_eq!(Some(read).filter(|_| status == 200), have, "{file}: {status}");
            }
            4 => {
                let path = format!("/v1/conversations/{conversation}/files");
                let (status, list) = self.send(who, Method::GET, &path, None).await;
                assert_eq!(status, 200, "a conversation that is not there has no files: {list}");
                is_listed(&list, known.as_ref());
            }
            5 => {
                let (status, _) = self.send(who, Method::DELETE, &file, None).await;
                assert_eq!(status == 204, have.is_some(), "{file}: {status}");
                if let Some(files) = self.owners[who].conversations.get_mut(conversation) {
                    files.remove(name);
                }
            }
            6 => {
                let (status, _) =
                    self.send(who, Method::DELETE, &format!("/v1/conversations/{conversation}"), None).await;
                assert_eq!(status == 204, known.is_some(), "{conversation}: {status}");
                self.owners[who].conversations.remove(conversation);
            }
            7 => {
                let list = self.tool(who, "sandbox_list_files", json!({"conversationId": conversation})).await;
                is_listed(&list, known.as_ref());
            }
            8 => {
                let (_, list) = self.send(who, Method::GET, "/v1/conversations", None).await;
                let list: Value = serde_json::from_str(&list).expect("JSON");
                let ids = list["conversations"].as_array().expect("a list").iter();
                let ids: BTreeSet<_> = ids.map(|one| one["conversationId"].as_str().expect("an id")).collect();
                assert_eq!(ids, self.owners[who].conversations.keys().map(String::as_str).collect());
            }
            9 => {
                let path = format!("/v1/conversations/{conversation}/archive");
                let (status, archive) = self.send(who, Method::GET, &path, None).await;
                assert_eq!(status == 200, known.is_some(), "{status}");
                assert!(known.iter().flatten().all(|(_, text)| archive.contains(text)));
            }
            10 => {
                let path = format!("/jupyter/c/{conversation}/api/contents/{name}");
                let (status, read) = self.send(who, Method::GET, &path, None).await;
                assert_eq!(status == 200, have.is_some(), "{path}: {status} {read}");
                assert!(have.iter().all(|text| read.contains(text)), "{read}");
            }
            surface => self.more(surface, who, conversation, name, text).await,
        }
    }

    fn wrote(&mut self, who: usize, conversation: &str, name: &'static str, text: String) {
        self.owners[who].conversations.entry(conversation.to_owned()).or_default().insert(name, text);
    }

    async fn tool(&self, who: usize, name: &str, arguments: Value) -> String {
        self.mcp(who, "tools/call", json!({"name": name, "arguments": arguments})).await
    }

    async fn mcp(&self, who: usize, method: &str, params: Value) -> String {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        self.send(who, Method::POST, "/mcp", Some(body)).await.1
    }
}

fn is_listed(list: &str, files: Option<&BTreeMap<&'static str, String>>) {
    for name in NAMES {
        let is_there = files.is_some_and(|files| files.contains_key(name));
        // Each is named with its link.
        assert_eq!(list.contains(&format!("/{name}?")), is_there, "{name}: {list}");
    }
}

async fn send(server: &FakeServer, token: &str, method: Method, path: &str, body: Option<Value>) -> (u16, String) {
    let request = server.http.request(method, format!("http://{}{path}", server.address)).bearer_auth(token);
    let request = if let Some(body) = body { request.json(&body) } else { request };
    let answer = request.send().await.expect("an answer");
    let (status, bytes) = (answer.status().as_u16(), answer.bytes().await.expect("a body"));
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_with_the_same_ids_see_their_own_only_on_sqlite() {
    let world = World::start(seed("OWNERS_SEED", 14), &[]).await;
    let database = format!("sqlite://{}/.state/sandbox.db", world.server.root.display());
    owners_see_their_own_only_whatever_they_do(world, &database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_with_the_same_ids_see_their_own_only_on_postgres() {
    let cluster = Postgres::start().await;
    let world = World::start(seed("OWNERS_SEED", 41), &[("DATABASE_URL", &cluster.url())]).await;
    owners_see_their_own_only_whatever_they_do(world, &cluster.url()).await;
}

async fn owners_see_their_own_only_whatever_they_do(mut world: World, database: &str) {
    world.ask(database).await;
    world.allow_browser().await;
    for number in 0..how_many(1000, 10_000) {
        world.step(number).await;
    }
    let World { server, owners: [ann, bob], .. } = world;
    assert!(ann.runs.len() > 20 && bob.runs.len() > 20, "each did something");
    let ids = |owner: &Owner| owner.conversations.keys().filter(|id| id.len() == LIBRECHAT_CHARS).cloned().collect();
    let [of_ann, of_bob]: [Vec<_>; 2] = [&ann, &bob].map(ids);
    assert!(of_ann.len() == 1 && of_ann == of_bob, "a hint is the same session for both: {of_ann:?} {of_bob:?}");
    server.stop().await;
    let (of_ann, of_bob) = (ann.events.await.expect("events"), bob.events.await.expect("events"));
    for (owner, own, other) in [(&ann.runs, &of_ann, &of_bob), (&bob.runs, &of_bob, &of_ann)] {
        assert!(owner.iter().all(|run| own.contains(run)) && !owner.iter().any(|run| other.contains(run)));
    }
}
