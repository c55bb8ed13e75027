//! Errors of the server's start.

use crate::{
    adapters::{
        database::OpenError, engine::ConnectError, network::TrustError, storage::RootError, tools::ConnectorError,
        web::WebStartError,
    },
    config::{BindAddr, ConfigError},
    ports::{database::DatabaseError, engine::EngineError},
};

/// Why the server does not start: with its causes one sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("SANDBOX_ROOT cannot be used")]
    Root(#[from] RootError),
    #[error("DATABASE_URL cannot be used")]
    Database(#[from] OpenError),
    #[error(transparent)]
    Web(#[from] WebStartError),
    #[error(transparent)]
    Tools(#[from] ConnectorError),
    #[error(transparent)]
    DatabaseAway(#[from] DatabaseError),
    #[error(
        "the container engine cannot be used: start it (`systemctl start docker`), or point DOCKER_HOST at it and make \
         sure that this user may use its socket"
    )]
    Connect(#[source] ConnectError),
    /// The cluster that the settings name.
    #[cfg(feature = "kubernetes")]
    #[error(
        "the cluster cannot be used: make sure that its API server is reachable and that the rights of \
         deploy/kubernetes are applied"
    )]
    Cluster(#[from] crate::adapters::engine::ClusterError),
    #[cfg(not(feature = "kubernetes"))]
    #[error(
        "SANDBOX_ENGINE__KIND is `kubernetes`, which this build does not have: use the released image, or build \
         without `--no-default-features`"
    )]
    NoCluster,
    /// The engine answers, and does not have what a setting names.
    #[error(transparent)]
    EngineSetting(ConnectError),
    /// The engine answers, and refuses a call that the start needs.
    #[error(
        "the container engine failed in a call that the start needs: read its log, and run `mcp-sandbox-server doctor` \
         for details"
    )]
    Engine(#[from] EngineError),
    #[error("SANDBOX_AUDIT__FILE {path} cannot be appended to: make its folder, owned by the server's user")]
    Audit { path: String, source: std::io::Error },
    #[error("SANDBOX_SIGN_IN__OPENID_CLIENT_SECRET_FILE {path} cannot be read: make it readable for the server's user")]
    SecretFile { path: String, source: std::io::Error },
    /// A file that the settings name cannot be used.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    #[error("SANDBOX_OPENED__CA_FILE cannot be used")]
    Trust(#[from] TrustError),
    #[error("programs would not be isolated, so the server does not serve: {0}")]
    Isolation(String),
    #[error("cannot listen on {name} {addr}: choose another address or port, or stop what uses it")]
    Listen {
        /// The name of the setting.
        name: &'static str,
        addr: BindAddr,
        source: std::io::Error,
    },
}
