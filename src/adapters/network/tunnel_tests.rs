//! Tunnels and their time limits, and the first messages of TLS.

use rustls::{ClientConnection, pki_types::ServerName};
use tokio::{
    io::{AsyncReadExt as _, DuplexStream, duplex},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{pause, resume, timeout},
};

use super::{
    super::{
        authority::{self, LeafCertificates},
        tests::AllowingGate,
    },
    *,
};

type Ends = (Arc<AllowingGate>, DuplexStream, TcpStream, JoinHandle<()>);

/// A tunnel over which nothing has passed.
async fn unused(target: &str) -> Ends {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
    let trust = authority::trust(None).expect("roots");
    let sandbox = Arc::new(Sandbox::new(gate.clone(), trust, None));
    let target = Target::parse(target, None).expect("a target");
    let connected = connect(&target, &sandbox, &ProgramEnd::default()).await.expect("a tunnel");
    let (host, _) = listener.accept().await.expect("a connection");
    let (near, program) = duplex(64);
    let carried = tokio::spawn(async move { carry(near, connected, &target, &sandbox).await });
    (gate, program, host, carried)
}

/// A tunnel over which its program has sent a byte.
async fn tunnel() -> Ends {
    let (gate, mut program, mut host, carried) = unused("a.example:5432").await;
    program.write_all(b"x").await.expect("written");
    assert_eq!(host.read_u8().await.expect("a byte"), b'x');
    (gate, program, host, carried)
}

#[tokio::test]
async fn tunnel_that_carries_nothing_for_ten_minutes_ends_and_is_recorded() {
    let (gate, mut program, mut host, mut carried) = tunnel().await;
    for byte in [b'y', b'z'] {
        host.write_all(&[byte]).await.expect("written");
        assert_eq!(program.read_u8().await.expect("a byte"), byte);
        // Time passes while no byte is under way.
        pause();
        assert!(timeout(Duration::from_mins(9), &mut carried).await.is_err(), "each byte counts");
        resume();
    }
    pause();
    timeout(Duration::from_mins(2), carried).await.expect("it ends").expect("without a panic");
    program.read_u8().await.expect_err("its end");
    let used = gate.used.lock().clone();
    assert_eq!((used.len(), used[0].sent_bytes, used[0].received_bytes), (1, 1, 2));
    assert_eq!(used[0].refusal.as_ref().map(Refusal::word), Some("idle"));
}

async fn pass(from: &mut (impl AsyncWrite + Unpin), to: &mut (impl AsyncRead + Unpin)) {
    from.write_all(b"y").await.expect("written");
    assert_eq!(to.read_u8().await.expect("a byte"), b'y');
}

#[tokio::test]
async fn tunnel_of_which_one_half_has_ended_ends_after_two_minutes_without_a_byte() {
    for is_program in [true, false] {
        let (gate, mut program, mut host, mut carried) = tunnel().await;
        let ended = if is_program { program.shutdown().await } else { host.shutdown().await };
        ended.expect("a half has ended");
        for _ in 0..2 {
            pause();
            assert!(timeout(Duration::from_secs(110), &mut carried).await.is_err(), "each byte counts");
            resume();
            if is_program {
                pass(&mut host, &mut program).await;
            } else {
                pass(&mut program, &mut host).await;
            }
        }
        pause();
        timeout(Duration::from_secs(130), carried).await.expect("it ends").expect("without a panic");
        assert_eq!(gate.used.lock()[0].refusal.as_ref().map(Refusal::word), Some("idle"));
        resume();
    }
}

#[tokio::test]
async fn host_at_the_port_of_tls_says_nothing_to_a_program_that_does_not_speak_tls() {
    let first = hello("a.example");
    for (sent, passes, refused) in
        [(first.as_slice(), true, None), (b"QUIT\r\n", false, Some("no_tls")), (b"", false, None)]
    {
        let (gate, mut program, mut host, carried) = unused("a.example:443").await;
        host.write_all(b"220 ready").await.expect("written");
        pause();
        for _ in 0..3 {
            let said = timeout(Duration::from_secs(1), program.read_u8()).await;
            assert!(said.is_err(), "the program has sent nothing yet");
        }
        resume();
        program.write_all(sent).await.expect("written");
        program.shutdown().await.expect("its half has ended");
        let mut got = Vec::new();
        if passes {
            host.read_exact(&mut vec![0; sent.len()]).await.expect("the first message");
        }
        drop(host);
        program.read_to_end(&mut got).await.expect("its end");
        assert_eq!(got, if passes { b"220 ready".as_slice() } else { b"" });
        carried.await.expect("without a panic");
        assert_eq!(gate.used.lock()[0].refusal.as_ref().map(Refusal::word), refused);
    }
}

