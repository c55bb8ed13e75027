//! TLS that the server opens: what is ambiguous there reaches no host, and rules and rates hold for each request.

use std::{fmt::Write as _, io::Write as _};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use mcp_sandbox_server::{adapters::network::Multiplexer, domain::network::Host, ports::network::Carrier as _};
use rcgen::{CertificateParams, DistinguishedName, DnType, Issuer, KeyPair};

use super::{Origin, printed, secrets, vault::Vault};
use crate::support::server::Server;

const PYTHON: &str = "python";

#[tokio::test(flavor = "multi_thread")]
async fn ambiguous_requests_reach_no_opened_host() {
    let vault = Vault::start("value-of-the-vault").await;
    let server = secrets::server(&vault, "127.0.0.2:9").await;
    let code = format!(
        r#"
import os, socket, ssl
good, token = "{}", os.environ["API_TOKEN"]
context = ssl.create_default_context()
def opened(alpn=None):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
    s.sendall(f"CONNECT {{good}} HTTP/1.1\r\nHost: {{good}}\r\n\r\n".encode())
    s.recv(4096)
    if alpn: context.set_alpn_protocols(alpn)
    return context.wrap_socket(s, server_hostname="127.0.0.2")
def ask(data):
    tls = opened(); tls.settimeout(3)
    got = b""
    try:
        tls.sendall(data)
        while chunk := tls.recv(65536): got += chunk
    except OSError: pass
    return got
head = f"Host: {{good}}\r\nAuthorization: Bearer {{token}}\r\n"
second = f"GET /second HTTP/1.1\r\nHost: evil.example\r\n\r\n"
for name, data in [
    ("two hosts", f"GET /1 HTTP/1.1\r\nHost: {{good}}\r\nHost: evil.example\r\n\r\n"),
    ("no host", f"GET /2 HTTP/1.1\r\nX: y\r\n\r\n"),
    ("another host", f"GET /3 HTTP/1.1\r\nHost: evil.example\r\n\r\n"),
    ("another port", f"GET /4 HTTP/1.1\r\nHost: 127.0.0.2\r\n\r\n"),
    ("absolute form", f"GET https://{{good}}/5 HTTP/1.1\r\n{{head}}\r\n"),
    ("absolute form elsewhere", f"GET http://evil.example/6 HTTP/1.1\r\n{{head}}\r\n"),
    ("tunnel in a tunnel", f"CONNECT {{good}} HTTP/1.1\r\n{{head}}\r\n"),
    ("two lengths", f"POST /7 HTTP/1.1\r\n{{head}}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
    ("chunked twice", f"POST /8 HTTP/1.1\r\n{{head}}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
    ("folded header", f"GET /9 HTTP/1.1\r\n{{head}}X: a\r\n b\r\n\r\n"),
    ("CR in the header", f"GET /10 HTTP/1.1\r\nHost: {{good}}\r\nAuthorization: {{token}}\rX: y\r\n\r\n"),
    ("NUL in the header", f"GET /11 HTTP/1.1\r\nHost: {{good}}\r\nAuthorization: {{token}}\0\r\n\r\n"),
    ("space before the colon", f"GET /12 HTTP/1.1\r\nHost : {{good}}\r\n\r\n"),
    ("long head", f"GET /13 HTTP/1.1\r\n{{head}}X: {{'y' * 2000000}}\r\n\r\n"),
    ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
]:
    got = ask(data.encode())
    print(name, "REACHED" if b" 200 " in got[:20] else "refused", got[:60])
got = ask((f"GET /first HTTP/1.1\r\n{{head}}\r\n" + second).encode())
print("second request", got.count(b"HTTP/1.1 200 OK"), got.count(b"HTTP/1.1 400 the request names another host"))
try: print(opened(["h2"]).selected_alpn_protocol())
except ssl.SSLError: print("no HTTP/2")
s = socket.create_connection(("127.0.0.1", 3128), timeout=30)
s.sendall(f"CONNECT {{good}} HTTP/1.1\r\nHost: {{good}}\r\n\r\n".encode()); s.recv(4096)
s.sendall(f"GET /clear HTTP/1.1\r\n{{head}}\r\n".encode()); print("clear", s.recv(4096))
"#,
        vault.good
    );
    let (stdout, stderr) = printed(&server, PYTHON, &code).await;
    assert_eq!(stdout.matches(" refused ").count(), 15, "{stdout}{stderr}");
    assert!(stdout.contains("second request 1 1\nno HTTP/2\nclear b''\n"), "{stdout}{stderr}");
    assert!(stderr.contains(&format!("{} takes TLS alone", vault.good)), "{stderr}");
    let seen = vault.seen();
    assert!(seen.len() == 1 && seen[0].starts_with("GET /first "), "{seen:#?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_and_rates_hold_for_each_request() {
    let (vault, origin) = (Vault::start("value-of-the-vault").await, Origin::start().await);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    let Vault { ruled, good, roots, .. } = &vault;
    write!(
        file,
        r#"
        [network.reads]
        hosts = ["{ruled}", "{http}"]
        every_token = true
        methods = ["GET"]
        paths = ["/v1/", "/hello"]
        [network.slow]
        hosts = ["{good}"]
        every_token = true
        methods = ["GET"]
        requests_per_minute = 2
        [network.tunnels]
        hosts = ["{tls}"]
        every_token = true
        requests_per_minute = 1
        [opened]
        ca_file = "{roots}"
        "#,
        http = origin.http,
        tls = origin.tls,
        roots = roots.path().display()
    )
    .expect("written");
    let server = Server::with(&[("--config", &file.path().display().to_string())]).await;
    let code = format!(
        r#"
import requests, socket, ssl, http.client
session = requests.Session()
for base in ["https://{ruled}", "http://{http}"]:
    for method, path in [("GET", "/hello"), ("POST", "/hello"), ("GET", "/v2/x"), ("GET", "/v1/a%2f..%2fb")]:
        answer = session.request(method, base + path, headers={{"X-HTTP-Method-Override": "DELETE",
            "X_HTTP_Method_Override": "DELETE", "X-Override-URL": "/v2/x"}})
        print(base[:5], method, path, answer.status_code, answer.reason)
raw = socket.create_connection(("127.0.0.1", 3128), timeout=30)
raw.sendall(b"GET http://{http}/v1/../hello HTTP/1.1\r\nHost: {http}\r\n\r\n")
print("dots", raw.recv(4096)[:12])
raw = socket.create_connection(("127.0.0.1", 3128), timeout=30)
raw.sendall(b"CONNECT {http} HTTP/1.1\r\nHost: {http}\r\n\r\n"); raw.recv(4096)
raw.sendall(b"DELETE /hello HTTP/1.1\r\nHost: {http}\r\n\r\n"); print("tunnel", raw.recv(4096))
for _ in range(3):
    answer = session.get("https://{good}/")
    print("rate", answer.status_code, answer.headers.get("Retry-After"))
for _ in range(2):
    try: print("tunnel", requests.get("https://{tls}/hello", verify=False).status_code)
    except Exception as error: print("tunnel", "requests_per_minute" in str(error))
"#,
        http = origin.http,
        tls = origin.tls
    );
    let (stdout, stderr) = printed(&server, PYTHON, &code).await;
    for scheme in ["https", "http:"] {
        for (request, want) in [
            ("GET /hello", "200 OK"),
            ("POST /hello", "403 `methods` of the policy reads lacks POST"),
            ("GET /v2/x", "403 `paths` of the policy reads lacks /v2/x"),
            ("GET /v1/a%2f..%2fb", "403 the path of the request to"),
        ] {
            assert!(stdout.contains(&format!("{scheme} {request} {want}")), "{scheme} {request}: {stdout}{stderr}");
        }
    }
    assert!(stdout.contains("dots b'HTTP/1.1 403'\ntunnel b''\n"), "{stdout}");
    assert!(stdout.contains("rate 200 None\nrate 200 None\nrate 429 "), "{stdout}");
    assert!(!stdout.contains("rate 429 None"), "{stdout}");
    assert!(stdout.ends_with("tunnel 200\ntunnel True\n"), "{stdout}{stderr}");
    let seen = vault.seen();
    assert!(seen.len() == 3 && !seen.iter().any(|request| request.to_lowercase().contains("override")), "{seen:#?}");
    assert_eq!(origin.seen(), 2);
    server.stop().await;
}

/// Certificates that the authority's own key has signed, also for hosts that are not opened.
#[tokio::test(flavor = "multi_thread")]
async fn python_accepts_the_authority_for_the_opened_hosts_alone() {
    let hosts = ["api.example.com"].map(|host| Host::parse(host).expect("a host"));
    let authority = Multiplexer::trusting(None).expect("a carrier").authority(&hosts).expect("an authority");
    let pem =
        |label: &str, der: &[u8]| format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der));
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "Sandbox");
    let key = KeyPair::try_from(authority.key_der.as_slice()).expect("a key");
    let issuer = Issuer::new(params, key);
    let mut code = format!(
        r#"
import ssl
open("/tmp/authority", "w").write("""{}""")
def handshake(host, leaf):
    open("/tmp/leaf", "w").write(leaf)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile="/tmp/authority")
    server.load_cert_chain("/tmp/leaf")
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(to_client, to_server, server_hostname=host),
            server.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(3):
        for end in ends:
            try: end.do_handshake()
            except ssl.SSLWantReadError: pass
            except ssl.SSLCertVerificationError as error: return error.verify_message
    return "accepted"
"#,
        authority.certificate_pem
    );
    for host in ["api.example.com", "example.com", "api.example.org", "127.0.0.2", "::1"] {
        let leaf = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new([host.to_owned()]).expect("a host");
        params.use_authority_key_identifier_extension = true;
        let made = params.signed_by(&leaf, &issuer).expect("a certificate");
        let both = [pem("CERTIFICATE", made.der()), pem("PRIVATE KEY", &leaf.serialize_der())].concat();
        writeln!(code, "print('{host}', handshake('{host}', \"\"\"{both}\"\"\"))").expect("a text");
    }
    let server = Server::with(&[("SANDBOX_STANDBY__TOTAL_MAX", "0")]).await;
    let (stdout, stderr) = printed(&server, PYTHON, &code).await;
    let refused = ["example.com", "api.example.org", "127.0.0.2", "::1"];
    assert!(stdout.starts_with("api.example.com accepted\n"), "{stdout}{stderr}");
    for host in refused {
        let why = format!("\n{host} ");
        let line = stdout.split(&why).nth(1).unwrap_or_else(|| panic!("{stdout}{stderr}"));
        assert!(line.starts_with("permitted subtree violation") || line.starts_with("excluded subtree"), "{stdout}");
    }
    server.stop().await;
}
