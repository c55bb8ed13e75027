//! The server's life cycle: builds the parts, starts the background tasks, serves, and stops in the opposite order.
//!
//! ```text
//! App::build ── observability (audit writer, traces sender) · background (see there) · executions (a task each)
//! App::serve ── one accept loop, a task for each connection
//! App::stop  ── runs end or are cancelled · connections end · background ends · audit and traces send what is queued
//! ```

mod background;
pub(crate) mod descriptors;
pub mod doctor;
mod engine;
mod error;
mod listen;
mod network;
mod observability;
mod options;
mod parts;
mod sandboxed;
mod sign_in;

use std::{path::Path, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{background::Background, observability::Observability};
pub use self::{engine::engine, error::StartError, parts::Parts};
pub(crate) use self::{
    listen::bind,
    options::{own_disk, project_quota, slots},
    parts::signer,
};
use crate::{
    adapters::storage::DiskStorage,
    config::{BindAddr, Config, Server},
    ports::{
        engine::{Engine, Probe},
        storage::Storage,
    },
    services::{backup::Backup, links::UrlSigner, tokens::Tokens},
};

/// A running server.
pub struct App {
    pub parts: Parts,
    background: Background,
    observability: Observability,
    shutdown_grace: Duration,
    server: Server,
}

impl App {
    /// Builds and starts everything on the engine that the settings name.
    ///
    /// # Errors
    /// When the root folder or the engine cannot be used.
    pub async fn build(config: &Config) -> Result<Self, StartError> {
        Self::start(config, signer(config), true).await
    }

    /// As [`Self::build`], for a client on this machine: links to files are paths, which no server has to answer.
    ///
    /// # Errors
    /// When the root folder or the engine cannot be used.
    pub async fn build_for_stdio(config: &Config) -> Result<Self, StartError> {
        let host_root = &config.engine.host_root;
        let root = if host_root.is_empty() { &config.root } else { Path::new(host_root) };
        // Its secrets may be its own, made at its start: connections of a server go on.
        Self::start(config, signer(config).in_folder(root), false).await
    }

    async fn start(config: &Config, signer: UrlSigner, binds: bool) -> Result<Self, StartError> {
        let store = parts::store(config, DiskStorage::at)?;
        let (engine, probe) = engine(config).await?;
        if let Some(warning) = descriptors::shortage(descriptors::raise(), config, options::slots(config, &probe)) {
            warn!("{warning}");
        }
        for name in config.weak_secrets() {
            warn!("{name} is probably not random: make another with `openssl rand -hex 32`");
        }
        let mut app = Self::with(config, signer, store, engine, probe, binds).await?;
        app.test_isolation();
        Ok(app)
    }

    /// Builds and starts everything on a given engine, except the isolation test: see [`Self::test_isolation`].
    ///
    /// # Errors
    /// When the engine does not list its sandboxes or images, or a file or an address cannot be used.
    pub async fn assemble(
        config: &Config,
        store: Arc<dyn Storage>,
        engine: Arc<dyn Engine>,
        probe: Probe,
    ) -> Result<Self, StartError> {
        Self::with(config, signer(config), store, engine, probe, true).await
    }

    /// With `binds`, connections that were made with another `MCP_API_TOKEN` end.
    async fn with(
        config: &Config,
        signer: UrlSigner,
        store: Arc<dyn Storage>,
        engine: Arc<dyn Engine>,
        probe: Probe,
        binds: bool,
    ) -> Result<Self, StartError> {
        info!(engine = %probe.engine, api = %probe.api_version, runtime = %probe.runtime, "the engine answers");
        for warning in &probe.warnings {
            warn!("{warning}");
        }
        let observability = Observability::start(config, store.instance())?;
        let database = Some(parts::database(config)?);
        let parts = Parts::build(config, signer, store, engine, &probe, &observability, database).await?;
        if binds {
            parts.shared.tokens.bind(config.api_token.expose(), config.file_secrets());
        }
        let background = Background::start(config, &parts).await?;
        let shutdown_grace = Duration::from_millis(config.server.shutdown_grace_ms);
        Ok(Self { parts, background, observability, shutdown_grace, server: config.server.clone() })
    }

    /// Starts to test whether the engine isolates; `parts.shared.isolation` has the result.
    pub fn test_isolation(&mut self) {
        self.background.test_isolation(&mut self.parts);
    }

    /// Serves HTTP until `shutdown`, then stops: no sandbox is left.
    ///
    /// # Errors
    /// When the engine does not isolate; the server was stopped then too.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> Result<(), StartError> {
        let (shutdown, stopping) = (shutdown.child_token(), CancellationToken::new());
        let surface = self.parts.surface(&self.parts.router);
        let connections =
            tokio::spawn(listen::serve(listener, surface, self.server.clone(), shutdown.clone(), stopping.clone()));
        let broken = tokio::select! {
            () = shutdown.cancelled() => None,
            why = self.parts.shared.isolation.violated() => Some(why),
        };
        shutdown.cancel();
        info!("stopping: running programs may end, nothing new starts; a second signal ends the server at once");
        self.parts.api.runs.stop(self.shutdown_grace).await;
        self.parts.api.kernels.stop().await;
        stopping.cancel();
        drop(connections.await);
        self.stop().await;
        broken.map_or(Ok(()), |why| Err(StartError::Isolation(why)))
    }

    /// Ends every run and every task; no sandbox is left.
    pub async fn stop(self) {
        self.background.stop(self.parts, self.shutdown_grace).await;
        self.observability.close().await;
    }
}

/// The tokens in the database of the settings, for a command.
///
/// # Errors
/// When the database cannot be used.
pub async fn stored_tokens(config: &Config) -> Result<Tokens, StartError> {
    let database = parts::database(config)?;
    database.prepare().await?;
    Ok(parts::tokens(config, &database))
}

/// The files and the database of the settings, for a backup beside a server.
///
/// # Errors
/// When either cannot be used.
pub async fn backup_beside(config: &Config) -> Result<(Backup, Arc<dyn Storage>), StartError> {
    let database = parts::database(config)?;
    database.prepare().await?;
    let store = parts::store(config, DiskStorage::shared)?;
    Ok((Backup::new(Arc::clone(&store), Arc::new(database)), store))
}

/// The files and the database of the settings, for a restore: no server uses the files meanwhile.
///
/// # Errors
/// When either cannot be used.
pub fn backup_alone(config: &Config) -> Result<(Backup, Arc<dyn Storage>), StartError> {
    let store = parts::store(config, DiskStorage::exclusive)?;
    Ok((Backup::new(Arc::clone(&store), Arc::new(parts::database(config)?)), store))
}

/// Listens on the address of the settings.
///
/// # Errors
/// When the address is taken or is not one of this machine.
pub async fn listen(config: &Config) -> Result<TcpListener, StartError> {
    listen_on("MCP_HTTP_ADDR", config.http_addr.clone()).await
}

/// Listens on the address of a setting.
async fn listen_on(name: &'static str, addr: BindAddr) -> Result<TcpListener, StartError> {
    let bound = listen::bind(&addr).await;
    bound.map_err(|source| StartError::Listen { name, addr, source })
}
