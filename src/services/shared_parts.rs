//! What the services have in common that start sandboxes. A clone is the same.

use std::sync::Arc;

use super::{
    files::Files, isolation_check::IsolationState, network::Network, peers::Peers, sandbox::Sandboxes,
    standby::Standbys, tokens::Tokens,
};
use crate::{
    domain::AllowedVariables,
    ports::{observer::Observer, runner::Catalog, storage::Storage},
};

#[derive(Clone)]
pub struct SharedParts {
    pub sandboxes: Sandboxes,
    pub catalog: Arc<Catalog>,
    pub store: Arc<dyn Storage>,
    pub files: Arc<Files>,
    pub standbys: Standbys,
    pub isolation: IsolationState,
    /// What requests may add to the environment of a program or a session.
    pub variables: AllowedVariables,
    pub tokens: Arc<Tokens>,
    pub network: Network,
    pub peers: Peers,
    pub observer: Arc<dyn Observer>,
}
