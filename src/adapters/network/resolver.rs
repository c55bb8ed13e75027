//! Resolves names by the system's resolver, and lists this machine's own addresses.

use std::{
    net::{IpAddr, ToSocketAddrs as _, UdpSocket},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use crate::ports::network::Resolver;

/// How long the system may take.
const LOOK_UP_MAX: Duration = Duration::from_secs(10);
/// Look-ups at once. The system goes on with one that is given up, on a thread of those that the server has for its
/// disk too.
const LOOK_UPS_MAX: usize = 128;

/// Names that this machine knows itself, by which an operator may replace those of others.
const HOSTS: &str = "/etc/hosts";

/// The resolver of the system.
#[derive(Debug)]
pub struct SystemResolver(Arc<Semaphore>);

impl Default for SystemResolver {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(LOOK_UPS_MAX)))
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, name: &str) -> Vec<IpAddr> {
        let found = async {
            let room = Arc::clone(&self.0).acquire_owned().await.ok()?;
            let name = name.to_owned();
            let look_up = move || {
                let _until_it_ends = room;
                let name = whole(&name, &String::from_utf8_lossy(&std::fs::read(HOSTS).unwrap_or_default()));
                // The port is required and not used.
                (name.as_str(), 0).to_socket_addrs()
            };
            spawn_blocking(look_up).await.ok()?.ok()
        };
        let found = timeout(LOOK_UP_MAX, found).await.ok().flatten();
        found.into_iter().flatten().map(|address| address.ip()).collect()
    }

    /// Only an address of this machine can be bound.
    fn is_own(&self, address: IpAddr) -> bool {
        UdpSocket::bind((address, 0)).is_ok()
    }
}

/// The name that the system is asked for. A dot at the end keeps it from first trying the name below each domain of its
/// search list, as it does in a cluster, where another host may have it. A name without dots is meant to be there, and
/// those in the file of hosts are found only as they are written.
fn whole(name: &str, hosts: &str) -> String {
    let mut lines = hosts.lines().filter_map(|line| line.split('#').next());
    let is_listed = lines.any(|line| line.split_whitespace().skip(1).any(|listed| listed.eq_ignore_ascii_case(name)));
    if is_listed || !name.contains('.') { name.to_owned() } else { format!("{name}.") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_dots_is_looked_up_as_it_is() {
        let hosts = "127.0.0.1 localhost\n10.0.0.7\tDB.example.com db2.example.com # old.example.com\n";
        for (name, want) in [
            ("a.example.com", "a.example.com."),
            ("old.example.com", "old.example.com."),
            ("example.com", "example.com."),
            ("10.0.0.7.example.com", "10.0.0.7.example.com."),
            ("db.example.com", "db.example.com"),
            ("db2.example.com", "db2.example.com"),
            ("tracker", "tracker"),
        ] {
            assert_eq!(whole(name, hosts), want);
        }
    }

    #[tokio::test]
    async fn a_look_up_takes_room_until_the_system_has_ended_it() {
        let resolver = SystemResolver(Arc::new(Semaphore::new(1)));
        assert!(resolver.resolve("localhost").await.iter().all(IpAddr::is_loopback));
        let room = Arc::clone(&resolver.0).acquire_owned().await.expect("it is given back");
        tokio::time::pause();
        assert!(resolver.resolve("localhost").await.is_empty(), "there is no room");
        drop(room);
        tokio::time::resume();
        assert!(!resolver.resolve("localhost").await.is_empty());
    }
}
