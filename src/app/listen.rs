//! The accept loop: HTTP/1.1 with a limit on connections and on the time a client may take to send its head (axum's own
//! `serve` has neither).
//!
//! ```text
//! serve ── one task a connection; `shutdown` stops accepting, `abandon` stops waiting for what is still open
//! ```
//!
//! When every place is taken, a newcomer gets the place of the connection that has waited longest for its client to send a
//! request, unless that has come meanwhile or is to be expected at once. So clients that hold connections and send nothing, or send slowly, keep nobody out; only requests that are
//! being answered can.

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

use self::idle::Idle;
use crate::config::BindAddr;

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
    /// Open connections; see the top of the file for what happens to more.
    pub connections_max: usize,
}

/// Listens. `:8080` is every interface of both address families where the machine has them.
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
    let idle = Arc::new(Idle::default());
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let accepted = listener.accept().await;
            Some((accepted, place(&places, &idle).await?))
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
        let waiting = Idle::begin(&idle);
        let driver = waiting.driver();
        let router = router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let busy = waiting.busy();
            let answer = router.clone().oneshot(request);
            async move { answer.await.map(|response| response.map(|body| busy.until_sent(body))) }
        });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            match driver.drive(connection).await {
                Some(Err(error)) => debug!(%error, "a connection ended badly"),
                None => debug!("a connection that sent nothing made room for another"),
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

/// A place for a newcomer, which somebody who is silent makes room for. While everybody is being answered it waits.
async fn place(places: &Arc<Semaphore>, idle: &Idle) -> Option<OwnedSemaphorePermit> {
    loop {
        tokio::select! {
            biased;
            place = Arc::clone(places).acquire_owned() => return place.ok(),
            () = idle.end_oldest() => {}
        }
    }
}
