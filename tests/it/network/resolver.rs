//! Names whose answers change between two look-ups, or hold more than one would expect, from a server of names that the
//! test is. The server reads its address in a mount namespace of its own.

use std::{
    collections::HashMap,
    io::Write as _,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tempfile::NamedTempFile;
use tokio::{net::TcpListener, task::JoinSet};

use super::{
    Origin,
    vault::{NAME, Vault},
};
use crate::support::{calls::post, process::Process};

const DOMAIN: &str = "names.example.com";
/// A domain of the search list, below which every name leads elsewhere.
const SEARCHED: &str = "searched";
/// The address that the policy names, and one that it does not.
const NAMED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
/// Longer than the server waits for a name.
const LATE: Duration = Duration::from_secs(12);
const A: u16 = 1;
const CNAME: u16 = 5;
const WITHIN: [&str; 4] = ["unshare", "-m", "sh", "-c"];
/// Of a secret.
const VALUE: &str = "canary-of-the-host-with-a-name-93f1";

/// Answers on port 53 of an address of its own.
struct Names {
    address: Ipv4Addr,
    /// Questions for an IPv4 address, by the first label of the name.
    asked: Arc<Mutex<HashMap<String, usize>>>,
}

impl Names {
    fn start() -> Self {
        let bind = |last| {
            let address = Ipv4Addr::new(127, 0, 53, last);
            Some((address, UdpSocket::bind((address, 53)).ok()?))
        };
        let (address, socket) = (1..=250).find_map(bind).expect("port 53 of an address: this test runs as root");
        let asked = Arc::<Mutex<HashMap<String, usize>>>::default();
        let counted = Arc::clone(&asked);
        // Ends with the process of the test.
        std::thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut query) {
                let Some((label, reply)) = reply(&query[..length], &counted) else { continue };
                let socket = socket.try_clone().expect("a socket");
                std::thread::spawn(move || {
                    if label == "late" {
                        std::thread::sleep(LATE);
                    }
                    drop(socket.send_to(&reply, client));
                });
            }
        });
        Self { address, asked }
    }

    fn asked(&self, label: &str) -> usize {
        self.asked.lock().expect("a lock").get(label).copied().unwrap_or_default()
    }
}

/// The addresses of a name when it is asked for the n-th time.
fn addresses(label: &str, n: usize) -> Vec<Ipv4Addr> {
    match label {
        "changes" | "changes-back" if (n == 0) == (label == "changes") => vec![NAMED],
        "both" => vec![NAMED, OTHER],
        "both-reversed" => vec![OTHER, NAMED],
        "metadata" => vec![NAMED, Ipv4Addr::new(169, 254, 169, 254)],
        "empty" => Vec::new(),
        "many" => vec![NAMED; 1000],
        "many-and-one" => [vec![NAMED; 999], vec![OTHER]].concat(),
        "alias" | "late" | "steady" => vec![NAMED],
        _ => vec![OTHER],
    }
}

/// The first label of the name that a query has, and the answer.
fn reply(query: &[u8], asked: &Mutex<HashMap<String, usize>>) -> Option<(String, Vec<u8>)> {
    let (mut at, mut labels) = (12, Vec::new());
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8(query.get(at..at + length)?.to_vec()).ok()?);
        at += length;
    }
    let question = query.get(12..at + 4)?;
    let kind = u16::from_be_bytes([query[at], query[at + 1]]);
    let label = labels.first()?.to_lowercase();
    let mut all = Vec::new();
    if kind == A && labels.last().is_some_and(|last| last == SEARCHED) {
        all = vec![OTHER];
    } else if kind == A {
        let mut asked = asked.lock().expect("a lock");
        let count = asked.entry(label.clone()).or_default();
        all = addresses(&label, *count);
        *count += 1;
    }
    let mut records = Vec::new();
    let mut owner = vec![0xc0, 12];
    if label.starts_with("alias") && kind == A {
        let canonical: Vec<u8> =
            ["elsewhere", "example", "org"].iter().flat_map(|label| name(label)).chain([0]).collect();
        records.push(record(&owner, CNAME, &canonical));
        owner = canonical;
    }
    records.extend(all.iter().map(|address| record(&owner, A, &address.octets())));
    let count = u16::try_from(records.len()).expect("few").to_be_bytes();
    // An answer with recursion, without an error.
    let head = [&query[..2], &[0x81, 0x80, 0, 1], &count, &[0; 4]].concat();
    Some((label, [&head, question, &records.concat()].concat()))
}

fn name(label: &str) -> Vec<u8> {
    [&[u8::try_from(label.len()).expect("short")], label.as_bytes()].concat()
}

fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
    let length = u16::try_from(data.len()).expect("short").to_be_bytes();
    // Of the internet, for no time.
    [owner, &kind.to_be_bytes(), &[0, 1, 0, 0, 0, 0], &length, data].concat()
}

/// Counts the connections to the address that no policy names.
pub(super) async fn witness(port: u16) -> (Arc<AtomicUsize>, JoinSet<()>) {
    let listener = TcpListener::bind(SocketAddr::from((OTHER, port))).await.expect("the same port there");
    let (reached, mut tasks) = (Arc::<AtomicUsize>::default(), JoinSet::new());
    let counted = Arc::clone(&reached);
    tasks.spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    (reached, tasks)
}

