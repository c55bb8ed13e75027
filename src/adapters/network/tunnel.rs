//! A tunnel: the bytes of a program and of a host, both ways, each to its own end. TLS passes through unopened, to the
//! host that was asked for alone, except where the server opens it.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{self, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};

use super::{PIECE_BYTES, READ_BYTES, Sandbox, hello, opened, upstream::Upstream};
use crate::domain::network::{NetworkUse, Refusal, Target};

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
    config.ok_or_else(|| {
        let refusal = Refusal::PolicyChanged(target.clone());
        sandbox.gate.over(NetworkUse::of(target.to_string(), Some(refusal.clone())));
        refusal
    })
}

/// Carries both ways until both have ended or one of them breaks.
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
        match tokio::try_join!(up, down) {
            Ok(_) | Err(None) => return Ok(()),
            Err(Some(refusal)) => refusal,
        }
    };
    Err((upstream, refusal))
}
