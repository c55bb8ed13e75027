//! The tool servers that exist now: those of the settings, and those that operators made, which the database keeps.

use std::{
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
};

use parking_lot::RwLock;
use secrecy::SecretString;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    sandboxed::SandboxedServers,
    server::{Live, ServerConnectors},
};
use crate::{
    domain::{
        Clock, Code, Failure, Principal,
        tools::{Endpoint, ServerError, ServerName, ServerText, ToolServer},
    },
    ports::{
        database::{DatabaseError, ROUND_MAX, ToolServerStore, in_time, no_database, within},
        tools::Upstreams,
    },
};

/// Tool servers that operators may make, and how long one may be as JSON.
const MADE_MAX: usize = 100;
const DEFINITION_BYTES_MAX: usize = 64 << 10;
const SECRET_BYTES_MAX: usize = 8 << 10;

/// The tool servers that hold now.
pub struct Directory {
    configured: Vec<Arc<Live>>,
    made: RwLock<Vec<Arc<Live>>>,
    /// Names and definitions of those that were stored and did not hold at the last read: each is logged once until it
    /// changes. Held while they are read: a read that began earlier would put older ones back.
    broken: Mutex<HashSet<(String, String)>>,
    /// Where made ones outlive the process; without it there are none.
    store: Option<Arc<dyn ToolServerStore>>,
    connectors: ServerConnectors,
    clock: Arc<dyn Clock>,
}

/// A server as an operator sees it.
pub struct ServerEntry {
    pub server: Arc<ToolServer>,
    /// It is of the settings, and cannot be changed while the server runs.
    pub is_configured: bool,
}

impl Directory {
    pub fn new(
        configured: Vec<(ToolServer, SecretString)>,
        store: Option<Arc<dyn ToolServerStore>>,
        (upstreams, sandboxed): (Arc<dyn Upstreams>, SandboxedServers),
        clock: Arc<dyn Clock>,
    ) -> Self {
        let connectors = ServerConnectors { upstreams, sandboxed };
        let live = |(server, secret)| Arc::new(Live::new(server, secret, connectors.clone(), CancellationToken::new()));
        let configured = configured.into_iter().map(live).collect();
        Self { configured, made: RwLock::default(), broken: Mutex::default(), store, connectors, clock }
    }

    /// The configured ones, and of those that were made the ones whose name no configured one has.
    fn counting<'a>(&'a self, made: &'a [Arc<Live>]) -> impl Iterator<Item = &'a Arc<Live>> {
        self.configured.iter().chain(made.iter().filter(|live| !self.is_configured(live.name())))
    }

    fn all(&self) -> Vec<Arc<Live>> {
        self.counting(&self.made.read()).cloned().collect()
    }

    /// Those that an owner's programs may call.
    pub(super) fn of(&self, who: &Principal) -> Vec<Arc<Live>> {
        self.counting(&self.made.read()).filter(|live| live.server.is_for(who.name())).cloned().collect()
    }

    /// Asked for each run, so it makes no list.
    pub(super) fn has_any(&self, who: &Principal) -> bool {
        !who.is_self_test() && self.counting(&self.made.read()).any(|live| live.server.is_for(who.name()))
    }

    pub(super) fn find(&self, who: &Principal, name: &str) -> Option<Arc<Live>> {
        self.of(who).into_iter().find(|live| live.name().as_str() == name)
    }

    /// Ends connections that are not used, where they hold a sandbox.
    pub(super) fn rest(&self) {
        self.all().iter().for_each(|live| live.rest());
    }

    /// Ends every connection that holds a sandbox.
    pub(super) async fn stop(&self) {
        self.connectors.sandboxed.stop().await;
    }

    fn is_configured(&self, name: &ServerName) -> bool {
        self.configured.iter().any(|live| live.name() == name)
    }

    /// Every server, of all owners.
    pub fn list(&self) -> Vec<ServerEntry> {
        let one = |live: &Arc<Live>| {
            let is_configured = self.is_configured(live.name());
            ServerEntry { server: Arc::clone(&live.server), is_configured }
        };
        self.all().iter().map(one).collect()
    }

