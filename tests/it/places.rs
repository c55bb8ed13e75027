//! Places of the listener: clients without a token, clients that read slowly or not at all, and idle connections.

mod last_answers;
mod pieces;
mod probes;
mod tokens;

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::support::{FakeServer, calls::create, fake_server::BOTH, server::TOKEN, until::PATIENCE};

const PLACES: (&str, &str) = ("SANDBOX_SERVER__CONNECTIONS_MAX", "20");
/// The longest that a client with a token and a health probe may wait.
const WAIT_MAX: Duration = Duration::from_secs(5);
const BIG_BYTES: u64 = 50 << 20;

/// What an attacker sends on each of its connections; it connects again as soon as the server closes one.
#[derive(Debug, Clone)]
enum Attack {
    /// The same request every 200 ms, with its answers read.
    Asks(String),
    /// A request whose answer it does not read, then a byte every 100 ms, of the body if the request has one.
    Unread(String),
    /// A piece of a head every 50 ms.
    Drips,
    Silent,
}

impl Attack {
    async fn on(&self, from: Ipv4Addr, address: SocketAddr) -> std::io::Result<()> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((from, 0).into())?;
        let mut stream = socket.connect(address).await?;
        let mut answer = vec![0; 1 << 16];
        match self {
            Self::Asks(request) => loop {
                stream.write_all(request.as_bytes()).await?;
                if stream.read(&mut answer).await? == 0 {
                    return Ok(());
                }
                sleep(Duration::from_millis(200)).await;
            },
            Self::Unread(request) => {
                stream.write_all(request.as_bytes()).await?;
                loop {
                    sleep(Duration::from_millis(100)).await;
                    // Fails once the server has closed: what follows is never a valid head.
                    stream.write_all(b" ").await?;
                }
            }
            Self::Drips => loop {
                stream.write_all(b"GET / HTTP/1.1\r\nx: ").await?;
                sleep(Duration::from_millis(50)).await;
            },
            Self::Silent => stream.read(&mut answer).await.map(drop),
        }
    }
}

/// Attackers until they are dropped, each from an address of its own: one address has a share of its own.
fn attackers(count: usize, attacks: &[Attack], address: SocketAddr) -> JoinSet<()> {
    let mut all = JoinSet::new();
    for (n, attack) in (2..=254).cycle().take(count).zip(attacks.iter().cycle()) {
        let (from, attack) = (Ipv4Addr::new(127, 0, 0, n), attack.clone());
        all.spawn(async move {
            loop {
                drop(attack.on(from, address).await);
                sleep(Duration::from_millis(5)).await;
            }
        });
    }
    all
}

fn get(path: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{more}\r\n")
}

