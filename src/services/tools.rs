//! Tools of MCP servers for programs: which servers there are, whether a call may be made, the call, and what a program
//! imports for it.
//!
//! A program has no address, token or header of a server. Its calls come over the channels of its sandbox, which
//! identify the caller; owner, rules, limits and the schema are looked up here. A call is sent once, also after a
//! failure.
//!
//! ```text
//! Tools::follow ── one task: follows what other servers changed, deletes what has expired, ends unused sandboxes
//! search ── one task a server whose tools are read; it ends with the read, which has a time limit
//! modules ── one tracked task a server whose modules are made; goes on when its caller goes away; ended by `stop`
//! work ── blocking threads, a few for each owner; each goes on when its caller goes away, and ends with its work
//! talk::answer ── one task a connection of a program, and one for each of its calls; they end with the connection
//! ```

mod answers;
mod approvals;
mod calls;
mod modules;
mod sandboxed;
mod search;
mod server;
mod talk;
mod work;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{future::join_all, stream::BoxStream};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

pub use self::{
    approvals::{Approvals, Approver},
    modules::{ModuleLanguage, Source},
    sandboxed::SandboxedServers,
    search::{Found, SearchResult},
    server::{ServerHandle, ServerState},
};
use self::{
    modules::Modules,
    server::{Definitions, ServerConnectors},
    talk::Memory,
    work::Work,
};
use super::{
    network::{Limiters, Program, ToolCalls},
    registry::{Definition, Registry},
    shared_parts::SharedParts,
};
use crate::{
    domain::{
        Clock, Code, Failure, Limits, Principal,
        clock::every,
        text::shown,
        tools::{Endpoint, ServerError, ServerName, ServerText, ToolServer},
    },
    ports::{
        database::{DefinitionKind, DefinitionStore, StoredDefinition, in_time},
        observer::{AdminAction, AdminFacts},
        tools::Upstreams,
    },
};

/// How often connections that are not used are looked for.
const CLOSE_IDLE_EVERY: Duration = Duration::from_secs(2);
/// How often what has expired is deleted.
const FORGET_EVERY: Duration = Duration::from_hours(1);
const SECRET_BYTES_MAX: usize = 8 << 10;

/// The tool servers that exist now.
pub type Directory = Registry<ServerHandle>;

pub struct ToolsParts {
    pub shared: SharedParts,
    pub directory: Arc<Directory>,
    pub approvals: Arc<Approvals>,
    /// The limits of the program that makes modules.
    pub generator_limits: Limits,
}

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Tools(Arc<Inner>);

struct Inner {
    parts: ToolsParts,
    rates: Limiters,
    modules: Modules,
    memory: Memory,
    work: Work,
    /// Calls of one run or cell.
    calls_per_run_max: u32,
}

impl Tools {
    pub fn new(parts: ToolsParts, calls_per_run_max: u32) -> Self {
        let made = Self(Arc::new(Inner {
            parts,
            rates: Limiters::default(),
            modules: Modules::default(),
            memory: Memory::default(),
            work: Work::default(),
            calls_per_run_max,
        }));
        made.0.parts.shared.network.set_tool_calls(Arc::<Inner>::downgrade(&made.0));
        made
    }

    /// Follows what other servers changed, until this one stops.
    pub async fn follow(self, stop: CancellationToken) {
        let ToolsParts { directory, approvals, .. } = &self.0.parts;
        let (mut idle_ticks, mut forget_ticks) = (every(CLOSE_IDLE_EVERY), every(FORGET_EVERY));
        let upkeep = async {
            loop {
                tokio::select! {
                    _ = idle_ticks.tick() => directory.close_idle(),
                    _ = forget_ticks.tick() => approvals.forget().await,
                }
            }
        };
        tokio::join!(directory.follow(stop.clone()), stop.run_until_cancelled(upkeep));
    }

    /// Ends what it has in sandboxes.
    pub async fn stop(&self) {
        self.0.modules.stop().await;
        self.0.parts.directory.stop().await;
    }

    pub fn directory(&self) -> &Arc<Directory> {
        &self.0.parts.directory
    }

    pub fn approvals(&self) -> &Arc<Approvals> {
        &self.0.parts.approvals
    }

