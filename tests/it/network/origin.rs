//! Hosts for programs to reach: this machine, by an address that no client takes for its own sandbox.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Request},
    http::StatusCode,
    middleware::{self, Next},
    routing::{get, post},
};
use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{ServerConfig, pki_types::PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::{io::AsyncWriteExt as _, net::TcpListener, task::JoinSet};
use tokio_rustls::TlsAcceptor;

use crate::support::until;

/// Loopback, and not 127.0.0.1, which clients reach without a proxy.
const ADDRESS: &str = "127.0.0.2:0";

pub struct Origin {
    pub http: SocketAddr,
    pub tls: SocketAddr,
    /// The same as `http` at a port that no policy names.
    pub other: SocketAddr,
    /// Takes connections and reads nothing of them; the other sends without end.
    pub silent: SocketAddr,
    pub endless: SocketAddr,
    /// The certificate of `tls`.
    pub certificate: String,
    /// Served below `/static/`.
    pub folder: TempDir,
    requests: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Origin {
    pub async fn start() -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        let folder = tempfile::tempdir().expect("a folder");
        let served = folder.path().to_owned();
        let router = Router::new()
            .route("/hello", get(async || "hello"))
            .route("/length", post(async |body: Bytes| body.len().to_string()))
            .route(
                "/static/{*path}",
                get(async move |path: Path<String>| {
                    std::fs::read(served.join(&*path)).map_err(|_| StatusCode::NOT_FOUND)
                }),
            )
            .route("/bytes/{count}", get(async |path: Path<usize>| vec![b'x'; path.0]))
            .layer(DefaultBodyLimit::disable())
            .layer(middleware::from_fn(move |request: Request, next: Next| {
                counted.fetch_add(1, Ordering::Relaxed);
                next.run(request)
            }));
        let mut tasks = JoinSet::new();
        let [http, other] = [listener().await, listener().await].map(|listener| {
            let address = listener.local_addr().expect("an address");
            let router = router.clone();
            tasks.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
            address
        });
        let [silent, endless] = [listener().await, listener().await].map(|listener| {
            let address = listener.local_addr().expect("an address");
            (listener, address)
        });
        tasks.spawn(hold(silent.0));
        tasks.spawn(pour(endless.0));
        let listener = listener().await;
        let tls = listener.local_addr().expect("an address");
        let made = generate_simple_self_signed(vec!["127.0.0.2".to_owned()]).expect("a certificate");
        let certificate = made.cert.pem();
        tasks.spawn(serve_tls(listener, router, acceptor(&made)));
        Self { http, tls, other, silent: silent.1, endless: endless.1, certificate, folder, requests, _tasks: tasks }
    }

    /// Waits for so many requests.
    pub async fn reached(&self, count: usize) {
        until("requests reach the host", async || self.seen() >= count).await;
    }

    /// Requests so far.
    pub fn seen(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

async fn listener() -> TcpListener {
    TcpListener::bind(ADDRESS).await.expect("a port")
}

async fn hold(listener: TcpListener) {
    let mut held = Vec::new();
    while let Ok((stream, _)) = listener.accept().await {
        held.push(stream);
    }
}

async fn pour(listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        connections.spawn(async move {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n";
            let mut sent = stream.write_all(head).await;
            while sent.is_ok() {
                sent = stream.write_all(&[b'x'; 1 << 14]).await;
            }
        });
    }
}

fn acceptor(made: &CertifiedKey<KeyPair>) -> TlsAcceptor {
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions");
    let config = config.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key.into());
    TlsAcceptor::from(Arc::new(config.expect("a configuration")))
}

pub async fn serve_tls(listener: TcpListener, router: Router, acceptor: TlsAcceptor) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, router) = (acceptor.clone(), router.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper_util::service::TowerToHyperService::new(router);
            let io = hyper_util::rt::TokioIo::new(stream);
            drop(hyper::server::conn::http1::Builder::new().serve_connection(io, service).await);
        });
    }
}
