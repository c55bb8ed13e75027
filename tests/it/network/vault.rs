//! TLS servers of a scripted host: it keeps what it was sent, and repeats it in every form that a path asks for.

use std::{
    io::Write as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use flate2::{Compression, write::GzEncoder};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType};
use rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
    time::{Duration, sleep},
};
use tokio_rustls::TlsAcceptor;

/// Who it is, besides an address.
pub const NAME: &str = "steady.names.example.com";
/// What the bomb unpacks to.
const BOMB_BYTES: usize = 1 << 30;

pub struct Vault {
    /// With a certificate of the authority in `roots`.
    pub good: SocketAddr,
    /// The same, for rules in place of secrets.
    pub ruled: SocketAddr,
    /// With one of its own.
    pub untrusted: SocketAddr,
    /// Without TLS.
    pub plain: SocketAddr,
    /// In PEM.
    pub roots: NamedTempFile,
    seen: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Vault {
    /// Repeats this value on request.
    pub async fn start(value: &'static str) -> Self {
        let (issuer, roots) = issuer();
        let (seen, mut tasks) = (Arc::default(), JoinSet::new());
        let mut start = async |issuer: Option<&Issuer<'_, KeyPair>>| {
            let listener = TcpListener::bind("127.0.0.2:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            tasks.spawn(serve(listener, acceptor(issuer), value, Arc::clone(&seen)));
            address
        };
        let (good, ruled, untrusted) = (start(Some(&issuer)).await, start(Some(&issuer)).await, start(None).await);
        let listener = TcpListener::bind("127.0.0.2:0").await.expect("a port");
        let plain = listener.local_addr().expect("an address");
        tasks.spawn(serve_plain(listener, value, Arc::clone(&seen)));
        Self { good, ruled, untrusted, plain, roots, seen, _tasks: tasks }
    }

    /// The requests since the last call, heads and bodies.
    pub fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().expect("a lock"))
    }
}

/// An authority, and its certificate in PEM.
pub fn issuer() -> (Issuer<'static, KeyPair>, NamedTempFile) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // A leaf of the same name would count as self-signed.
    params.distinguished_name.push(DnType::CommonName, "Authority of the tests");
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("a root");
    let mut roots = NamedTempFile::new().expect("a file");
    let body = STANDARD.encode(root.der());
    writeln!(roots, "-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----").expect("written");
    (Issuer::new(params, key), roots)
}

/// Of 127.0.0.2 and [`NAME`], with a certificate of an authority or of its own.
pub fn acceptor(issuer: Option<&Issuer<'_, KeyPair>>) -> TlsAcceptor {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::default();
    // npm takes an address behind a proxy for `localhost`.
    let [localhost, name] = ["localhost", NAME].map(|name| SanType::DnsName(name.try_into().expect("a name")));
    params.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))), localhost, name];
    let made = match issuer {
        Some(issuer) => params.signed_by(&key, issuer),
        None => params.self_signed(&key),
    };
    let chain = vec![made.expect("a certificate").der().clone()];
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = config.with_no_client_auth().with_single_cert(chain, key.into()).expect("a configuration");
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, value: &'static str, seen: Arc<Mutex<Vec<String>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, seen) = (acceptor.clone(), Arc::clone(&seen));
        connections.spawn(async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                let _ = speak(stream, value, &seen).await;
            }
        });
    }
}

async fn serve_plain(listener: TcpListener, value: &'static str, seen: Arc<Mutex<Vec<String>>>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        connections.spawn(async move { drop(speak(stream, value, &seen).await) });
    }
}

async fn speak(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    value: &str,
    seen: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let end = loop {
            let head = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
            let text = String::from_utf8_lossy(&bytes[..head.unwrap_or(0)]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            let whole = head.map(|head| head + length.unwrap_or(0)).filter(|whole| *whole <= bytes.len());
            let has_all = !text.contains("chunked") || bytes.ends_with(b"0\r\n\r\n");
            if let Some(whole) = whole.filter(|_| has_all) {
                break if text.contains("chunked") { bytes.len() } else { whole };
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(());
            }
        };
        let request = String::from_utf8_lossy(&bytes.drain(..end).collect::<Vec<_>>()).into_owned();
        let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
        let authorized = request.to_lowercase().contains("\r\nauthorization: ");
        seen.lock().expect("a lock").push(request);
        answer(&mut stream, &path, value, authorized).await?;
        stream.flush().await?;
    }
}

