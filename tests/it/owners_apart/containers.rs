//! The containers of E2B and OpenAI in the random operations: each owner holds at most one of each.

use std::collections::BTreeSet;

use reqwest::Method;
use serde_json::{Value, json};

use super::{World, products::form, surfaces::parsed};

/// The name below the folder that E2B's clients know.
fn home(name: &str) -> String {
    format!("/home/user/{name}")
}

impl World {
    /// Calls E2B's sandbox with this id.
    async fn in_sandbox(&self, who: usize, method: Method, path: &str, id: &str, body: String) -> (u16, String) {
        let request = self.server.http.request(method, format!("http://{}/e2b{path}", self.server.address));
        let request = request.header("x-access-token", &self.owners[who].token).header("e2b-sandbox-id", id);
        let kind = if body.starts_with('{') { "application/json" } else { "application/octet-stream" };
        let answer = request.header("content-type", kind).body(body).send().await.expect("an answer");
        let (status, text) = (answer.status().as_u16(), answer.text().await.expect("text"));
        assert!(!text.contains(self.owners[1 - who].mark), "{path}: {text}");
        (status, text)
    }

    pub(super) async fn e2b(&mut self, who: usize, name: &'static str, text: String) {
        let (status, list) = self.send(who, Method::GET, "/e2b/v2/sandboxes", None).await;
        let list = parsed(&list);
        let ids: Vec<_> = list.as_array().expect("a list").iter().map(|one| one["sandboxID"].as_str()).collect();
        let held = self.owners[who].held.get("e2b").cloned();
        assert_eq!((status, ids), (200, held.iter().map(|id| Some(id.as_str())).collect()));
        let Some(id) = held else {
            let body = json!({"timeout": 86400, "metadata": {"of": self.owners[who].mark}});
            let (status, made) = self.send(who, Method::POST, "/e2b/v2/sandboxes", Some(body)).await;
            assert_eq!(status, 201, "{made}");
            let id = parsed(&made)["sandboxID"].as_str().expect("an id").to_owned();
            self.owners[who].held.insert("e2b", id);
            return;
        };
        let file = format!("/files?path={}", home(name));
        match self.dice.below(6) {
            0 => {
                let (status, answer) = self.in_sandbox(who, Method::POST, &file, &id, text.clone()).await;
                assert_eq!(status, 200, "{answer}");
                self.wrote(who, &id, name, text);
            }
            1 => {
                let have = self.owners[who].conversations.get(&id).and_then(|files| files.get(name)).cloned();
                let (status, read) = self.in_sandbox(who, Method::GET, &file, &id, String::new()).await;
                assert_eq!(Some(read).filter(|_| status == 200), have, "{status}");
            }
            2 => self.e2bs_cell(who, &id, &text).await,
            3 => self.e2bs_folder(who, &id).await,
            4 => self.e2bs_stranger(who, &id, &file).await,
            _ => {
                let path = format!("/e2b/sandboxes/{id}");
                assert_eq!(self.send(who, Method::DELETE, &path, None).await.0, 204);
                self.owners[who].held.remove("e2b");
                self.forget(who, &id).await;
            }
        }
    }

    /// A variable of the sandbox's own context.
    async fn e2bs_cell(&mut self, who: usize, id: &str, text: &str) {
        let cell = async |world: &Self, code: String| {
            let body = json!({"code": code}).to_string();
            let (status, lines) = world.in_sandbox(who, Method::POST, "/execute", id, body).await;
            assert_eq!(status, 200, "{lines}");
            lines
        };
        let lines = cell(self, "get x".to_owned()).await;
        assert!(lines.contains(&self.shown(who, id)), "{lines}");
        cell(self, format!("set x {text}")).await;
        self.owners[who].variables.insert(id.to_owned(), text.to_owned());
        assert_eq!(self.sessions_of(who, id).await, 1);
        let (_, contexts) = self.in_sandbox(who, Method::GET, "/contexts", id, String::new()).await;
        assert_eq!(parsed(&contexts).as_array().map(Vec::len), Some(1), "{contexts}");
    }

    async fn e2bs_folder(&self, who: usize, id: &str) {
        let body = json!({"path": "/home/user"}).to_string();
        let (status, list) = self.in_sandbox(who, Method::POST, "/filesystem.Filesystem/ListDir", id, body).await;
        assert_eq!(status, 200, "{list}");
        let list = parsed(&list);
        let names = list["entries"].as_array().expect("a list").iter().map(|one| one["name"].as_str().expect("a name"));
        let names: BTreeSet<_> = names.collect();
        let own = self.owners[who].conversations.get(id);
        assert_eq!(names, own.into_iter().flat_map(|files| files.keys().copied()).collect());
    }

