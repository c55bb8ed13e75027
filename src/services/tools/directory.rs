//! The tool servers that exist now.

use std::sync::Arc;

use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use super::{
    sandboxed::SandboxedServers,
    server::{ServerConnectors, ServerHandle},
};
use crate::{
    domain::{
        Clock, Failure, Principal,
        tools::{Endpoint, ServerError, ServerName, ServerText, ToolServer},
    },
    ports::{
        database::{DefinitionKind, DefinitionStore, StoredDefinition},
        tools::Upstreams,
    },
    services::registry::{Definition, Registry},
};

const SECRET_BYTES_MAX: usize = 8 << 10;

/// The tool servers that hold now.
pub type Directory = Registry<ServerHandle>;

impl Definition for ServerHandle {
    const KIND: DefinitionKind = DefinitionKind::ToolServer;
    const NOUN: &'static str = "tool server";
    const MADE_MAX: usize = 100;
    const DEFINITION_BYTES_MAX: usize = 64 << 10;
    type Parts = ServerConnectors;

    fn name(&self) -> &str {
        self.server.name.as_str()
    }

    /// One that did not change keeps its connection.
    fn read(stored: &StoredDefinition, earlier: Option<&Arc<Self>>, parts: &Self::Parts) -> Result<Arc<Self>, String> {
        let text = serde_json::from_str(&stored.definition).map_err(|error| error.to_string())?;
        let server = ToolServer::parse(&stored.name, &text).map_err(|error| error.to_string())?;
        if let Some(same) = earlier.filter(|live| live.server.text == text && live.secret() == stored.secret) {
            return Ok(Arc::clone(same));
        }
        let removed = earlier.map(|live| live.removed().clone()).unwrap_or_default();
        Ok(Arc::new(Self::new(server, stored.secret.clone().into(), parts.clone(), removed)))
    }

    /// Calls that were not sent end: another secret or other rules may hold. Those that were end with a removal.
    fn ended(&self, is_removed: bool) {
        self.end_unsent();
        if is_removed {
            self.removed().cancel();
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
        let live = |(server, secret)| ServerHandle::new(server, secret, connectors.clone(), CancellationToken::new());
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
        self.parts().sandboxed.stop().await;
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
