//! More surfaces of the random operations: Jupyter, archives, Piston, sessions, links, keys, cursors, events of a run.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::World;

/// A conversation for runs with a key, which no other operation changes.
const KEYED: &str = "keyed";

pub(super) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

impl World {
    pub(super) async fn more(
        &mut self,
        surface: u64,
        who: usize,
        conversation: &'static str,
        name: &'static str,
        text: String,
    ) {
        match surface {
            11 => {
                let path = format!("/jupyter/c/{conversation}/api/contents/{name}");
                let file = json!({"type": "file", "format": "text", "content": text});
                let (status, answer) = self.send(who, Method::PUT, &path, Some(file)).await;
                assert!(matches!(status, 200 | 201), "{status}: {answer}");
                self.wrote(who, conversation, name, text);
            }
            12 => {
                self.import(who, conversation, name, &text).await;
                self.wrote(who, conversation, name, text);
            }
            13 => {
                let code = format!("print {text}");
                let program = json!({"language": "python", "version": "*", "files": [{"content": code}]});
                let (status, answer) = self.send(who, Method::POST, "/api/v2/execute", Some(program)).await;
                assert!(status == 200 && answer.contains(&text), "{answer}");
            }
            14 => self.session(who, conversation, &text).await,
            15 => self.links(who, conversation).await,
            16 => {
                let key = self.dice.below(30);
                self.keyed(who, key).await;
            }
            17 => self.cursors(who).await,
            18 => self.events(who).await,
            19 => self.coderunners_tools(who, &text).await,
            20 => self.coderunner(who, name, text).await,
            21 => self.librechat(who, name, text).await,
            22 => self.e2b(who, name, text).await,
            23 => self.openai(who, name, text).await,
            24 => self.moved(who, conversation, name).await,
            25 => self.tools(who).await,
            26 => self.browser(who, &text).await,
            27 => self.upload_and_network(who, conversation, name, text).await,
            _ => self.page(who, conversation, name, text).await,
        }
    }

