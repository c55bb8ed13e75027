//! Requests to the proxy, with a gate that allows every host.

use std::time::Duration;

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _};
use tokio::{
    io::{AsyncRead, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    time::{pause, resume, sleep, timeout},
};
use yamux::Stream;

use super::{
    super::{
        Multiplexer, authority,
        tests::{AllowingGate, sandbox_of, say},
        upstream::ProgramEnd,
    },
    *,
};
use crate::domain::network::Host;

const LONG: Duration = Duration::from_mins(1);

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_host_does_not_answer_or_that_are_not_made_are_recorded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // Takes each connection, and ends it.
    let host = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let gate = Arc::new(AllowingGate::at(address));
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate.clone()).channels().await;
    // The host may end its connection before, while or after the request is sent.
    let ended = [("a.example:80", "502 ", "a.example:80 does not answer", "unreachable")].repeat(100);
    let refused = ("a.example:443", "403 ", "a.example:443 takes TLS alone", "no_tls");
    for (target, status, why, word) in ended.into_iter().chain([refused]) {
        say(&mut first, &[1]).await;
        let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
        let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        say(&mut channel, request.as_bytes()).await;
        let mut answer = Vec::new();
        drop(timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends"));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains(status) && answer.contains(why), "{answer}");
        let used = std::mem::take(&mut *gate.used.lock());
        let seen: Vec<_> =
            used.iter().map(|used| (used.target.as_str(), used.refusal.as_ref().map(Refusal::word))).collect();
        assert_eq!(seen, [(target, Some(word))], "it is listed once");
    }
    host.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn body_in_another_coding_than_chunked_alone_reaches_no_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate).channels().await;
    for coding in ["gzip, chunked", "chunked, chunked", "x\r\nTransfer-Encoding: chunked", ", chunked"] {
        say(&mut first, &[1]).await;
        let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
        let head = "POST http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close";
        let request = format!("{head}\r\nTransfer-Encoding: {coding}\r\n\r\n0\r\n\r\n");
        say(&mut channel, request.as_bytes()).await;
        let mut answer = Vec::new();
        drop(timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends"));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.starts_with("\0HTTP/1.1 400 "), "{coding}: {answer}");
    }
    assert!(listener.accept().now_or_never().is_none(), "nothing has connected");
}

/// A program and a host that has received its request, and does not answer.
async fn waiting(gate: Arc<AllowingGate>, listener: &TcpListener) -> (Stream, TcpStream) {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate).channels().await;
    // As long as the channels.
    tokio::spawn(async move {
        say(&mut first, &[1]).await;
        drop(first.read_to_end(&mut Vec::new()).await);
    });
    let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
    let request = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    say(&mut channel, request).await;
    let (host, _) = timeout(LONG, listener.accept()).await.expect("in time").expect("a connection");
    timeout(LONG, host.readable()).await.expect("in time").expect("the request");
    (channel, host)
}

/// The answer that a program gets between these seconds, and the refusals of what is recorded.
async fn answered(mut channel: Stream, gate: &AllowingGate, silent_s: [u64; 2]) -> (String, Vec<Option<&'static str>>) {
    let mut ended = tokio::spawn(async move {
        let mut answer = Vec::new();
        drop(channel.read_to_end(&mut answer).await);
        String::from_utf8_lossy(&answer).into_owned()
    });
    pause();
    let [within_s, until_s] = silent_s;
    assert!(timeout(Duration::from_secs(within_s), &mut ended).await.is_err(), "the host may still answer");
    let answer =
        timeout(Duration::from_secs(until_s - within_s), ended).await.expect("it ends").expect("without a panic");
    let used = gate.used.lock().clone();
    (answer, used.iter().map(|used| used.refusal.as_ref().map(Refusal::word)).collect())
}

#[tokio::test]
async fn request_to_a_silent_host_ends_and_is_listed_as_idle() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    for (has_ended_its_half, silent_s) in [(false, [590, 610]), (true, [110, 130])] {
        let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
        let (mut channel, _host) = waiting(gate.clone(), &listener).await;
        if has_ended_its_half {
            channel.close().await.expect("closed");
        }
        let (answer, words) = answered(channel, &gate, silent_s).await;
        assert!(answer.starts_with("\0HTTP/1.1 504 the connection to a.example:80 carried nothing"), "{answer}");
        assert_eq!(words, [Some("idle")]);
        resume();
    }
}

