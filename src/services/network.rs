//! Network by permission: which policies hold for a run or a session, the decision on each of its connections, and what
//! is told of them. What carries the bytes is an adapter.
//!
//! A sandbox has no network. Where a policy holds, connections leave it as channels through its standard streams; a
//! sandbox without one has no channels.

mod decisions;
mod gate;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tokio_stream::wrappers::UnboundedReceiverStream;

pub use self::decisions::{Decision, Decisions};
use self::gate::SandboxGate;
pub(super) use self::gate::Told;
use crate::{
    domain::{
        clock::Clock,
        environment::Environment,
        error::Failure,
        id::Language,
        network::{NetworkUse, Policy},
        owner::{ConversationKey, Principal},
    },
    ports::{
        network::{CHANNELS_MAX, Carrier, ChannelPipe, Resolver},
        observer::Observer,
    },
    services::tokens::Tokens,
};

/// Pieces for the sandbox that were not written yet.
const OUTGOING_MAX: usize = 4;
/// Bytes of a sandbox that were received and not read; a sandbox that sends more than its windows allow loses its
/// channels.
const INCOMING_BYTES_MAX: usize = 4 << 20;
/// Channels that one owner may have: half of all, so that none can take them all.
const SHARE_MAX: usize = CHANNELS_MAX / 2;
/// How long the connections of a sandbox that has ended may take to end.
const END_MAX: Duration = Duration::from_secs(1);
/// The port of the proxy in each sandbox.
const PROXY: &str = "http://127.0.0.1:3128";
const PROXY_VARIABLES: [&str; 6] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const OTHER_VARIABLES: [(&str, &str); 5] = [
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
    // Node uses the proxy by this alone, and warns that it does.
    ("NODE_USE_ENV_PROXY", "1"),
    ("NODE_OPTIONS", "--disable-warning=UNDICI-EHPA"),
    // A refusal stays one.
    ("UV_HTTP_RETRIES", "0"),
];

/// What happens to a connection, for who watches the run or the cell.
pub type Sink = Box<dyn Fn(NetworkUse) + Send + Sync>;

/// Gives sandboxes their channels.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    policies: Vec<Arc<Policy>>,
    parts: NetworkParts,
    decisions: Decisions,
    /// Room for the channels of each owner that has any.
    shares: Mutex<HashMap<Principal, Weak<Semaphore>>>,
}

pub struct NetworkParts {
    pub tokens: Arc<Tokens>,
    pub carrier: Arc<dyn Carrier>,
    pub resolver: Arc<dyn Resolver>,
    pub observer: Arc<dyn Observer>,
    pub clock: Arc<dyn Clock>,
}

/// The policies that hold for one run or session; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access(Vec<Arc<Policy>>);

impl Access {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|policy| policy.name.as_str())
    }
}

/// The channels of one sandbox, for the service that reads and writes its streams.
pub(super) struct Channels {
    pub(super) incoming: Incoming,
    /// Pieces to be written to the sandbox.
    pub(super) outgoing: mpsc::Receiver<Bytes>,
    pub(super) link: ChannelsLink,
}

impl Channels {
    /// Its parts, for a sandbox with or without channels.
    pub(super) fn apart(
        channels: Option<Self>,
    ) -> (Option<Incoming>, Option<mpsc::Receiver<Bytes>>, Option<ChannelsLink>) {
        match channels {
            Some(Self { incoming, outgoing, link }) => (Some(incoming), Some(outgoing), Some(link)),
            None => (None, None, None),
        }
    }
}

/// The next piece for the channels; never, where there are none.
pub(super) async fn next_of(outgoing: &mut Option<mpsc::Receiver<Bytes>>) -> Option<Bytes> {
    match outgoing {
        Some(receiver) => receiver.recv().await,
        None => std::future::pending().await,
    }
}

/// What is left of the channels beside their bytes.
pub(super) struct ChannelsLink {
    pub(super) told: Arc<Told>,
    task: JoinHandle<()>,
}

/// Takes what the sandbox sends. Never waits, since the sandbox is read however slowly its channels are.
#[derive(Debug)]
pub(super) struct Incoming {
    sender: Option<mpsc::UnboundedSender<(Bytes, OwnedSemaphorePermit)>>,
    room: Arc<Semaphore>,
}

impl Incoming {
    /// Takes some bytes; none end the channels.
    pub(super) fn push(&mut self, bytes: &Bytes) {
        let wanted = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(wanted).ok().filter(|_| !bytes.is_empty());
        let sent = self.sender.as_ref().zip(room).map(|(sender, room)| sender.send((bytes.clone(), room)));
        if !matches!(sent, Some(Ok(()))) {
            self.sender = None;
        }
    }
}

