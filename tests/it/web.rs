//! Requests to other servers, by the real adapter: what a stranger names is judged, bounded, encrypted and never
//! followed elsewhere.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use mcp_sandbox_server::{
    adapters::web::Web,
    ports::web::{NamedBy, WEB_BYTES_MAX, Web as _, WebError},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    },
};
use tokio_util::task::AbortOnDropHandle;

/// A server with TLS on this machine that answers by the path of the request.
struct Other {
    port: u16,
    certificate: Vec<u8>,
    connections: Arc<AtomicUsize>,
    _serving: AbortOnDropHandle<()>,
}

impl Other {
    async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, certificate) = certificate(folder.path());
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate.clone()], key).expect("a certificate");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let serving = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a connection");
                counted.fetch_add(1, Ordering::SeqCst);
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                tokio::spawn(async move {
                    let mut head = vec![0; 4096];
                    let read = stream.read(&mut head).await.unwrap_or_default();
                    let head = String::from_utf8_lossy(&head[..read]).into_owned();
                    let answer = answer(head.split(' ').nth(1).unwrap_or_default(), port);
                    drop(stream.write_all(&answer).await);
                    if head.contains("/slow") {
                        std::future::pending::<()>().await;
                    }
                    drop(stream.shutdown().await);
                });
            }
        });
        Self { port, certificate: certificate.to_vec(), connections, _serving: AbortOnDropHandle::new(serving) }
    }

    async fn get(&self, web: &Web, path: &str) -> Result<(u16, usize), WebError> {
        let request = http::Request::get(format!("https://localhost:{}{path}", self.port)).body(Vec::new());
        let answer = web.send(NamedBy::Client, request.expect("a request")).await?;
        Ok((answer.status().as_u16(), answer.body().len()))
    }
}

fn answer(path: &str, port: u16) -> Vec<u8> {
    let with = |bytes: usize| format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", "x".repeat(bytes)).into_bytes();
    match path {
        "/large" => with(WEB_BYTES_MAX),
        "/larger" => with(WEB_BYTES_MAX + 1),
        "/slow" => b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nx".to_vec(),
        "/redirect" => {
            let head =
                format!("HTTP/1.1 302 Found\r\nlocation: https://localhost:{port}/\r\ncontent-length: 0\r\n\r\n");
            head.into_bytes()
        }
        _ => with(2),
    }
}

fn certificate(folder: &Path) -> (PrivateKeyDer<'static>, CertificateDer<'static>) {
    let (key, certificate) = (folder.join("key.pem"), folder.join("certificate.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let key = PrivateKeyDer::from_pem_file(key).expect("a key");
    (key, CertificateDer::from_pem_file(certificate).expect("a certificate"))
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_of_a_stranger_is_bounded_and_not_followed() {
    let other = Other::start().await;
    let web = Web::judging(|address| address.is_loopback(), std::slice::from_ref(&other.certificate)).expect("TLS");
    assert_eq!(other.get(&web, "/").await, Ok((200, 2)));
    assert_eq!(other.get(&web, "/large").await, Ok((200, WEB_BYTES_MAX)));
    assert_eq!(other.get(&web, "/larger").await, Err(WebError::TooLarge));
    assert_eq!(other.get(&web, "/slow").await, Err(WebError::Unreachable));
    let before = other.connections.load(Ordering::SeqCst);
    assert_eq!(other.get(&web, "/redirect").await, Ok((302, 0)));
    assert_eq!(other.connections.load(Ordering::SeqCst), before + 1, "the redirect is not followed");
}

#[tokio::test(flavor = "multi_thread")]
async fn stranger_names_public_hosts_only_and_by_https() {
    let other = Other::start().await;
    let web = Web::new().expect("TLS");
    assert_eq!(other.get(&web, "/").await, Err(WebError::Unreachable), "a name that leads to this machine");
    let judged = Web::judging(|address| address.is_ipv6(), std::slice::from_ref(&other.certificate)).expect("TLS");
    assert!(other.get(&judged, "/").await.is_err(), "one address that may not be asked is enough");
    for host in ["127.0.0.1", "127.1", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "0.0.0.0"] {
        let request = http::Request::get(format!("https://{host}:{}/", other.port)).body(Vec::new());
        let refused = web.send(NamedBy::Client, request.expect(host)).await.map(drop);
        assert_eq!(refused, Err(WebError::Forbidden), "{host}");
    }
    assert_eq!(other.connections.load(Ordering::SeqCst), 0, "no connection was made");
    let trusting = Web::judging(|_| true, &[]).expect("TLS");
    assert_eq!(other.get(&trusting, "/").await, Err(WebError::Unreachable), "a certificate that no root vouches for");
    let plain = http::Request::get(format!("http://localhost:{}/", other.port)).body(Vec::new());
    let plain = trusting.send(NamedBy::Client, plain.expect("a request")).await.map(drop);
    assert_eq!(plain, Err(WebError::Unreachable), "http");
}