#[tokio::test]
async fn program_that_has_ended_its_half_gets_a_slow_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let (mut channel, mut host) = waiting(gate.clone(), &listener).await;
    channel.close().await.expect("closed");
    let mut answer = Vec::<u8>::new();
    for (piece, end) in [("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "\r\n\r\n"), ("o", "o"), ("k", "k")] {
        // Time passes while no byte is under way.
        pause();
        sleep(Duration::from_secs(100)).await;
        resume();
        tokio::io::AsyncWriteExt::write_all(&mut host, piece.as_bytes()).await.expect("written");
        let mut byte = [0];
        while !answer.ends_with(end.as_bytes()) {
            timeout(LONG, channel.read_exact(&mut byte)).await.expect("in time").expect("a byte");
            answer.extend(byte);
        }
    }
    drop(timeout(LONG, channel.read_to_end(&mut answer)).await.expect("in time"));
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("\0HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
    let words: Vec<_> = gate.used.lock().iter().map(|used| used.refusal.as_ref().map(Refusal::word)).collect();
    assert!(!words.contains(&Some("idle")), "{words:?}");
}

#[tokio::test]
async fn host_of_a_request_whose_program_is_gone_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let (channel, mut host) = waiting(gate, &listener).await;
    // Without the end of its half before, this resets it.
    drop(channel);
    let mut received = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut host, &mut received);
    timeout(LONG, read).await.expect("the connection ends").expect("without an error");
}

/// The head of a request or an answer.
async fn head(from: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(LONG, tokio::io::AsyncReadExt::read_u8(from)).await.expect("in time");
        head.push(byte.expect("a byte"));
    }
    String::from_utf8(head).expect("a text")
}

#[tokio::test]
async fn request_that_was_sent_is_not_sent_again_and_is_listed_with_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate.clone()).channels().await;
    say(&mut first, &[1]).await;
    let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
    let request = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n";
    channel.write_all(&request.repeat(2)).await.expect("written");
    channel.close().await.expect("closed");
    let (mut host, _) = timeout(LONG, listener.accept()).await.expect("in time").expect("a connection");
    head(&mut host).await;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    tokio::io::AsyncWriteExt::write_all(&mut host, answer).await.expect("written");
    head(&mut host).await;
    drop(host);
    let mut answers = Vec::new();
    timeout(LONG, channel.read_to_end(&mut answers)).await.expect("it ends").expect("the answers");
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.contains("\r\n\r\nokHTTP/1.1 502 a.example:80 does not answer"), "{answers}");
    assert!(listener.accept().now_or_never().is_none(), "there was one connection");
    let used = gate.used.lock().clone();
    let words: Vec<_> = used.iter().map(|used| used.refusal.as_ref().map(Refusal::word)).collect();
    assert_eq!(words, [Some("unreachable")]);
}

fn forwarder(gate: Arc<AllowingGate>, scheme: Scheme) -> Arc<Forwarder> {
    let sandbox = Arc::new(Sandbox::new(gate, authority::trust(None).expect("roots"), None));
    Arc::new(Forwarder::new(sandbox, scheme, ProgramEnd::default()))
}

/// A client whose requests to one host are forwarded.
fn client(forwarder: &Arc<Forwarder>, target: &Target) -> DuplexStream {
    let (near, far) = duplex(1 << 16);
    let (forwarder, target) = (Arc::clone(forwarder), target.clone());
    let service = service_fn(move |request| {
        let (forwarder, target) = (Arc::clone(&forwarder), target.clone());
        async move {
            Ok::<_, Infallible>(forwarder.forward(request, target).await.unwrap_or_else(|refusal| refuse(&refusal)))
        }
    });
    tokio::spawn(server().serve_connection(TokioIo::new(near), service));
    far
}

