//! Messages of one connection of a program: calls, and the sources of modules that it imports. All of it is untrusted;
//! whose it is, the sandbox says.
//!
//! ```json
//! {"id": 1, "call": {"server": "github", "tool": "get_issue", "arguments": {}}}
//! {"id": 1, "cancel": true}
//! {"id": 2, "module": "mcptools.github.get_issue", "language": "python"}
//! ```
//!
//! Answers have the id, and one of `progress`, `result`, `source` and `error`.

use std::{collections::HashMap, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Inner,
    calls::{CallFailure, RequestedCall},
    modules::ModuleLanguage,
};
use crate::{
    domain::owner::Principal,
    ports::tools::Progress,
    services::network::{Calls, Program},
};

/// Calls of one connection under way; more are not read before one has ended.
const UNDER_WAY_MAX: usize = 16;
/// Messages that a program has not read yet; progress is left out beyond them.
const UNREAD_MAX: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    id: u64,
    #[serde(default)]
    call: Option<Call>,
    #[serde(default)]
    cancel: bool,
    #[serde(default)]
    module: Option<String>,
    #[serde(default)]
    language: Option<ModuleLanguage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    server: String,
    tool: String,
    #[serde(default)]
    arguments: Map<String, Value>,
}

fn bytes(message: &Value) -> Bytes {
    serde_json::to_vec(message).unwrap_or_default().into()
}

fn error(id: Option<u64>, code: &str, why: &str) -> Bytes {
    bytes(&json!({"id": id, "error": {"code": code, "message": why}}))
}

impl Calls for Inner {
    fn is_offered(&self, who: &Principal) -> bool {
        self.parts.directory.has_any(who)
    }

    fn answer(self: Arc<Self>, program: Program, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
        let (sender, answers) = mpsc::channel(UNREAD_MAX);
        tokio::spawn(async move {
            let gone = sender.clone();
            tokio::select! {
                () = self.talk(program, messages, sender) => {}
                // The connection is over; what is under way ends with it.
                () = gone.closed() => {}
            }
        });
        ReceiverStream::new(answers).boxed()
    }
}

impl Inner {
    async fn talk(self: Arc<Self>, program: Program, mut messages: BoxStream<'static, Bytes>, to: mpsc::Sender<Bytes>) {
        let mut tasks = JoinSet::new();
        let mut calls: HashMap<u64, AbortHandle> = HashMap::new();
        let mut is_open = true;
        while is_open || !tasks.is_empty() {
            tokio::select! {
                message = messages.next(), if is_open && tasks.len() < UNDER_WAY_MAX => {
                    let Some(message) = message else {
                        is_open = false;
                        continue;
                    };
                    let Ok(message) = serde_json::from_slice::<Message>(&message) else {
                        let why = "a message is not of the form that is described";
                        drop(to.send(error(None, "invalid_request", why)).await);
                        return;
                    };
                    calls.retain(|_, call| !call.is_finished());
                    if message.cancel {
                        if let Some(call) = calls.remove(&message.id) {
                            call.abort();
                            drop(to.send(error(Some(message.id), "cancelled", "The call was cancelled.")).await);
                        }
                    } else {
                        let id = message.id;
                        let (inner, program, to) = (Arc::clone(&self), program.clone(), to.clone());
                        calls.insert(id, tasks.spawn(async move { inner.serve(&program, message, to).await }));
                    }
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    async fn serve(&self, program: &Program, message: Message, to: mpsc::Sender<Bytes>) {
        let id = message.id;
        let answer = match message {
            Message { call: Some(Call { server, tool, arguments }), .. } => {
                let progress = to.clone();
                let sink = Arc::new(move |Progress { progress: done, total, message }: Progress| {
                    let told = json!({"id": id, "progress": {"progress": done, "total": total, "message": message}});
                    drop(progress.try_send(bytes(&told)));
                });
                match self.call(program, RequestedCall { server, tool, arguments }, sink).await {
                    Ok(result) => bytes(&json!({"id": id, "result": result})),
                    Err(CallFailure { code, why, .. }) => error(Some(id), code, &why),
                }
            }
            Message { module: Some(module), language, .. } => {
                let language = language.unwrap_or(ModuleLanguage::Python);
                match self.module(&program.conversation.owner, &module, language).await {
                    Ok(source) => bytes(&json!({"id": id, "source": source})),
                    Err(failure) => error(Some(id), failure.code.as_str(), &failure.message),
                }
            }
            _ => error(Some(id), "invalid_request", "a message has neither `call` nor `module`"),
        };
        drop(to.send(answer).await);
    }
}
