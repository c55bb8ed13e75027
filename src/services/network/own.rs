//! The addresses at which clients reach this server, by the hosts of its own URLs. In a container, or behind a proxy,
//! no interface of its machine has them.
//!
//! A proxy in front may serve other hosts at the same address. A policy whose `addresses` name it reaches those.

use std::{net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    domain::{address::destination, network::Host},
    ports::network::Resolver,
};

/// How long addresses are used before their names are looked up again.
const FRESH: Duration = Duration::from_mins(1);

/// The hosts of the server's URLs.
#[derive(Debug)]
pub(super) struct OwnHosts {
    hosts: Vec<Host>,
    found: Mutex<Option<(Instant, Arc<[IpAddr]>)>>,
}

impl OwnHosts {
    pub(super) fn new(hosts: Vec<Host>) -> Self {
        Self { hosts, found: Mutex::default() }
    }

    /// Whether a connection to a host at this address would be one to the server.
    pub(super) async fn has(&self, host: &Host, address: IpAddr, resolver: &dyn Resolver) -> bool {
        self.hosts.contains(host) || self.addresses(resolver).await.contains(&destination(address))
    }

    /// Two that find old ones both look them up.
    async fn addresses(&self, resolver: &dyn Resolver) -> Arc<[IpAddr]> {
        let known = self.found.lock().clone();
        let (known, is_fresh) = known.map_or((Arc::default(), false), |(at, known)| (known, at.elapsed() < FRESH));
        if is_fresh {
            return known;
        }
        let (mut addresses, mut is_whole) = (Vec::new(), true);
        for host in &self.hosts {
            let found = match host {
                Host::Address(address) => vec![*address],
                Host::Name(name) => resolver.resolve(name).await,
            };
            is_whole &= !found.is_empty();
            addresses.extend(found.into_iter().map(destination));
        }
        // A look-up that fails forgets nothing.
        if !is_whole {
            addresses.extend(known.iter());
        }
        addresses.sort_unstable();
        addresses.dedup();
        let addresses: Arc<[IpAddr]> = addresses.into();
        *self.found.lock() = Some((Instant::now(), Arc::clone(&addresses)));
        addresses
    }
}