#[tokio::test]
async fn opened_tunnel_connects_to_no_host_before_its_first_request() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("set");
    let http = b"GET / HTTP/1.1\r\n\r\n".as_slice();
    for (sent, target, refused) in [
        (http, "a.example:443", vec![Some("no_tls")]),
        (http, "a.example:8443", vec![Some("no_tls")]),
        (b"", "a.example:443", vec![]),
        (b"", "a.example:8443", vec![]),
    ] {
        let gate = AllowingGate { opens: true, ..AllowingGate::at(listener.local_addr().expect("an address")) };
        let (gate, target) = (Arc::new(gate), Target::parse(target, None).expect("a target"));
        let authority = authority::make(std::slice::from_ref(&target.host)).expect("an authority");
        let leaves = LeafCertificates::new(&authority);
        let sandbox = Arc::new(Sandbox::new(gate.clone(), authority::trust(None).expect("roots"), leaves));
        let tunnel = connect(&target, &sandbox, &ProgramEnd::default()).await.expect("a tunnel");
        assert!(listener.accept().is_err(), "nothing has connected");
        let (near, mut program) = duplex(1 << 10);
        program.write_all(sent).await.expect("written");
        program.shutdown().await.expect("its half has ended");
        carry(near, tunnel, &target, &sandbox).await;
        assert!(listener.accept().is_err(), "nothing has connected");
        let words: Vec<_> = gate.used.lock().iter().map(|used| used.refusal.as_ref().map(Refusal::word)).collect();
        assert_eq!(words, refused, "{} bytes to {target}", sent.len());
    }
}

#[tokio::test]
async fn host_at_another_port_may_speak_first_and_an_end_at_the_port_of_tls_passes() {
    let (_gate, mut program, mut host, _carried) = unused("a.example:25").await;
    pass(&mut host, &mut program).await;
    let (_gate, mut program, host, _carried) = unused("a.example:443").await;
    drop(host);
    program.read_u8().await.expect_err("its end");
}

/// The first message of a client that asks for a host. An address is in it under no name.
fn hello(host: &str) -> Vec<u8> {
    let name = ServerName::try_from(host.to_owned()).expect("a host");
    let mut client = ClientConnection::new(authority::trust(None).expect("roots"), name).expect("a client");
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).expect("written");
    }
    bytes
}

fn target(text: &str) -> Target {
    Target::parse(text, None).expect(text)
}

/// What is passed on of bytes that come in pieces, or the word of the refusal.
async fn passed(bytes: &[u8], piece: usize, host: &str) -> Result<Vec<u8>, &'static str> {
    let mut client = BufReader::with_capacity(piece, bytes);
    read_hello(&mut client, &target(host)).await.map_err(|why| why.word())
}

#[tokio::test]
async fn server_name_must_be_the_host_of_the_tunnel() {
    let other = Some("other_server_name");
    for (asked, host, refused) in [
        ("a.example.com", "a.example.com:443", None),
        ("a.example.com", "A.Example.com.:8443", None),
        ("b.example.com", "a.example.com:443", other),
        ("example.com", "a.example.com:443", other),
        ("a.example.com.example.net", "a.example.com:443", other),
        ("127.0.0.2", "a.example.com:443", other),
        ("127.0.0.2", "127.0.0.2:443", None),
        ("a.example.com", "127.0.0.2:443", other),
    ] {
        let bytes = hello(asked);
        for piece in [1, 100, 1 << 16] {
            let want = refused.map_or_else(|| Ok(bytes.clone()), Err);
            assert_eq!(passed(&bytes, piece, host).await, want, "{asked} at {host}, pieces of {piece}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn anything_but_a_whole_first_message_is_refused_at_the_port_of_tls() {
    let whole = hello("a.example.com");
    // A record of 16 KiB, whose message is longer.
    let long = [&[HANDSHAKE, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff][..], &vec![0; 1 << 15]].concat();
    let (http, garbage) = (b"GET / HTTP/1.1\r\n\r\n".as_slice(), [HANDSHAKE; 100]);
    for (bytes, host, want) in [
        (http, "a.example.com:443", Err("no_tls")),
        (http, "a.example.com:8080", Ok(Vec::new())),
        (b"", "a.example.com:443", Ok(Vec::new())),
        (&whole[..whole.len() - 1], "a.example.com:443", Err("no_tls")),
        (&garbage, "a.example.com:8080", Err("no_tls")),
        (&long, "a.example.com:443", Err("no_tls")),
    ] {
        assert_eq!(passed(bytes, 1 << 10, host).await, want, "{} at {host}", bytes.len());
    }
    // Without the rest it is given up.
    let (near, mut far) = duplex(whole.len());
    far.write_all(&whole[..20]).await.expect("written");
    let read = read_hello(&mut BufReader::new(near), &target("a.example.com:443")).await;
    assert_eq!(read.map_err(|why| why.word()), Err("no_tls"));
}