impl ChannelsLink {
    /// Ends the connections once the sandbox has ended, so that each is told before its run is over. The other end of
    /// the bytes is dropped before.
    pub(super) async fn end(mut self) -> Vec<String> {
        if timeout(END_MAX, &mut self.task).await.is_err() {
            self.task.abort();
        }
        self.told.end()
    }
}

impl Inner {
    fn share(&self, owner: &Principal) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        shares.retain(|_, share| share.strong_count() > 0);
        shares.get(owner).and_then(Weak::upgrade).unwrap_or_else(|| {
            let share = Arc::new(Semaphore::new(SHARE_MAX));
            shares.insert(owner.clone(), Arc::downgrade(&share));
            share
        })
    }
}

/// Whether a policy holds for a token that names these.
fn holds(policy: &Policy, granted: Option<&[String]>) -> bool {
    granted.map_or(policy.every_token, |names| names.contains(&policy.name))
}

impl Network {
    pub fn new(policies: Vec<Policy>, parts: NetworkParts) -> Self {
        let policies = policies.into_iter().map(Arc::new).collect();
        Self(Arc::new(Inner { policies, parts, decisions: Decisions::default(), shares: Mutex::default() }))
    }

    /// Which policies hold for programs of a language: those that the token of the request names, and otherwise those
    /// that are for every token; of them the ones that the request wants, where it says. `None` when there are none.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for a policy that the token does not have.
    pub fn access(
        &self,
        who: &Principal,
        language: &Language,
        wanted: Option<&[String]>,
    ) -> Result<Option<Access>, Failure> {
        if self.0.policies.is_empty() && wanted.is_none_or(<[_]>::is_empty) || who.is_self_test() {
            return Ok(None);
        }
        let granted = self.0.parts.tokens.network_of(who);
        let is_held = |policy: &&Arc<Policy>| policy.is_for(language) && holds(policy, granted.as_deref());
        let mut policies: Vec<_> = self.0.policies.iter().filter(is_held).cloned().collect();
        if let Some(wanted) = wanted {
            let has = |name: &&String| policies.iter().any(|policy| policy.name == **name);
            if let Some(missing) = wanted.iter().find(|name| !has(name)) {
                let names: Vec<_> = policies.iter().map(|policy| policy.name.as_str()).collect();
                let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let missing: String = missing.chars().take(80).collect();
                let why =
                    format!("this token has no policy `{}` for {language}; it has {there}", missing.escape_debug());
                return Err(Failure::argument("network", why));
            }
            policies.retain(|policy| wanted.contains(&policy.name));
        }
        Ok(Some(Access(policies)).filter(|access| !access.0.is_empty()))
    }

    /// The hosts that programs of a caller may reach, as its policies name them; some only in some languages.
    pub fn hosts(&self, who: &Principal) -> Vec<String> {
        let granted = self.0.parts.tokens.network_of(who);
        let mut hosts: Vec<_> = self
            .0
            .policies
            .iter()
            .filter(|policy| holds(policy, granted.as_deref()))
            .flat_map(|policy| policy.hosts())
            .collect();
        hosts.dedup();
        hosts
    }

    /// Opens the channels of a sandbox.
    pub(super) fn open(&self, access: Access, conversation: &ConversationKey, language: &Language) -> Channels {
        let (sender, received) = mpsc::unbounded_channel();
        // Room is given back when the bytes are read.
        let incoming = UnboundedReceiverStream::new(received).map(|(bytes, _room)| bytes).boxed();
        let (to_sandbox, outgoing) = mpsc::channel(OUTGOING_MAX);
        let told = Arc::new(Told::default());
        let gate = SandboxGate {
            network: Arc::clone(&self.0),
            access,
            conversation: conversation.clone(),
            language: language.clone(),
            told: Arc::clone(&told),
        };
        let share = self.0.share(&conversation.owner);
        let pipe = ChannelPipe { incoming, outgoing: to_sandbox, share };
        let task = tokio::spawn(self.0.parts.carrier.carry(pipe, Arc::new(gate)));
        let incoming = Incoming { sender: Some(sender), room: Arc::new(Semaphore::new(INCOMING_BYTES_MAX)) };
        Channels { incoming, outgoing, link: ChannelsLink { told, task } }
    }

    /// The environment of a program with channels. What the request sets itself stays.
    pub(super) fn environment(env: &Environment) -> Environment {
        let proxies = PROXY_VARIABLES.into_iter().map(|name| (name, PROXY));
        proxies.chain(OTHER_VARIABLES).fold(env.clone(), |env, (name, value)| env.or(name, value))
    }

    /// The newest decisions.
    pub fn decisions(&self) -> &Decisions {
        &self.0.decisions
    }
}