async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    path: &str,
    value: &str,
    authorized: bool,
) -> std::io::Result<()> {
    let (path, rest) = path.split_once('?').unwrap_or((path, ""));
    if let Some(bytes) = attack(path) {
        return stream.write_all(&bytes).await;
    }
    let repeated = form(rest, value);
    let bytes = match path {
        // The value in two chunks, cut where the query says.
        "/cut" => {
            let cut = rest.parse().unwrap_or(0);
            let (first, second) = value.split_at(cut);
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            for part in [format!("<{first}"), format!("{second}>")] {
                stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await?;
                stream.flush().await?;
            }
            format!("0\r\nX-Trailer: {value}\r\n\r\n").into_bytes()
        }
        "/form" => whole("200 OK", &repeated),
        "/headers" => whole(&format!("302 {value}\r\nLocation: /x?token={repeated}\r\nSet-Cookie: t={value}"), "moved"),
        "/gzip" => whole("200 OK\r\nContent-Encoding: gzip", "never read"),
        "/encoded" => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nnever\r\n0\r\n\r\n".to_vec(),
        "/part" => whole("206 Partial Content\r\nContent-Range: bytes 0-9/10", "never read"),
        "/lengths" => b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 5\r\n\r\nnever".to_vec(),
        "/endless" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
            let chunk = format!("{:x}\r\n{}\r\n", 60_000, "z".repeat(60_000));
            loop {
                stream.write_all(chunk.as_bytes()).await?;
            }
        }
        "/slow-head" => {
            for byte in b"HTTP/1.1 200 OK\r\nX: ".iter().chain(std::iter::repeat_n(&b'y', 1000)) {
                stream.write_all(&[*byte]).await?;
                stream.flush().await?;
                sleep(Duration::from_millis(100)).await;
            }
            Vec::new()
        }
        "/endless-head" => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
            loop {
                stream.write_all(format!("X: {}\r\n", "y".repeat(4000)).as_bytes()).await?;
            }
        }
        "/elsewhere" => whole(&format!("302 Found\r\nLocation: https://{rest}/hello"), ""),
        // git asks again with what it has.
        _ if path.starts_with("/git/") && !authorized => {
            whole("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"git\"", "")
        }
        _ if path.starts_with("/git/") => whole("404 Not Found", ""),
        _ => whole("200 OK", "hello"),
    };
    stream.write_all(&bytes).await
}

fn whole(head: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A bomb, or an answer and bytes that are a second one to a reader who takes its end to be elsewhere.
fn attack(path: &str) -> Option<Vec<u8>> {
    Some(match path {
        "/bomb" => {
            let bomb = bomb();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", bomb.len());
            [head.into_bytes(), bomb].concat()
        }
        "/second" => [whole("200 OK", "first"), whole("200 OK\r\nX-Injected: 1", "never")].concat(),
        "/folded" => whole("200 OK\r\nX: a\r\n X-Injected: 1", "hello"),
        "/bare-cr" => whole("200 OK\r\nX: a\rX-Injected: 1", "hello"),
        "/nul" => whole("200 OK\r\nX: a\0X-Injected: 1", "hello"),
        "/bare-lf" => {
            let empty = b"HTTP/1.1 200 OK\r\nContent-Length: 0\nX: a\n\n".to_vec();
            [empty, whole("200 OK\r\nX-Injected: 1", "never")].concat()
        }
        "/both-lengths" => {
            let both = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_vec();
            [both, whole("200 OK\r\nX-Injected: 1", "never")].concat()
        }
        "/switch" => whole("101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade", "never"),
        _ => return None,
    })
}

/// A gzip of 1 GiB of zeros: members that are unpacked one after the other.
fn bomb() -> Vec<u8> {
    let mut member = GzEncoder::new(Vec::new(), Compression::best());
    member.write_all(&vec![0; BOMB_BYTES / 64]).expect("packed");
    member.finish().expect("packed").repeat(64)
}

fn form(kind: &str, value: &str) -> String {
    match kind {
        "percent" => value.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat(),
        "json" => value.bytes().map(|byte| format!("\\u{byte:04x}")).collect::<Vec<_>>().concat(),
        "html" => value.replace('/', "&#x2F;").replace('+', "&#43;"),
        "base64-0" => STANDARD.encode(format!("{value};")),
        "base64-1" => STANDARD.encode(format!("x{value};")),
        "base64-2" => STANDARD.encode(format!("xy{value};")),
        "basic" => format!("Basic {}", STANDARD.encode(format!("user:{value}"))),
        _ => value.to_owned(),
    }
}
