//! Two owners with the same conversation ids, over every surface: random operations against a model, and a table of
//! what one owner tries with the ids of the other.

mod surfaces;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures_util::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::timeout};

use crate::support::{FakeServer, dice::Dice, scale::how_many, server::TOKEN};

const CONVERSATIONS: [&str; 3] = ["a", "b", "c"];
const NAMES: [&str; 4] = ["f", "g", "h.txt", "i"];

/// An owner, as the server should see it. Every text of an owner begins with the owner's mark.
struct Owner {
    token: String,
    mark: &'static str,
    conversations: BTreeMap<&'static str, BTreeMap<&'static str, String>>,
    runs: BTreeSet<String>,
    /// The runs of requests with a key.
    keyed: BTreeMap<u64, String>,
    events: JoinHandle<String>,
}

struct World {
    server: FakeServer,
    dice: Dice,
    owners: [Owner; 2],
}

impl World {
    async fn start(seed: u64) -> Self {
        let server = FakeServer::with_kernel(&[("SANDBOX_RUNS__KEPT_MAX", "100000")]).await;
        let mut owners = Vec::new();
        for mark in ["ann-", "bob-"] {
            let wanted = json!({"name": mark, "owner": mark.trim_end_matches('-')});
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
            let (conversations, runs, keyed) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
            owners.push(Owner { token, mark, conversations, runs, keyed, events });
        }
        let owners = owners.try_into().unwrap_or_else(|_| unreachable!("two were made"));
        Self { server, dice: Dice::new(seed), owners }
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.dice.below(of.len() as u64)).expect("small")]
    }

    /// Sends a request of an owner. No answer holds a text or a run of the other.
    async fn send(&self, who: usize, method: Method, path: &str, body: Option<Value>) -> (u16, String) {
        let answer = send(&self.server, &self.owners[who].token, method, path, body).await;
        let other = &self.owners[1 - who];
        assert!(!answer.1.contains(other.mark), "{path}: {}", answer.1);
        assert!(!other.runs.iter().any(|run| answer.1.contains(run)), "{path}: {}", answer.1);
        answer
    }

    async fn step(&mut self, number: usize) {
        let (who, conversation, name) =
            (usize::from(self.dice.below(2) == 1), self.pick(&CONVERSATIONS), self.pick(&NAMES));
        let text = format!("{}{number}", self.owners[who].mark);
        let file = format!("/v1/conversations/{conversation}/files/{name}");
        let known = self.owners[who].conversations.get(conversation).cloned();
        let have = known.as_ref().and_then(|files| files.get(name)).cloned();
        match self.dice.below(19) {
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
                assert_eq!(ids, self.owners[who].conversations.keys().copied().collect());
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

    fn wrote(&mut self, who: usize, conversation: &'static str, name: &'static str, text: String) {
        self.owners[who].conversations.entry(conversation).or_default().insert(name, text);
    }

    async fn tool(&self, who: usize, name: &str, arguments: Value) -> String {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": name, "arguments": arguments}});
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
async fn owners_with_the_same_ids_see_their_own_only_whatever_they_do() {
    let mut world = World::start(14).await;
    for number in 0..how_many(1000, 10_000) {
        world.step(number).await;
    }
    let World { server, owners: [ann, bob], .. } = world;
    assert!(ann.runs.len() > 20 && bob.runs.len() > 20, "each did something");
    server.stop().await;
    let (of_ann, of_bob) = (ann.events.await.expect("events"), bob.events.await.expect("events"));
    for (owner, own, other) in [(&ann.runs, &of_ann, &of_bob), (&bob.runs, &of_bob, &of_ann)] {
        assert!(owner.iter().all(|run| own.contains(run)) && !owner.iter().any(|run| other.contains(run)));
    }
}

/// An answer without what differs between any two: ids, and the id that was asked for.
fn plain(answer: &str, asked: &[&str]) -> String {
    let mut value: Value = serde_json::from_str(answer).unwrap_or_default();
    if let Some(members) = value.as_object_mut() {
        members.remove("requestId");
        members.remove("request_id");
    }
    asked.iter().fold(value.to_string(), |text, id| text.replace(id, "ID"))
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_another_owner_are_answered_as_ids_that_never_were() {
    let world = World::start(15).await;
    let body = json!({"conversationId": "secret", "language": "python", "code": "write f bobs"});
    let keyed = world.server.http.post(format!("http://{}/v1/runs", world.server.address));
    let keyed = keyed.bearer_auth(&world.owners[1].token).header("Idempotency-Key", "k").json(&body);
    let run: Value = keyed.send().await.expect("an answer").json().await.expect("JSON");
    let run = run["runId"].as_str().expect("an id").to_owned();
    let session = json!({"conversationId": "secret"});
    let (_, session) = world.send(1, Method::POST, "/v1/sessions", Some(session)).await;
    let session: Value = serde_json::from_str(&session).expect("JSON");
    let session = session["sessionId"].as_str().expect("an id").to_owned();
    let kernel = uuid::Uuid::parse_str(session.trim_start_matches("session-")).expect("an id").to_string();
    let never = "0".repeat(32);
    let none = ["none".to_owned(), format!("run-{never}"), format!("session-{never}"), uuid::Uuid::nil().to_string()];
    let theirs = ["secret".to_owned(), run, session, kernel];
    let cell = || Some(json!({"code": "print x"}));
    let rows: [(Method, usize, &str, Option<Value>); 26] = [
        (Method::GET, 0, "/v1/conversations/ID/files", None),
        (Method::GET, 0, "/v1/conversations/ID/files/f", None),
        (Method::DELETE, 0, "/v1/conversations/ID/files/f", None),
        (Method::POST, 0, "/v1/conversations/ID/move", Some(json!({"from": "f", "to": "g"}))),
        (Method::GET, 0, "/v1/conversations/ID/archive", None),
        (Method::POST, 0, "/v1/conversations/ID/archive/link", None),
        (Method::DELETE, 0, "/v1/conversations/ID", None),
        (Method::GET, 0, "/v1/runs?conversationId=ID", None),
        (Method::GET, 0, "/v1/sessions?conversationId=ID", None),
        (Method::GET, 0, "/jupyter/c/ID/api/contents/f", None),
        (Method::GET, 1, "/v1/runs/ID", None),
        (Method::GET, 1, "/v1/runs/ID/events", None),
        (Method::POST, 1, "/v1/runs/ID/cancel", None),
        (Method::POST, 1, "/v1/runs/ID/stdin", None),
        (Method::GET, 2, "/v1/sessions/ID", None),
        (Method::POST, 2, "/v1/sessions/ID/cells", cell()),
        (Method::POST, 2, "/v1/sessions/ID/interrupt", None),
        (Method::POST, 2, "/v1/sessions/ID/restart", None),
        (Method::DELETE, 2, "/v1/sessions/ID", None),
        (Method::POST, 2, "/v1/sessions/ID/complete", cell()),
        (Method::POST, 2, "/v1/sessions/ID/inspect", cell()),
        (Method::GET, 1, "/v1/runs?after=ID", None),
        (Method::GET, 0, "/v1/conversations?after=ID", None),
        (Method::POST, 3, "/jupyter/api/kernels/ID/interrupt", None),
        (Method::GET, 3, "/jupyter/api/kernels/ID", None),
        (Method::DELETE, 3, "/jupyter/api/kernels/ID", None),
    ];
    for (method, id, path, body) in rows {
        let mut answers = Vec::new();
        for ids in [&theirs, &none] {
            let at = path.replace("ID", &ids[id]);
            let (status, answer) = world.send(0, method.clone(), &at, body.clone()).await;
            answers.push((status, plain(&answer, &[&ids[id], &ids[2]])));
        }
        assert_eq!(answers[0], answers[1], "{method} {path}");
    }
    // A key is each owner's own, and so is a link: the signature names the owner.
    let keyed = world.server.http.post(format!("http://{}/v1/runs", world.server.address));
    let keyed = keyed.bearer_auth(&world.owners[0].token).header("Idempotency-Key", "k");
    let other = json!({"language": "python", "code": "print another"});
    assert_eq!(keyed.json(&other).send().await.expect("an answer").status(), 200);
    let (_, list) = world.send(1, Method::GET, "/v1/conversations/secret/files", None).await;
    assert!(list.contains("/files/@bob/secret/f?"), "{list}");
    for (tool, arguments) in [
        ("sandbox_get_run", json!({"runId": theirs[1]})),
        ("sandbox_cancel_run", json!({"runId": theirs[1]})),
        ("sandbox_read_file", json!({"conversationId": "secret", "path": "f"})),
        ("sandbox_delete_file", json!({"conversationId": "secret", "path": "f"})),
    ] {
        let answer = world.tool(0, tool, arguments).await;
        assert!(answer.contains("\"isError\":true"), "{tool}: {answer}");
    }
    let (status, kept) = world.send(1, Method::GET, "/v1/conversations/secret/files/f", None).await;
    assert_eq!((status, kept.as_str()), (200, "bobs"), "nothing was changed");
    world.server.stop().await;
}
