//! The service of sessions, and where it is recorded which are open.

use std::sync::Arc;

use super::options;
use crate::{
    adapters::database::Database,
    config::Config,
    ports::{runner::Catalog, sessions::SessionStore, storage::Storage},
    services::{
        files::Files,
        isolation_check::IsolationState,
        network::Network,
        peers::Peers,
        sandbox::Sandboxes,
        sessions::{Sessions, SessionsParts},
        standby::Standbys,
        tokens::Tokens,
    },
};

pub(super) fn service(
    config: &Config,
    database: Option<&Database>,
    (sandboxes, catalog, store, isolation): (&Sandboxes, &Arc<Catalog>, &Arc<dyn Storage>, &IsolationState),
    (files, standbys): (&Arc<Files>, &Standbys),
    (network, peers, tokens): (&Network, &Peers, &Arc<Tokens>),
) -> Sessions {
    let parts = SessionsParts {
        sandboxes: sandboxes.clone(),
        catalog: Arc::clone(catalog),
        store: Arc::clone(store),
        files: Arc::clone(files),
        standbys: standbys.clone(),
        isolation: isolation.clone(),
        variables: options::variables(config),
        network: network.clone(),
        peers: peers.clone(),
        tokens: Arc::clone(tokens),
        records: database.map(|database| Arc::new(database.clone()) as Arc<dyn SessionStore>),
    };
    Sessions::new(parts, options::sessions(config))
}
