//! A tunnel: the bytes of a program and of a host, both ways, each to its own end. TLS passes through unopened, to the
//! host that was asked for alone, except where the server opens it.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::{
    io::{self, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::oneshot,
};

use super::{
    PIECE_BYTES, READ_BYTES, Sandbox,
    hello::{self, TLS_PORT},
    http,
    upstream::{ProgramEnd, Upstream},
};
use crate::domain::network::{Refusal, Target};

/// A tunnel before its first byte. Whether its TLS is opened is decided once: policies may change until then.
pub(super) enum Tunnel {
    /// To its host.
    Unopened(Upstream),
    /// To the server, which speaks TLS as the host and connects to that for each request.
    Opened(Arc<ServerConfig>, ProgramEnd),
}

/// Connects to the host of a tunnel, unless its TLS is opened.
///
/// # Errors
/// Why there is no tunnel. It is recorded.
pub(super) async fn connect(target: &Target, sandbox: &Sandbox, ended: &ProgramEnd) -> Result<Tunnel, Refusal> {
    if sandbox.gate.opens(target) {
        // The authority of a sandbox has the hosts that were opened when the sandbox began.
        let config = sandbox.leaves.as_ref().and_then(|leaves| leaves.server(&target.host));
        let changed = || sandbox.refused(target.to_string(), Refusal::PolicyChanged(target.clone()));
        return Ok(Tunnel::Opened(config.ok_or_else(changed)?, Arc::clone(ended)));
    }
    sandbox.gate.admit(target, None)?;
    Ok(Tunnel::Unopened(Upstream::connect(target, &sandbox.gate, ended).await?))
}

/// Carries both ways until both have ended, one of them breaks, or nothing has passed for too long.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite + Send + Unpin,
    tunnel: Tunnel,
    target: &Target,
    sandbox: &Arc<Sandbox>,
) {
    match tunnel {
        Tunnel::Opened(config, ended) => http::open(client, ended, config, target, sandbox).await,
        Tunnel::Unopened(upstream) => {
            if let Err((upstream, refusal)) = both_ways(client, upstream, target).await {
                upstream.refuse(refusal);
            }
        }
    }
}

async fn both_ways(
    client: impl AsyncRead + AsyncWrite,
    mut upstream: Upstream,
    target: &Target,
) -> Result<(), (Upstream, Refusal)> {
    let activity = upstream.activity();
    let (from_client, mut to_client) = io::split(client);
    let mut from_client = BufReader::with_capacity(READ_BYTES, from_client);
    let (checked, speaks_tls) = oneshot::channel();
    let refusal = {
        let (from_host, mut to_host) = io::split(&mut upstream);
        let mut from_host = BufReader::with_capacity(PIECE_BYTES, from_host);
        let up = async {
            let head = hello::read(&mut from_client, target).await.map_err(Some)?;
            // There may be no receiver.
            let _ = checked.send(!head.is_empty());
            to_host.write_all(&head).await.map_err(|_| None)?;
            io::copy_buf(&mut from_client, &mut to_host).await.map_err(|_| None)?;
            to_host.shutdown().await.map_err(|_| None)
        };
        // At once: the host may speak first. Not so in TLS, where its first bytes are held until the program's are
        // known to be TLS; an end is no byte.
        let down = async {
            let is_held = target.port == TLS_PORT && !from_host.fill_buf().await.map_err(|_| None)?.is_empty();
            if !is_held || matches!(speaks_tls.await, Ok(true)) {
                io::copy_buf(&mut from_host, &mut to_client).await.map_err(|_| None)?;
            }
            to_client.shutdown().await.map_err(|_| None)
        };
        tokio::select! {
            both = async { tokio::try_join!(up, down) } => match both {
                Ok(_) | Err(None) => return Ok(()),
                Err(Some(refusal)) => refusal,
            },
            // Its drop records that.
            () = activity.idle() => return Ok(()),
        }
    };
    Err((upstream, refusal))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, DuplexStream, duplex},
        net::{TcpListener, TcpStream},
        task::JoinHandle,
        time::{pause, resume, timeout},
    };

    use super::{
        super::{
            authority::{self, LeafCertificates},
            hello::tests::hello,
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
        let gate = AllowingGate { opens: true, ..AllowingGate::at(listener.local_addr().expect("an address")) };
        let (gate, target) = (Arc::new(gate), Target::parse("a.example:443", None).expect("a target"));
        let authority = authority::make(std::slice::from_ref(&target.host)).expect("an authority");
        let leaves = LeafCertificates::new(&authority);
        let sandbox = Arc::new(Sandbox::new(gate.clone(), authority::trust(None).expect("roots"), leaves));
        let tunnel = connect(&target, &sandbox, &ProgramEnd::default()).await.expect("a tunnel");
        assert!(listener.accept().is_err(), "nothing has connected");
        let (near, mut program) = duplex(1 << 10);
        program.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("written");
        carry(near, tunnel, &target, &sandbox).await;
        assert!(listener.accept().is_err(), "nothing has connected");
        assert_eq!(gate.used.lock()[0].refusal.as_ref().map(Refusal::word), Some("no_tls"));
    }

    #[tokio::test]
    async fn host_at_another_port_may_speak_first_and_an_end_at_the_port_of_tls_passes() {
        let (_gate, mut program, mut host, _carried) = unused("a.example:25").await;
        pass(&mut host, &mut program).await;
        let (_gate, mut program, host, _carried) = unused("a.example:443").await;
        drop(host);
        program.read_u8().await.expect_err("its end");
    }
}
