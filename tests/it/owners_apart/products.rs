//! The tools and the routes of CodeRunner, ipybox's tools and LibreChat's files, in the random operations. A hint of
//! LibreChat has the same conversation for both owners.

use std::collections::BTreeSet;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};

use super::{World, surfaces::parsed};

const BOUNDARY: &str = "boundary-of-the-test";

/// A form with one file, and members before it.
pub(super) fn form(members: &[(&str, &str)], name: &str, text: &str) -> (String, String) {
    let part = |name: &str, more: &str, text: &str| {
        format!("--{BOUNDARY}\r\ncontent-disposition: form-data; name=\"{name}\"{more}\r\n\r\n{text}\r\n")
    };
    let mut body: String = members.iter().map(|(name, text)| part(name, "", text)).collect();
    body.push_str(&part("file", &format!("; filename=\"{name}\""), text));
    (format!("multipart/form-data; boundary={BOUNDARY}"), format!("{body}--{BOUNDARY}--\r\n"))
}

impl World {
    /// Sends a form of an owner; the other owner, who tries the same first, is told that there is no such thing.
    pub(super) async fn post(&self, who: usize, path: &str, (kind, body): (String, String)) {
        for (sender, expected) in [(1 - who, 404), (who, 200)] {
            let request = self.server.http.post(format!("http://{}{path}", self.server.address));
            let request = request.bearer_auth(&self.owners[sender].token).header("content-type", &kind);
            let answer = request.body(body.clone()).send().await.expect("an answer");
            let (status, text) = (answer.status().as_u16(), answer.text().await.expect("text"));
            assert!(status == expected && !text.contains(self.owners[1 - sender].mark), "{path}: {status}: {text}");
        }
    }

    /// Takes note of the sessions of a conversation. None is the other's.
    pub(super) async fn sessions_of(&mut self, who: usize, conversation: &str) -> usize {
        let path = format!("/v1/sessions?conversationId={conversation}");
        let (status, list) = self.send(who, Method::GET, &path, None).await;
        assert_eq!(status, 200, "{list}");
        let owner = &mut self.owners[who];
        owner.sessions.retain(|_, of| of != conversation);
        for one in parsed(&list)["sessions"].as_array().expect("a list") {
            let id = one["sessionId"].as_str().expect("an id").to_owned();
            owner.sessions.insert(id, conversation.to_owned());
        }
        owner.conversations.entry(conversation.to_owned()).or_default();
        owner.sessions.values().filter(|of| *of == conversation).count()
    }

    /// What a cell says that reads the variable of a session.
    pub(super) fn shown(&self, who: usize, conversation: &str) -> String {
        let variable = self.owners[who].variables.get(conversation);
        variable.cloned().unwrap_or_else(|| "is not defined".to_owned())
    }

    /// Deletes what is left of a conversation. Its last run may still end.
    pub(super) async fn forget(&mut self, who: usize, conversation: &str) {
        crate::support::until("it is deleted", async || {
            let path = format!("/v1/conversations/{conversation}");
            matches!(self.send(who, Method::DELETE, &path, None).await.0, 204 | 404)
        })
        .await;
        let owner = &mut self.owners[who];
        owner.conversations.remove(conversation);
        owner.variables.remove(conversation);
        owner.sessions.retain(|_, of| of != conversation);
    }

    pub(super) async fn coderunners_tools(&mut self, who: usize, text: &str) {
        let shared = self.owners[who].shared.clone();
        match self.dice.below(4) {
            0 => {
                let set = json!({"command": format!("set x {text}")});
                let answer = self.tool(who, "execute_python_code", set).await;
                assert!(answer.contains("\"isError\":false"), "{answer}");
                self.owners[who].variables.insert(shared.clone(), text.to_owned());
            }
            1 => {
                let answer = self.tool(who, "execute_ipython_cell", json!({"code": "get x"})).await;
                assert!(answer.contains(&self.shown(who, &shared)), "{answer}");
            }
            2 => {
                let open = self.owners[who].sessions.values().any(|of| *of == shared);
                let status = self.tool(who, "get_kernel_status", json!({})).await;
                assert_eq!(status.contains("cells, unused"), open, "{status}");
                return;
            }
            _ => {
                let answer = self.tool(who, "reset", json!({})).await;
                assert!(answer.contains("All variables are gone"), "{answer}");
                self.owners[who].variables.remove(&shared);
                self.owners[who].sessions.retain(|_, of| *of != shared);
                return;
            }
        }
        assert_eq!(self.sessions_of(who, &shared).await, 1);
    }

