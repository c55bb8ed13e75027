//! Sessions of clients that begin with a handshake: those of rmcp, with limits and with resumable streams.
//!
//! A session belongs to the principal that opened it. The least recently used one without a call in progress is
//! closed for another: one of the same principal when that has its share, otherwise of the one that has the most, as
//! long as that has more than the asking one would, or as much where the asking one has none. A call is in progress
//! until its handler has ended, because a guard travels with the request. How many of a session and of a principal have
//! no answer yet is bounded.
//!
//! A stream continues without its client, so that the answer is available when the client returns; the messages kept
//! of ended streams are bounded over all sessions, and one owner has half of that.
//!
//! ```text
//! each request in a session: a task that moves its messages from rmcp into a log; ends with the answer or the session
//! ```
//!
//! An event has the id `number/stream`; those of the session's own stream, which `GET /mcp` opens, are rmcp's numbers.

mod streams;

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    ptr,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _};
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
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

use self::streams::{EndedStreams, Log, read};
use crate::{
    api::{
        mcp::{Client, View},
        schema::json_len,
    },
    domain::{Code, ConversationId, Failure, Principal},
    services::shares::Shares,
};

/// How soon a client should return (`retry`).
const RETRY: Duration = Duration::from_secs(3);
/// How long the end of a session waits for its task, which may itself wait for a client that does not read.
const CLOSE_MAX: Duration = Duration::from_secs(1);
/// Streams that a session keeps: the newest. As many of its calls may have no answer yet, so theirs are among them.
const STREAMS_MAX: usize = 64;

/// The sessions. Whose they are is checked before, by the owner that each one has.
pub(super) struct Manager {
    local: LocalSessionManager,
    /// How many there may be, and how many of one principal.
    all_max: usize,
    principal_max: usize,
    open: Mutex<Open>,
    /// Calls without an answer.
    unanswered: Shares<Principal>,
    ended: Arc<Mutex<EndedStreams>>,
}

#[derive(Default)]
struct Open {
    sessions: HashMap<SessionId, Arc<Session>>,
    /// Those that are being opened, as long as their reservations are held.
    opening: Vec<(Principal, Weak<()>)>,
}

/// Room for a session that is being opened: among the extensions of the request that opens it, which gives it to the
/// session.
#[derive(Clone)]
pub(super) struct Reservation {
    owner: Principal,
    calls: Arc<()>,
}

/// Among a request's extensions: the session is not closed for another while it lives.
#[derive(Clone)]
pub(super) struct InProgress {
    _call: Arc<()>,
}

/// Among the extensions of a call in a session, and with the task that records its messages: it counts among those
/// without an answer.
#[derive(Clone)]
pub(super) struct Unanswered {
    _permits: Arc<[OwnedSemaphorePermit; 2]>,
}

/// What a client agreed on and what its streams hold.
pub(super) struct Session {
    /// Who opened it.
    pub owner: Principal,
    pub view: View,
    pub version: ProtocolVersion,
    /// Its calls are given up, without the seconds that rmcp waits for them.
    pub over: CancellationToken,
    /// For tools that name none.
    pub conversation: ConversationId,
    used: Mutex<Instant>,
    /// Clones are with the requests in progress.
    calls: Arc<()>,
    unanswered: Arc<Semaphore>,
    /// By their numbers, the newest last.
    streams: Mutex<VecDeque<(u64, Arc<Log>)>>,
}

impl Manager {
    /// Sessions that end when nothing happens in them for so long; at most so many, and of one principal.
    pub(super) fn new(idle_max: Duration, all_max: usize, principal_max: usize) -> Self {
        let mut local = LocalSessionManager::default();
        local.session_config.keep_alive = Some(idle_max);
        // The first event of a stream is made here: rmcp sends it to every client.
        local.session_config.sse_retry = None;
        // One for each session that a principal may have.
        let unanswered = Shares::new(principal_max.max(STREAMS_MAX));
        Self { local, all_max, principal_max, open: Mutex::default(), unanswered, ended: Arc::default() }
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.open.lock().sessions.get(id).cloned()
    }