/// A server that asks these names, with a file of settings and more of them.
async fn server(names: &Names, text: &str, more: &[(&str, &str)]) -> (Process, [NamedTempFile; 2]) {
    let [mut resolv, mut config] = [(); 2].map(|()| NamedTempFile::new().expect("a file"));
    // As in a cluster: names with fewer than five dots are searched first.
    let options = format!("search {SEARCHED}\noptions ndots:5 timeout:5 attempts:2");
    writeln!(resolv, "nameserver {}\n{options}", names.address).expect("written");
    config.write_all(text.as_bytes()).expect("written");
    let mount = format!("mount --bind {} /etc/resolv.conf && exec \"$0\" \"$@\"", resolv.path().display());
    let own = [
        ("--config", config.path().to_str().expect("a path")),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_LIMITS__WALL_MS", "60000"),
    ];
    let within = [&WITHIN[..], &[mount.as_str()]].concat();
    let process = Process::within(&within, &[&own[..], more].concat()).await;
    (process, [resolv, config])
}

/// Needs root, for port 53 and the mount.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_names_lead_only_to_the_address_that_was_checked() {
    let (names, origin) = (Names::start(), Origin::start().await);
    let port = origin.http.port();
    let (reached, _witness) = witness(port).await;
    let policy = format!("hosts = [\"*.{DOMAIN}:{port}\"]\naddresses = [\"{NAMED}\"]\nevery_token = true\n");
    let (server, _files) = server(&names, &format!("[network.names]\n{policy}"), &[]).await;
    let wanted = [
        ("steady", "200", ""),
        ("steady", "200", ""),
        ("changes", "200", ""),
        ("changes", "403", "not_public"),
        ("changes-back", "403", "not_public"),
        ("changes-back", "200", ""),
        ("both", "403", "not_public"),
        ("both-reversed", "403", "not_public"),
        ("metadata", "403", "not_public"),
        ("empty", "502", "not_found"),
        ("many", "200", ""),
        ("many-and-one", "403", "not_public"),
        ("alias", "200", ""),
        ("alias-inside", "403", "not_public"),
        ("late", "502", "not_found"),
    ];
    let labels: Vec<_> = wanted.iter().map(|(label, ..)| *label).collect();
    let code = format!(
        "import requests\nfor label in {labels:?}:\n    \
         answer = requests.get(f'http://{{label}}.{DOMAIN}:{port}/hello', timeout=40)\n    \
         print(label, answer.status_code, answer.headers.get('x-sandbox-refusal', ''))"
    );
    let status = post(&server, "/v1/runs", json!({"language": "python", "code": code, "wait": 60})).await;
    let line = |(label, status, refusal): &(&str, &str, &str)| format!("{label} {status} {refusal}\n");
    let want = wanted.iter().map(line).collect::<Vec<_>>().concat();
    assert_eq!(status["result"]["stdout"], want, "{status}");
    assert_eq!(reached.load(Ordering::Relaxed), 0, "an address that was not checked was connected to");
    assert_eq!(origin.seen(), wanted.iter().filter(|(_, status, _)| *status == "200").count());
    // The system's resolver asks again within one look-up for an answer that is late, or larger than its buffer.
    let is_asked_again = |label: &str| label == "late" || label.starts_with("many");
    for (label, _, _) in wanted.iter().filter(|(label, ..)| !is_asked_again(label)) {
        let connections = wanted.iter().filter(|(other, ..)| other == label).count();
        assert_eq!(names.asked(label), connections, "{label} is looked up once for each connection");
    }
    server.stop().await;
}

/// Needs root, as the other. Elsewhere opened hosts are addresses, for which TLS names no server.
#[tokio::test(flavor = "multi_thread")]
async fn opened_host_is_told_by_its_name_to_its_program_and_to_the_server() {
    let (names, vault) = (Names::start(), Vault::start(VALUE).await);
    let port = vault.good.port();
    let hosts = format!("hosts = [\"{NAME}:{port}\", \"alias.{DOMAIN}:{port}\"]");
    let text = format!(
        "[network.api]\n{hosts}\naddresses = [\"{NAMED}\"]\nevery_token = true\n[secrets.api]\n{hosts}\n\
         [opened]\nca_file = \"{}\"\n",
        vault.roots.path().display()
    );
    let (server, _files) = server(&names, &text, &[("SANDBOX_SECRETS__API", VALUE)]).await;
    let code = format!(
        r#"
import os, requests, socket, ssl
token, alias = os.environ["API_TOKEN"], "alias.{DOMAIN}"
for host in ["{NAME}", alias]:
    answer = requests.get(f"https://{{host}}:{port}/form?plain", headers={{"Authorization": "Bearer " + token}})
    print(answer.status_code, answer.text == token, answer.reason)
s = socket.create_connection(("127.0.0.1", 3128), timeout=20)
s.sendall(b"CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n")
print(s.recv(4096)[:12])
try: print(ssl.create_default_context().wrap_socket(s, server_hostname=alias).version())
except OSError: print("ended")
"#
    );
    let status = post(&server, "/v1/runs", json!({"language": "python", "code": code, "wait": 60})).await;
    let want = format!(
        "200 True OK\n502 False alias.{DOMAIN}:{port} has a certificate that this server does not trust\n\
         b'HTTP/1.1 200'\nended\n"
    );
    assert_eq!(status["result"]["stdout"], want, "{status}");
    let told = format!("the TLS connection to {NAME}:{port} asks for another host");
    assert!(status["result"]["stderr"].as_str().is_some_and(|text| text.contains(&told)), "{status}");
    let seen = vault.seen();
    let [asked] = &seen[..] else { panic!("{seen:#?}") };
    let sent = [format!("\r\nhost: {NAME}:{port}\r\n"), format!("\r\nauthorization: bearer {VALUE}\r\n")];
    assert!(sent.iter().all(|header| asked.to_lowercase().contains(header)), "{asked}");
    server.stop().await;
}
