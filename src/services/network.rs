//! Network by permission: which policies apply to a run or a session, the decision on each of its connections, and the
//! records of them. An adapter carries the bytes.
//!
//! A sandbox has no network interface but loopback. Where a policy applies, its connections are channels through its
//! standard streams; a sandbox without a policy has no channels.

mod channels;
mod gate;
mod policies;
mod rates;

use std::{
    borrow::Cow,
    collections::HashSet,
    io,
    net::IpAddr,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream::BoxStream};
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::Instant,
};
use tokio_stream::wrappers::UnboundedReceiverStream;

pub(super) use self::{
    channels::{Channels, ChannelsLink, ConnectionReporter, Incoming, next_of},
    rates::Limiters,
};
use self::{
    channels::{INCOMING_BYTES_MAX, Opened},
    gate::SandboxGate,
};
pub use self::{gate::Decisions, policies::Policies};
use crate::{
    domain::{
        Clock, ConversationKey, Environment, EventKind, Failure, Language, Principal,
        network::{Host, Policy, Secret},
        text::shown,
    },
    ports::{
        network::{CHANNELS_MAX, Carrier, ChannelPipe, Resolver},
        observer::Observer,
    },
    services::{shares::Shares, tokens::Tokens, waits::WAITS_MAX},
};

/// Pieces for the sandbox that were not written yet.
const OUTGOING_MAX: usize = 4;
/// Channels that one owner may have: half of all, so that none can take them all.
const SHARE_MAX: usize = CHANNELS_MAX / 2;
/// Look-ups that one owner may wait for. The system goes on with one that is given up, for three times as long where no
/// name server answers, so that an owner has at most 96 of those that the resolver makes at once.
const LOOK_UPS_MAX: usize = 32;
/// What a token or a request names beside policies, to have packages installed.
pub const PACKAGES: &str = "packages";
/// The port of the proxy in each sandbox.
const PROXY: &str = "http://127.0.0.1:3128";
const PROXY_VARIABLES: [&str; 6] = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
const OTHER_VARIABLES: [(&str, &str); 11] = [
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
    // Node uses the proxy by this alone, and warns that it does.
    ("NODE_USE_ENV_PROXY", "1"),
    ("NODE_OPTIONS", "--disable-warning=UNDICI-EHPA"),
    // A refusal stays one.
    ("UV_HTTP_RETRIES", "0"),
    // What installs packages keeps them beside those of the server, runs nothing of theirs, and asks no other host.
    ("UV_CACHE_DIR", "/data/.packages/.uv"),
    ("UV_PYTHON_DOWNLOADS", "never"),
    ("UV_NO_CONFIG", "1"),
    ("npm_config_cache", "/data/.packages/.npm"),
    ("npm_config_ignore_scripts", "true"),
    ("npm_config_update_notifier", "false"),
];

/// Receives the events of connections and calls, for those who watch the run or the cell.
pub type Sink = Box<dyn Fn(EventKind) + Send + Sync>;

/// Gives sandboxes their channels.
#[derive(Clone)]
pub struct Network(Arc<Inner>);

struct Inner {
    policies: Policies,
    secrets: Vec<Arc<Secret>>,
    /// By the names of policies.
    request_rates: Limiters,
    byte_rates: Limiters,
    /// The addresses of the server's own hosts, and when they were looked up.
    own_addresses: Mutex<Option<(Instant, Arc<[IpAddr]>)>>,
    parts: NetworkParts,
    decisions: Decisions,
    requests: OnceLock<Weak<dyn PackageRequests>>,
    calls: OnceLock<Weak<dyn ToolCalls>>,
    /// Room for the channels of each owner that has any.
    shares: Shares<Principal>,
    look_ups: Shares<Principal>,
}

pub struct NetworkParts {
    pub tokens: Arc<Tokens>,
    pub carrier: Arc<dyn Carrier>,
    pub resolver: Arc<dyn Resolver>,
    /// The hosts of the server's URLs, which programs do not reach.
    pub own_hosts: Vec<Host>,
    pub observer: Arc<dyn Observer>,
    pub clock: Arc<dyn Clock>,
}

/// What one run or session may do, at least one of: connect as its policies say, ask the server for packages, and call
/// tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// By name: what they say when a connection is wanted counts.
    policies: Vec<String>,
    /// They count as long as the token has them; those of a tool server are its operator's choice.
    are_of_token: bool,
    /// A policy of the server itself, such as that of installations.
    own: Option<Arc<Policy>>,
    requests: bool,
    tools: bool,
}

impl Access {
    /// One policy of the server itself, and nothing else.
    pub(super) fn of(policy: Policy) -> Self {
        Self { own: Some(Arc::new(policy)), ..Self::default() }
    }

    /// How long a program may wait for people.
    pub(super) fn waits_max(&self) -> Duration {
        if self.tools { WAITS_MAX } else { Duration::ZERO }
    }
}