    /// Whether programs of this owner have tools.
    pub fn is_offered(&self, who: &Principal) -> bool {
        self.0.parts.directory.has_any(who)
    }

    /// The servers whose tools programs of this owner may call, and how each is.
    pub async fn servers(&self, who: &Principal) -> Vec<ServerState> {
        let live = self.0.parts.directory.of(who);
        join_all(live.iter().map(|server| server.state())).await
    }

    /// Makes a server for the programs of the caller, who may. One in a sandbox connects where those programs may.
    ///
    /// # Errors
    /// Those of [`Directory::put`]; [`Code::Forbidden`] for a name that is another owner's.
    pub async fn register(&self, who: &Principal, name: &str, text: &ServerText) -> Result<String, Failure> {
        let parts = &self.0.parts;
        // As it is stored: a hyphen is written otherwise.
        let stored = ServerName::parse(name);
        // Another owner may just have made it at another server.
        in_time(parts.directory.load()).await?;
        let taken = stored.and_then(|name| parts.directory.by_name(name.as_str()));
        if taken.is_some_and(|taken| taken.server.text.owners != text.owners) {
            let why = "A tool server of this name is not yours alone: choose another name.";
            return Err(Failure::new(Code::Forbidden, why));
        }
        let mut text = text.clone();
        if let Ok(language) = text.image.parse() {
            text.network = parts.shared.network.names(who, &language);
        }
        let name = parts.directory.put(name, &text, None).await?;
        let SharedParts { sandboxes, observer, .. } = &parts.shared;
        let (at_unix_s, action) = (sandboxes.clock.unix_s(), AdminAction::ToolServerChanged);
        observer.administered(&AdminFacts { at_unix_s, action, by: who, owner: Some(who), subject: &name });
        Ok(name)
    }

    /// The names of a server's tools.
    ///
    /// # Errors
    /// [`Code::NotFound`], [`Code::ToolUnavailable`].
    pub async fn names(&self, who: &Principal, server: &str) -> Result<Vec<String>, Failure> {
        let live = self.0.server(who, server)?;
        let definitions = live.definitions().await.map_err(|error| modules::unavailable(&live, &error.to_string()))?;
        Ok(definitions.tools.iter().map(|defined| defined.tool.name.clone()).collect())
    }

    /// What a program imports for a tool, and its definition.
    ///
    /// # Errors
    /// [`Code::NotFound`] where there is none, [`Code::ToolUnavailable`].
    pub async fn source(
        &self,
        who: &Principal,
        server: &str,
        tool: &str,
        language: ModuleLanguage,
    ) -> Result<Source, Failure> {
        self.0.source(Definitions::find, who, (server, Some(tool)), language).await
    }
}

impl ToolCalls for Inner {
    fn is_offered(&self, who: &Principal) -> bool {
        self.parts.directory.has_any(who)
    }

    fn answer(self: Arc<Self>, program: Program, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes> {
        talk::answer(self, program, messages)
    }
}

impl Inner {
    /// The server of this name, for an owner.
    fn server(&self, who: &Principal, name: &str) -> Result<Arc<ServerHandle>, Failure> {
        let found = self.parts.directory.find(who, name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.parts.directory.of(who).iter().map(|live| live.server.name.to_string()).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let why = format!("There is no tool server `{}`; there are: {there}.", shown(name));
            Failure::new(Code::NotFound, why)
        })
    }
}

impl Definition for ServerHandle {
    const KIND: DefinitionKind = DefinitionKind::ToolServer;
    const NOUN: &'static str = "tool server";
    const MADE_MAX: usize = 100;
    const DEFINITION_BYTES_MAX: usize = 64 << 10;
    type Parts = ServerConnectors;

    fn name(&self) -> &str {
        self.server.name.as_str()
    }

    /// One that did not change keeps its connection, and the schemas of its rules are not made again: all are read
    /// every few seconds.
    fn read(stored: &StoredDefinition, earlier: Option<&Arc<Self>>, parts: &Self::Parts) -> Result<Arc<Self>, String> {
        let text: ServerText = serde_json::from_str(&stored.definition).map_err(|error| error.to_string())?;
        if let Some(same) = earlier.filter(|live| live.server.text == text && live.secret() == stored.secret) {
            return Ok(Arc::clone(same));
        }
        let server = ToolServer::parse(&stored.name, &text).map_err(|error| error.to_string())?;
        let removed = earlier.map(|live| live.removed.clone()).unwrap_or_default();
        Ok(Arc::new(Self::new(server, stored.secret.clone().into(), parts, removed)))
    }