    async fn import(&self, who: usize, conversation: &str, name: &str, text: &str) {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, text.as_bytes()).expect("appended");
        let path = format!("http://{}/v1/conversations/{conversation}/archive", self.server.address);
        let put = self.server.http.put(path).bearer_auth(&self.owners[who].token);
        let put = put.header("content-type", "application/x-tar").body(archive.into_inner().expect("an archive"));
        assert!(put.send().await.expect("an answer").status().is_success());
    }

    /// A session, a cell in it, and its end. The list has it and what else the owner has open.
    async fn session(&mut self, who: usize, conversation: &'static str, text: &str) {
        let body = Some(json!({"conversationId": conversation}));
        let (status, made) = self.send(who, Method::POST, "/v1/sessions", body).await;
        assert_eq!(status, 201, "{made}");
        let session = parsed(&made)["sessionId"].as_str().expect("an id").to_owned();
        let path = format!("/v1/sessions/{session}");
        let cell = Some(json!({"code": format!("print {text}"), "wait": 60}));
        let (status, answer) = self.send(who, Method::POST, &format!("{path}/cells"), cell.clone()).await;
        assert!(status == 200 && answer.contains(text), "{status}: {answer}");
        let (_, list) = self.send(who, Method::GET, "/v1/sessions", None).await;
        let list = parsed(&list);
        let ids = list["sessions"].as_array().expect("a list").iter().map(|one| one["sessionId"].as_str());
        let ids: BTreeSet<_> = ids.map(|id| id.expect("an id")).collect();
        let open = self.owners[who].sessions.keys().map(String::as_str).chain([session.as_str()]);
        assert_eq!(ids, open.collect(), "{list}");
        for (method, at, body) in [
            (Method::GET, path.clone(), None),
            (Method::POST, format!("{path}/cells"), cell),
            (Method::DELETE, path.clone(), None),
        ] {
            self.is_refused(who, method, &at, body).await;
        }
        assert_eq!(self.send(who, Method::DELETE, &path, None).await.0, 200);
        self.owners[who].conversations.entry(conversation.to_owned()).or_default();
    }

    /// Each link gives its owner's text, also as a resource of MCP; to the other, or with the other's name, nothing.
    async fn links(&self, who: usize, conversation: &str) {
        let (_, list) = self.send(who, Method::GET, &format!("/v1/conversations/{conversation}/files"), None).await;
        let [own, other] = [who, 1 - who].map(|owner| format!("/@{}/", self.owners[owner].mark.trim_end_matches('-')));
        let list = parsed(&list);
        for file in list["files"].as_array().expect("a list") {
            let (name, url) = (file["path"].as_str().expect("a path"), file["url"].as_str().expect("a link"));
            assert!(url.contains(&own), "{url}");
            let answer = self.server.http.get(url).send().await.expect("an answer").text().await.expect("text");
            assert_eq!(Some(&answer), self.owners[who].conversations[conversation].get(name), "{url}");
            let forged = self.server.http.get(url.replace(&own, &other)).send().await.expect("an answer");
            assert!(forged.status().is_client_error(), "{url}: {}", forged.status());
            let read = self.mcp(who, "resources/read", json!({"uri": url})).await;
            assert_eq!(parsed(&read)["result"]["contents"][0]["text"], json!(answer), "{read}");
            let foreign = self.mcp(1 - who, "resources/read", json!({"uri": url})).await;
            assert!(parsed(&foreign)["error"].is_object(), "{foreign}");
        }
    }

    /// Both owners use the same keys.
    async fn keyed(&mut self, who: usize, key: u64) {
        let Self { server, owners, .. } = self;
        let code = format!("write {key} {}", owners[who].mark);
        let body = json!({"conversationId": KEYED, "language": "python", "code": code});
        let request = server.http.post(format!("http://{}/v1/runs", server.address)).bearer_auth(&owners[who].token);
        let answer = request.header("Idempotency-Key", format!("key-{key}")).json(&body).send().await;
        let answer: Value = answer.expect("an answer").json().await.expect("JSON");
        let run = answer["runId"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        assert!(!owners[1 - who].runs.contains(&run), "the other's run");
        let is_new = owners[who].runs.insert(run.clone());
        match owners[who].keyed.insert(key, run.clone()) {
            None => assert!(is_new, "it began a run"),
            Some(before) => assert_eq!(before, run, "it began none"),
        }
        owners[who].conversations.entry(KEYED.to_owned()).or_default();
    }

    /// Pages have everything of the owner, also those that begin at a run of the other.
    async fn cursors(&self, who: usize) {
        let (mut found, mut after) = (BTreeSet::new(), String::new());
        loop {
            let (status, page) = self.send(who, Method::GET, &format!("/v1/runs?limit=200{after}"), None).await;
            assert_eq!(status, 200, "{page}");
            let page = parsed(&page);
            let runs = page["runs"].as_array().expect("a list").iter();
            let runs: Vec<_> = runs.map(|run| run["runId"].as_str().expect("an id").to_owned()).collect();
            let Some(last) = runs.last() else { break };
            after = format!("&after={last}");
            found.extend(runs);
        }
        assert!(found.is_superset(&self.owners[who].runs));
        if let Some(foreign) = self.owners[1 - who].runs.last() {
            let path = format!("/v1/runs?limit=5&after={foreign}");
            let answer = super::send(&self.server, &self.owners[who].token, Method::GET, &path, None).await.1;
            assert!(!answer.contains(self.owners[1 - who].mark), "{answer}");
        }
        let (mut found, mut after) = (BTreeSet::new(), String::new());
        loop {
            let (_, page) = self.send(who, Method::GET, &format!("/v1/conversations?limit=1{after}"), None).await;
            let page = parsed(&page);
            let Some(one) = page["conversations"][0]["conversationId"].as_str() else { break };
            assert!(found.insert(one.to_owned()), "{one} comes twice");
            after = format!("&after={one}");
        }
        assert!(found.iter().eq(self.owners[who].conversations.keys()), "{found:?}");
    }

    /// A run's own events are its owner's.
    async fn events(&self, who: usize) {
        let Some(run) = self.owners[who].runs.iter().next() else { return };
        let path = format!("/v1/runs/{run}/events");
        let (status, events) = self.send(who, Method::GET, &path, None).await;
        assert_eq!(status, 200, "{events}");
        let foreign = super::send(&self.server, &self.owners[1 - who].token, Method::GET, &path, None).await;
        assert_eq!(foreign.0, 404, "{}", foreign.1);
    }
}