#[tokio::test]
async fn request_goes_to_a_new_connection_where_the_kept_one_closes_before_it_is_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let forwarder = forwarder(gate.clone(), Scheme::Http);
    let target = Target::parse("a.example:80", None).expect("a target");
    let [mut first, mut second] = [client(&forwarder, &target), client(&forwarder, &target)];
    let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut first, request).await.expect("written");
    let (mut host, _) = timeout(LONG, listener.accept()).await.expect("in time").expect("a connection");
    head(&mut host).await;
    let half = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok";
    tokio::io::AsyncWriteExt::write_all(&mut host, half).await.expect("written");
    assert!(head(&mut first).await.starts_with("HTTP/1.1 200 "));
    tokio::io::AsyncWriteExt::write_all(&mut second, request).await.expect("written");
    // While time is paused, it passes when no task can go on: the request then waits for the end of the first answer.
    pause();
    sleep(Duration::from_millis(1)).await;
    resume();
    drop(host);
    let (mut host, _) = timeout(LONG, listener.accept()).await.expect("in time").expect("a new connection");
    head(&mut host).await;
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut host, answer).await.expect("written");
    assert!(head(&mut second).await.starts_with("HTTP/1.1 200 "));
    let used = gate.used.lock().clone();
    let words: Vec<_> = used.iter().map(|used| used.refusal.as_ref().map(Refusal::word)).collect();
    assert_eq!(words, [None], "the first connection was made");
}

#[tokio::test]
async fn query_of_an_address_without_a_path_reaches_the_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let forwarder = forwarder(gate, Scheme::Http);
    let mut program = client(&forwarder, &Target::parse("a.example:80", None).expect("a target"));
    // As Python's urllib writes it.
    let request = b"GET http://a.example?q=1 HTTP/1.1\r\nHost: a.example\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut program, request).await.expect("written");
    let (mut host, _) = timeout(LONG, listener.accept()).await.expect("in time").expect("a connection");
    let sent = head(&mut host).await;
    assert!(sent.starts_with("GET /?q=1 HTTP/1.1\r\n"), "{sent}");
}

#[tokio::test]
async fn request_to_a_name_that_cannot_be_sent_is_recorded_and_reaches_no_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    // One is no name for TLS, the other none for a header.
    for (scheme, name) in [(Scheme::Opened, "a!b.example"), (Scheme::Http, "a\nb.example")] {
        let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
        let target = Target { host: Host::Name(name.to_owned()), port: scheme.port() };
        let mut program = client(&forwarder(gate.clone(), scheme), &target);
        let request = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut program, request).await.expect("written");
        let answer = head(&mut program).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(listener.accept().now_or_never().is_none(), "nothing has connected");
        let used = gate.used.lock().clone();
        let seen: Vec<_> = used.iter().map(|used| (used.target.clone(), used.refusal.clone())).collect();
        assert_eq!(seen, [(target.to_string(), Some(Refusal::Malformed))]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnel_that_has_to_be_opened_is_refused_where_the_sandbox_trusts_no_certificate_for_its_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // As after a policy got `paths`: the sandbox began without an authority.
    let gate = Arc::new(AllowingGate { opens: true, ..AllowingGate::at(address) });
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate.clone()).channels().await;
    say(&mut first, &[1; 2]).await;
    for (said, answered) in [
        (
            b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n".as_slice(),
            b"\0HTTP/1.1 403 the policy for a.example:443 changed in a way that needs a new sandbox".as_slice(),
        ),
        (b"\x05\x01\0\x05\x01\0\x03\x09a.example\x01\xbb", b"\0\x05\0\x05\x02\0\x01"),
    ] {
        let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
        channel.write_all(said).await.expect("written");
        channel.close().await.expect("closed");
        let mut answer = Vec::new();
        timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends").expect("an answer");
        assert!(answer.starts_with(answered), "{}", answer.escape_ascii());
    }
    assert!(listener.accept().now_or_never().is_none(), "nothing has connected");
    let used = gate.used.lock().clone();
    let words: Vec<_> = used.iter().map(|used| used.refusal.as_ref().map(Refusal::word)).collect();
    assert_eq!(words, [Some("policy_changed"); 2]);
}