    /// Makes a server, or another one in place of the one of that name; returns the name. `secret` stands for
    /// `{secret}` in its headers and variables; `None` keeps the one that it has, where its address stays. Calls that
    /// were sent go on; those that wait to be sent end.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] for what it cannot be, [`Code::DatabaseUnavailable`].
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
        if self.is_configured(&server.name) {
            let why = format!("`{}` is in the server's settings: change it there", server.name);
            return Err(Failure::argument("name", why));
        }
        let fits = |secret: &str| secret.len() <= SECRET_BYTES_MAX && !secret.contains(['\0', '\r', '\n']);
        if secret.is_some_and(|secret| !fits(secret)) {
            let why = format!("it must be one line of at most {SECRET_BYTES_MAX} bytes");
            return Err(Failure::argument("secret", why));
        }
        // What another server has just stored is not known here yet: without its secret, that would be lost.
        in_time(self.load()).await?;
        let made = self.made.read().clone();
        let known = made.iter().find(|live| live.name() == &server.name);
        if known.is_none() && made.len() >= MADE_MAX {
            return Err(Failure::argument("name", format!("there are {MADE_MAX} tool servers already: delete one")));
        }
        if serde_json::to_vec(text).is_ok_and(|json| json.len() > DEFINITION_BYTES_MAX) {
            return Err(Failure::argument("server", format!("it has more than {DEFINITION_BYTES_MAX} bytes")));
        }
        // A secret does not follow a server to another address.
        let kept =
            known.filter(|live| live.server.identity() == server.identity()).map(|live| live.secret().to_owned());
        let secret = secret.map(str::to_owned).or(kept).unwrap_or_default();
        let (name, at) = (server.name.to_string(), self.clock.unix_ms());
        in_time(self.store()?.put_tool_server(&name, text, &secret, at)).await?;
        self.load().await?;
        Ok(name)
    }

    /// Deletes a server that was made, by a name as [`Self::put`] takes it; returns the name. Calls under way end.
    ///
    /// # Errors
    /// [`Code::NotFound`] for one that was not made, [`Code::DatabaseUnavailable`].
    pub async fn remove(&self, name: &str) -> Result<String, Failure> {
        // A stored one that does not hold may have a name that cannot be one.
        let name = ServerName::parse(name).map_or_else(|| name.to_owned(), |name| name.to_string());
        if !in_time(self.store()?.remove_tool_server(&name)).await? {
            let why = "There is no such tool server, or it is in the server's settings.";
            return Err(Failure::new(Code::NotFound, why));
        }
        self.load().await?;
        Ok(name)
    }

    /// Reads those of the database. One that did not change keeps its connection.
    ///
    /// # Errors
    /// When it does not answer; those that were read before go on.
    pub async fn load(&self) -> Result<(), DatabaseError> {
        let Some(store) = &self.store else { return Ok(()) };
        let mut broken = self.broken.lock().await;
        let rows = within(ROUND_MAX, store.tool_servers()).await?;
        let logged = mem::take(&mut *broken);
        let mut made = self.made.write();
        let mut known: HashMap<String, Arc<Live>> =
            made.drain(..).map(|live| (live.name().to_string(), live)).collect();
        for (name, definition, secret) in rows {
            let parsed = serde_json::from_str::<ServerText>(&definition).map_err(|error| error.to_string());
            let server = parsed.and_then(|text| ToolServer::parse(&name, &text).map_err(|error| error.to_string()));
            match server {
                Ok(server) => match known.remove(&name) {
                    Some(live) if live.server.text == server.text && live.secret() == secret => made.push(live),
                    changed => {
                        let ended = changed.map(|live| live.replace()).unwrap_or_default();
                        made.push(Arc::new(Live::new(server, secret.into(), self.connectors.clone(), ended)));
                    }
                },
                Err(error) => {
                    let row = (name, definition);
                    if !logged.contains(&row) {
                        warn!(name = row.0, error, "a stored tool server does not hold");
                    }
                    broken.insert(row);
                }
            }
        }
        drop(made);
        for gone in known.into_values() {
            gone.replace().cancel();
        }
        Ok(())
    }

    fn store(&self) -> Result<&Arc<dyn ToolServerStore>, Failure> {
        self.store.as_ref().ok_or_else(no_database)
    }
}
