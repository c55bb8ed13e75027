//! The accept loop: HTTP/1.1 with limits on connections, heads and the time to send a head, which `axum::serve` does
//! not have.
//!
//! ```text
//! serve ── one task for each connection; `shutdown` stops accepting, `abandon` stops waiting for open connections
//! ```
//!
//! When every place is taken, a new connection gets the place of the one that has been idle longest. So clients that
//! hold connections and send nothing, or send slowly, do not keep others out; only requests that are being answered
//! do.

mod idle;

use std::{net::Ipv6Addr, sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
};
use tokio::{
    net::TcpListener,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use self::idle::Connections;
use crate::config::BindAddr;

/// After a failed accept, because descriptors may become free.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers that are being sent may take after `abandon`.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(2);
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 << 10;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Time to send the head of a request.
    pub header_read_max: Duration,
    pub connections_max: usize,
}

/// Listens. `:8080` is every interface, of both address families if the machine has them.
pub async fn bind(addr: &BindAddr) -> std::io::Result<TcpListener> {
    if addr.host.is_some() {
        return TcpListener::bind(addr.to_string()).await;
    }
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, addr.port)).await {
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => TcpListener::bind(("0.0.0.0", addr.port)).await,
        bound => bound,
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
    let connections = Arc::new(Connections::default());
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async { (listener.accept().await, place(&places, &connections).await) };
        let (stream, place) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accepted => match accepted {
                (Ok((stream, _)), place) => (stream, place),
                (Err(error), _) => {
                    warn!(%error, "a connection was not accepted");
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        // Small answers are sent at once.
        drop(stream.set_nodelay(true));
        let connection = connections.open();
        let (router, service) = (router.clone(), Arc::clone(&connection));
        let service =
            service_fn(move |request: Request<Incoming>| Arc::clone(&service).busy(router.clone().oneshot(request)));
        let serving = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            match connection.drive(serving).await {
                Some(Err(error)) => debug!(%error, "a connection failed"),
                None => debug!("an idle connection made room for another"),
                Some(Ok(())) => {}
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

/// A place for a new connection. It waits while every connection is busy.
async fn place(places: &Arc<Semaphore>, connections: &Connections) -> Option<OwnedSemaphorePermit> {
    loop {
        tokio::select! {
            biased;
            place = Arc::clone(places).acquire_owned() => return place.ok(),
            () = connections.make_room() => {}
        }
    }
}
