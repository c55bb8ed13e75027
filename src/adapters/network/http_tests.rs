//! Requests to the proxy, with a gate that allows every host.

use std::time::Duration;

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _};
use tokio::{
    net::{TcpListener, TcpStream},
    time::{pause, timeout},
};
use yamux::Stream;

use super::{
    super::{
        Multiplexer,
        tests::{AllowingGate, sandbox_of},
    },
    *,
};
use crate::domain::network::NetworkUse;

const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_host_does_not_answer_or_that_are_not_made_are_recorded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // Takes each connection, and ends it.
    let host = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
    let gate = Arc::new(AllowingGate::at(address));
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate.clone()).channels().await;
    first.write_all(&[1; 2]).await.expect("written");
    first.flush().await.expect("flushed");
    for (target, status, why, word) in [
        ("a.example:80", "502 ", "a.example:80 does not answer", "unreachable"),
        ("a.example:443", "403 ", "a.example:443 takes TLS alone", "no_tls"),
    ] {
        let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
        let request = format!("GET http://{target}/ HTTP/1.1\r\nHost: {target}\r\nConnection: close\r\n\r\n");
        channel.write_all(request.as_bytes()).await.expect("written");
        channel.flush().await.expect("flushed");
        let mut answer = Vec::new();
        drop(timeout(LONG, channel.read_to_end(&mut answer)).await.expect("it ends"));
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.contains(status) && answer.contains(why), "{answer}");
        let used = gate.used.lock().clone();
        let is_it = |used: &NetworkUse| used.target == target && used.refusal.as_ref().map(Refusal::word) == Some(word);
        assert!(used.iter().any(is_it), "{word}: {used:?}");
    }
    host.abort();
}

/// A program and a host that has received its request, and does not answer.
async fn waiting(gate: Arc<AllowingGate>, listener: &TcpListener) -> (Stream, TcpStream) {
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate).channels().await;
    // As long as the channels.
    tokio::spawn(async move {
        first.write_all(&[1]).await.expect("written");
        first.flush().await.expect("flushed");
        drop(first.read_to_end(&mut Vec::new()).await);
    });
    let mut channel = timeout(LONG, all.recv()).await.expect("in time").expect("a channel");
    let request = b"GET http://a.example/ HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    channel.write_all(request).await.expect("written");
    channel.flush().await.expect("flushed");
    let (host, _) = timeout(LONG, listener.accept()).await.expect("in time").expect("a connection");
    timeout(LONG, host.readable()).await.expect("in time").expect("the request");
    (channel, host)
}

#[tokio::test]
async fn request_to_a_host_that_is_silent_for_ten_minutes_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let (mut channel, _host) = waiting(gate.clone(), &listener).await;
    // The program gives up, which looks like the end of its half.
    channel.close().await.expect("closed");
    let mut ended = tokio::spawn(async move {
        let mut answer = Vec::new();
        drop(channel.read_to_end(&mut answer).await);
        answer
    });
    pause();
    assert!(timeout(Duration::from_mins(9), &mut ended).await.is_err(), "the host may still answer");
    let answer = timeout(Duration::from_mins(2), ended).await.expect("it ends").expect("without a panic");
    assert!(answer.starts_with(b"\0HTTP/1.1 502 "), "{}", answer.escape_ascii());
    let used = gate.used.lock().clone();
    assert!(used.iter().any(|used| used.refusal.as_ref().map(Refusal::word) == Some("unreachable")), "{used:?}");
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

#[tokio::test(flavor = "multi_thread")]
async fn tunnel_that_has_to_be_opened_is_refused_where_the_sandbox_trusts_no_certificate_for_its_host() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    // As after a policy got `paths`: the sandbox began without an authority.
    let gate = Arc::new(AllowingGate { opens: true, ..AllowingGate::at(address) });
    let carrier = Multiplexer::trusting(None).expect("a carrier");
    let (mut first, mut all) = sandbox_of(&carrier, gate.clone()).channels().await;
    first.write_all(&[1; 2]).await.expect("written");
    first.flush().await.expect("flushed");
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
