//! A tool server that does what a test says: JSON-RPC over HTTP without a session, as small as the protocol allows.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

use crate::support::http::serve;

/// How a call is answered.
#[derive(Clone)]
pub enum Reply {
    Result(Value),
    Error(&'static str),
    /// A body of JSON that never ends.
    Endless,
    /// Never.
    Silent,
}

struct Inner {
    tools: Mutex<Value>,
    reply: Mutex<Reply>,
    seen: Mutex<VecDeque<Value>>,
}

pub struct Upstream {
    pub url: String,
    inner: Arc<Inner>,
    _serving: AbortOnDropHandle<()>,
}

impl Upstream {
    pub async fn start(tools: Value) -> Self {
        let reply = Reply::Result(json!({"content": [{"type": "text", "text": "done"}]}));
        let inner = Arc::new(Inner { tools: Mutex::new(tools), reply: Mutex::new(reply), seen: Mutex::default() });
        let router = Router::new().route("/mcp", post(answer)).with_state(Arc::clone(&inner));
        let (address, serving) = serve(router).await;
        Self { url: format!("http://{address}/mcp"), inner, _serving: serving }
    }

    pub fn reply(&self, reply: Reply) {
        *self.inner.reply.lock().expect("no panic") = reply;
    }

    pub fn tools(&self, tools: Value) {
        *self.inner.tools.lock().expect("no panic") = tools;
    }

    /// The parameters of the calls so far.
    pub fn calls(&self) -> Vec<Value> {
        let seen = self.inner.seen.lock().expect("no panic");
        seen.iter().filter(|one| one["method"] == "tools/call").map(|one| one["params"].clone()).collect()
    }

    pub fn was_told(&self, method: &str) -> bool {
        self.inner.seen.lock().expect("no panic").iter().any(|one| one["method"] == method)
    }
}

/// A tool of which nothing but the name matters.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}})
}

async fn answer(State(inner): State<Arc<Inner>>, Json(message): Json<Value>) -> Response {
    inner.seen.lock().expect("no panic").push_back(message.clone());
    let result = |result: Value| Json(json!({"jsonrpc": "2.0", "id": message["id"], "result": result})).into_response();
    let error = |why: &str| {
        let error = json!({"code": -32601, "message": why});
        Json(json!({"jsonrpc": "2.0", "id": message["id"], "error": error})).into_response()
    };
    match message["method"].as_str().unwrap_or_default() {
        "initialize" => result(json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "scripted", "version": "1"}})),
        "tools/list" => result(json!({"tools": inner.tools.lock().expect("no panic").clone()})),
        "tools/call" if message["params"]["arguments"]["silent"] == true => std::future::pending().await,
        "tools/call" => {
            let reply = inner.reply.lock().expect("no panic").clone();
            match reply {
                Reply::Result(value) => result(value),
                Reply::Error(why) => error(why),
                Reply::Silent => std::future::pending().await,
                Reply::Endless => {
                    let piece = bytes::Bytes::from(vec![b' '; 1 << 20]);
                    let body = futures_util::stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone()));
                    ([("content-type", "application/json")], Body::from_stream(body)).into_response()
                }
            }
        }
        _ if message["id"].is_null() => StatusCode::ACCEPTED.into_response(),
        _ => error("no such method"),
    }
}
