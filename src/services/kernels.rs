//! Sessions as Jupyter's clients use them: kernels that several clients are connected to, and what each kernel is for.
//!
//! ```text
//! Kernels::connect ── one task (`hub`) for each session that a client has connected to; ends with the session, or by
//!                     `stop`
//! ```
//!
//! A kernel is a session and has its id. What a client sends is passed on as it is, once; code waits for the turn of
//! its conversation, and is that of the token by which its client has connected. Knows no WebSocket and no form of
//! messages.

mod answers;
mod cells;
mod documents;
mod hub;
mod order;
mod turn;
mod unread;

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};
use uuid::Uuid;

pub use self::documents::{Document, DocumentChange};
use self::{
    documents::Documents,
    hub::Client,
    order::OrderSender,
    unread::{Reader, unread},
};
use super::{
    runs::Runs,
    sessions::{SessionState, SessionView, Sessions, message::KernelMessage, queue},
    shares::Shares,
    tasks::Tasks,
};
use crate::{
    domain::{Code, ConversationId, ConversationKey, Failure, Language, Principal, SessionId, tools::Approval},
    ports::runner::Runner,
};

/// Clients that are connected to one kernel.
const CONNECTIONS_MAX: usize = 32;
/// Those of all kernels of an owner. Each may hold a message that does not end, and messages that are not read or not
/// passed on.
const OWNER_CONNECTIONS_MAX: usize = 128;
/// The longest id of a message, and of a client, in bytes.
const ID_BYTES_MAX: usize = 256;

/// The line beside the output of a cell that waits until a person answers a question: it says how the API takes the
/// answer.
pub type QuestionLine = fn(&Approval) -> String;

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Kernels(Arc<Inner>);

struct Inner {
    runs: Runs,
    sessions: Sessions,
    hubs: Mutex<HashMap<SessionId, Hub>>,
    owner_connections: Shares<Principal>,
    documents: Documents,
    started_unix_s: i64,
    question_line: QuestionLine,
    tasks: Tasks,
}

/// The ways to a hub's task.
struct Hub {
    clients: mpsc::UnboundedSender<Client>,
    orders: OrderSender,
    /// Counts the clients that are connected.
    connections: TaskTracker,
    /// Counts the restarts under way that clients of Jupyter asked for, one that will be refused included.
    restarts: TaskTracker,
}

/// A kernel at one moment.
#[derive(Debug, Clone)]
pub struct KernelView {
    pub id: SessionId,
    pub conversation: ConversationKey,
    pub language: Language,
    /// What it does now; `None` while it restarts.
    pub state: Option<SessionState>,
    /// How long it has not been used.
    pub idle: Duration,
    /// Clients that are connected to it.
    pub connections: usize,
}

/// Why a connection is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionEnd {
    /// The same client has connected again.
    Replaced,
    /// The client did not read for too long.
    NotRead,
    /// The kernel is gone; why.
    Ended(String),
    /// The server stops.
    Stopping,
}

/// Why a message is not passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageRefused {
    #[error("a message needs a header of at most 8 KiB with msg_id and msg_type, each of at most 256 bytes")]
    Header,
    #[error("a part of the message is not JSON")]
    NotJson,
    #[error("clients send on shell, control and stdin only")]
    Channel,
    #[error("an execute_request needs the code as a text")]
    NoCode,
    #[error("the message is too long")]
    TooLong,
    #[error("the message has more than 1000 buffers")]
    Buffers,
    #[error("the connection is over")]
    Over,
}

/// A client's connection to a kernel.
pub struct Connection {
    name: String,
    who: Principal,
    slot: ConnectionSlot,
    reader: Reader,
    orders: OrderSender,
    end: Arc<OnceLock<ConnectionEnd>>,
    stop: CancellationToken,
}

/// While it lives, a connection counts for its kernel and its owner.
pub struct ConnectionSlot {
    _permit: OwnedSemaphorePermit,
    _counted: TaskTrackerToken,
}

