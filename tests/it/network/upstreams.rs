//! Hosts whose answers attack their reader, and programs whose headers hold a second request: what reaches the other
//! side is one message, in bounded memory.

use std::io::Write as _;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{printed, vault::Vault};
use crate::support::{calls::post, process::Process, server::Server};

const VALUE: &str = "value-of-the-vault";
/// What the server may grow by, as where every channel is full.
const GROWN_MIB_MAX: u64 = 64;

/// Policies for the vault: plain, opened for a rule, and opened for a secret.
fn config(vault: &Vault) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a file");
    let Vault { good, ruled, plain, roots, .. } = vault;
    write!(
        file,
        r#"
        [network.api]
        hosts = ["{good}", "{plain}"]
        every_token = true
        [network.ruled]
        hosts = ["{ruled}"]
        every_token = true
        methods = ["GET"]
        [secrets.api]
        hosts = ["{good}"]
        [opened]
        ca_file = "{}"
        "#,
        roots.path().display()
    )
    .expect("written");
    file
}

fn settings(config: &NamedTempFile) -> [(&str, &str); 4] {
    [
        ("--config", config.path().to_str().expect("a path")),
        ("SANDBOX_SECRETS__API", VALUE),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_LIMITS__WALL_MS", "120000"),
    ]
}

