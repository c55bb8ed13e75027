//! A tunnel: the bytes of a program and of a host, both ways, each to its own end. TLS passes through unopened, to the
//! host that was asked for alone, except where the server opens it. When the first bytes are TLS, their server name
//! must be the host of the tunnel, since a server of many hosts at one address chooses the host by that name.
//!
//! The message that follows a `HelloRetryRequest` is not read. It must have the same name (RFC 8446, section 4.1.2). A
//! server that accepts another one there does not choose its hosts by this name, and requests within the TLS, which
//! pass unread, could name another host as well. What holds is that it is a server at an address of the host.

use std::{net::IpAddr, sync::Arc, time::Duration};

use rustls::{ServerConfig, server::Acceptor};
use tokio::{
    io::{self, AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::oneshot,
    time::timeout,
};

use super::{
    PIECE_BYTES, READ_BYTES, Sandbox, http,
    upstream::{Activity, ProgramEnd, Upstream},
};
use crate::domain::network::{Host, Refusal, Target};

/// How much the first message of TLS may take, and how long.
const HELLO_BYTES_MAX: usize = 16 << 10;
const HELLO_MAX: Duration = Duration::from_secs(5);
/// The first byte of TLS.
const HANDSHAKE: u8 = 0x16;
/// Where nothing but TLS is expected.
const TLS_PORT: u16 = 443;

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
        let changed = || sandbox.refuse(target, Refusal::PolicyChanged);
        return Ok(Tunnel::Opened(config.ok_or_else(changed)?, Arc::clone(ended)));
    }
    sandbox.gate.admit(target, None)?;
    Ok(Tunnel::Unopened(Upstream::connect(target, &sandbox.gate, ended).await?))
}

/// Carries both ways until both have ended, one of them breaks, or nothing has passed for too long.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
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
    let activity = Arc::downgrade(upstream.activity());
    let (from_client, mut to_client) = io::split(client);
    let mut from_client = BufReader::with_capacity(READ_BYTES, from_client);
    let (checked, speaks_tls) = oneshot::channel();
    let refusal = {
        let (from_host, mut to_host) = io::split(&mut upstream);
        let mut from_host = BufReader::with_capacity(PIECE_BYTES, from_host);
        let up = async {
            let head = read_hello(&mut from_client, target).await.map_err(Some)?;
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
            () = Activity::idle(activity) => return Ok(()),
        }
    };
    Err((upstream, refusal))
}

/// Reads until the host is known; what was read.
///
/// # Errors
/// The bytes are not for this host.
pub(super) async fn read_hello(client: &mut (impl AsyncBufRead + Unpin), target: &Target) -> Result<Vec<u8>, Refusal> {
    let no_tls = || Refusal::NoTls(target.clone());
    let other = || Refusal::OtherServerName(target.clone());
    let first = client.fill_buf().await.unwrap_or_default();
    if first.first() != Some(&HANDSHAKE) {
        return if target.port == TLS_PORT && !first.is_empty() { Err(no_tls()) } else { Ok(Vec::new()) };
    }
    let whole = async {
        let (mut acceptor, mut head) = (Acceptor::default(), Vec::new());
        while head.len() < HELLO_BYTES_MAX {
            let bytes = client.fill_buf().await.map_err(|_| no_tls())?;
            let count = bytes.len().min(HELLO_BYTES_MAX - head.len());
            if count == 0 {
                return Err(no_tls());
            }
            let mut bytes = &bytes[..count];
            head.extend_from_slice(bytes);
            while !bytes.is_empty() {
                acceptor.read_tls(&mut bytes).map_err(|_| no_tls())?;
            }
            client.consume(count);
            if let Some(accepted) = acceptor.accept().map_err(|_| no_tls())? {
                return Ok((accepted.client_hello().server_name().map(str::to_owned), head));
            }
        }
        Err(no_tls())
    };
    let (name, head) = timeout(HELLO_MAX, whole).await.unwrap_or_else(|_| Err(no_tls()))?;
    let is_same = match (&target.host, name) {
        (Host::Name(host), Some(name)) => Host::parse(&name) == Some(Host::Name(host.clone())),
        (Host::Name(_), None) => false,
        // Clients send no address as a name.
        (Host::Address(address), name) => name.is_none_or(|name| name.parse::<IpAddr>().ok() == Some(*address)),
    };
    if is_same { Ok(head) } else { Err(other()) }
}

#[cfg(test)]
#[path = "tunnel_tests.rs"]
mod tests;
