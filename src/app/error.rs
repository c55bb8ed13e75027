//! Why the server does not start.

use crate::{
    adapters::{engine::docker::ConnectError, storage::RootError},
    config::BindAddr,
    ports::engine::EngineError,
};

/// Why the server does not start: one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The root folder cannot be used.
    #[error("SANDBOX_ROOT cannot be used: {0}")]
    Root(#[from] RootError),
    /// The engine cannot be used.
    #[error(
        "the container engine cannot be used: start it (`systemctl start docker`), or point DOCKER_HOST at it and make \
         sure that this user may use its socket"
    )]
    Connect(#[source] ConnectError),
    /// The engine has not the runtime that is set.
    #[error(transparent)]
    Runtime(ConnectError),
    /// The engine answers and refuses what the start needs.
    #[error("the container engine does not do what is needed: `mcp-sandbox-server doctor` says more")]
    Engine(#[from] EngineError),
    /// The audit log cannot be written.
    #[error("SANDBOX_AUDIT__FILE {path} cannot be appended to: make its folder, owned by the server's user")]
    Audit {
        /// The setting.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The engine was seen not to isolate.
    #[error("programs would not be isolated, so the server does not serve: {0}")]
    Isolation(String),
    /// The address cannot be listened on.
    #[error("cannot listen on {name} {addr}: choose another port or stop what uses it")]
    Listen {
        /// Which setting.
        name: &'static str,
        /// What it says.
        addr: BindAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