/// Python with `connected(scheme, host)`, which returns a socket and what stands before a path there.
const CONNECTED: &str = r#"
import re, socket, ssl
def connected(scheme, host):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=20)
    if scheme == "http": return s, "http://" + host
    s.sendall(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert b" 200 " in s.recv(4096)
    return ssl.create_default_context().wrap_socket(s, server_hostname="127.0.0.2"), ""
def is_whole(got):
    head, end, body = got.partition(b"\r\n\r\n")
    length = re.search(rb"\r\ncontent-length: (\d+)", head.lower())
    return bool(end) and (len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n"))
def read(s):
    s.settimeout(5)
    got = b""
    try:
        while piece := s.recv(65536):
            got += piece
            # What follows a whole answer is there at once.
            s.settimeout(0.7 if is_whole(got) else 5)
    except OSError: pass
    return got
"#;

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_small_while_opened_hosts_send_bombs_and_bodies_without_end() {
    let vault = Vault::start(VALUE).await;
    let config = config(&vault);
    let server = Process::start(&settings(&config)).await;
    let run = async |code: &str| -> Value {
        post(&server, "/v1/runs", json!({"language": "python", "code": code, "wait": 120})).await
    };
    let Vault { good, ruled, .. } = &vault;
    let first = run(&format!("import requests\nprint(requests.get('https://{ruled}/').text)")).await;
    assert_eq!(first["result"]["stdout"], "hello\n", "{first}");
    let before = server.memory_peak_bytes();
    let code = format!(
        r#"{CONNECTED}
import requests, threading, time
def some(url, most):
    with requests.get(url, stream=True) as answer:
        got = 0
        for piece in answer.raw.stream(65536, decode_content=False):
            got += len(piece)
            if got >= most: break
        return answer.status_code, answer.headers.get("Content-Encoding"), got
status, encoding, got = some("https://{ruled}/bomb", 1 << 30)
print("bomb", status, encoding, 0 < got < 4 << 20)
print("searched bomb", some("https://{good}/bomb", 1 << 30)[:2])
held = []
for n in range(40):
    s, _ = connected("https", ["{good}", "{ruled}"][n % 2])
    s.sendall(f"GET /endless HTTP/1.1\r\nHost: {{['{good}', '{ruled}'][n % 2]}}\r\n\r\n".encode())
    held.append(s)
done = []
def pour(host): done.append(some(f"https://{{host}}/endless", 30 << 20)[2] >= 30 << 20)
threads = [threading.Thread(target=pour, args=[host]) for host in ["{good}", "{ruled}"] * 4]
[t.start() for t in threads]; [t.join() for t in threads]
print("endless", all(done), len(done), all(s.recv(12) == b"HTTP/1.1 200" for s in held))
"#
    );
    let status = run(&code).await;
    let want = "bomb 200 gzip True\nsearched bomb (502, None)\nendless True 8 True\n";
    assert_eq!(status["result"]["stdout"], want, "{status}");
    let grown = server.memory_peak_bytes().saturating_sub(before) >> 20;
    println!("the server grew by {grown} MiB");
    assert!(grown <= GROWN_MIB_MAX, "{grown} MiB");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn split_answer_of_a_host_is_one_answer_or_none() {
    let vault = Vault::start(VALUE).await;
    let config = config(&vault);
    let server = Server::with(&settings(&config)).await;
    let Vault { good, ruled, plain, .. } = &vault;
    let code = format!(
        r#"{CONNECTED}
for scheme, host in [("http", "{plain}"), ("https", "{ruled}"), ("https", "{good}")]:
    for path in ["/second", "/folded", "/bare-cr", "/nul", "/bare-lf", "/both-lengths", "/lengths", "/switch"]:
        s, base = connected(scheme, host)
        got = b""
        for one in [path, "/after"]:
            try: s.sendall(f"GET {{base}}{{one}} HTTP/1.1\r\nHost: {{host}}\r\n\r\n".encode())
            except OSError: break
            got += read(s)
        answers = got.split(b"HTTP/1.1 ")[1:]
        split = b"never" in got or b"\nx-injected" in got.lower() or len(answers) > 2
        after = [answer for answer in answers[1:] if answer.startswith(b"200") and b"hello" not in answer]
        print(scheme, path, "SPLIT" if split or after else "one", got)
    s, base = connected(scheme, host)
    s.sendall(f"GET {{base}}/after HTTP/1.1\r\nHost: {{host}}\r\nConnection: close\r\n\r\n".encode())
    print("alive", b"hello" in read(s))
"#
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    assert_eq!((stdout.matches(" one ").count(), stdout.matches("SPLIT").count()), (24, 0), "{stdout}{stderr}");
    assert_eq!(stdout.matches("alive True").count(), 3, "{stdout}{stderr}");
    assert_eq!(stdout.matches("/second one b'HTTP/1.1 200 OK").count(), 3, "the first answer arrives: {stdout}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn header_injection_by_a_program_reaches_its_host_as_one_request() {
    let vault = Vault::start(VALUE).await;
    let config = config(&vault);
    let server = Server::with(&settings(&config)).await;
    let Vault { good, plain, .. } = &vault;
    let code = format!(
        r#"{CONNECTED}
import os
token = os.environ["API_TOKEN"]
for scheme, host in [("http", "{plain}"), ("https", "{good}")]:
    def head(path, method="GET"): return f"{{method}} {{base}}{{path}} HTTP/1.1\r\nHost: {{host}}\r\n"
    for n in range(9):
        s, base = connected(scheme, host)
        whole = [
            head("/0") + f"Authorization: {{token}}\nX-Injected: {{token}}\r\n\r\n",
            head("/1") + f"Authorization: {{token}}\rX-Injected: 1\r\n\r\n",
            head("/2") + f"Authorization: {{token}}\r\n X-Injected: 1\r\n\r\n",
            f"GET {{base}}/3\r\nX-Injected: 1 HTTP/1.1\r\nHost: {{host}}\r\n\r\n",
            f"GET {{base}}/4 HTTP/1.1\nHost: evil.example\r\nHost: {{host}}\r\n\r\n",
            head("/5") + f"X-Injected : {{token}}\r\n\r\n",
            head("/6%0d%0aX-Injected:%201%0d%0a%0d%0aGET%20/smuggled") + "\r\n",
            head("/7") + "Content-Length: 46\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            head("/8") + f"Authorization: {{token}}\r\nConnection: host, authorization\r\n\r\n",
        ][n]
        s.sendall(whole.encode())
        print(scheme, n, read(s)[:60])
"#
    );
    let (stdout, stderr) = printed(&server, "python", &code).await;
    assert_eq!(stdout.lines().count(), 18, "{stdout}{stderr}");
    let seen = vault.seen();
    let mut paths = Vec::new();
    for request in &seen {
        let (head, _) = request.split_once("\r\n\r\n").expect("a head");
        let lines: Vec<_> = head.split("\r\n").collect();
        assert!(lines.iter().all(|line| !line.contains(['\r', '\n', '\0'])), "{request:?}");
        let hosts: Vec<_> = lines.iter().filter(|line| line.to_lowercase().starts_with("host:")).collect();
        let [host] = hosts[..] else { panic!("{request:?}") };
        assert!([good, plain].iter().any(|own| host.ends_with(&own.to_string())), "{request:?}");
        let path = lines[0].split(' ').nth(1).expect("a path");
        let has_value = lines.iter().any(|line| line.contains(VALUE));
        assert!(!has_value || path == "/0" && host.ends_with(&good.to_string()), "{request:?}");
        paths.push(path.get(..2).unwrap_or(path));
    }
    paths.sort_unstable();
    // A bare line feed ends a line (RFC 9112, section 2.2), so that the first has two headers.
    assert_eq!(paths, ["/0", "/0", "/6", "/6", "/7", "/7", "/8", "/8"], "{seen:#?}{stdout}");
    assert!(seen.iter().all(|request| !request.contains(&format!("X-Injected: {VALUE}"))), "{seen:#?}");
    server.stop().await;
}
