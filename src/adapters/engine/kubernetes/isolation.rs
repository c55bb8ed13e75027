//! The isolation that must be observable inside a pod of ours, and the fix for each missing part.
//!
//! No field of a pod takes its network away: a network policy does, if the cluster enforces it, or a runtime class. So
//! a sandbox tries addresses that it must not reach.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    time::Duration,
};

use http::Uri;
use tokio::{net::lookup_host, time::timeout};

use super::KubernetesOptions;
use crate::{
    domain::{Limits, RunnerUsers},
    ports::engine::{EngineError, Expectation, Fact},
};

/// The metadata service of clouds, which hands out the node's credentials, two public services, in both families, and
/// the name server that `NodeLocal DNSCache` starts on each node: the servers' own resolv.conf need not name it, and
/// some network plugins let pods reach their node whatever policies say.
const USUAL: [SocketAddr; 7] = [
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 20, 10)), 53),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(1, 1, 1, 1)), 443),
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(8, 8, 8, 8)), 53),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)), 80),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2606, 0x4700, 0x4700, 0, 0, 0, 0, 0x1111)), 443),
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0x4860, 0x4860, 0, 0, 0, 0, 0x8888)), 53),
];
const DNS_PORT: u16 = 53;

/// Where no sandbox may get to: the API server by each of its addresses, the name servers of this process, this server
/// by the address that it has on the way there, and the usual ones.
///
/// # Errors
/// [`EngineError::Timeout`] when the name of the API server is not looked up within `limit`.
pub(super) async fn forbidden(api: &Uri, own_port: u16, limit: Duration) -> Result<Vec<SocketAddr>, EngineError> {
    let mut all = USUAL.to_vec();
    let port = api.port_u16().unwrap_or(443);
    if let Some(host) = api.host() {
        for address in found(limit, lookup_host((host.trim_matches(['[', ']']), port))).await? {
            let any = if address.is_ipv6() { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { Ipv4Addr::UNSPECIFIED.into() };
            // No datagram is sent by this.
            let here = UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(address).map(|()| socket));
            let here = here.and_then(|socket| socket.local_addr());
            all.extend(here.map(|here| SocketAddr::new(here.ip(), own_port)));
            all.push(address);
        }
    }
    let text = tokio::fs::read_to_string("/etc/resolv.conf").await.unwrap_or_default();
    let servers = text.lines().filter_map(|line| line.strip_prefix("nameserver")?.trim().parse().ok());
    all.extend(servers.map(|server: IpAddr| SocketAddr::new(server, DNS_PORT)));
    all.retain(|address| !address.ip().is_loopback() && !address.ip().is_unspecified());
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// What a look-up finds; nothing where it fails, as behind a proxy that alone knows the name. One that does not end may
/// find addresses later: going on without them, the isolation check would not try the API server.
async fn found<I: IntoIterator<Item = SocketAddr>>(
    limit: Duration,
    look_up: impl Future<Output = io::Result<I>>,
) -> Result<Vec<SocketAddr>, EngineError> {
    match timeout(limit, look_up).await {
        Ok(found) => Ok(found.into_iter().flatten().collect()),
        Err(_) => Err(EngineError::Timeout { act: "look up", limit }),
    }
}

pub(super) fn expectations(options: &KubernetesOptions, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
    let required = |fact, otherwise: &str| Expectation::required(fact, otherwise);
    let by_class = options.runtime_class.as_deref().unwrap_or("of the pod templates");
    vec![
        required(
            Fact::User(*users),
            &format!("programs do not run as user {users}: the nodes' runtime must honour runAsUser"),
        ),
        required(Fact::NoCapabilities, "programs have capabilities: the nodes' runtime must honour `drop: [ALL]`"),
        required(
            Fact::NoNewPrivileges,
            "programs may gain privileges: the nodes' runtime must honour allowPrivilegeEscalation: false",
        ),
        required(
            Fact::NoConnection,
            &format!(
                "programs can reach the network: install a network plugin that enforces NetworkPolicy and a policy \
                 that denies all ingress and egress in the namespace of the sandboxes, or name a runtime class without \
                 a network in SANDBOX_ENGINE__RUNTIME (now: {by_class})"
            ),
        ),
        required(
            Fact::ReadOnlyRoot,
            "the root file system can be written: the nodes' runtime must honour readOnlyRootFilesystem",
        ),
        required(
            Fact::WritableData,
            "/data cannot be written: the claim of SANDBOX_ENGINE__CLAIM must be the volume that the server has at \
             SANDBOX_ROOT, ReadWriteMany, and writable for SANDBOX_ENGINE__RUNNER_UID",
        ),
        required(
            Fact::SystemCallFilter,
            "system calls are not filtered: the nodes' runtime must support seccomp (seccompProfile: \
             RuntimeDefault), or install the profile that SANDBOX_ENGINE__SECCOMP_PROFILE names on every node",
        )
        .or_unobserved(
            "Whether system calls are filtered cannot be observed from inside a sandbox with a kernel of its own.",
        ),
        required(
            Fact::MemoryLimit(limits.memory_bytes),
            "the limit on memory does not hold: the kubelet must enforce limits (cgroupsPerQOS: true) on nodes \
             with control groups for memory",
        )
        .or_unobserved("The limit on memory cannot be observed from inside a sandbox."),
        required(
            Fact::NoVariable("KUBERNETES_"),
            "programs see where the API server is: build the runner images anew, whose process 1 removes KUBERNETES_* \
             from the environment",
        ),
        Expectation::recommended(
            Fact::NoCorePipe,
            "The memory of each program that crashes is handed to a root process of the node, since core_pattern \
             begins with `|` or `@`: set it to a file name there (`sysctl kernel.core_pattern=core`).",
        ),
        required(
            Fact::ProcessesRefused,
            &format!(
                "programs can have more than {0} processes, and no field of a pod limits them: set podPidsLimit: {0} \
                 in the configuration of each kubelet, or SANDBOX_LIMITS__PROCESSES_MAX to what the kubelets have",
                limits.processes_max
            ),
        )
        .or_unobserved(format!(
            "Whether more than {0} processes are refused was not tried, since the image has no process 1 of this \
             server's or the sandbox too little memory: see that podPidsLimit is at most {0} in the configuration of \
             each kubelet.",
            limits.processes_max
        )),
    ]
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::ports::engine::Severity;

    #[tokio::test]
    async fn addresses_of_both_families_and_the_usual_ones_are_forbidden() {
        let api = "https://[2001:db8::1]:6443".parse().expect("an address");
        let all = forbidden(&api, 8080, Duration::from_secs(10)).await.expect("addresses");
        assert!(all.contains(&"[2001:db8::1]:6443".parse().expect("an address")), "{all:?}");
        let public = |is_ipv6| all.iter().any(|one| one.is_ipv6() == is_ipv6 && one.port() == 53);
        assert!(public(true) && public(false), "{all:?}");
        for usual in ["169.254.20.10:53", "169.254.169.254:80", "[fd00:ec2::254]:80"] {
            assert!(all.contains(&usual.parse().expect("an address")), "{usual}: {all:?}");
        }
    }

    /// By the address that this machine has towards the API server, where there is a way there.
    #[tokio::test]
    async fn the_server_itself_is_forbidden() {
        let api = "192.0.2.7:6443";
        let url = format!("https://{api}").parse().expect("an address");
        let all = forbidden(&url, 8080, Duration::from_secs(10)).await.expect("addresses");
        let socket = UdpSocket::bind("0.0.0.0:0").expect("a port");
        if socket.connect(api).is_ok() {
            let here = SocketAddr::new(socket.local_addr().expect("an address").ip(), 8080);
            assert!(all.contains(&here), "{here}: {all:?}");
        }
    }

    #[test]
    fn processes_without_a_limit_are_refused_with_the_setting_of_the_kubelet() {
        let limits = Limits { processes_max: 77, ..Limits::default() };
        let all = expectations(&KubernetesOptions::default(), &limits, &RunnerUsers::one(1000));
        let found = all.iter().find(|one| one.fact == Fact::ProcessesRefused).expect("an expectation");
        assert_eq!(found.severity, Severity::Required);
        for sentence in [Some(&found.otherwise), found.unobserved.as_ref()] {
            let sentence = sentence.expect("a sentence");
            assert!(sentence.contains("podPidsLimit") && sentence.contains("77"), "{sentence}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_up_has_a_time_limit() {
        let limit = Duration::from_secs(10);
        let hung = found(limit, pending::<io::Result<Vec<SocketAddr>>>()).await;
        assert!(matches!(hung, Err(EngineError::Timeout { act: "look up", limit: l }) if l == limit));
        let failed = found(limit, ready(Err::<Vec<_>, _>(io::Error::other("no such name")))).await;
        assert!(failed.expect("no addresses").is_empty());
        let all = vec![USUAL[0]];
        assert_eq!(found(limit, ready(Ok(all.clone()))).await.expect("one"), all);
    }
}
