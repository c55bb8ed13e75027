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
//! calls::answer ── one task a connection of a program, and one for each of its calls; they end with the connection
//! ```

mod answers;
mod approvals;
mod calls;
mod directory;
mod modules;
mod sandboxed;
mod search;
mod server;
mod talk;
mod work;

use std::{sync::Arc, time::Duration};

use tokio_util::sync::CancellationToken;

pub use self::{
    approvals::{Approvals, Approver},
    directory::Directory,
    modules::{ModuleLanguage, Source},
    sandboxed::SandboxedServers,
    search::{Found, SearchResult},
    server::{ServerHandle, ServerState},
};
use self::{modules::Modules, server::Definitions, talk::Memory, work::Work};
use super::{network::Limiters, shared_parts::SharedParts};
use crate::{
    domain::{
        Code, Failure, Limits, Principal,
        clock::every,
        text::shown,
        tools::{ServerName, ServerText},
    },
    ports::{
        database::in_time,
        observer::{AdminAction, AdminFacts},
    },
};

/// How often connections that are not used are looked for.
const CLOSE_IDLE_EVERY: Duration = Duration::from_secs(2);
/// How often what has expired is deleted.
const FORGET_EVERY: Duration = Duration::from_hours(1);

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
        let (rates, modules, memory) = (Limiters::default(), Modules::default(), Memory::default());
        let work = Work::default();
        let made = Self(Arc::new(Inner { parts, rates, modules, memory, work, calls_per_run_max }));
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
        futures_util::future::join_all(live.iter().map(|server| server.state())).await
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

impl Inner {
    /// The server of this name, for an owner.
    fn server(&self, who: &Principal, name: &str) -> Result<Arc<ServerHandle>, Failure> {
        let found = self.parts.directory.find(who, name);
        found.ok_or_else(|| {
            let names: Vec<_> = self.parts.directory.of(who).iter().map(|live| live.name().to_string()).collect();
            let there = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let why = format!("There is no tool server `{}`; there are: {there}.", shown(name));
            Failure::new(Code::NotFound, why)
        })
    }
}
