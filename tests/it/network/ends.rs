//! How connections end: half of one, by either side, and all of it at once. None keeps its channel.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::{Origin, run};
use crate::support::{server::Server, until};

/// Connections of each kind: with the four kinds and two proxies, more than three times the channels of a sandbox.
const EACH: usize = 25;

/// A host that ends connections, each kind at a port of its own.
struct Ends {
    /// Answers when its client has ended its half.
    answers: SocketAddr,
    /// Ends its half first, and reads on.
    first: SocketAddr,
    /// Resets when something comes.
    resets: SocketAddr,
    /// Says `ready` and reads until its client resets.
    reset: SocketAddr,
    /// What was read after its own half was ended, in bytes.
    read: Arc<AtomicUsize>,
    /// Connections that were at their end, of all but `resets`.
    ended: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Ends {
    async fn start() -> Self {
        let (read, ended, mut tasks) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), JoinSet::new());
        let mut addresses = Vec::new();
        for kind in 0..4 {
            let listener = TcpListener::bind("127.0.0.2:0").await.expect("a port");
            addresses.push(listener.local_addr().expect("an address"));
            let (read, ended) = (Arc::clone(&read), Arc::clone(&ended));
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let (read, ended) = (Arc::clone(&read), Arc::clone(&ended));
                    connections.spawn(async move {
                        match kind {
                            0 => answer(stream).await,
                            1 => {
                                read.fetch_add(end_first(stream).await, Ordering::Relaxed);
                            }
                            2 => return reset(stream).await,
                            _ => be_reset(stream).await,
                        }
                        ended.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
        let [answers, first, resets, reset] = addresses[..] else { unreachable!("there are four") };
        Self { answers, first, resets, reset, read, ended, _tasks: tasks }
    }
}

async fn answer(mut stream: TcpStream) {
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.expect("its end");
    stream.write_all(format!("got {}", got.len()).as_bytes()).await.expect("written");
}

async fn end_first(mut stream: TcpStream) -> usize {
    stream.write_all(b"that is all").await.expect("written");
    stream.shutdown().await.expect("ended");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await.expect("its end")
}

async fn reset(mut stream: TcpStream) {
    let _ = stream.read_u8().await;
    stream.set_zero_linger().expect("set");
}

async fn be_reset(mut stream: TcpStream) {
    stream.write_all(b"ready").await.expect("written");
    // An end or an error.
    drop(stream.read_to_end(&mut Vec::new()).await);
}

fn program(ends: &Ends, origin: &Origin) -> String {
    format!(
        r#"
import socket, struct
def opened(to, socks):
    s = socket.create_connection(("127.0.0.1", 3128), timeout=20)
    host, port = to.split(":")
    if socks:
        s.sendall(b"\x05\x01\x00\x05\x01\x00\x01" + socket.inet_aton(host) + int(port).to_bytes(2, "big"))
        assert s.recv(2) == b"\x05\x00"
        assert s.recv(10)[:2] == b"\x05\x00"
    else:
        s.sendall(f"CONNECT {{to}} HTTP/1.1\r\nHost: {{to}}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"): head += s.recv(1)
        assert b" 200 " in head, head
    return s
def whole(s):
    got = b""
    try:
        while piece := s.recv(65536): got += piece
    except ConnectionError: got += b" reset"
    return got
count = [0] * 5
for n in range({EACH}):
    for socks in [False, True]:
        s = opened("{answers}", socks); s.sendall(b"x" * 1000); s.shutdown(socket.SHUT_WR)
        count[0] += whole(s) == b"got 1000"; s.close()
        s = opened("{first}", socks); ended = whole(s) == b"that is all"
        s.sendall(b"y" * 100); s.shutdown(socket.SHUT_WR)
        count[1] += ended; s.close()
        s = opened("{resets}", socks); s.sendall(b"z")
        count[2] += whole(s) in [b"", b" reset"]; s.close()
        s = opened("{reset}", socks); s.recv(1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)); s.close()
        count[3] += 1
    s = socket.create_connection(("127.0.0.1", 3128), timeout=20)
    s.sendall(b"GET http://{http}/hello HTTP/1.1\r\nHost: {http}\r\n\r\n"); s.shutdown(socket.SHUT_WR)
    count[4] += whole(s).endswith(b"hello"); s.close()
print(count)
print(len([opened("{silent}", n % 2) for n in range(64)]), "channels")
"#,
        answers = ends.answers,
        first = ends.first,
        resets = ends.resets,
        reset = ends.reset,
        http = origin.http,
        silent = origin.silent,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn half_closed_and_reset_connections_end_and_give_their_channels_back() {
    let (origin, ends) = (Origin::start().await, Ends::start().await);
    let hosts = [ends.answers, ends.first, ends.resets, ends.reset, origin.http, origin.silent];
    let hosts = hosts.map(|host| host.to_string()).join(",");
    let wall = ("SANDBOX_LIMITS__WALL_MS", "120000");
    let server = Server::with(&[("SANDBOX_NETWORK__LOCAL", &hosts), ("SANDBOX_STANDBY__TOTAL_MAX", "0"), wall]).await;
    let status = run(&server, &json!({"language": "python", "code": program(&ends, &origin)})).await;
    let twice = 2 * EACH;
    let want = format!("[{twice}, {twice}, {twice}, {twice}, {EACH}]\n64 channels\n");
    assert_eq!(status["result"]["stdout"], want, "{status}");
    until("the host sees each end", async || ends.ended.load(Ordering::Relaxed) == 3 * twice).await;
    assert_eq!(ends.read.load(Ordering::Relaxed), 100 * twice, "what comes after the host's own end arrives");
    server.stop().await;
}