/// Answers what programs ask of the server itself, which is to install packages.
pub trait PackageRequests: Send + Sync {
    /// What programs of a language find in their environment; empty where nothing is answered.
    fn variables(&self, language: &Language) -> Vec<(&'static str, String)>;

    /// Answers one request.
    fn answer(
        self: Arc<Self>,
        conversation: &ConversationKey,
        language: &Language,
        request: Bytes,
    ) -> BoxStream<'static, Bytes>;
}

/// A program that may call tools, for the service that answers.
#[derive(Clone)]
pub struct Program {
    pub conversation: ConversationKey,
    pub language: Language,
    pub(super) reporter: Arc<ConnectionReporter>,
}

/// Answers the calls of tools.
pub trait ToolCalls: Send + Sync {
    /// Whether programs of this owner have tools.
    fn is_offered(&self, who: &Principal) -> bool;

    /// Answers the messages of one connection of a program, until both streams have ended. What is under way ends when
    /// the answers are dropped.
    fn answer(self: Arc<Self>, program: Program, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes>;
}

impl Inner {
    /// The policies as they are now, of which the token of `owner` may have lost some.
    fn policies_of(&self, access: &Access, owner: &Principal) -> impl Iterator<Item = Arc<Policy>> {
        let granted = self.parts.tokens.network_of(owner);
        let is_held = move |policy: &Arc<Policy>| !access.are_of_token || holds(policy, granted.as_deref());
        let named = access.policies.iter().filter_map(|name| self.policies.by_name(name));
        named.filter(is_held).chain(access.own.clone())
    }

    /// The policies that a caller's programs have, of any language.
    fn held(&self, who: &Principal) -> Vec<Arc<Policy>> {
        let granted = self.parts.tokens.network_of(who);
        self.policies.all().into_iter().filter(|policy| holds(policy, granted.as_deref())).collect()
    }

    fn requests(&self) -> Option<Arc<dyn PackageRequests>> {
        self.requests.get().and_then(Weak::upgrade)
    }

    fn calls(&self) -> Option<Arc<dyn ToolCalls>> {
        self.calls.get().and_then(Weak::upgrade)
    }
}

/// Whether a policy holds for a token that names these.
fn holds(policy: &Policy, granted: Option<&[String]>) -> bool {
    granted.map_or(policy.text.every_token, |names| names.contains(&policy.name))
}

impl Network {
    pub fn new(policies: Policies, secrets: Vec<Secret>, parts: NetworkParts) -> Self {
        Self(Arc::new(Inner {
            policies,
            secrets: secrets.into_iter().map(Arc::new).collect(),
            request_rates: Limiters::default(),
            byte_rates: Limiters::default(),
            own_addresses: Mutex::default(),
            parts,
            decisions: Decisions::default(),
            requests: OnceLock::new(),
            calls: OnceLock::new(),
            shares: Shares::new(SHARE_MAX),
            look_ups: Shares::new(LOOK_UPS_MAX),
        }))
    }

    /// From now on calls of tools are answered by this service, which needs the network itself. Once.
    pub fn set_tool_calls(&self, calls: Weak<dyn ToolCalls>) {
        drop(self.0.calls.set(calls));
    }

    /// From now on requests to install packages are answered by this service, which needs the network itself. Once.
    pub fn set_package_requests(&self, requests: Weak<dyn PackageRequests>) {
        drop(self.0.requests.set(requests));
    }

    /// Whether a caller may have packages installed: its token names no policies, or [`PACKAGES`] among them.
    pub fn may_install(&self, who: &Principal) -> bool {
        let granted = self.0.parts.tokens.network_of(who);
        granted.is_none_or(|names| names.iter().any(|name| name == PACKAGES))
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
        if who.is_self_test() {
            return Ok(None);
        }
        let offers = self.0.requests().is_some_and(|requests| !requests.variables(language).is_empty());
        let tools = self.0.calls().is_some_and(|calls| calls.is_offered(who));
        let mut policies = self.names(who, language);
        let mut requests = offers && self.may_install(who);
        if let Some(wanted) = wanted {
            let has = |name: &&String| requests && *name == PACKAGES || policies.contains(name);
            if let Some(missing) = wanted.iter().find(|name| !has(name)) {
                let names = policies.iter().map(String::as_str).chain(requests.then_some(PACKAGES));
                let names: Vec<_> = names.collect();
                let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                let why = format!("this token has no policy `{}` for {language}; it has {there}", shown(missing));
                return Err(Failure::argument("network", why));
            }
            policies.retain(|policy| wanted.contains(policy));
            requests &= wanted.iter().any(|name| name == PACKAGES);
        }
        let access = Access { policies, are_of_token: true, own: None, requests, tools };
        Ok((requests || tools || !access.policies.is_empty()).then_some(access))
    }

    /// Whether what a caller's programs of a language may do covers what a sandbox was given for the token of `opener`.
    /// A policy that was deleted since, or that this token has no more, lets nothing out. Tools are the owner's.
    pub(super) fn covers(&self, who: &Principal, language: &Language, given: &Access, opener: &Principal) -> bool {
        let own = self.access(who, language, None).ok().flatten();
        let has = |policy: Arc<Policy>| own.as_ref().is_some_and(|own| own.policies.contains(&policy.name));
        let has_policies = self.0.policies_of(given, opener).all(has);
        has_policies && (!given.requests || own.as_ref().is_some_and(|own| own.requests))
    }

