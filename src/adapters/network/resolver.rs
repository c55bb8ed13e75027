//! Resolves names by the system's resolver, and lists this machine's own addresses.

use std::{
    net::{IpAddr, UdpSocket},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{net::lookup_host, time::timeout};

use crate::ports::network::Resolver;

/// How long the system may take.
const LOOK_UP_MAX: Duration = Duration::from_secs(10);

/// The resolver of the system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &str) -> Vec<IpAddr> {
        // The port is required and not used.
        match timeout(LOOK_UP_MAX, lookup_host((name, 0))).await {
            Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
            _ => Vec::new(),
        }
    }

    /// Only an address of this machine can be bound.
    fn is_own(&self, address: IpAddr) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }
}
