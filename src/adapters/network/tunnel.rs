//! A tunnel: the bytes of a program and of a host, both ways, each to its own end. TLS passes through unopened, to the
//! host that was asked for alone, except where the server opens it.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{self, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::{PIECE_BYTES, READ_BYTES, Sandbox, hello, opened, upstream::Upstream};
use crate::domain::network::{Refusal, Target};

/// A connection for a tunnel. Whether its TLS is opened is decided once: policies may change before its first byte.
pub(super) struct Tunnel {
    upstream: Upstream,
    /// TLS as the host, where it is opened.
    opening: Option<Arc<ServerConfig>>,
}

/// Connects to the host of a tunnel.
///
/// # Errors
/// Why there is no tunnel. It is recorded.
pub(super) async fn connect(target: &Target, sandbox: &Sandbox) -> Result<Tunnel, Refusal> {
    let opening = if sandbox.gate.opens(target) {
        Some(server_config(target, sandbox)?)
    } else {
        sandbox.gate.admit(target, None)?;
        None
    };
    Ok(Tunnel { upstream: Upstream::connect(target, &sandbox.gate).await?, opening })
}

/// The authority of a sandbox has the hosts that were opened when the sandbox began.
fn server_config(target: &Target, sandbox: &Sandbox) -> Result<Arc<ServerConfig>, Refusal> {
    let config = sandbox.leaves.as_ref().and_then(|leaves| leaves.server(&target.host));
    config.ok_or_else(|| sandbox.refused(target.to_string(), Refusal::PolicyChanged(target.clone())))
}

/// Carries both ways until both have ended, one of them breaks, or nothing has passed for too long.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite + Send + Unpin,
    Tunnel { upstream, opening }: Tunnel,
    target: &Target,
    sandbox: &Arc<Sandbox>,
) {
    if let Some(config) = opening {
        return opened::carry(client, upstream, config, target, sandbox).await;
    }
    match both_ways(client, upstream, target).await {
        Ok(()) => {}
        Err((upstream, refusal)) => upstream.refuse(refusal),
    }
}

async fn both_ways(
    client: impl AsyncRead + AsyncWrite,
    mut upstream: Upstream,
    target: &Target,
) -> Result<(), (Upstream, Refusal)> {
    let idle = upstream.idle();
    let (from_client, mut to_client) = io::split(client);
    let mut from_client = BufReader::with_capacity(READ_BYTES, from_client);
    let refusal = {
        let (from_host, mut to_host) = io::split(&mut upstream);
        let mut from_host = BufReader::with_capacity(PIECE_BYTES, from_host);
        let up = async {
            let head = hello::read(&mut from_client, target).await.map_err(Some)?;
            to_host.write_all(&head).await.map_err(|_| None)?;
            io::copy_buf(&mut from_client, &mut to_host).await.map_err(|_| None)?;
            to_host.shutdown().await.map_err(|_| None)
        };
        // At once: the host may speak first.
        let down = async {
            io::copy_buf(&mut from_host, &mut to_client).await.map_err(|_| None)?;
            to_client.shutdown().await.map_err(|_| None)
        };
        tokio::select! {
            both = async { tokio::try_join!(up, down) } => match both {
                Ok(_) | Err(None) => return Ok(()),
                Err(Some(refusal)) => refusal,
            },
            () = idle => Refusal::Idle(target.clone()),
        }
    };
    Err((upstream, refusal))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        io::{AsyncReadExt as _, duplex},
        net::TcpListener,
        time::{pause, resume, timeout},
    };

    use super::{
        super::{tests::AllowingGate, trust},
        *,
    };

    #[tokio::test]
    async fn tunnel_that_carries_nothing_for_ten_minutes_ends_and_is_recorded() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let gate = Arc::new(AllowingGate::at(listener.local_addr().expect("an address")));
        let trust = trust::client(None).expect("roots");
        let sandbox = Arc::new(Sandbox { gate: gate.clone(), trust, leaves: None });
        let target = Target::parse("a.example:5432", None).expect("a target");
        let connected = connect(&target, &sandbox).await.expect("a tunnel");
        let (mut host, _) = listener.accept().await.expect("a connection");
        let (near, mut program) = duplex(64);
        let mut carried = tokio::spawn(async move { carry(near, connected, &target, &sandbox).await });
        program.write_all(b"x").await.expect("written");
        assert_eq!(host.read_u8().await.expect("a byte"), b'x');
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
}