    /// Room for a call in a session.
    ///
    /// # Errors
    /// [`Code::QueueFull`] when too many calls of the session or of its owner have no answer yet.
    pub(super) fn begin_call(&self, session: &Session) -> Result<Unanswered, Failure> {
        let shares = [Arc::clone(&session.unanswered), self.unanswered.of(&session.owner)];
        let [Ok(of_session), Ok(of_owner)] = shares.map(Semaphore::try_acquire_owned) else {
            let why = "Too many calls have no answer yet: wait for one of them, or cancel one.";
            return Err(Failure::new(Code::QueueFull, why));
        };
        Ok(Unanswered { _permits: Arc::new([of_session, of_owner]) })
    }

    /// Reserves capacity for another session, which counts until the session is open or the result is dropped.
    ///
    /// # Errors
    /// [`Code::QueueFull`] when there is no session that could be closed.
    pub(super) async fn reserve(&self, who: &Principal) -> Result<Reservation, Failure> {
        let (closed, reservation) = {
            let mut open = self.open.lock();
            open.opening.retain(|(_, reservation)| reservation.strong_count() > 0);
            // With the new one.
            let mut held = HashMap::from([(who.clone(), 1_usize)]);
            let opening = open.opening.iter().map(|(owner, _)| owner);
            for owner in open.sessions.values().map(|session| &session.owner).chain(opening) {
                *held.entry(owner.clone()).or_default() += 1;
            }
            // What another owner has to have: more, or as much where this one has none yet.
            let enough = held[who] + usize::from(held[who] > 1);
            let share_taken = held[who] > self.principal_max;
            let closed = if share_taken || open.sessions.len() + open.opening.len() >= self.all_max {
                let idle = open.sessions.iter().filter(|(_, session)| {
                    Arc::strong_count(&session.calls) == 1
                        && (session.owner == *who || (!share_taken && held[&session.owner] >= enough))
                });
                let idle = idle.min_by_key(|(_, session)| (Reverse(held[&session.owner]), *session.used.lock()));
                let Some((oldest, _)) = idle else {
                    let why = "There is no room for another session: call without one, or close one that is open.";
                    return Err(Failure::new(Code::QueueFull, why));
                };
                let oldest = oldest.clone();
                open.sessions.remove_entry(&oldest)
            } else {
                None
            };
            let reservation = Reservation { owner: who.clone(), calls: Arc::new(()) };
            open.opening.push((who.clone(), Arc::downgrade(&reservation.calls)));
            (closed, reservation)
        };
        if let Some((id, session)) = closed {
            session.over.cancel();
            // A session that has ended meanwhile makes room too.
            drop(self.close_session(&id).await);
        }
        Ok(reservation)
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
    /// Notes a request, which is in progress until the result is dropped.
    pub(super) fn in_progress(&self) -> InProgress {
        *self.used.lock() = Instant::now();
        InProgress { _call: Arc::clone(&self.calls) }
    }

    /// A new stream, which holds what comes out of `messages`.
    fn record(
        &self,
        messages: impl Stream<Item = ServerSseMessage> + Send + 'static,
        ended: Arc<Mutex<EndedStreams>>,
        call: Option<Unanswered>,
    ) -> Arc<Log> {
        let log = Arc::new(Log::default());
        let number = {
            let mut streams = self.streams.lock();
            let number = streams.back().map_or(1, |(newest, _)| newest + 1);
            streams.push_back((number, Arc::clone(&log)));
            // The oldest that has ended: one that goes on still has its answer to come.
            if streams.len() > STREAMS_MAX
                && let Some(at) = streams.iter().position(|(_, log)| log.borrow().complete)
            {
                streams.remove(at);
            }
            number
        };
        if self.version.as_str() >= ProtocolVersion::V_2025_11_25.as_str() {
            // So that the client can return before the first message. Earlier clients fail on an event without data.
            log.send_modify(|events| events.add(ServerSseMessage::priming("", RETRY), number));
        }
        let (kept, over, owner) = (Arc::clone(&log), self.over.clone(), self.owner.clone());
        tokio::spawn(async move {
            let mut messages = std::pin::pin!(messages.take_until(over.cancelled_owned()));
            while let Some(message) = messages.next().await {
                kept.send_modify(|events| events.add(message, number));
            }
            let bytes = kept.borrow().kept.iter().map(|event| json_len(&event.message)).sum();
            kept.send_modify(|events| events.complete = true);
            ended.lock().add(&owner, &kept, bytes);
            drop(call);
        });
        log
    }

    fn find(&self, number: u64) -> Option<Arc<Log>> {
        self.streams.lock().iter().find(|(kept, _)| *kept == number).map(|(_, log)| Arc::clone(log))
    }
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
        let (mut view, mut reservation) = (View::default(), None);
        if let ClientJsonRpcMessage::Request(request) = &mut message
            && let Some(head) = request.request.extensions_mut().get_mut::<Parts>()
        {
            reservation = head.extensions.remove::<Reservation>();
            if let Some(client) = head.extensions.get_mut::<Client>() {
                view = client.view;
                client.session = Some(over.clone());
            }
        }
        let response = self.local.initialize_session(id, message).await?;
        if let ServerJsonRpcMessage::Response(response) = &response
            && let ServerResult::InitializeResult(result) = &response.result
            && let Some(Reservation { owner, calls }) = reservation
        {
            let version = result.protocol_version.clone();
            let (conversation, streams) = (ConversationId::fresh(), Mutex::default());
            let used = Mutex::new(Instant::now());
            let mut open = self.open.lock();
            open.opening.retain(|(_, reservation)| !ptr::eq(reservation.as_ptr(), Arc::as_ptr(&calls)));
            let unanswered = Arc::new(Semaphore::new(STREAMS_MAX));
            let session = Session { owner, view, version, over, conversation, used, calls, unanswered, streams };
            open.sessions.insert(id.clone(), Arc::new(session));
        }
        Ok(response)
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Error> {
        if let Some(session) = self.open.lock().sessions.remove(id) {
            session.over.cancel();
        }
        // Its task ends also where it is not notified in time, since its last handle is dropped here.
        timeout(CLOSE_MAX, self.local.close_session(id)).await.unwrap_or(Ok(()))
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Error> {
        let session = self.session(id)?;
        let head = match &message {
            ClientJsonRpcMessage::Request(request) => request.request.extensions().get::<Parts>(),
            _ => None,
        };
        let call = head.and_then(|head| head.extensions.get().cloned());
        let messages = self.local.create_stream(id, message).await?;
        Ok(read(&session.record(messages, Arc::clone(&self.ended), call), 0))
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

#[cfg(test)]
mod tests {
    use rmcp::transport::streamable_http_server::session::local::{SessionConfig, create_local_session};
    use serde_json::json;

    use super::*;

    /// Adds a session whose task takes no message, as one that waits for a client that does not read.
    async fn stuck(manager: &Manager, id: &SessionId) -> (Arc<Session>, LocalSessionWorker) {
        let (handle, worker) = create_local_session(Arc::clone(id), SessionConfig::default());
        for _ in 0..SessionConfig::DEFAULT_CHANNEL_CAPACITY {
            let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
            let ready = serde_json::from_value(ready).expect("a message");
            handle.push_message(ready, None).await.expect("room for it");
        }
        manager.local.sessions.write().await.insert(Arc::clone(id), handle);
        let session = Arc::new(Session {
            owner: "ann".parse().expect("an owner"),
            view: View::default(),
            version: ProtocolVersion::V_2025_06_18,
            over: CancellationToken::new(),
            conversation: ConversationId::fresh(),
            used: Mutex::new(Instant::now()),
            calls: Arc::default(),
            unanswered: Arc::new(Semaphore::new(STREAMS_MAX)),
            streams: Mutex::default(),
        });
        manager.open.lock().sessions.insert(Arc::clone(id), Arc::clone(&session));
        (session, worker)
    }

    #[tokio::test(start_paused = true)]
    async fn session_whose_task_waits_delays_neither_its_end_nor_the_opening_of_another() {
        let (id, bob) = (SessionId::from("a"), "bob".parse::<Principal>().expect("an owner"));
        for is_deleted in [true, false] {
            let manager = Manager::new(Duration::from_mins(1), 1, 1);
            let (session, _worker) = stuck(&manager, &id).await;
            let done = async { if is_deleted { manager.end(&id).await } else { manager.reserve(&bob).await.is_ok() } };
            assert!(timeout(2 * CLOSE_MAX, done).await.expect("an end"), "{is_deleted}");
            assert!(session.over.is_cancelled() && manager.get(&id).is_none(), "{is_deleted}");
            assert!(!manager.has_session(&id).await.expect("an answer"), "{is_deleted}");
        }
    }
}