/// Sends one request on a connection of its own and reads to the end.
async fn ask(address: SocketAddr, path: &str, more: &str) -> String {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(get(path, &format!("{more}connection: close\r\n")).as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    match timeout(WAIT_MAX, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => format!("failed: {error}"),
        Err(_) => "no answer".to_owned(),
    }
}

fn with_token() -> String {
    bearer(TOKEN)
}

fn bearer(token: &str) -> String {
    format!("authorization: Bearer {token}\r\n")
}

/// The path and query of a link to a large file.
async fn large_file(server: &FakeServer) -> String {
    server.run("large", "write a.txt x").await;
    let file = std::fs::File::create(server.root.join("large/files/big.bin")).expect("a file");
    file.set_len(BIG_BYTES).expect("a length");
    let url = format!("http://{}/v1/conversations/large/files", server.address);
    let listed = server.http.get(url).bearer_auth(TOKEN).send().await.expect("an answer");
    let listed: Value = listed.json().await.expect("JSON");
    let files = listed["files"].as_array().expect("files");
    let big = files.iter().find(|file| file["path"] == "big.bin").expect("the file");
    let url = big["url"].as_str().expect("a link");
    url[url.find("/files/").expect("its path")..].to_owned()
}

/// Asserts that a health probe and a request with a token are answered in time while others attack.
async fn others_are_answered(server: &FakeServer, what: &str, attacks: &[Attack]) {
    for count in [20, 200] {
        let held = attackers(count, attacks, server.address);
        sleep(Duration::from_millis(700)).await;
        let mut slowest = Duration::ZERO;
        for _ in 0..6 {
            for (path, more) in [("/healthz", String::new()), ("/v1/runners", with_token())] {
                let from = Instant::now();
                let answer = ask(server.address, path, &more).await;
                slowest = slowest.max(from.elapsed());
                assert!(answer.starts_with("HTTP/1.1 200"), "{count} of {what}, {path}: {answer:.80}");
            }
        }
        println!("{count} of {what}: the slowest newcomer was answered after {slowest:?}");
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_a_token_do_not_lock_out_others() {
    let server = FakeServer::with(&[PLACES]).await;
    let link = large_file(&server).await;
    let attacks = [
        Attack::Asks(get("/healthz", "")),
        Attack::Asks(get("/mcp/events", "authorization: Bearer guessed-guessed-guessed\r\n")),
        Attack::Unread(get(&link, "")),
        Attack::Drips,
        Attack::Silent,
    ];
    for attack in attacks {
        others_are_answered(&server, &format!("{attack:?}"), &[attack]).await;
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_without_progress_are_ended_and_slow_or_silent_streams_are_not() {
    let server = FakeServer::with(&[PLACES, ("SANDBOX_SERVER__WRITE_STALL_MS", "3000")]).await;
    let link = large_file(&server).await;
    let open = async |path: &str, more: &str| {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        stream.write_all(get(path, more).as_bytes()).await.expect("sent");
        stream
    };
    let mut events = open("/mcp/events", &with_token()).await;
    let mut steady = open(&link, "range: bytes=0-7999999\r\nconnection: close\r\n").await;
    let steadily = async {
        let (mut read, mut piece) = (0, vec![0; 64 << 10]);
        loop {
            match steady.read(&mut piece).await.expect("a piece") {
                0 => return read,
                some => read += some,
            }
            sleep(Duration::from_millis(30)).await;
        }
    };
    let unread = async {
        let mut held = Vec::new();
        for _ in 0..8 {
            held.push(open(&link, "").await);
        }
        sleep(Duration::from_secs(9)).await;
        for mut stream in held {
            let mut read = Vec::new();
            drop(stream.read_to_end(&mut read).await);
            assert!(read.starts_with(b"HTTP/1.1 200") && (read.len() as u64) < BIG_BYTES, "{} bytes", read.len());
        }
    };
    let (read, ()) = tokio::join!(steadily, unread);
    assert!(read > 8_000_000, "{read} bytes of a slow reader");
    let mut head = vec![0; 4096];
    let length = events.read(&mut head).await.expect("a head");
    assert!(head[..length].starts_with(b"HTTP/1.1 200"));
    let more = timeout(Duration::from_millis(100), events.read(&mut head)).await;
    assert!(!matches!(more, Ok(Ok(0) | Err(_))), "a stream with nothing to send stays: {more:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_give_way_to_clients_that_wait() {
    let server = FakeServer::with(&[PLACES]).await;
    let link = large_file(&server).await;
    // Each reads a little, too often for the limit on standing still.
    let mut readers = JoinSet::new();
    for _ in 0..30 {
        let (address, request) = (server.address, get(&link, ""));
        readers.spawn(async move {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(request.as_bytes()).await?;
            loop {
                sleep(Duration::from_millis(500)).await;
                if stream.read(&mut [0; 512]).await? == 0 {
                    return Ok::<_, std::io::Error>(());
                }
            }
        });
    }
    sleep(Duration::from_secs(1)).await;
    let from = Instant::now();
    let mut answer = String::new();
    while from.elapsed() < PATIENCE && !answer.starts_with("HTTP/1.1 200") {
        answer = ask(server.address, "/", "").await;
    }
    println!("a client without a token was answered after {:?}", from.elapsed());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer:.200}");
    readers.shutdown().await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_kept_longer_than_a_head_may_take() {
    const HEAD: (&str, &str) = ("SANDBOX_SERVER__HEADER_READ_MS", "1500");
    // An idle connection of this server is kept for two minutes.
    let server = FakeServer::with(&[HEAD]).await;
    let closed = async |mut stream: TcpStream| {
        let mut rest = [0; 4096];
        while timeout(PATIENCE, stream.read(&mut rest)).await.expect("it closes").is_ok_and(|n| n > 0) {}
    };
    let connect = async |server: &FakeServer| TcpStream::connect(server.address).await.expect("connected");
    let answered = async |stream: &mut TcpStream| {
        stream.write_all(get("/healthz", "").as_bytes()).await.expect("sent");
        let mut answer = vec![0; 4096];
        let length = stream.read(&mut answer).await.expect("an answer");
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"));
    };
    // Nothing is sent.
    closed(connect(&server).await).await;
    let mut begun = connect(&server).await;
    answered(&mut begun).await;
    sleep(Duration::from_secs(3)).await;
    answered(&mut begun).await;
    begun.write_all(b"GET /hea").await.expect("sent");
    // A head that is not finished.
    closed(begun).await;
    server.stop().await;
    let server = FakeServer::with(&[HEAD, ("SANDBOX_SERVER__IDLE_MS", "4000")]).await;
    let mut idle = connect(&server).await;
    let from = Instant::now();
    answered(&mut idle).await;
    closed(idle).await;
    assert!(from.elapsed() >= Duration::from_secs(4), "{:?}", from.elapsed());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_have_an_origin_of_their_own_by_setting() {
    let server = FakeServer::with(&[("SANDBOX_FILES__BASE_URL", "http://files.test")]).await;
    let link = large_file(&server).await;
    let at = async |host: &str, path: &str, more: &str| {
        let mut stream = TcpStream::connect(server.address).await.expect("connected");
        let range = "range: bytes=0-3\r\n";
        let request = format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{range}{more}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.expect("an answer");
        String::from_utf8_lossy(&answer).into_owned()
    };
    let answer = at("files.test", &link, "").await;
    assert!(answer.starts_with("HTTP/1.1 206") && answer.ends_with("\r\n\r\n\0\0\0\0"), "{answer}");
    let moved = at("localhost", &link, "").await;
    assert!(moved.starts_with("HTTP/1.1 307") && moved.contains(&format!("location: http://files.test{link}\r\n")));
    for (host, path, status) in [
        ("files.test", "/", 404),
        ("files.test", "/v1/runners", 404),
        ("files.test", "/healthz", 200),
        ("localhost", "/v1/runners", 200),
    ] {
        let answer = at(host, path, &with_token()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host} {path}: {answer}");
    }
    let listed = server.run("large", "write b.txt x").await.to_string();
    assert!(listed.contains("http://files.test/files/large/b.txt"), "{listed}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ready_says_what_stands_by_to_operators_only() {
    let server = FakeServer::start().await;
    let (_, ann) = create(&server, json!({"name": "ann", "owner": "ann"})).await;
    for path in ["/readyz", "/health"] {
        for (more, shown) in [(String::new(), false), (bearer("x"), false), (bearer(&ann), false), (with_token(), true)]
        {
            let answer = ask(server.address, path, &more).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            assert_eq!(answer.contains("standbys"), shown, "{answer}");
        }
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_tokens_are_answered_late_and_valid_ones_at_once() {
    for (path, status) in [("/v1/runners", 401), ("/readyz", 200), ("/health", 200)] {
        let server = FakeServer::start().await;
        let asked = async |token: &str, status: u16| {
            let from = Instant::now();
            let answer = ask(server.address, path, &bearer(token)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
            from.elapsed()
        };
        let guess = async |n: usize| asked(&format!("guess-{n:020}"), status).await;
        // Ten at once are free, and one more every two seconds.
        let late = async { while guess(0).await < Duration::from_secs(1) {} };
        timeout(PATIENCE, late).await.expect("wrong tokens are answered late");
        // After its delay one more guess is free.
        let (one, other, valid) = tokio::join!(guess(11), guess(12), asked(TOKEN, 200));
        let slow = one.max(other);
        assert!(valid < slow, "{path}: {valid:?}, {slow:?}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_least_recently_used_idle_session_makes_room_for_another() {
    for settings in [("SANDBOX_SERVER__SESSIONS_MAX", "3"), ("SANDBOX_SERVER__TOKEN_SESSIONS_MAX", "3")] {
        let server = FakeServer::with(&[settings]).await;
        let post = |session: Option<&str>, body: Value| {
            let request = server.post(body.to_string()).header("accept", BOTH);
            session.into_iter().fold(request, |request, id| request.header("mcp-session-id", id)).send()
        };
        let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
        let open = async || {
            let answer = post(None, initialize.clone()).await.expect("an answer");
            let id = answer.headers().get("mcp-session-id").map(|id| id.to_str().expect("an id").to_owned());
            let status = answer.status().as_u16();
            drop(answer.text().await);
            if let Some(id) = &id {
                let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
                post(Some(id), ready).await.expect("an answer");
            }
            id.ok_or(status)
        };
        let lives = async |id: &str| {
            let ping = json!({"jsonrpc": "2.0", "id": 2, "method": "ping"});
            post(Some(id), ping).await.expect("an answer").status() == 200
        };
        let call = |code: &str| {
            let arguments = json!({"conversationId": "c", "language": "python", "code": code});
            json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call",
                "params": {"name": "sandbox.run_code", "arguments": arguments}})
        };
        let mut ids = Vec::new();
        for _ in 0..3 {
            ids.push(open().await.expect("a session"));
        }
        // The first has a call in progress; the second was used last.
        let in_progress = post(Some(&ids[0]), call("hang")).await.expect("an answer");
        assert!(lives(&ids[2]).await && lives(&ids[1]).await);
        let fourth = open().await.expect("a session");
        assert!(!lives(&ids[2]).await, "the least recently used idle one was closed");
        assert!(lives(&ids[0]).await && lives(&ids[1]).await && lives(&fourth).await);
        let many = futures_util::future::join_all((0..20).map(|_| open())).await;
        assert!(many.iter().any(Result::is_ok));
        let mut left = 0;
        for id in many.iter().flatten().chain(&ids).chain([&fourth]) {
            left += usize::from(lives(id).await);
        }
        assert!((1..=3).contains(&left), "{left} sessions");
        drop(in_progress);
        server.stop().await;
    }
}
