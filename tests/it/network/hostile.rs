//! What a program may try against its channels, the proxy and the hosts.

use reqwest::Method;
use serde_json::json;

use super::{Origin, printed, run, server};
use crate::support::{
    calls::{call, create, get},
    process::Process,
    server::{Server, TOKEN},
    until,
};

/// Python with `ask(bytes)`, which sends bytes to the proxy and returns what comes back, until nothing more does for
/// three seconds.
const RAW: &str = r#"
import socket
def ask(data, more=b""):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    s.sendall(data)
    s.settimeout(3)
    got = b""
    try:
        while chunk := s.recv(65536):
            got += chunk
            if more and b"\r\n\r\n" in got:
                s.sendall(more); more = b""
    except OSError: pass
    s.close()
    return got
"#;

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_requests_reach_no_host() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let (http, other) = (origin.http, origin.other);
    let code = format!(
        r#"{RAW}
import os
# The server ends all channels where the channel process opens one: a forged frame of that, and its bytes to the port.
opening = bytes([0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0])
os.write(1, b"\x86" + len(opening).to_bytes(4, "big") + opening + b"\n")
http, other = "{http}", "{other}"
post = f"POST http://{{http}}/length HTTP/1.1\r\nHost: {{http}}\r\n"
for name, data in [
    ("both lengths", f"{{post}}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("two lengths", f"{{post}}Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcd"),
    ("two hosts", f"GET http://{{http}}/hello HTTP/1.1\r\nHost: {{http}}\r\nHost: {{other}}\r\n\r\n"),
    ("another host", f"GET http://{{http}}/hello HTTP/1.1\r\nHost: {{other}}\r\n\r\n"),
    ("folded header", f"GET http://{{http}}/hello HTTP/1.1\r\nHost: {{http}}\r\nX: a\r\n b\r\n\r\n"),
    ("no authority", f"GET /hello HTTP/1.1\r\nHost: {{http}}\r\n\r\n"),
    ("https in the clear", f"GET https://{{http}}/hello HTTP/1.1\r\nHost: {{http}}\r\n\r\n"),
    ("user in the URL", f"GET http://{{http}}@{{other}}/hello HTTP/1.1\r\nHost: {{other}}\r\n\r\n"),
    ("tunnel with a body", f"CONNECT {{http}} HTTP/1.1\r\nHost: {{http}}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"),
    ("tunnel with a length", f"CONNECT {{http}} HTTP/1.1\r\nHost: {{http}}\r\nContent-Length: 3\r\n\r\nabc"),
    ("tunnel without a port", f"CONNECT {{http.split(':')[0]}} HTTP/1.1\r\nHost: {{http}}\r\n\r\n"),
    ("header injection", f"GET http://{{http}}/hello HTTP/1.1\r\nHost: {{http}}\r\nX: a\rHost: {{other}}\r\n\r\n"),
    ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("SOCKS without a method", b"\x05\x01\x02"),
    ("SOCKS bind", b"\x05\x01\x00\x05\x02\x00\x01\x7f\x00\x00\x02\x00\x50"),
    ("SOCKS name with NUL", b"\x05\x01\x00\x05\x01\x00\x03\x0f127.0.0.2\x00.evil\x00\x50"),
    ("garbage", bytes(range(128, 256)) * 100),
    ("yamux", opening),
]:
    got = ask(data if isinstance(data, bytes) else data.encode())
    reached = b"hello" in got or b"200" in got[:20] or got[:4] == b"\x05\x00\x05\x00"
    print(name, "REACHED" if reached else "refused", got[:60])
"#
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    assert_eq!(stdout.lines().count(), 19, "{stdout}{stderr}");
    // The one with two lengths that HTTP ranks (RFC 9112, section 6.3) is written anew with the one that counts.
    assert_eq!(stdout.matches("REACHED").count(), 1, "{stdout}");
    assert!(stdout.contains("\nboth lengths REACHED"), "{stdout}");
    assert_eq!(origin.seen(), 1, "{stdout}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_request_of_a_connection_is_decided() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let (http, other) = (origin.http, origin.other);
    let code = format!(
        r#"{RAW}
one = b"GET http://{http}/hello HTTP/1.1\r\nHost: {http}\r\n\r\n"
two = b"GET http://{other}/hello HTTP/1.1\r\nHost: {other}\r\n\r\n"
got = ask(one + two + one)
print(got.count(b"hello"), got.count(b"403 no policy"))
socks = b"\x05\x01\x00\x05\x01\x00\x01" + socket.inet_aton("127.0.0.2")
s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
s.sendall(socks + ({port}).to_bytes(2, "big")); s.recv(2)
print(s.recv(10)[1]); s.sendall(b"GET /hello HTTP/1.0\r\n\r\n"); print(b"hello" in s.recv(4096))
s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
s.sendall(socks + ({closed}).to_bytes(2, "big")); s.recv(2); print(s.recv(10)[1])
"#,
        port = http.port(),
        closed = other.port(),
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    assert_eq!(stdout, "2 1\n0\nTrue\n2\n", "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn udp_and_quic_find_no_way_out() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    // At the address that programs may connect to.
    let host = tokio::net::UdpSocket::bind("127.0.0.2:0").await.expect("a port");
    let code = format!(
        r#"{RAW}
import errno
def associate(address):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    s.sendall(b"\x05\x01\x00\x05\x03\x00" + address + ({port}).to_bytes(2, "big"))
    return s.recv(2) + s.recv(10), s.recv(1)
for address in [b"\x01\x7f\x00\x00\x02", b"\x01" + bytes(4), b"\x03\x09127.0.0.2", b"\x04" + bytes(16)]:
    print(associate(address) == (b"\x05\x00\x05\x07\x00\x01" + bytes(6), b""))
masque = b"GET /.well-known/masque/udp/127.0.0.2/{port}/ HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n"
print(ask(masque + b"Connection: Upgrade\r\nUpgrade: connect-udp\r\n\r\n")[:12])
# The first byte of a packet with which QUIC begins.
packet = b"\xc0" + bytes(1199)
for address in ["1.1.1.1", "169.254.169.254", "172.17.0.1", "2606:4700::1111"]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try: socket.socket(family, socket.SOCK_DGRAM).sendto(packet, (address, 443)); print("sent")
    except OSError as error: print(errno.errorcode[error.errno])
# The sandbox's own loopback, which the host does not hear.
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(packet, ("127.0.0.2", {port}))
try: print(socket.getaddrinfo("example.com", 443))
except socket.gaierror: print("no names")
"#,
        port = host.local_addr().expect("an address").port()
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(lines[..5], ["True", "True", "True", "True", "b'HTTP/1.1 400'"], "{stdout}{stderr}");
    let unreachable = ["ENETUNREACH", "EADDRNOTAVAIL", "EAFNOSUPPORT"];
    assert!(lines[5..9].iter().all(|line| unreachable.contains(line)), "{stdout}{stderr}");
    assert_eq!(lines[9..], ["no names"], "{stdout}{stderr}");
    assert!(host.try_recv(&mut [0; 2000]).is_err(), "a packet left the sandbox");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_must_ask_for_the_host_of_its_tunnel() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = format!(
        r#"
import socket, ssl
def hello(name):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    s.sendall(b"CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n")
    head = s.recv(4096)
    context = ssl._create_unverified_context()
    try:
        tls = context.wrap_socket(s, server_hostname=name)
        tls.sendall(b"GET /hello HTTP/1.0\r\n\r\n")
        return b"hello" in tls.recv(4096)
    except OSError: return "ended"
print(hello(None), hello("evil.example"), hello("127.0.0.2"))
"#,
        origin.tls
    );
    let status = run(&server, &json!({"language": "python", "code": code})).await;
    assert_eq!(status["result"]["stdout"], "True ended True\n", "{status}");
    let told = status["result"]["stderr"].as_str().expect("a text");
    assert!(told.contains(&format!("the TLS connection to {} asks for another host", origin.tls)), "{told}");
    assert_eq!(origin.seen(), 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_ends_or_stops_its_channels_goes_on_alone() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    for signal in ["KILL", "STOP"] {
        let code = format!(
            r#"
import glob, os, signal, socket
def processes():
    named = lambda path: open(path).read().startswith("sandbox-channel")
    return [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/comm") if named(path)]
def ask():
    s = socket.socket(); s.settimeout(5)
    try:
        s.connect(("127.0.0.1", 3128)); s.sendall(b"GET http://{0}/hello HTTP/1.1\r\nHost: {0}\r\n\r\n")
        return s.recv(12).decode()
    except OSError: return "no answer"
print(len(processes()), ask(), len(processes()))
for process in processes(): os.kill(process, signal.SIG{signal})
print(ask())
print("x" * 300000)
"#,
            origin.http
        );
        let status = run(&server, &json!({"language": "python", "code": code})).await;
        let stdout = status["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{status}"));
        assert!(stdout.starts_with("0 HTTP/1.1 200 1\nno answer\n"), "{signal}: {status}");
        assert_eq!(status["outcome"]["ended"], "exited", "{signal}: {status}");
    }
    assert_eq!(origin.seen(), 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_that_stops_its_channels_while_they_start_ends_with_its_status() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = r#"
import os, signal, socket
client = socket.socket(); client.setblocking(False)
client.connect_ex(("127.0.0.1", 3128))
for _ in range(100_000):
    try: os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError: pass
raise SystemExit(7)
"#;
    let status = run(&server, &json!({"language": "python", "code": code})).await;
    assert_eq!(status["outcome"]["exitCode"], 7, "{status}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn program_cannot_take_what_its_channel_process_holds() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = format!(
        r#"
import ctypes, errno, glob, os, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
def ask():
    s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    s.sendall(b"GET http://{0}/hello HTTP/1.1\r\nHost: {0}\r\n\r\n")
    return s.recv(12).decode()
def call(number, *arguments):
    done = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
    return "DONE" if done >= 0 else errno.errorcode[ctypes.get_errno()]
print(ask())
named = lambda path: open(path).read().startswith("sandbox-channel")
[helper] = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/comm") if named(path)]
print("seize", call(101 if x86 else 117, 0x4206, helper, 0, 0))
print("attach", call(101 if x86 else 117, 16, helper, 0, 0))
descriptor = os.pidfd_open(helper)
print("descriptors", {{call(438, descriptor, number, 0) for number in range(32)}})
memory = ctypes.create_string_buffer(8)
here = (ctypes.c_size_t * 2)(ctypes.addressof(memory), 8)
there = (ctypes.c_size_t * 2)(0x400000, 8)
vectors = helper, ctypes.addressof(here), 1, ctypes.addressof(there), 1, 0
print("read", call(310 if x86 else 270, *vectors))
print("write", call(311 if x86 else 271, *vectors))
opened = libc.open(b"/proc/%d/mem" % helper, os.O_RDWR)
print("file", "DONE" if opened >= 0 else errno.errorcode[ctypes.get_errno()])
print(ask())
"#,
        origin.http
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    let want = "HTTP/1.1 200\nseize EPERM\nattach EPERM\ndescriptors {'EPERM'}\nread EPERM\nwrite EPERM\n\
                file EACCES\nHTTP/1.1 200\n";
    assert_eq!(stdout, want, "{stderr}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crowd_of_unread_channels_stops_neither_the_run_nor_the_server() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let neighbour = async || {
        let code = format!("import requests\nprint(requests.get('http://{}/hello').text)", origin.http);
        printed(&server, "python", &code).await.0
    };
    let code = format!(
        r#"
import socket, time
all = []
for n in range(300):
    s = socket.socket(); s.settimeout(2)
    try:
        s.connect(("127.0.0.1", 3128)); s.sendall(b"GET http://{0}/bytes/10000000 HTTP/1.1\r\nHost: {0}\r\n\r\n")
        all.append(s)
    except OSError: break
print(len(all) > 60, flush=True)
time.sleep(8)
"#,
        origin.http
    );
    let body = json!({"language": "python", "code": code});
    let hostile = run(&server, &body);
    let (status, said) = tokio::join!(hostile, async {
        origin.reached(60).await;
        neighbour().await
    });
    assert_eq!(said, "hello\n", "another sandbox has channels meanwhile");
    assert_eq!(
        (&status["result"]["stdout"], &status["outcome"]["exitCode"]),
        (&json!("True\n"), &json!(0)),
        "{status}"
    );
    assert_eq!(neighbour().await, "hello\n");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn run_that_is_stopped_in_a_download_ends_at_once() {
    let origin = Origin::start().await;
    let hosts = origin.http.to_string();
    let settings = [("SANDBOX_NETWORK__LOCAL", hosts.as_str()), ("SANDBOX_LIMITS__WALL_MS", "10000")];
    let server = Server::with(&settings).await;
    let code = format!("import requests\nfor _ in range(10**6): requests.get('http://{}/bytes/1000000')", origin.http);
    let status = run(&server, &json!({"language": "python", "code": code})).await;
    assert_eq!(status["outcome"]["ended"], "timed_out", "{status}");
    let newest = async || get(&server, "/v1/network/decisions?limit=1").await["decisions"][0]["decision"].clone();
    until("its connections are listed", async || newest().await == "allowed").await;
    server.stop().await;
}

/// Both ways, as many as there can be: what hosts do not take, and what programs do not read.
#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_small_while_every_channel_is_full() {
    let origin = Origin::start().await;
    let hosts = [origin.http, origin.silent, origin.endless].map(|host| host.to_string()).join(",");
    let (wall, none) = (("SANDBOX_LIMITS__WALL_MS", "120000"), ("SANDBOX_STANDBY__TOTAL_MAX", "0"));
    let server = Process::start(&[("SANDBOX_NETWORK__LOCAL", &hosts), none, wall]).await;
    // One owner has at most half of the channels.
    let (_, other) = create(&server, json!({"name": "n", "owner": "ann", "network": ["local"]})).await;
    // What is allocated once is there.
    let first = format!("import requests\nrequests.get('http://{}/hello')", origin.http);
    for token in [TOKEN, &other] {
        call(&server, token, Method::POST, "/v1/runs", json!({"language": "python", "code": first})).await;
    }
    let before = server.memory_peak_bytes();
    // Requests and tunnels, to a host that reads nothing and to one that sends without end. What the program sends is
    // more than all sockets on its side hold, so the windows of its channels are full.
    let code = format!(
        r#"
import socket, time, select
silent, endless = "{silent}", "{endless}"
def connected(to):
    s = socket.create_connection(("127.0.0.1", 3128)); s.settimeout(20)
    s.sendall(f"CONNECT {{to}} HTTP/1.1\r\nHost: {{to}}\r\n\r\n".encode())
    assert b" 200 " in s.recv(4096)
    return s
def plain(to, method, header):
    s = socket.create_connection(("127.0.0.1", 3128))
    s.sendall(f"{{method}} http://{{to}}/ HTTP/1.1\r\nHost: {{to}}\r\n{{header}}\r\n\r\n".encode())
    return s
full, unread = [], []
for n in range(10):
    full += [connected(silent), plain(silent, "POST", "Content-Length: 1000000000")]
    unread += [connected(endless), plain(endless, "GET", "Accept: */*")]
    unread[-2].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
for s in full: s.setblocking(False)
until, stuck = time.monotonic() + 60, 0
while time.monotonic() < until and stuck < 20:
    ready = select.select([], full, [], 0.5)[1]
    stuck = 0 if ready else stuck + 1
    for s in ready:
        try: s.send(b"x" * 65536)
        except OSError: pass
print("stuck", stuck)
"#,
        silent = origin.silent,
        endless = origin.endless
    );
    let runs = [(TOKEN, "a"), (TOKEN, "b"), (&*other, "c"), (&*other, "d")].map(|(token, name)| {
        let body = json!({"conversationId": name, "language": "python", "code": code, "wait": 120});
        call(&server, token, Method::POST, "/v1/runs", body)
    });
    for (_, status) in futures_util::future::join_all(runs).await {
        let ended = (&status["result"]["stdout"], &status["outcome"]["exitCode"]);
        assert_eq!(ended, (&json!("stuck 20\n"), &json!(0)), "{status}");
    }
    let grown = server.memory_peak_bytes().saturating_sub(before) >> 20;
    println!("the server grew by {grown} MiB");
    assert!(grown <= 64, "{grown} MiB");
    server.stop().await;
}