    pub(super) async fn coderunner(&mut self, who: usize, name: &'static str, text: String) {
        let Some(session) = self.owners[who].held.get("coderunner").cloned() else {
            let (status, made) = self.send(who, Method::POST, "/v1/sessions/session", Some(json!({}))).await;
            assert_eq!(status, 200, "{made}");
            let made = parsed(&made);
            self.owners[who].held.insert("coderunner", made["session_id"].as_str().expect("an id").to_owned());
            self.sessions_of(who, made["conversationId"].as_str().expect("an id")).await;
            return;
        };
        let conversation = self.owners[who].sessions[&session].clone();
        let have = self.owners[who].conversations[&conversation].get(name).cloned();
        let named = |mut body: Value| {
            body["session_id"] = json!(session);
            Some(body)
        };
        match self.dice.below(6) {
            0 => {
                let cell = named(json!({"code": format!("write {name} {text}\nset x {text}")}));
                let (status, answer) = self.send(who, Method::POST, "/v1/execute", cell.clone()).await;
                assert_eq!(status, 200, "{answer}");
                self.is_refused(who, Method::POST, "/v1/execute", cell).await;
                self.owners[who].variables.insert(conversation.clone(), text.clone());
                self.wrote(who, &conversation, name, text);
            }
            1 => {
                let form = form(&[("session_id", &session), ("remote_path", name)], name, &text);
                self.post(who, "/upload", form).await;
                self.wrote(who, &conversation, name, text);
            }
            2 => {
                let wanted = named(json!({"filename": name}));
                let (status, answer) = self.send(who, Method::POST, "/download", wanted.clone()).await;
                let content = have.map(|text| BASE64_STANDARD.encode(text));
                assert_eq!((status == 200).then(|| parsed(&answer)["content"].clone()), content.map(Value::from));
                self.is_refused(who, Method::POST, "/download", wanted).await;
            }
            3 => self.coderunners_task(who, &session, &conversation).await,
            4 => {
                let (status, newest) = self.send(who, Method::GET, "/v1/sessions/session", None).await;
                let newest = parsed(&newest)["session_id"].as_str().expect("an id").to_owned();
                assert!(status == 200 && self.owners[who].sessions.contains_key(&newest), "{newest}");
                for path in [format!("session/{session}"), format!("status/{session}")] {
                    let path = format!("/v1/sessions/{path}");
                    assert_eq!(self.send(who, Method::GET, &path, None).await.0, 200);
                    self.is_refused(who, Method::GET, &path, None).await;
                }
            }
            _ => {
                self.is_refused(who, Method::POST, "/kill", named(json!({}))).await;
                assert_eq!(self.send(who, Method::POST, "/kill", named(json!({}))).await.0, 200);
                self.owners[who].held.remove("coderunner");
                self.forget(who, &conversation).await;
            }
        }
    }

    /// A cell that is begun and asked about.
    async fn coderunners_task(&mut self, who: usize, session: &str, conversation: &str) {
        let cell = json!({"code": "get x", "session_id": session});
        let (status, begun) = self.send(who, Method::POST, "/execute_async", Some(cell)).await;
        assert_eq!(status, 200, "{begun}");
        let task = parsed(&begun)["task_id"].as_str().expect("an id").to_owned();
        let path = format!("/v1/executions/{task}");
        self.is_refused(who, Method::GET, &path, None).await;
        let mut answer = String::new();
        crate::support::until("it ends", async || {
            answer = self.send(who, Method::GET, &path, None).await.1;
            parsed(&answer)["is_complete"] == true
        })
        .await;
        assert!(answer.contains(&self.shown(who, conversation)), "{answer}");
        self.owners[who].runs.insert(task);
    }

    /// Files of a session that has the same id for both, and so have they.
    pub(super) async fn librechat(&mut self, who: usize, name: &'static str, text: String) {
        const HINT: &str = "a hint";
        let exec = json!({"lang": "py", "code": format!("write {name} {text}"), "runtime_session_hint": HINT});
        let (status, done) = self.send(who, Method::POST, "/librechat/v1/exec", Some(exec)).await;
        assert_eq!(status, 200, "{done}");
        let session = parsed(&done)["session_id"].as_str().expect("an id").to_owned();
        self.wrote(who, &session, name, text);
        self.librechats_files(who, &session).await;
    }

    async fn librechats_files(&mut self, who: usize, session: &str) {
        let (status, list) = self.send(who, Method::GET, &format!("/librechat/v1/files/{session}"), None).await;
        assert_eq!(status, 200, "{list}");
        let list = parsed(&list);
        let files = list.as_array().expect("a list");
        let names: BTreeSet<_> =
            files.iter().map(|one| one["metadata"]["original-filename"].as_str().expect("a name")).collect();
        assert_eq!(names, self.owners[who].conversations[session].keys().copied().collect());
        for file in files {
            let (id, name) = (file["id"].as_str().expect("an id"), &file["metadata"]["original-filename"]);
            let own = self.owners[who].conversations[session][name.as_str().expect("a name")].clone();
            let path = format!("/librechat/v1/download/{session}/{id}");
            assert_eq!(self.send(who, Method::GET, &path, None).await, (200, own.clone()));
            let wanted = json!([{"id": id, "storage_session_id": session, "name": "/mnt/data/given"}]);
            let exec = json!({"lang": "py", "code": "print x", "files": wanted});
            let (status, done) = self.send(who, Method::POST, "/librechat/v1/exec", Some(exec)).await;
            let made = parsed(&done)["session_id"].as_str().expect("an id").to_owned();
            let (_, given) = self.send(who, Method::GET, &format!("/v1/conversations/{made}/files/given"), None).await;
            assert_eq!((status, given), (200, own), "{done}");
            self.forget(who, &made).await;
        }
        if let Some(file) = files.first().filter(|_| self.dice.below(2) == 0) {
            let (id, name) = (file["id"].as_str().expect("an id"), &file["metadata"]["original-filename"]);
            let path = format!("/librechat/v1/files/{session}/{id}");
            assert_eq!(self.send(who, Method::DELETE, &path, None).await.0, 200);
            let files = self.owners[who].conversations.get_mut(session).expect("it is there");
            files.remove(name.as_str().expect("a name"));
        }
    }
}
