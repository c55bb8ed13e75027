//! What the page asks for in the random operations: runs and cells that go on without their request and are followed, a
//! file by its version. And what `/admin` asks for, which is refused to those who are no operators.

use reqwest::Method;
use serde_json::json;

use super::{World, surfaces::parsed};

/// What `/admin` reads.
const OF_OPERATORS: [&str; 13] = [
    "/v1/admin/overview",
    "/v1/admin/activity?span=hour",
    "/v1/admin/conversations?limit=50",
    "/v1/admin/runs?which=slowest&limit=50",
    "/v1/admin/network",
    "/v1/admin/network-decisions?limit=50",
    "/v1/admin/doctor",
    "/v1/owners",
    "/v1/tokens",
    "/v1/connections",
    "/v1/tool-servers",
    "/v1/history",
    "/v1/usage",
];

impl World {
    pub(super) async fn page(&mut self, who: usize, conversation: &'static str, name: &'static str, text: String) {
        match self.dice.below(4) {
            0 => self.pages_run(who, conversation, name, text).await,
            1 => self.pages_session(who, conversation, &text).await,
            2 => self.pages_file(who, conversation, name, text).await,
            _ => self.admin(who, conversation).await,
        }
    }

    /// A run whose events are followed, and which is the newest of its conversation then.
    async fn pages_run(&mut self, who: usize, conversation: &'static str, name: &'static str, text: String) {
        let code = format!("write {name} {text}");
        let body =
            json!({"conversationId": conversation, "language": "python", "code": code, "wait": 0, "detach": true});
        let (status, begun) = self.send(who, Method::POST, "/v1/runs", Some(body)).await;
        assert!(matches!(status, 200 | 202), "{status}: {begun}");
        let run = parsed(&begun)["runId"].as_str().expect("an id").to_owned();
        let path = format!("/v1/runs/{run}");
        let (status, events) = self.send(who, Method::GET, &format!("{path}/events"), None).await;
        assert_eq!(status, 200, "{events}");
        let (status, ended) = self.send(who, Method::GET, &format!("{path}?wait=60"), None).await;
        assert!(status == 200 && parsed(&ended)["state"] == "finished", "{status}: {ended}");
        for (method, below) in
            [(Method::GET, "?wait=1"), (Method::GET, "/events"), (Method::POST, "/stdin"), (Method::POST, "/cancel")]
        {
            self.is_refused(who, method, &format!("{path}{below}"), None).await;
        }
        let list = format!("/v1/runs?conversationId={conversation}&limit=20");
        let (_, list) = self.send(who, Method::GET, &list, None).await;
        assert_eq!(parsed(&list)["runs"][0]["runId"], run.as_str(), "{list}");
        self.owners[who].runs.insert(run);
        self.wrote(who, conversation, name, text);
    }

    /// A session, a cell that goes on without its request, an interrupt and a restart.
    async fn pages_session(&mut self, who: usize, conversation: &'static str, text: &str) {
        let wanted = json!({"conversationId": conversation, "language": "python"});
        let (status, opened) = self.send(who, Method::POST, "/v1/sessions", Some(wanted)).await;
        assert_eq!(status, 201, "{opened}");
        let path = format!("/v1/sessions/{}", parsed(&opened)["sessionId"].as_str().expect("an id"));
        let cell = || Some(json!({"code": format!("print {text}"), "wait": 0, "detach": true}));
        let (status, begun) = self.send(who, Method::POST, &format!("{path}/cells"), cell()).await;
        assert!(matches!(status, 200 | 202), "{status}: {begun}");
        let run = format!("/v1/runs/{}?wait=60", parsed(&begun)["runId"].as_str().expect("an id"));
        let (_, ended) = self.send(who, Method::GET, &run, None).await;
        let printed = parsed(&ended)["result"]["stdout"].as_str().map(|printed| printed.trim().to_owned());
        assert_eq!(printed.as_deref(), Some(text), "{ended}");
        self.is_refused(who, Method::GET, &run, None).await;
        self.is_refused(who, Method::POST, &format!("{path}/cells"), cell()).await;
        for below in ["/interrupt", "/restart"] {
            self.is_refused(who, Method::POST, &format!("{path}{below}"), None).await;
            let (status, answer) = self.send(who, Method::POST, &format!("{path}{below}"), None).await;
            assert!(matches!(status, 200 | 204), "{below}: {status}: {answer}");
        }
        assert_eq!(self.sessions_of(who, conversation).await, 1);
        assert_eq!(self.send(who, Method::DELETE, &path, None).await.0, 200);
        assert_eq!(self.sessions_of(who, conversation).await, 0);
    }

    /// A file is replaced in the version that is there, and made only where there is none.
    async fn pages_file(&mut self, who: usize, conversation: &'static str, name: &'static str, text: String) {
        let owner = &self.owners[who];
        let have = owner.conversations.get(conversation).is_some_and(|files| files.contains_key(name));
        let url = format!("http://{}/v1/conversations/{conversation}/files/{name}", self.server.address);
        let head = self.server.http.head(&url).bearer_auth(&owner.token).send().await.expect("an answer");
        assert_eq!(head.status(), if have { 200 } else { 404 }, "{url}");
        let put = self.server.http.put(&url).bearer_auth(&owner.token).body(text.clone());
        let put = match head.headers().get("etag") {
            Some(etag) => put.header("if-match", etag),
            None => put.header("if-none-match", "*"),
        };
        let put = put.send().await.expect("an answer");
        assert!(put.status().is_success(), "{url}: {}", put.status());
        self.wrote(who, conversation, name, text);
    }

    /// No part of `/admin` is answered, and nothing of the other owner's is ended or deleted by it.
    async fn admin(&self, who: usize, conversation: &str) {
        let other = &self.owners[1 - who];
        let name = other.mark.trim_end_matches('-');
        let mut asked: Vec<_> = OF_OPERATORS.iter().map(|path| (Method::GET, (*path).to_owned())).collect();
        asked.push((Method::DELETE, format!("/v1/admin/conversations/{name}/{conversation}")));
        asked.extend(other.runs.first().map(|run| (Method::POST, format!("/v1/admin/runs/{run}/cancel"))));
        asked.extend(other.sessions.keys().next().map(|id| (Method::DELETE, format!("/v1/admin/sessions/{id}"))));
        for (method, path) in asked {
            let (status, answer) = self.send(who, method, &path, None).await;
            assert!(status == 403 && parsed(&answer)["code"] == "insufficient_scope", "{path}: {status}: {answer}");
        }
    }
}
