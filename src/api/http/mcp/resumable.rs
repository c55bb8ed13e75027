//! Sessions of clients that begin with a handshake: those of rmcp, extended by resumable streams. A stream continues
//! without its client, so that the answer is available when the client returns; the messages kept of ended streams are
//! bounded over all sessions.
//!
//! ```text
//! each request in a session: a task that moves its messages from rmcp into a log; ends with the answer or the session
//! ```
//!
//! An event has the id `number/stream`; those of the session's own stream, which `GET /mcp` opens, are rmcp's numbers.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use http::request::Parts;
use parking_lot::Mutex;
use rmcp::{
    model::{ClientJsonRpcMessage, GetExtensions as _, ProtocolVersion, ServerJsonRpcMessage, ServerResult},
    transport::{
        WorkerTransport,
        streamable_http_server::session::{
            ServerSseMessage, SessionId, SessionManager,
            local::{LocalSessionManager, LocalSessionManagerError as Error, LocalSessionWorker},
        },
    },
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{
        mcp::{Client, View},
        schema::json_len,
    },
    domain::{ConversationId, Principal},
};

/// How soon a client should return (`retry`).
const RETRY: Duration = Duration::from_secs(3);
/// Messages before the answer that a stream keeps: the newest.
const MESSAGES_MAX: usize = 64;
/// Streams that a session keeps: the newest.
const STREAMS_MAX: usize = 64;
/// Ended streams of all sessions together, in bytes of JSON and in number: the newest.
const ENDED_BYTES_MAX: usize = 32 << 20;
const ENDED_MAX: usize = 4096;

/// The sessions. Whose they are is checked before, by the owner that each one has.
pub(super) struct Manager {
    local: LocalSessionManager,
    open: Mutex<HashMap<SessionId, Arc<Session>>>,
    ended: Arc<Mutex<EndedStreams>>,
}

/// What a client agreed on and what its streams hold.
pub(super) struct Session {
    /// Who opened it.
    pub owner: Option<Principal>,
    pub view: View,
    pub version: ProtocolVersion,
    /// Its calls are given up, without the seconds that rmcp waits for them.
    pub over: CancellationToken,
    /// For tools that name none.
    pub conversation: ConversationId,
    /// By their numbers, the newest last.
    streams: Mutex<VecDeque<(u64, Arc<Log>)>>,
}

/// The messages of one stream. A reader has its own place in it.
type Log = watch::Sender<Events>;

#[derive(Default)]
struct Events {
    /// How many were dropped before `kept`.
    dropped: u64,
    kept: VecDeque<ServerSseMessage>,
    complete: bool,
}

#[derive(Default)]
struct EndedStreams {
    logs: VecDeque<(Weak<Log>, usize)>,
    bytes: usize,
}

impl Manager {
    /// Sessions that end when nothing happens in them for so long.
    pub(super) fn new(idle_max: Duration) -> Self {
        let mut local = LocalSessionManager::default();
        local.session_config.keep_alive = Some(idle_max);
        // The first event of a stream is made here: rmcp sends it to every client.
        local.session_config.sse_retry = None;
        Self { local, open: Mutex::default(), ended: Arc::default() }
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.open.lock().get(id).cloned()
    }

    /// Ends a session; `false` when there is none.
    pub(super) async fn end(&self, id: &str) -> bool {
        let there = self.get(id).is_some();
        drop(self.close_session(&id.into()).await);
        there
    }

    fn session(&self, id: &SessionId) -> Result<Arc<Session>, Error> {
        self.get(id).ok_or_else(|| Error::SessionNotFound(id.clone()))
    }
}

impl Session {
    /// A new stream, which holds what comes out of `messages`.
    fn record(
        &self,
        messages: impl Stream<Item = ServerSseMessage> + Send + 'static,
        ended: Arc<Mutex<EndedStreams>>,
    ) -> Arc<Log> {
        let log = Arc::new(Log::default());
        let number = {
            let mut streams = self.streams.lock();
            let number = streams.back().map_or(1, |(newest, _)| newest + 1);
            streams.push_back((number, Arc::clone(&log)));
            if streams.len() > STREAMS_MAX {
                // The oldest that has ended: one that goes on still has its answer to come.
                let at = streams.iter().position(|(_, log)| log.borrow().complete).unwrap_or(0);
                streams.remove(at);
            }
            number
        };
        if self.version.as_str() >= ProtocolVersion::V_2025_11_25.as_str() {
            // So that the client can return before the first message. Earlier clients fail on an event without data.
            log.send_modify(|events| events.add(ServerSseMessage::priming("", RETRY), number));
        }
        let (kept, over) = (Arc::clone(&log), self.over.clone());
        tokio::spawn(async move {
            let mut messages = std::pin::pin!(messages.take_until(over.cancelled_owned()));
            while let Some(message) = messages.next().await {
                kept.send_modify(|events| events.add(message, number));
            }
            let bytes = kept.borrow().kept.iter().map(|event| json_len(&event.message)).sum();
            kept.send_modify(|events| events.complete = true);
            ended.lock().add(&kept, bytes);
        });
        log
    }