    /// Calls that were not sent end: another secret or other rules may hold. Those that were end with a removal.
    fn ended(&self, is_removed: bool) {
        self.replaced.cancel();
        if is_removed {
            self.removed.cancel();
        }
    }
}

impl Directory {
    pub fn new(
        configured: Vec<(ToolServer, SecretString)>,
        store: Arc<dyn DefinitionStore>,
        (upstreams, sandboxed): (Arc<dyn Upstreams>, SandboxedServers),
        clock: Arc<dyn Clock>,
    ) -> Self {
        let connectors = ServerConnectors { upstreams, sandboxed };
        let live = |(server, secret)| ServerHandle::new(server, secret, &connectors, CancellationToken::new());
        let configured: Vec<_> = configured.into_iter().map(live).collect();
        Self::with(configured, store, clock, connectors)
    }

    /// Those that an owner's programs may call.
    pub(super) fn of(&self, who: &Principal) -> Vec<Arc<ServerHandle>> {
        self.all().into_iter().filter(|live| live.server.is_for(who.name())).collect()
    }

    /// Asked for each run.
    pub(super) fn has_any(&self, who: &Principal) -> bool {
        !who.is_self_test() && self.all().iter().any(|live| live.server.is_for(who.name()))
    }

    pub(super) fn find(&self, who: &Principal, name: &str) -> Option<Arc<ServerHandle>> {
        self.by_name(name).filter(|live| live.server.is_for(who.name()))
    }

    /// Ends connections that are not used, where they hold a sandbox.
    pub(super) fn close_idle(&self) {
        self.all().iter().for_each(|live| live.close_idle());
    }

    /// Ends every connection that holds a sandbox.
    pub(super) async fn stop(&self) {
        self.parts.sandboxed.stop().await;
    }

    /// Makes a server, or another one in place of the one of that name; returns the name. `secret` stands for
    /// `{secret}` in its headers and variables; `None` keeps the one that it has, where its address stays. Calls that
    /// were sent go on; those that wait to be sent end.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`](crate::domain::Code::InvalidArgument) for what it cannot be,
    /// [`Code::DatabaseUnavailable`](crate::domain::Code::DatabaseUnavailable).
    pub async fn put(&self, name: &str, text: &ServerText, secret: Option<&str>) -> Result<String, Failure> {
        let server = ToolServer::parse(name, text).map_err(|why| match why {
            ServerError::Name(_) => Failure::argument("name", why),
            _ => Failure::argument("server", why),
        })?;
        if matches!(server.endpoint, Endpoint::Command(..)) {
            let why = "a command of the server's machine can only be set in its settings, below [tools.<name>]; with \
                       `image` it runs in a sandbox";
            return Err(Failure::argument("server.command", why));
        }
        let fits = |secret: &str| secret.len() <= SECRET_BYTES_MAX && !secret.contains(['\0', '\r', '\n']);
        if secret.is_some_and(|secret| !fits(secret)) {
            let why = format!("it must be one line of at most {SECRET_BYTES_MAX} bytes");
            return Err(Failure::argument("secret", why));
        }
        // A secret does not follow a server to another address.
        let kept = |known: Option<&ServerHandle>| {
            let same = known.filter(|live| live.server.identity() == server.identity());
            secret.or(same.map(ServerHandle::secret)).unwrap_or_default().to_owned()
        };
        self.store(server.name.as_str(), text, kept).await?;
        Ok(server.name.to_string())
    }

    /// Deletes a server that was made, by a name as [`Self::put`] takes it; returns the name. Calls under way end.
    ///
    /// # Errors
    /// [`Code::NotFound`](crate::domain::Code::NotFound) for one that was not made,
    /// [`Code::DatabaseUnavailable`](crate::domain::Code::DatabaseUnavailable).
    pub async fn remove(&self, name: &str) -> Result<String, Failure> {
        // A stored one that does not hold may have a name that cannot be one.
        let name = ServerName::parse(name).map_or_else(|| name.to_owned(), |name| name.to_string());
        self.delete(&name).await.map(|()| name)
    }
}
