//! Addresses that no policy names, in every notation that some library reads: as programs give them to the proxy, and
//! as an allowed host redirects to them.

use std::sync::atomic::Ordering;

use super::{Origin, printed, resolver::witness, vault::Vault};
use crate::support::server::Server;

/// Python with `notations(address)`, those of IPv4 first, and with `ADDRESSES`, of which the first is the witness's.
const NOTATIONS: &str = r#"
import ipaddress, socket
ADDRESSES = ["127.0.0.3", "127.0.0.1", "0.0.0.0", "10.0.0.1", "169.254.169.254"]
IPV4 = 11
def notations(address):
    a, b, c, d = ipaddress.IPv4Address(address).packed
    whole = int(ipaddress.IPv4Address(address))
    low, lower = whole & 0xffffff, whole & 0xffff
    return [
        address, f"{address}.", f"{whole}", f"{whole:#x}", f"0{whole:o}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}",
        f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"{a}.{low}", f"{a}.{b}.{lower}", f"{a:#x}.{low:#x}",
        f"00{a:o}.{b}.{c}.{d:#x}",
        f"[::ffff:{address}]", f"[::ffff:{whole >> 16:x}:{lower:x}]", f"[0:0:0:0:0:ffff:{address}]",
        f"[64:ff9b::{address}]", f"[2002:{whole >> 16:x}:{lower:x}::1]", f"[::{address}]",
    ]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn no_notation_reaches_an_address_by_any_form_of_the_proxy() {
    let origin = Origin::start().await;
    let (reached, _witness) = witness(origin.http.port()).await;
    let server = super::server(&origin).await;
    let code = format!(
        r#"{NOTATIONS}
def said(data, until):
    got = b""
    with socket.create_connection(("127.0.0.1", 3128), timeout=20) as s:
        s.sendall(data)
        try:
            while not until(got) and (piece := s.recv(4096)): got += piece
        except ConnectionError: pass
    return got
def http(line, host):
    head = f"{{line}} HTTP/1.1\r\nHost: {{host}}\r\n\r\n"
    status = said(head.encode(), lambda got: b"\r\n\r\n" in got).split(b" ")[1:2]
    return {{b"200": "reached", b"400": "refused", b"403": "refused"}}.get(*status or [b""], "no answer")
def tunnel(host): return http(f"CONNECT {{host}}", host)
def request(host): return http(f"GET http://{{host}}/hello", host)
def socks(host):
    name, _, port = host.rpartition(":")
    data = b"\x05\x01\x00\x05\x01\x00\x03" + bytes([len(name)]) + name.encode() + int(port).to_bytes(2, "big")
    # No connection is allowed, or there is no such address.
    reply = said(data, lambda got: len(got) >= 12)[2:4]
    return {{b"\x05\x00": "reached", b"\x05\x02": "refused", b"\x05\x08": "refused"}}.get(reply, "no answer")
for form in [tunnel, request, socks]:
    own = [form(f"{{text}}:{port}") for text in notations("127.0.0.2")[:IPV4]]
    other = [form(f"{{text}}:{port}") for address in ADDRESSES for text in notations(address)]
    print(form.__name__, own.count("reached"), other.count("refused"), len(other) - other.count("refused"))
"#,
        port = origin.http.port()
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    // The allowed address is reached in each of its notations.
    assert_eq!(stdout, "tunnel 11 85 0\nrequest 11 85 0\nsocks 11 85 0\n", "{stderr}");
    assert_eq!(origin.seen(), 11, "the tunnels carried nothing");
    assert_eq!(reached.load(Ordering::Relaxed), 0);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redirect_of_an_allowed_host_leads_to_no_other_address() {
    let (origin, vault) = (Origin::start().await, Vault::start("value-of-the-vault").await);
    let (reached, _witness) = witness(origin.tls.port()).await;
    let hosts = format!("{},{}", vault.plain, origin.tls);
    let settings = [
        ("SANDBOX_NETWORK__LOCAL", hosts.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_LIMITS__WALL_MS", "120000"),
    ];
    let server = Server::with(&settings).await;
    let code = format!(
        r#"{NOTATIONS}
import requests, subprocess, urllib3
urllib3.disable_warnings()
def url(to): return f"http://{plain}/elsewhere?{{to}}"
def by_requests(to):
    try: return requests.get(url(to), verify=False, timeout=20).text
    except (requests.exceptions.RequestException, ValueError) as error: return type(error).__name__
def by_curl(to):
    done = subprocess.run(["curl", "-gskL", "-m", "20", url(to)], capture_output=True, text=True)
    return done.stdout or f"curl {{done.returncode}}"
for get in [by_requests, by_curl]:
    other = [get(f"{{text}}:{port}") for address in ADDRESSES for text in notations(address)]
    # The vault redirects to `https://` and what follows the question mark.
    print(get("{tls}"), other.count("hello"))
"#,
        plain = vault.plain,
        tls = origin.tls,
        port = origin.tls.port()
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    assert_eq!(stdout, "hello 0\nhello 0\n", "{stderr}");
    assert_eq!(vault.seen().len(), 2 * 86, "each redirect was asked for");
    assert_eq!((origin.seen(), reached.load(Ordering::Relaxed)), (2, 0));
    server.stop().await;
}