    fn find(&self, number: u64) -> Option<Arc<Log>> {
        self.streams.lock().iter().find(|(kept, _)| *kept == number).map(|(_, log)| Arc::clone(log))
    }
}

impl Events {
    fn add(&mut self, mut event: ServerSseMessage, stream: u64) {
        event.event_id = Some(format!("{}/{stream}", self.end()));
        self.kept.push_back(event);
        if self.kept.len() > MESSAGES_MAX {
            self.kept.pop_front();
            self.dropped += 1;
        }
    }

    fn end(&self) -> u64 {
        self.dropped + self.kept.len() as u64
    }

    /// The event with this number, or the first after it that is kept; with its number.
    fn at(&self, number: u64) -> Option<(u64, ServerSseMessage)> {
        let number = number.max(self.dropped);
        let index = usize::try_from(number - self.dropped).ok()?;
        self.kept.get(index).map(|event| (number, event.clone()))
    }
}

impl EndedStreams {
    fn add(&mut self, log: &Arc<Log>, bytes: usize) {
        self.bytes += bytes;
        self.logs.push_back((Arc::downgrade(log), bytes));
        while self.bytes > ENDED_BYTES_MAX || self.logs.len() > ENDED_MAX {
            let Some((log, bytes)) = self.logs.pop_front() else { return };
            self.bytes -= bytes;
            if let Some(log) = log.upgrade() {
                log.send_modify(|events| {
                    events.dropped = events.end();
                    events.kept.clear();
                });
            }
        }
    }
}

/// The events from this number on, as they come; ends after the last.
fn read(log: &Log, from: u64) -> impl Stream<Item = ServerSseMessage> + Send + Sync + 'static + use<> {
    stream::unfold((log.subscribe(), from), |(mut events, next)| async move {
        loop {
            let (found, complete) = {
                let events = events.borrow_and_update();
                (events.at(next), events.complete)
            };
            match found {
                Some((number, event)) => return Some((event, (events, number + 1))),
                None if complete => return None,
                // The log is dropped with its session.
                None => events.changed().await.ok()?,
            }
        }
    })
}

impl SessionManager for Manager {
    type Error = Error;
    type Transport = WorkerTransport<LocalSessionWorker>;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Error> {
        self.local.create_session().await
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        mut message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Error> {
        let over = CancellationToken::new();
        let (mut view, mut owner) = (View::default(), None);
        if let ClientJsonRpcMessage::Request(request) = &mut message
            && let Some(head) = request.request.extensions_mut().get_mut::<Parts>()
        {
            owner = head.extensions.get::<Principal>().cloned();
            if let Some(client) = head.extensions.get_mut::<Client>() {
                view = client.view;
                client.session = Some(over.clone());
            }
        }
        let response = self.local.initialize_session(id, message).await?;
        if let ServerJsonRpcMessage::Response(response) = &response
            && let ServerResult::InitializeResult(result) = &response.result
        {
            let version = result.protocol_version.clone();
            let (conversation, streams) = (ConversationId::fresh(), Mutex::default());
            let session = Session { owner, view, version, over, conversation, streams };
            self.open.lock().insert(id.clone(), Arc::new(session));
        }
        Ok(response)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Error> {
        if let Some(session) = self.open.lock().remove(id) {
            session.over.cancel();
        }
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Error> {
        let session = self.session(id)?;
        let messages = self.local.create_stream(id, message).await?;
        Ok(read(&session.record(messages, Arc::clone(&self.ended)), 0))
    }

    async fn accept_message(&self, id: &SessionId, message: ClientJsonRpcMessage) -> Result<(), Error> {
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Error> {
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Error> {
        let next = |number: &str| number.parse::<u64>().ok().and_then(|number| number.checked_add(1));
        if let Some((number, stream)) = last_event_id.split_once('/') {
            let log = stream.parse().ok().and_then(|stream| self.session(id).ok()?.find(stream));
            let found = next(number).zip(log).ok_or_else(|| Error::SessionNotFound(id.clone()))?;
            return Ok(read(&found.1, found.0).left_stream());
        }
        // rmcp would repeat the event that is named.
        let after = next(&last_event_id).map_or(last_event_id, |next| next.to_string());
        Ok(self.local.resume(id, after).await?.right_stream())
    }
}
