//! The browser in the random operations: each owner has at most one, of the same conversation. The fake engine has no
//! pages, so a variable of the session stands for what a page would keep.

use reqwest::Method;
use serde_json::json;

use super::{World, send, surfaces::parsed};
use crate::support::server::TOKEN;

/// The conversation of both.
const BROWSED: &str = "browsed";

impl World {
    /// No browser is opened where it may reach no host.
    pub(super) async fn allow_browser(&self) {
        let policy = json!({"hosts": ["set.example"], "languages": ["browser"], "everyToken": true});
        let (status, answer) = send(&self.server, TOKEN, Method::PUT, "/v1/admin/network/browsing", Some(policy)).await;
        assert_eq!(status, 204, "{answer}");
    }

    pub(super) async fn browser(&mut self, who: usize, text: &str) {
        let wanted = json!({"conversationId": BROWSED, "language": "browser"});
        let (status, opened) = self.send(who, Method::POST, "/v1/sessions", Some(wanted)).await;
        assert!(matches!(status, 200 | 201), "{status}: {opened}");
        let session = parsed(&opened)["sessionId"].as_str().expect("an id").to_owned();
        assert_eq!(self.sessions_of(who, BROWSED).await, 1);
        let cells = format!("/v1/sessions/{session}/cells");
        match self.dice.below(4) {
            0 => {
                let cell = json!({"code": format!("set x {text}"), "wait": 60});
                let (status, answer) = self.send(who, Method::POST, &cells, Some(cell)).await;
                assert_eq!(status, 200, "{answer}");
                self.owners[who].variables.insert(BROWSED.to_owned(), text.to_owned());
            }
            1 => {
                let cell = json!({"code": "get x", "wait": 60});
                let (status, answer) = self.send(who, Method::POST, &cells, Some(cell)).await;
                assert!(status == 200 && answer.contains(&self.shown(who, BROWSED)), "{status}: {answer}");
            }
            2 => {
                let page = json!({"conversationId": BROWSED, "url": format!("https://set.example/{text}")});
                let (status, answer) = self.send(who, Method::POST, "/v1/browse", Some(page)).await;
                assert_eq!(status, 200, "a page that fails is an answer: {answer}");
                let named = Some(json!({"session_id": session}));
                self.is_refused(who, Method::POST, "/v1/browser/content", named).await;
            }
            _ => {
                let (_, list) = self.send(who, Method::GET, "/v1/browser/sessions/", None).await;
                let list = parsed(&list);
                let ids: Vec<_> =
                    list["sessions"].as_array().expect("a list").iter().map(|one| one["session_id"].as_str()).collect();
                assert_eq!(ids, [Some(session.as_str())], "{list}");
                let path = format!("/v1/browser/sessions/{session}");
                for method in [Method::GET, Method::DELETE] {
                    self.is_refused(who, method, &path, None).await;
                }
                assert_eq!(self.send(who, Method::DELETE, &path, None).await.0, 200);
                self.forget(who, BROWSED).await;
            }
        }
    }
}
