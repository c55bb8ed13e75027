//! Lists of what is in a server's memory: any server answers them for all. One that does not answer is left out, and
//! the answer counts it.

use axum::{
    body::{Bytes, to_bytes},
    http::{HeaderName, HeaderValue, Method, StatusCode, Uri, request::Parts},
    response::{IntoResponse as _, Response},
};
use futures_util::future::join_all;
use serde_json::Value;
use tokio::time::timeout;

use super::{FIND_MAX, Peer, RETRY_AFTER_S, Relay};
use crate::{
    api::http::{listed, openai, v1},
    domain::{Code, Failure},
};

/// How many servers are not in the list. Absent where all are.
const UNANSWERED: HeaderName = HeaderName::from_static("sandbox-unanswered");
/// The longest list of one server, far above what a page holds.
const LIST_BYTES_MAX: usize = 16 << 20;

/// How a list is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct List {
    /// The member that holds the items, where the answer is an object.
    member: Option<&'static str>,
    /// The member of an item that orders them, the greatest first.
    order: Option<&'static str>,
    items_max: usize,
}

impl List {
    /// The list that a request asks for.
    pub(super) fn of(head: &Parts) -> Option<Self> {
        let all = usize::MAX;
        let names: Vec<_> = head.uri.path().split('/').skip(1).collect();
        let (member, order, items_max) = match names[..] {
            // A query that is wrong is refused by the handler.
            ["v1", "runs"] => {
                let most = v1::page_max(head.uri.query().unwrap_or_default()).unwrap_or(all);
                (Some("runs"), Some("runId"), most)
            }
            ["v1", "sessions"] => (Some("sessions"), Some("sessionId"), all),
            ["e2b", "v2", "sandboxes"] => (None, Some("startedAt"), all),
            ["openai", "v1", "containers"] => (Some("data"), Some("created_at"), all),
            ["jupyter", "api", "kernels" | "sessions"] | ["jupyter", "c", _, "api", "kernels" | "sessions"] => {
                (None, None, all)
            }
            _ => return None,
        };
        (head.method == Method::GET).then_some(Self { member, order, items_max })
    }

    /// What each server is asked. Of OpenAI's containers all, since `after` may be at any of them.
    pub(super) fn asked(self, head: &Parts) -> Parts {
        let mut asked = head.clone();
        if self.is_containers() {
            asked.uri = Uri::from_static("/openai/v1/containers?limit=100");
        }
        asked
    }

    fn is_containers(self) -> bool {
        self.member == Some("data")
    }

    /// This server's list with those of the others; `asked` is what `own` answers.
    pub(super) async fn merged(
        self,
        relay: &Relay,
        (head, asked): (&Parts, &Parts),
        others: &[Peer],
        own: Response,
    ) -> Response {
        if own.status() != StatusCode::OK {
            return own;
        }
        let theirs = others.iter().map(|peer| timeout(FIND_MAX, self.ask(relay, asked, peer)));
        // An item may name a conversation, which the client may then ask another server for.
        let (own, theirs, ()) = tokio::join!(self.read(own), join_all(theirs), relay.peers.stored());
        let theirs: Vec<_> = theirs.into_iter().filter_map(|part| part.ok().flatten()).collect();
        let unanswered = others.len() - theirs.len();
        let (mut items, mut has_more) = (Vec::new(), false);
        for (part, more) in own.into_iter().chain(theirs) {
            items.extend(part);
            has_more |= more;
        }
        if let Some(order) = self.order {
            items.sort_by(|a, b| sort_key(b, order).cmp(&sort_key(a, order)));
        }
        has_more |= items.len() > self.items_max;
        items.truncate(self.items_max);
        let page =
            if self.is_containers() { openai::page_of(&head.uri, items) } else { Ok(self.shown(items, has_more)) };
        let page = page.map_err(|wrong| match wrong.failure.argument.as_deref() {
            Some("after") if unanswered > 0 => {
                let why = "Another server, which may have the item of `after`, does not answer: try again in a moment.";
                Failure::new(Code::HeldElsewhere, why).retry_after(RETRY_AFTER_S).into()
            }
            _ => wrong,
        });
        // A list without a member that says so.
        let is_whole = self.member.is_some() || !has_more;
        let mut answer = page.map(|page| listed::answer(page, is_whole)).into_response();
        if unanswered > 0 {
            answer.headers_mut().insert(UNANSWERED, HeaderValue::from(unanswered));
        }
        answer
    }

    async fn ask(self, relay: &Relay, head: &Parts, peer: &Peer) -> Option<(Vec<Value>, bool)> {
        self.read(relay.send(peer, head, Bytes::new()).await.ok()?).await
    }

    /// The items of an answer, and whether the list has more.
    async fn read(self, answer: Response) -> Option<(Vec<Value>, bool)> {
        if answer.status() != StatusCode::OK {
            return None;
        }
        let is_cut = answer.headers().contains_key(listed::TRUNCATED);
        let bytes = to_bytes(answer.into_body(), LIST_BYTES_MAX).await.ok()?;
        let mut answer: Value = serde_json::from_slice(&bytes).ok()?;
        let has_more = is_cut || answer.get("after").is_some();
        let items = match self.member {
            Some(member) => answer.get_mut(member)?.take(),
            None => answer,
        };
        let Value::Array(items) = items else { return None };
        Some((items, has_more))
    }

    fn shown(self, items: Vec<Value>, has_more: bool) -> Value {
        let Some(member) = self.member else { return Value::Array(items) };
        let last = self.order.zip(items.last()).filter(|_| has_more);
        let after = last.map(|(order, item)| ("after".to_owned(), item[order].clone()));
        let shown = (member.to_owned(), Value::Array(items));
        Value::Object([shown].into_iter().chain(after).collect())
    }
}

/// What orders an item: on each server in the same way, so that pages of several fit together.
fn sort_key<'a>(item: &'a Value, order: &str) -> (Option<i64>, Option<&'a str>, Option<&'a str>) {
    (item[order].as_i64(), item[order].as_str(), item["id"].as_str())
}
