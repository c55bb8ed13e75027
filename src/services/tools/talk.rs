//! Messages of one connection of a program: calls, and the sources of modules that it imports. The messages are
//! untrusted; the sandbox that the connection comes from identifies the caller.
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
use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    task::{AbortHandle, JoinSet},
};

use super::{
    Inner,
    calls::{CallFailure, RequestedCall},
    modules::{ModuleLanguage, Source},
};
use crate::{
    domain::{Failure, Principal},
    ports::tools::Progress,
    services::{network::Program, shares::Shares},
};

/// Calls of one connection under way. What follows is read up to the next call, which waits for one of them to end:
/// a cancellation before it is read at once.
const UNDER_WAY_MAX: usize = 16;
/// Messages that a program has not read yet; progress is left out beyond them.
const UNREAD_MAX: usize = 64;
/// Memory for the messages of one owner under way, in bytes: three times the texts, and what each value takes besides.
const OWNER_BYTES_MAX: u32 = 32 << 20;
const TEXTS: usize = 3;
const VALUE_BYTES: usize = 40;
/// A message of at most so many bytes needs none: it may cancel the call that the others wait for.
const SHORT_BYTES: usize = 128;
/// Sources of modules for one owner's programs that they have not taken yet; each may have a MiB, and is asked for by a
/// short message.
const OWNER_SOURCES_MAX: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    id: u64,
    call: Option<RequestedCall>,
    #[serde(default)]
    cancel: bool,
    module: Option<String>,
    language: Option<ModuleLanguage>,
}

/// Memory for messages of programs and for sources, by their owners. A call may wait long, for a person or for other
/// calls, and a source waits for none of them.
pub(super) struct Memory {
    messages: Shares<Principal>,
    sources: Shares<Principal>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { messages: Shares::new(OWNER_BYTES_MAX as usize), sources: Shares::new(OWNER_SOURCES_MAX) }
    }
}

impl Memory {
    /// Waits until a message may be parsed. One that needs more than an owner has is under way alone.
    async fn take(&self, owner: &Principal, message: &[u8]) -> Option<OwnedSemaphorePermit> {
        if message.len() <= SHORT_BYTES {
            return None;
        }
        // Each value follows one of these.
        let values = message.iter().filter(|byte| b"[{,:".contains(byte)).count();
        let bytes = u32::try_from(message.len() * TEXTS + values * VALUE_BYTES).unwrap_or(u32::MAX);
        self.messages.of(owner).acquire_many_owned(bytes.min(OWNER_BYTES_MAX)).await.ok()
    }

    /// Waits until a source may be answered to a program. The permit is held until it is written.
    async fn take_source(&self, owner: &Principal) -> Option<OwnedSemaphorePermit> {
        self.sources.of(owner).acquire_owned().await.ok()
    }
}

/// A message for the program, and the room that an answer takes until it is written.
type Outgoing = (Bytes, Option<OwnedSemaphorePermit>);

/// When the next message is wanted, the one before is written.
fn outgoing(messages: mpsc::Receiver<Outgoing>) -> BoxStream<'static, Bytes> {
    let next = |(mut messages, written): (mpsc::Receiver<Outgoing>, Option<OwnedSemaphorePermit>)| async move {
        drop(written);
        let (message, room) = messages.recv().await?;
        Some((message, (messages, room)))
    };
    stream::unfold((messages, None), next).boxed()
}

fn bytes(message: &Value) -> Bytes {
    serde_json::to_vec(message).unwrap_or_default().into()
}

fn error(id: Option<u64>, code: &str, why: &str) -> Bytes {
    bytes(&json!({"id": id, "error": {"code": code, "message": why}}))
}

/// Answers the messages of one connection, as [`ToolCalls::answer`](crate::services::network::ToolCalls::answer).
pub(super) fn answer(
    tools: Arc<Inner>,
    program: Program,
    messages: BoxStream<'static, Bytes>,
) -> BoxStream<'static, Bytes> {
    let (sender, answers) = mpsc::channel(UNREAD_MAX);
    tokio::spawn(async move {
        let gone = sender.clone();
        tokio::select! {
            () = tools.talk(program, messages, sender) => {}
            // The connection is over; what is under way ends with it.
            () = gone.closed() => {}
        }
    });
    outgoing(answers)
}