    /// To the other owner it is a sandbox that is gone.
    async fn e2bs_stranger(&self, who: usize, id: &str, file: &str) {
        let path = json!({"path": "/home/user/f"}).to_string();
        let cell = json!({"code": "get x"}).to_string();
        for (method, at, body) in [
            (Method::GET, "/health", String::new()),
            (Method::GET, file, String::new()),
            (Method::POST, file, "x".to_owned()),
            (Method::POST, "/execute", cell),
            (Method::GET, "/contexts", String::new()),
            (Method::POST, "/filesystem.Filesystem/Stat", path.clone()),
            (Method::POST, "/filesystem.Filesystem/Remove", path),
        ] {
            let (status, answer) = self.in_sandbox(1 - who, method, at, id, body).await;
            assert_eq!(status, 502, "{at}: {answer}");
        }
        let later = || Some(json!({"timeout": 1}));
        for (method, at, body) in [
            (Method::GET, "", None),
            (Method::POST, "/timeout", later()),
            (Method::POST, "/connect", later()),
            (Method::DELETE, "", None),
        ] {
            self.is_refused(who, method, &format!("/e2b/sandboxes/{id}{at}"), body).await;
        }
    }

    pub(super) async fn openai(&mut self, who: usize, name: &'static str, text: String) {
        const ALL: &str = "/openai/v1/containers";
        let (status, list) = self.send(who, Method::GET, ALL, None).await;
        let list = parsed(&list);
        let ids: Vec<_> = list["data"].as_array().expect("a list").iter().map(|one| one["id"].as_str()).collect();
        let held = self.owners[who].held.get("openai").cloned();
        assert_eq!((status, ids), (200, held.iter().map(|id| Some(id.as_str())).collect()));
        let Some(id) = held else {
            let (status, made) = self.send(who, Method::POST, ALL, Some(json!({"name": text}))).await;
            assert_eq!(status, 200, "{made}");
            let id = parsed(&made)["id"].as_str().expect("an id").to_owned();
            self.owners[who].held.insert("openai", id);
            return;
        };
        let own = format!("{ALL}/{id}");
        match self.dice.below(4) {
            0 => {
                self.post(who, &format!("{own}/files"), form(&[], name, &text)).await;
                self.wrote(who, &id, name, text);
            }
            1 | 2 => self.openais_files(who, &id, &own).await,
            _ => {
                self.is_refused(who, Method::GET, &own, None).await;
                self.is_refused(who, Method::DELETE, &own, None).await;
                assert_eq!(self.send(who, Method::DELETE, &own, None).await.0, 200);
                self.owners[who].held.remove("openai");
                self.forget(who, &id).await;
            }
        }
    }

    /// The files of a container, each of which is read, and one deleted.
    async fn openais_files(&mut self, who: usize, id: &str, own: &str) {
        let path = format!("{own}/files");
        self.is_refused(who, Method::GET, &path, None).await;
        let (status, list) = self.send(who, Method::GET, &path, None).await;
        let have = self.owners[who].conversations.get(id).cloned();
        if have.is_none() {
            // Nothing was written yet.
            return assert!(matches!(status, 200 | 404), "{list}");
        }
        let have = have.unwrap_or_default();
        let list = parsed(&list);
        let files: &[Value] = list["data"].as_array().expect("a list");
        let name = |file: &Value| file["path"].as_str().and_then(|at| at.strip_prefix("/mnt/data/")).map(str::to_owned);
        let names: BTreeSet<_> = files.iter().filter_map(name).collect();
        assert_eq!(names, have.keys().map(|name| (*name).to_owned()).collect());
        for file in files {
            let at = format!("{path}/{}", file["id"].as_str().expect("an id"));
            let own = have[name(file).expect("a name").as_str()].clone();
            assert_eq!(self.send(who, Method::GET, &format!("{at}/content"), None).await, (200, own));
            for (method, more) in [(Method::GET, ""), (Method::GET, "/content"), (Method::DELETE, "")] {
                self.is_refused(who, method, &format!("{at}{more}"), None).await;
            }
        }
        if let Some(file) = files.first().filter(|_| self.dice.below(2) == 0) {
            let at = format!("{path}/{}", file["id"].as_str().expect("an id"));
            assert_eq!(self.send(who, Method::DELETE, &at, None).await.0, 200);
            let files = self.owners[who].conversations.get_mut(id).expect("it is there");
            files.remove(name(file).expect("a name").as_str());
        }
    }
}
