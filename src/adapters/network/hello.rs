//! The first bytes of a tunnel: when they are TLS, their server name must be the host of the tunnel, since a server of
//! many hosts at one address chooses the host by that name.

use std::{net::IpAddr, time::Duration};

use rustls::server::Acceptor;
use tokio::{
    io::{AsyncBufRead, AsyncBufReadExt as _},
    time::timeout,
};

use crate::domain::network::{Host, Refusal, Target};

/// How much the first message of TLS may take, and how long.
const HELLO_BYTES_MAX: usize = 16 << 10;
const HELLO_MAX: Duration = Duration::from_secs(5);
/// The first byte of TLS.
const HANDSHAKE: u8 = 0x16;
/// Where nothing but TLS is expected.
const TLS_PORT: u16 = 443;

/// Reads until the host is known; what was read.
///
/// # Errors
/// The bytes are not for this host.
pub(super) async fn read(client: &mut (impl AsyncBufRead + Unpin), target: &Target) -> Result<Vec<u8>, Refusal> {
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
