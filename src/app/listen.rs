//! The accept loop: HTTP/1.1 with a limit on connections and on the time a client may take to send its head (axum's own
//! `serve` has neither).
//!
//! ```text
//! serve ── one task a connection; `shutdown` stops accepting, `abandon` stops waiting for what is still open
//! ```

use std::{net::Ipv6Addr, sync::Arc, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use tokio::{
    net::TcpListener,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::ground::config::BindAddr;

/// After a failed accept: descriptors may come back.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers that are being sent may take once the server stops.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(2);
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 << 10;

/// What clients may use of the listener.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a request's head may take.
    pub header_read_max: Duration,
    /// Open connections; more wait to be accepted.
    pub connections_max: usize,
}

/// Listens. `:8080` is every interface of both address families where the machine has them.
pub async fn bind(addr: &BindAddr) -> std::io::Result<TcpListener> {
    match addr {
        BindAddr::Host { host_port } => TcpListener::bind(host_port).await,
        BindAddr::AllInterfaces { port } => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).await {
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => TcpListener::bind(("0.0.0.0", *port)).await,
            bound => bound,
        },
    }
}

/// Accepts until `shutdown`; then open connections may finish their answers until `abandon`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
    abandon: CancellationToken,
) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_read_max)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX);
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        let (stream, place) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accepted => match accepted {
                Some((Ok((stream, _)), place)) => (stream, place),
                Some((Err(error), _)) => {
                    warn!(%error, "a connection was not accepted");
                    sleep(PAUSE).await;
                    continue;
                }
                None => break,
            },
        };
        // Small answers go out at once.
        drop(stream.set_nodelay(true));
        let service = TowerToHyperService::new(router.clone());
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                debug!(%error, "a connection ended badly");
            }
            drop(place);
        });
    }
    drop(listener);
    let finished = graceful.shutdown();
    tokio::pin!(finished);
    tokio::select! {
        () = &mut finished => {}
        () = abandon.cancelled() => drop(timeout(LAST_ANSWERS_MAX, &mut finished).await),
    }
}
