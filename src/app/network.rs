//! Builds the service and the carrier for connections that policies allow, and what connects this server with the other
//! servers on the same database, where the settings say how they reach this one.

use std::sync::Arc;

use super::StartError;
use crate::{
    adapters::{
        database::Database,
        network::{Multiplexer, SystemResolver},
    },
    config::{BaseUrl, Config},
    domain::{InstanceId, clock::SystemClock, network::Host},
    ports::observer::Observer,
    services::{
        network::{Network, NetworkParts, Policies},
        peers::{Peer, Peers},
        tokens::Tokens,
    },
};

/// What lets programs out by the policies of the settings and of the database.
pub(super) fn service(
    config: &Config,
    database: &Database,
    tokens: &Arc<Tokens>,
    observer: &Arc<dyn Observer>,
) -> Result<Network, StartError> {
    let carrier = Multiplexer::trusting(config.more_roots()?.as_deref())?;
    let parts = NetworkParts {
        tokens: Arc::clone(tokens),
        carrier: Arc::new(carrier),
        resolver: Arc::new(SystemResolver::default()),
        own_hosts: own_hosts(config),
        observer: Arc::clone(observer),
        clock: Arc::new(SystemClock),
    };
    let policies = Policies::new(config.network_policies()?, Arc::new(database.clone()), Arc::new(SystemClock));
    Ok(Network::new(policies, config.secrets()?, parts))
}

/// Those of the page and of files.
fn own_hosts(config: &Config) -> Vec<Host> {
    let files = config.files_base_url().ok();
    let urls = [Some(&config.public_base_url), files.as_ref()].into_iter().flatten();
    let mut hosts: Vec<_> = urls.filter_map(|url| Host::parse(BaseUrl::uri(url).host()?)).collect();
    hosts.dedup();
    hosts
}

pub(super) fn peers(config: &Config, instance: InstanceId, database: Option<&Database>) -> Peers {
    let url = config.peer_url();
    match database.filter(|_| !url.is_empty()) {
        Some(database) => Peers::new(Peer { instance, url }, Arc::new(database.clone()), Arc::new(SystemClock)),
        None => Peers::default(),
    }
}