impl Kernels {
    /// The server was started at this time.
    pub fn new(runs: Runs, started_unix_s: i64, question_line: QuestionLine) -> Self {
        Self(Arc::new(Inner {
            sessions: runs.sessions().clone(),
            runs,
            hubs: Mutex::default(),
            owner_connections: Shares::new(OWNER_CONNECTIONS_MAX),
            documents: Documents::default(),
            started_unix_s,
            question_line,
            tasks: Tasks::default(),
        }))
    }

    /// When the server was started.
    pub fn started_unix_s(&self) -> i64 {
        self.0.started_unix_s
    }

    /// The runners that have a kernel, ordered by language.
    pub fn runners(&self) -> Vec<Runner> {
        self.0.runs.runners().iter().filter(|runner| runner.kernel.is_some()).cloned().collect()
    }

    /// The kernel of a conversation and a language: the open one, or a new one.
    ///
    /// # Errors
    /// Those of [`Sessions::open`]; a full queue or an exceeded rate.
    pub async fn start(&self, conversation: &ConversationKey, language: &Language) -> Result<KernelView, Failure> {
        self.0.runs.check_capacity(&conversation.owner)?;
        Ok(self.0.view(self.0.sessions.open(conversation, language).await?))
    }

    /// A kernel of this caller.
    ///
    /// # Errors
    /// Those of [`Sessions::get`].
    pub fn get(&self, who: &Principal, id: SessionId) -> Result<KernelView, Failure> {
        let restarting = || self.0.restarting(who).find(|kernel| kernel.id == id);
        let found = self.0.sessions.get(who, id).map(|session| self.0.view(session));
        found.or_else(|gone| restarting().ok_or(gone))
    }

    /// The kernels of a caller: of one conversation or of all.
    pub fn list(&self, who: &Principal, conversation: Option<&ConversationId>) -> Vec<KernelView> {
        let open = self.0.sessions.list(who, conversation).into_iter().map(|session| self.0.view(session));
        let is_there = |kernel: &KernelView| conversation.is_none_or(|wanted| *wanted == kernel.conversation.id);
        open.chain(self.0.restarting(who).filter(is_there)).collect()
    }

    /// A new interpreter under the same id, also for a kernel that died.
    ///
    /// # Errors
    /// Those of [`Sessions::restart`].
    pub async fn restart(&self, who: &Principal, id: SessionId) -> Result<KernelView, Failure> {
        let is_open = self.0.sessions.get(who, id).is_ok();
        let _asked = self.0.hubs.lock().get(&id).filter(|_| is_open).map(|hub| hub.restarts.token());
        self.0.sessions.restart(who, id).await.map(|session| self.0.view(session))
    }

    /// Connects a client to a kernel. A client that names itself takes the slot of its earlier connection, and gets
    /// what came in between.
    ///
    /// # Errors
    /// Those of [`Self::get`]; [`Code::InsufficientScope`] where the kernel has more of the network than the caller;
    /// [`Code::TooLarge`] for a long name, [`Code::QueueFull`] for too many connections.
    pub fn connect(&self, who: &Principal, id: SessionId, name: Option<&str>) -> Result<Connection, Failure> {
        let inner = &self.0;
        self.get(who, id)?;
        inner.sessions.check_use(who, id)?;
        if name.is_some_and(|name| name.len() > ID_BYTES_MAX) {
            return Err(Failure::new(Code::TooLarge, "session_id: it is too long."));
        }
        let permit = inner.owner_connections.of(who).try_acquire_owned().map_err(|_| {
            let why =
                format!("Your kernels have {OWNER_CONNECTIONS_MAX} clients, as many as they may have: disconnect one.");
            Failure::new(Code::QueueFull, why)
        })?;
        let mut hubs = inner.hubs.lock();
        hubs.retain(|_, hub| !hub.orders.is_closed());
        let hub = match hubs.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(none) => none.insert(inner.begin(inner.sessions.link(who, id)?)),
        };
        if hub.connections.len() >= CONNECTIONS_MAX {
            let why = format!("This kernel has {CONNECTIONS_MAX} clients, as many as it may have: disconnect one.");
            return Err(Failure::new(Code::QueueFull, why));
        }
        let slot = ConnectionSlot { _permit: permit, _counted: hub.connections.token() };
        let (queue, subscription) = queue();
        let (reader, unread) = unread(subscription);
        let (unread, end) = (name.map(|_| unread), Arc::new(OnceLock::new()));
        let name = name.map_or_else(|| Uuid::new_v4().simple().to_string(), str::to_owned);
        let client = Client { name: name.clone(), queue, unread, end: Arc::clone(&end) };
        // When the kernel has just ended, the queue ends at once.
        drop(hub.clients.send(client));
        let (orders, stop) = (hub.orders.clone(), inner.tasks.stop.clone());
        Ok(Connection { name, who: who.clone(), slot, reader, orders, end, stop })
    }

    /// Ends every connection and waits for the tasks.
    pub async fn stop(&self) {
        self.0.tasks.end().await;
    }
}

