//! Which server a call is for, where several stand behind one address: that of its conversation, or that of its run. A
//! call that is sent on has no session there, so nothing can be asked of its client; its answer and its progress come
//! back as they are, of one in a batch the answer alone.

use axum::{http::request::Parts, response::Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Endpoint, accepts, session_id, sessions::Session};
use crate::{
    api::{
        mcp::{ToolName, knows_links, shared_conversation},
        schema::parse::by_size,
    },
    domain::{ConversationKey, Failure, Principal, RunId, Scope},
    services::peers::Peer,
};

/// The parts of a message that decide which server it is for. The handlers check everything else.
#[derive(Deserialize)]
struct Message {
    method: String,
    params: Option<Params>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    name: Option<String>,
    task_id: Option<String>,
    /// In a repeated call: begins with the run that asked its client.
    request_state: Option<String>,
    arguments: Option<Map<String, Value>>,
}

#[derive(Debug, PartialEq)]
enum About {
    Conversation(String),
    /// The conversation of a session or, without one, that of all such clients of the token, for tools that name none.
    Shared,
    Run(RunId),
}

impl Endpoint {
    /// Of several servers, the other one that a message is for, or why none answers it now; `None`: it is for this one.
    pub(super) async fn other_server(
        &self,
        head: &Parts,
        session: Option<&Session>,
        message: &Bytes,
    ) -> Option<Result<Peer, Failure>> {
        let who = head.extensions.get::<Principal>()?;
        // The session is at another server, which decides itself, or it has ended: it is unknown here either way. From
        // 2026-07-28 on, where each request has a method in its head, there are no sessions, and the header is ignored.
        let is_in_session = accepts(&head.headers, "text/event-stream") && !head.headers.contains_key("mcp-method");
        if session.is_none() && session_id(&head.headers).is_some() && is_in_session {
            return None;
        }
        let copy = message.clone();
        let about = by_size(message.len(), move || about(&copy)).await?;
        match (about, session) {
            (About::Shared, Some(session)) => {
                let conversation = ConversationKey::new(who.clone(), session.conversation.clone());
                self.relay.check_is_here(&head.headers, &conversation).await.err().map(Err)
            }
            (about, _) => self.server_of(head, who, about).await.transpose(),
        }
    }

    /// The answer of another server to a message, as if it came without a session.
    pub(super) fn forward(
        &self,
        peer: Peer,
        head: &Parts,
        session: Option<&Session>,
        message: Bytes,
    ) -> impl Future<Output = Result<Response, Failure>> + Send + use<> {
        let (relay, head) = (self.relay.clone(), without_session(head, session));
        async move { relay.send(&peer, &head, message).await }
    }

    async fn server_of(&self, head: &Parts, who: &Principal, about: About) -> Result<Option<Peer>, Failure> {
        let conversation = match about {
            About::Run(run) if self.runs.get(who, run).is_ok() => return Ok(None),
            About::Run(run) => return Ok(self.relay.find_run(&head.headers, run).await),
            About::Conversation(id) => id.parse(),
            About::Shared => shared_conversation(who),
        };
        // One that is no id is refused by the tool.
        let Ok(id) = conversation else { return Ok(None) };
        self.relay.holder(&head.headers, &ConversationKey::new(who.clone(), id)).await
    }
}

fn about(body: &[u8]) -> Option<About> {
    let Message { method, params } = serde_json::from_slice(body).ok()?;
    let Params { name, task_id, request_state, arguments } = params?;
    let run = |id: &str| id.parse().ok().map(About::Run);
    if method != "tools/call" {
        return task_id.as_deref().and_then(run);
    }
    let tool = ToolName::find(name.as_deref()?).filter(|tool| tool.scope() == Scope::Run)?;
    if let Some(state) = request_state {
        return run(state.split(' ').next().unwrap_or_default());
    }
    let argument = |name: &str| arguments.as_ref()?.get(name).and_then(Value::as_str);
    match (argument("runId"), argument("conversationId")) {
        (Some(id), _) => run(id),
        (None, Some(id)) => Some(About::Conversation(id.to_owned())),
        (None, None) => tool.names_no_conversation().then_some(About::Shared),
    }
}

/// The same request by a client that has no session.
fn without_session(head: &Parts, session: Option<&Session>) -> Parts {
    let mut head = head.clone();
    head.headers.remove("mcp-session-id");
    head.headers.remove("last-event-id");
    // The other server does not see that the client's revision has no link blocks.
    if session.is_some_and(|session| !knows_links(&session.version)) {
        let query = head.uri.query().unwrap_or_default();
        head.uri = format!("{}?{query}&links=off", head.uri.path()).parse().unwrap_or(head.uri);
    }
    head
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_is_about_its_run_or_its_conversation() {
        let run = RunId::new();
        let call = |name: &str, arguments: Value| {
            let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
                              "params": {"name": name, "arguments": arguments}});
            about(call.to_string().as_bytes())
        };
        let at = |id: &str| Some(About::Conversation(id.to_owned()));
        assert_eq!(call("sandbox_run_code", json!({"conversationId": "a", "code": "1"})), at("a"));
        assert_eq!(call("sandbox.run_code", json!({"conversationId": "a"})), at("a"));
        assert_eq!(call("sandbox_run_code", json!({"code": "1"})), None, "a new conversation");
        assert_eq!(call("execute_python_code", json!({"command": "1"})), Some(About::Shared));
        assert_eq!(call("get_kernel_status", Value::Null), Some(About::Shared), "the same as no arguments");
        assert_eq!(call("sandbox_get_run", json!({"runId": run.to_string()})), Some(About::Run(run)));
        assert_eq!(call("sandbox_get_run", json!({"runId": "nonsense"})), None);
        assert_eq!(call("sandbox_write_file", json!({"conversationId": "a"})), None, "files are at every server");
        assert_eq!(call("no_tool", json!({"conversationId": "a"})), None);
        let again = json!({"method": "tools/call", "params": {"name": "sandbox_run_code",
                           "arguments": {"code": "input()"}, "requestState": format!("{run} 5 line")}});
        assert_eq!(about(again.to_string().as_bytes()), Some(About::Run(run)), "the client was asked by this run");
        let task = json!({"method": "tasks/get", "params": {"taskId": run.to_string()}}).to_string();
        assert_eq!(about(task.as_bytes()), Some(About::Run(run)));
        for other in ["", "[]", "1", r#"{"method":"ping"}"#, r#"{"method":"tools/call","params":{"name":1}}"#] {
            assert_eq!(about(other.as_bytes()), None, "{other}");
        }
    }
}
