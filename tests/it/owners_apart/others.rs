//! More of the random operations: files that move, links to archives and for uploads, tool servers and questions, the
//! list of connections.

use mcp_sandbox_server::{
    adapters::database::Database,
    domain::{
        clock::{Clock as _, SystemClock},
        owner::ConversationKey,
        tools::{Approval, ApprovalId, ProposedCall},
    },
    ports::database::ApprovalStore as _,
};
use reqwest::Method;
use serde_json::json;

use super::{NAMES, World, send, surfaces::parsed};
use crate::support::server::TOKEN;

const HOUR_MS: i64 = 3600 * 1000;
const QUESTIONS: usize = 5;

impl World {
    /// A tool server of each owner, and questions about calls of the conversation `a`, which each has.
    pub(super) async fn ask(&mut self, url: &str) {
        let database = Database::connect(url).expect("an address");
        database.prepare().await.expect("tables");
        let now = SystemClock.unix_ms();
        for owner in &mut self.owners {
            let name = owner.mark.trim_end_matches('-');
            let server = json!({"url": self.tools.url, "owners": [name], "description": owner.mark});
            let path = format!("/v1/tool-servers/{name}_tools");
            let (status, answer) = send(&self.server, TOKEN, Method::PUT, &path, Some(json!({"server": server}))).await;
            assert_eq!(status, 204, "{answer}");
            for number in 0..QUESTIONS {
                let question = Approval {
                    id: ApprovalId::new(),
                    call: ProposedCall {
                        conversation: format!("@{name}/a").parse::<ConversationKey>().expect("a conversation"),
                        server: format!("{name}_tools"),
                        tool: "look".to_owned(),
                        definition: "abc".to_owned(),
                        arguments: json!({"text": format!("{}{number}", owner.mark)}).to_string(),
                    },
                    asked_unix_ms: now,
                    answered: None,
                    answered_by: None,
                    expires_unix_ms: now + HOUR_MS,
                };
                database.ask(&question).await.expect("stored");
                owner.questions.insert(question.id.to_string(), false);
            }
        }
        database.close().await;
    }

    /// A file gets another name, which may be taken; both owners use the same names.
    pub(super) async fn moved(&mut self, who: usize, conversation: &'static str, from: &'static str) {
        let to = self.pick(&NAMES.map(|name| if name == from { "j" } else { name }));
        let files = self.owners[who].conversations.get(conversation).cloned().unwrap_or_default();
        let body = json!({"from": from, "to": to, "replace": true});
        let path = format!("/v1/conversations/{conversation}/move");
        let (status, answer) = self.send(who, Method::POST, &path, Some(body)).await;
        assert_eq!(status == 200, files.contains_key(from), "{status}: {answer}");
        if let Some(text) = files.get(from).cloned() {
            let files = self.owners[who].conversations.get_mut(conversation).expect("it is there");
            files.remove(from);
            files.insert(to, text);
        }
        self.archive_link(who, conversation).await;
    }

    /// A link to the whole conversation gives its owner's texts, and with the other's name nothing.
    async fn archive_link(&self, who: usize, conversation: &str) {
        let files = self.owners[who].conversations.get(conversation);
        let path = format!("/v1/conversations/{conversation}/archive/link");
        let (status, link) = self.send(who, Method::POST, &path, None).await;
        assert_eq!(status == 200, files.is_some(), "{status}: {link}");
        let Some(files) = files else { return };
        let url = parsed(&link)["url"].as_str().expect("a link").to_owned();
        let archive = self.server.http.get(&url).send().await.expect("an answer").bytes().await.expect("bytes");
        let archive = String::from_utf8_lossy(&archive);
        self.is_own(who, &url, &archive);
        assert!(files.values().all(|text| archive.contains(text)), "{url}");
        let forged = self.server.http.get(self.forged(who, &url)).send().await.expect("an answer");
        assert_eq!(forged.status(), 403, "{url}");
    }