impl Inner {
    fn view(&self, session: SessionView) -> KernelView {
        let SessionView { session: id, conversation, language, state, idle, .. } = session;
        KernelView { id, conversation, language, state: Some(state), idle, connections: self.connections(id) }
    }

    fn connections(&self, id: SessionId) -> usize {
        self.hubs.lock().get(&id).map_or(0, |hub| hub.connections.len())
    }

    fn restarting(&self, who: &Principal) -> impl Iterator<Item = KernelView> {
        let of = |(id, conversation, language)| {
            let (state, idle, connections) = (None, Duration::ZERO, self.connections(id));
            KernelView { id, conversation, language, state, idle, connections }
        };
        self.sessions.restarting(who).into_iter().map(of)
    }
}

impl Connection {
    /// The next message for the client; nothing when the connection is over. The client gets it again when it comes
    /// back, unless it was [`written`](Self::written).
    pub async fn next(&mut self) -> Option<KernelMessage> {
        self.reader.next().await
    }

    /// The client was sent the last message.
    pub fn written(&self) {
        self.reader.written();
    }

    /// Passes a message on to the kernel, unless it is none. Waits while much is waiting already, on the shell channel
    /// or on the others.
    ///
    /// # Errors
    /// Why the message is refused; the client is not understood then.
    pub fn send(&self, message: KernelMessage) -> impl Future<Output = Result<(), MessageRefused>> + Send + use<> {
        let (order, orders) = (self.orders.parse(&self.name, &self.who, message), self.orders.clone());
        async move { orders.send(order?).await }
    }

    /// Receives nothing more. What it has sent may still be passed on.
    pub fn leave(self) -> ConnectionSlot {
        self.slot
    }

    /// Why the connection is over.
    pub fn end(&self) -> ConnectionEnd {
        self.end.get().cloned().unwrap_or_else(|| {
            // Its hub ended as it came.
            let is_stopping = self.stop.is_cancelled();
            if is_stopping { ConnectionEnd::Stopping } else { ConnectionEnd::Ended("it has just ended".to_owned()) }
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn a_client_that_comes_as_its_hub_ends_is_told_of_the_kernel_or_the_server() {
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("a permit");
        let slot = ConnectionSlot { _permit: permit, _counted: TaskTracker::new().token() };
        let ((queue, subscription), (orders, _)) = (queue(), order::orders());
        let (reader, _) = unread(subscription);
        let (name, who, end, stop) = (String::new(), Principal::default(), Arc::default(), CancellationToken::new());
        let mut client = Connection { name, who, slot, reader, orders, end, stop };
        drop(queue);
        assert!(client.next().await.is_none());
        assert_eq!(client.end(), ConnectionEnd::Ended("it has just ended".to_owned()));
        client.stop.cancel();
        assert_eq!(client.end(), ConnectionEnd::Stopping);
    }
}