    /// What a program may do that has these policies and nothing else; `None` without any.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::domain::error::Code::InvalidArgument) for a policy that there is not, or that is not
    /// for the language.
    pub(super) fn named(&self, names: &[String], language: &Language) -> Result<Option<Access>, Failure> {
        let is_there = |name: &String| self.0.policies.by_name(name).is_some_and(|policy| policy.is_for(language));
        if let Some(missing) = names.iter().find(|name| !is_there(name)) {
            let why = format!("there is no policy `{}` for {language}", shown(missing));
            return Err(Failure::argument("network", why));
        }
        Ok((!names.is_empty()).then(|| Access { policies: names.to_vec(), ..Access::default() }))
    }

    /// The names of the policies that hold for a caller's programs of a language.
    pub(super) fn names(&self, who: &Principal, language: &Language) -> Vec<String> {
        let held = self.0.held(who).into_iter();
        held.filter(|policy| policy.is_for(language)).map(|policy| policy.name.clone()).collect()
    }

    /// The hosts that programs of a caller may reach, each once, as its policies name them; some only in some
    /// languages.
    pub fn hosts(&self, who: &Principal) -> Vec<String> {
        let held = self.0.held(who);
        let mut seen = HashSet::new();
        held.iter().flat_map(|policy| policy.hosts()).filter(|host| seen.insert(host.clone())).collect()
    }

    /// The variables in which programs of a caller find what stands for a secret, and the hosts that take it.
    pub fn secrets(&self, who: &Principal) -> Vec<(String, Vec<String>)> {
        let policies = self.0.held(who);
        let held: Vec<&Policy> = policies.iter().map(Arc::as_ref).collect();
        let shown = |secret: &Arc<Secret>| {
            let secret = secret.for_sandbox(&held)?;
            Some((secret.variable().0.to_owned(), secret.hosts().map(ToString::to_string).collect()))
        };
        self.0.secrets.iter().filter_map(shown).collect()
    }

    /// Opens the channels of a sandbox.
    pub(super) fn open(&self, access: Access, conversation: &ConversationKey, language: &Language) -> Channels {
        let mut variables: Vec<_> = if access.policies.is_empty() && access.own.is_none() {
            Vec::new()
        } else {
            let proxies = PROXY_VARIABLES.into_iter().map(|name| (name, PROXY));
            proxies.chain(OTHER_VARIABLES).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        if let Some(requests) = self.0.requests().filter(|_| access.requests) {
            variables.extend(requests.variables(language).into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        let (sender, received) = mpsc::unbounded_channel();
        // Room is given back when the bytes are read.
        let read = |piece: io::Result<(Bytes, OwnedSemaphorePermit)>| piece.map(|(bytes, _room)| bytes);
        let incoming = UnboundedReceiverStream::new(received).map(read).boxed();
        let (to_sandbox, outgoing) = mpsc::channel(OUTGOING_MAX);
        let reporter = Arc::new(ConnectionReporter::default());
        let policies: Vec<_> = self.0.policies_of(&access, &conversation.owner).collect();
        // Where a policy of the server's own is used, such as that of installations, programs trust the certificates
        // of the host itself, and send no secret.
        let secrets = if access.own.is_none() { self.0.secrets.as_slice() } else { &[] };
        let opened = Opened::new(&policies, secrets, self.0.parts.carrier.as_ref());
        variables.extend(opened.variables());
        let Opened { secrets, authority } = opened;
        let waits_max = access.waits_max();
        let gate = SandboxGate {
            network: Arc::clone(&self.0),
            access,
            conversation: conversation.clone(),
            language: language.clone(),
            reporter: Arc::clone(&reporter),
            secrets,
        };
        let share = self.0.shares.of(&conversation.owner);
        let pipe = ChannelPipe { incoming, outgoing: to_sandbox, share, authority: authority.clone() };
        let task = Some(tokio::spawn(self.0.parts.carrier.carry(pipe, Arc::new(gate))));
        let incoming = Incoming { sender: Some(sender), room: Arc::new(Semaphore::new(INCOMING_BYTES_MAX)) };
        Channels { incoming, outgoing, link: ChannelsLink { reporter, task }, authority, waits_max, variables }
    }

    /// The environment of a program with channels or without. What the request sets itself stays.
    pub(super) fn environment<'a>(env: &'a Environment, channels: Option<&Channels>) -> Cow<'a, Environment> {
        let Some(Channels { variables, .. }) = channels else { return Cow::Borrowed(env) };
        Cow::Owned(variables.iter().fold(env.clone(), |env, (name, value)| env.or(name, value)))
    }

    /// The policies that hold now.
    pub fn policies(&self) -> &Policies {
        &self.0.policies
    }

    /// The newest decisions.
    pub fn decisions(&self) -> &Decisions {
        &self.0.decisions
    }
}