    /// A link with the other owner's name.
    fn forged(&self, who: usize, url: &str) -> String {
        let [own, other] = [who, 1 - who].map(|owner| format!("/@{}/", self.owners[owner].mark.trim_end_matches('-')));
        assert!(url.contains(&own), "{url}");
        url.replace(&own, &other)
    }

    /// A file by a link for an upload, and the list of connections, of which the fake engine makes none.
    pub(super) async fn upload_and_network(
        &mut self,
        who: usize,
        conversation: &'static str,
        name: &'static str,
        text: String,
    ) {
        let answer = self.tool(who, "sandbox_upload_url", json!({"conversationId": conversation, "path": name})).await;
        let answer = parsed(&answer)["result"]["content"][0]["text"].as_str().expect("a text").to_owned();
        let url = answer.split(['\'', '"', ' ', '\n', '`']).find(|word| word.starts_with("http://")).expect("a link");
        let put = async |url: &str| {
            self.server.http.put(url).body(text.clone()).send().await.expect("an answer").status().as_u16()
        };
        assert_eq!(put(&self.forged(who, url)).await, 403, "{url}");
        assert!(matches!(put(url).await, 200 | 201 | 204), "{url}");
        self.wrote(who, conversation, name, text);
        let (status, list) = self.send(who, Method::GET, "/v1/network/decisions", None).await;
        assert_eq!((status, parsed(&list)), (200, json!({"decisions": []})));
    }

    pub(super) async fn tools(&mut self, who: usize) {
        let [own, other] = [who, 1 - who].map(|who| self.owners[who].mark.replace('-', "_tools"));
        match self.dice.below(4) {
            0 => {
                let (_, list) = self.send(who, Method::GET, "/v1/tools", None).await;
                let list = parsed(&list);
                let names: Vec<_> =
                    list["servers"].as_array().expect("a list").iter().map(|one| one["name"].as_str()).collect();
                assert_eq!(names, [Some(own.as_str())], "{list}");
            }
            1 => {
                let found = self.tool(who, "sandbox_search_tools", json!({"query": "look"})).await;
                assert!(found.contains("look"), "{found}");
                let (_, found) = self.send(who, Method::GET, "/v1/tools/search?query=look", None).await;
                assert_eq!(parsed(&found)["tools"].as_array().map(Vec::len), Some(1), "{found}");
            }
            2 => {
                let path = format!("/v1/tools/{other}/look/source");
                let (status, why) = send(&self.server, &self.owners[who].token, Method::GET, &path, None).await;
                assert_eq!(status, 404, "{why}");
                let nothing = format!("/v1/tools/{}/look/source", other.replace("tools", "never"));
                let (status, never) = send(&self.server, &self.owners[who].token, Method::GET, &nothing, None).await;
                assert_eq!(status, 404, "{never}");
            }
            _ => self.questions(who).await,
        }
    }

    /// Both see their own questions and answer them once, and none of the other's.
    async fn questions(&mut self, who: usize) {
        let (status, list) = self.send(who, Method::GET, "/v1/approvals", None).await;
        let list = parsed(&list);
        let mut ids: Vec<_> = list["approvals"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|one| one["id"].as_str().expect("an id"))
            .collect();
        ids.sort_unstable();
        assert_eq!(status, 200, "{list}");
        assert!(self.owners[who].questions.keys().eq(ids), "{list}");
        let ids: Vec<_> = self.owners[who].questions.keys().cloned().collect();
        let id = ids[usize::try_from(self.dice.below(QUESTIONS as u64)).expect("small")].clone();
        let path = format!("/v1/approvals/{id}");
        let no = || Some(json!({"answer": "no"}));
        self.is_refused(who, Method::GET, &path, None).await;
        self.is_refused(who, Method::POST, &path, no()).await;
        self.is_refused(who, Method::DELETE, &path, None).await;
        assert_eq!(self.send(who, Method::GET, &path, None).await.0, 200, "it stands");
        let answered = self.owners[who].questions.insert(id, true).expect("it was asked");
        let (status, answer) = self.send(who, Method::POST, &path, no()).await;
        assert_eq!(status == 200, !answered, "{status}: {answer}");
    }
}
