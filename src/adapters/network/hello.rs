//! The first bytes of a tunnel: when they are TLS, their server name must be the host of the tunnel, since a server of
//! many hosts at one address chooses the host by that name.
//!
//! The message that follows a `HelloRetryRequest` is not read. It must have the same name (RFC 8446, section 4.1.2). A
//! server that accepts another one there does not choose its hosts by this name, and requests within the TLS, which
//! pass unread, could name another host as well. What holds is that it is a server at an address of the host.

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
pub(super) const TLS_PORT: u16 = 443;

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

#[cfg(test)]
pub(super) mod tests {
    use rustls::{ClientConnection, pki_types::ServerName};
    use tokio::io::{AsyncWriteExt as _, BufReader, duplex};

    use super::{super::authority, *};

    /// The first message of a client that asks for a host. An address is in it under no name.
    pub(in super::super) fn hello(host: &str) -> Vec<u8> {
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
        read(&mut client, &target(host)).await.map_err(|why| why.word())
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
        let read = read(&mut BufReader::new(near), &target("a.example.com:443")).await;
        assert_eq!(read.map_err(|why| why.word()), Err("no_tls"));
    }
}