impl Inner {
    async fn talk(
        self: Arc<Self>,
        program: Program,
        mut messages: BoxStream<'static, Bytes>,
        to: mpsc::Sender<Outgoing>,
    ) {
        let mut tasks = JoinSet::new();
        let mut calls: HashMap<u64, AbortHandle> = HashMap::new();
        // A message that was read, and its memory.
        let mut next: Option<(Message, Option<OwnedSemaphorePermit>)> = None;
        let mut is_open = true;
        while is_open || next.is_some() || !tasks.is_empty() {
            if tasks.len() < UNDER_WAY_MAX
                && let Some((message, taken)) = next.take()
            {
                let id = message.id;
                let (inner, program, to) = (Arc::clone(&self), program.clone(), to.clone());
                calls.insert(
                    id,
                    tasks.spawn(async move {
                        inner.serve(&program, message, to).await;
                        drop(taken);
                    }),
                );
            }
            tokio::select! {
                message = messages.next(), if is_open && next.is_none() => {
                    let Some(message) = message else {
                        is_open = false;
                        continue;
                    };
                    let taken = self.memory.take(&program.conversation.owner, &message).await;
                    let Ok(message) = serde_json::from_slice::<Message>(&message) else {
                        let why = "a message is not of the form that is described";
                        drop(to.send((error(None, "invalid_request", why), None)).await);
                        return;
                    };
                    calls.retain(|_, call| !call.is_finished());
                    if message.cancel {
                        if let Some(call) = calls.remove(&message.id) {
                            call.abort();
                            let cancelled = error(Some(message.id), "cancelled", "The call was cancelled.");
                            drop(to.send((cancelled, None)).await);
                        }
                    } else {
                        next = Some((message, taken));
                    }
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }

    async fn serve(self: &Arc<Self>, program: &Program, message: Message, to: mpsc::Sender<Outgoing>) {
        let id = message.id;
        let mut room = None;
        let answer = match message {
            Message { call: Some(call), .. } => {
                let progress = to.clone();
                let sink = Arc::new(move |step: Progress| {
                    drop(progress.try_send((bytes(&json!({"id": id, "progress": step})), None)));
                });
                match self.call(program, call, sink).await {
                    Ok((result, taken)) => {
                        room = Some(taken);
                        bytes(&json!({"id": id, "result": result}))
                    }
                    Err(CallFailure { code, why, .. }) => error(Some(id), code, &why),
                }
            }
            Message { module: Some(module), language, .. } => {
                let language = language.unwrap_or(ModuleLanguage::Python);
                match self.source_with_room(&program.conversation.owner, &module, language).await {
                    Ok((source, taken)) => {
                        room = taken;
                        bytes(&json!({"id": id, "source": source}))
                    }
                    Err(failure) => error(Some(id), failure.code.as_str(), &failure.message),
                }
            }
            _ => error(Some(id), "invalid_request", "a message has neither `call` nor `module`"),
        };
        drop(to.send((answer, room)).await);
    }

    /// A source, and the permit that is held until it is written. It is made before it takes one: where that takes
    /// long, it holds up no other server's.
    async fn source_with_room(
        self: &Arc<Self>,
        owner: &Principal,
        module: &str,
        language: ModuleLanguage,
    ) -> Result<(Source, Option<OwnedSemaphorePermit>), Failure> {
        drop(self.module(owner, module, language).await?);
        let room = self.memory.take_source(owner).await;
        Ok((self.module(owner, module, language).await?, room))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    #[test]
    fn messages_of_one_owner_take_bounded_memory() {
        let (memory, owner, other) = (Memory::default(), Principal::default(), Principal::self_test());
        let take = |owner: &Principal, message: &[u8]| memory.take(owner, message).now_or_never();
        let text: Vec<_> = (0..10).map(|_| take(&owner, &vec![b'x'; 1 << 20]).expect("room")).collect();
        assert!(take(&owner, &vec![b'x'; 1 << 20]).is_none(), "ten of a MiB are under way");
        assert!(take(&other, &vec![b'x'; 1 << 20]).is_some());
        drop(text);
        let values = take(&owner, &vec![b'['; 1 << 20]).expect("alone");
        assert!(take(&owner, &[b'x'; SHORT_BYTES + 1]).is_none());
        let cancel = json!({"id": u64::MAX, "cancel": true}).to_string();
        assert!(take(&owner, cancel.as_bytes()).is_some(), "it may be what the others wait for");
        drop(values);
        assert!(take(&owner, &[b'x'; SHORT_BYTES + 1]).is_some());
    }

    #[test]
    fn sources_that_programs_of_one_owner_do_not_take_are_few() {
        let (memory, owner, other) = (Memory::default(), Principal::default(), Principal::self_test());
        let take = |owner: &Principal| memory.take_source(owner).now_or_never();
        let all = memory.take(&owner, &vec![b'['; 1 << 20]).now_or_never().expect("room");
        let mut unread: Vec<_> = (0..OWNER_SOURCES_MAX).map(|_| take(&owner).expect("no call holds it up")).collect();
        assert!(unread.iter().all(Option::is_some) && take(&owner).is_none());
        assert!(take(&other).is_some());
        unread.pop();
        assert!(take(&owner).is_some(), "one is written");
        drop(all);
    }

    #[tokio::test]
    async fn an_answer_takes_its_room_until_it_is_written() {
        let room = Arc::new(Semaphore::new(1));
        let (sender, answers) = mpsc::channel(1);
        let taken = Arc::clone(&room).try_acquire_owned().expect("room");
        sender.send((Bytes::from_static(b"answer"), Some(taken))).await.expect("it is read");
        let mut written = outgoing(answers);
        assert_eq!(written.next().await.as_deref(), Some(b"answer".as_slice()));
        assert_eq!(room.available_permits(), 0);
        assert!(written.next().now_or_never().is_none());
        assert_eq!(room.available_permits(), 1);
        drop(sender);
        assert!(written.next().await.is_none());
    }
}
