//! What one program may use up: ten thousand connections, in turn and at once, the open files of its channel process,
//! and all processes, so that this one cannot start.

use std::fs;

use serde_json::json;

use super::{Origin, printed, run, server};
use crate::support::{calls::post, process::Process, server::Server, until};

/// Few enough for the open files of one process, and for all processes of a sandbox.
const OF_A_PROCESS: usize = 920;
const PROCESSES: usize = 11;
/// What the server may grow by, as where every channel is full.
const GROWN_MIB_MAX: u64 = 64;

fn program(origin: &Origin) -> String {
    format!(
        r#"
import errno, os, signal, socket, time, urllib.request
ready, tell = os.pipe()
def hold():
    held = []
    for n in range({OF_A_PROCESS}):
        s = socket.socket()
        s.setblocking(False)
        # Beyond those that the listener keeps for its process, the kernel goes on trying.
        assert s.connect_ex(("127.0.0.1", 3128)) in (0, errno.EINPROGRESS)
        held.append(s)
    os.write(tell, b"x")
    signal.pause()
children = []
for n in range({PROCESSES}):
    child = os.fork()
    if child == 0:
        try: hold()
        finally: os._exit(1)
    children.append(child)
told = b""
while len(told) < {PROCESSES}: told += os.read(ready, {PROCESSES})
open("/data/held", "w").close()
while not os.path.exists("/data/go"): time.sleep(0.1)
ended = [os.waitpid(child, os.WNOHANG)[0] for child in children]
print("held", ended.count(0), flush=True)
for child in children: os.kill(child, signal.SIGKILL)
for child in children: os.waitpid(child, 0)
print(urllib.request.urlopen("http://{http}/hello", timeout=60).read().decode())
"#,
        http = origin.http
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_at_once_leave_their_program_and_its_neighbour_at_work() {
    let origin = Origin::start().await;
    let hosts = origin.http.to_string();
    let server = Process::start(&[
        ("SANDBOX_NETWORK__LOCAL", hosts.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_LIMITS__WALL_MS", "120000"),
        // The kernel counts the sockets.
        ("SANDBOX_LIMITS__MEMORY_BYTES", "536870912"),
    ])
    .await;
    let reaches = async || {
        let code = format!("curl -sS http://{}/hello", origin.http);
        let status = post(&server, "/v1/runs", json!({"language": "bash", "code": code})).await;
        assert_eq!(status["result"]["stdout"], "hello", "{status}");
    };
    // What is allocated once is there.
    reaches().await;
    let before = server.memory_peak_bytes();
    let files = server.root().join("crowd/files");
    let body = json!({"conversationId": "crowd", "language": "python", "code": program(&origin), "wait": 120});
    let (status, ()) = tokio::join!(post(&server, "/v1/runs", body), async {
        until("all connections are held", async || files.join("held").exists()).await;
        reaches().await;
        fs::write(files.join("go"), "").expect("written");
    });
    assert_eq!(status["result"]["stdout"], format!("held {PROCESSES}\nhello\n"), "{status}");
    let grown = server.memory_peak_bytes().saturating_sub(before) >> 20;
    println!("the server grew by {grown} MiB");
    assert!(grown <= GROWN_MIB_MAX, "{grown} MiB");
    server.stop().await;
}

/// Asks for a page through the proxy of the sandbox; what came last, or the error.
const ASK: &str = r#"
import os, signal, socket
def ask(seconds):
    try:
        s = socket.create_connection(("127.0.0.1", 3128), timeout=seconds)
        s.sendall(b"GET http://ORIGIN/hello HTTP/1.0\r\nHost: ORIGIN\r\n\r\n")
        got = b""
        while piece := s.recv(4096): got += piece
        return got[-5:]
    except OSError as error: return error
children = []
def kill():
    for child in children: os.kill(child, signal.SIGKILL)
    for child in children: os.waitpid(child, 0)
"#;

/// Runs a program after [`ASK`], with this limit and no standby, and expects what it prints.
async fn prints_with(limit: (&str, &str), program: &str, expected: &str) {
    let origin = Origin::start().await;
    let hosts = origin.http.to_string();
    let server = Server::with(&[
        ("SANDBOX_NETWORK__LOCAL", hosts.as_str()),
        ("SANDBOX_STANDBY__TOTAL_MAX", "0"),
        ("SANDBOX_LIMITS__WALL_MS", "120000"),
        limit,
    ])
    .await;
    let code = format!("{ASK}{program}").replace("ORIGIN", &hosts);
    let status = run(&server, &json!({"language": "python", "code": code})).await;
    assert_eq!(status["result"]["stdout"], expected, "{status}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_go_on_after_more_connections_than_their_process_may_have_open_files() {
    let program = r#"
ready, tell = os.pipe()
def hold():
    held = [socket.create_connection(("127.0.0.1", 3128), timeout=20) for n in range(25)]
    os.write(tell, b"x")
    signal.pause()
for n in range(3):
    child = os.fork()
    if child == 0:
        try: hold()
        finally: os._exit(1)
    children.append(child)
told = b""
while len(told) < 3: told += os.read(ready, 3)
# It waits: the process has no more files.
print(type(ask(2)).__name__)
kill()
print(ask(60))
"#;
    prints_with(("SANDBOX_LIMITS__OPEN_FILES_MAX", "48"), program, "TimeoutError\nb'hello'\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn channels_start_once_there_is_room_for_their_process() {
    let program = r"
try:
    while child := os.fork(): children.append(child)
    signal.pause()
except OSError: pass
# No process can start for them.
closed = [got == b'' or isinstance(got, ConnectionError) for got in (ask(20), ask(20))]
kill()
print(len(children) > 10, closed, ask(20))
";
    prints_with(("SANDBOX_LIMITS__PROCESSES_MAX", "40"), program, "True [True, True] b'hello'\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_connections_leave_the_sandbox_and_its_neighbour_at_work() {
    let origin = Origin::start().await;
    let server = server(&origin).await;
    let code = format!(
        r#"
import socket, resource, threading
count = [0, 0]
def many():
    for n in range(1250):
        try:
            s = socket.create_connection(("127.0.0.1", 3128), timeout=60)
            s.sendall(b"GET http://{0}/hello HTTP/1.0\r\nHost: {0}\r\n\r\n")
            if n % 5 == 4: s.close(); count[1] += 1; continue
            got = b""
            while piece := s.recv(4096): got += piece
            count[0] += got.endswith(b"hello"); s.close()
        except OSError as error: print(error)
threads = [threading.Thread(target=many) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
print(count)
"#,
        origin.http
    );
    let body = json!({"language": "python", "code": code});
    let (status, neighbour) = tokio::join!(run(&server, &body), async {
        origin.reached(500).await;
        printed(&server, "bash", &format!("curl -sS http://{}/hello", origin.http)).await
    });
    assert_eq!(status["result"]["stdout"], "[8000, 2000]\n", "{status}");
    assert_eq!(neighbour.0, "hello", "{}", neighbour.1);
    server.stop().await;
}
