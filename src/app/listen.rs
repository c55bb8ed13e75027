//! The accept loop: HTTP/1.1 with limits on connections, heads and the time to send a head, which `axum::serve` does
//! not have.
//!
//! ```text
//! serve ── one task for each connection; `shutdown` stops accepting, `abandon` stops waiting for open connections
//! ```
//!
//! A connection that became a WebSocket keeps its slot and its turn; `abandon` ends it.
//!
//! [`slots`] decides which request is answered when slots are scarce, and which connection is closed; [`connection`]
//! enforces the time limits of each, by the events of its [`socket`]. When slots are scarce, each answer closes its
//! connection.

mod connection;
mod slots;
mod socket;

use std::{convert::Infallible, net::Ipv6Addr, pin::pin, sync::Arc, time::Duration};

use axum::{Router, body::Body};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::{
    net::TcpListener,
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt as _;
use tracing::{debug, warn};

use self::{connection::Connection, slots::ConnectionSlots, socket::Watched};
use crate::{
    api::http::{
        arrival,
        auth::{Class, ClientAddress, no_room},
    },
    config::{BindAddr, Server},
    domain::address::network,
    services::tokens::Tokens,
};

/// After a failed accept, because descriptors may become free.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers that are being sent may take after `abandon`.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(2);
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 << 10;
/// How much of an answer waits in the kernel to be sent. So a reader that stands still costs little memory, and one
/// that reads slowly is seen to read.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// What is served.
#[derive(Clone)]
pub struct Surface {
    pub router: Router,
    /// Decide which requests are served when slots are scarce.
    pub tokens: Arc<Tokens>,
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
    surface: Surface,
    settings: Server,
    shutdown: CancellationToken,
    abandon: CancellationToken,
) {
    let mut http = http1::Builder::new();
    http.header_read_timeout(None).max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
    let slots = ConnectionSlots::new(settings);
    let connections = TaskTracker::new();
    loop {
        let accepted = async {
            let (stream, address) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, slots.open(network(address.ip())).await))
        };
        let (stream, connection) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accepted => match accepted {
                Ok((stream, Some(connection))) => (stream, connection),
                Ok((_, None)) => break,
                Err(error) => {
                    warn!(%error, "a connection was not accepted");
                    sleep(PAUSE).await;
                    continue;
                }
            },
        };
        // Small answers are sent at once. A socket that refuses an option works without.
        drop(stream.set_nodelay(true));
        drop(SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
        let (surface, answering) = (surface.clone(), Arc::clone(&connection));
        let service = service_fn(move |request| answer(Arc::clone(&answering), request, surface.clone()));
        let socket = TokioIo::new(Watched::new(stream, Arc::clone(&connection)));
        let serving = http.serve_connection(socket, service).with_upgrades();
        let (stopped, abandoned) = (shutdown.clone(), abandon.clone());
        // From `shutdown` on it ends with the answer that is being sent.
        let serving = async move {
            let mut serving = pin!(serving);
            tokio::select! {
                biased;
                end = serving.as_mut() => return end,
                () = stopped.cancelled() => serving.as_mut().graceful_shutdown(),
            }
            serving.await
        };
        connections.spawn(async move {
            let ended = match connection.drive(serving).await {
                Ok(Err(error)) => return debug!(%error, "a connection failed"),
                Err(why) => Err(why),
                Ok(Ok(())) => connection.upgraded(abandoned).await,
            };
            if let Err(why) = ended {
                debug!("a connection was ended: {why}");
            }
        });
    }
    drop(listener);
    connections.close();
    tokio::select! {
        () = connections.wait() => {}
        () = abandon.cancelled() => drop(timeout(LAST_ANSWERS_MAX, connections.wait()).await),
    }
}

/// Answers one request. The connection is busy until the answer was sent.
async fn answer(
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
    surface: Surface,
) -> Result<Response<impl http_body::Body<Data = bytes::Bytes, Error = axum::Error>>, Infallible> {
    arrival::take_token(&mut request);
    let class = Class::of(&surface.tokens, &mut request);
    let mut busy = connection.begin(&class).await;
    request.extensions_mut().insert(ClientAddress(connection.address));
    if !busy.is_answered() {
        request.extensions_mut().insert(no_room(true));
    }
    let (uri, is_safe) = (request.uri().clone(), request.method().is_safe());
    let mut response = surface.router.clone().oneshot(request.map(Body::new)).await?;
    let bytes = http_body::Body::size_hint(response.body()).exact().unwrap_or_default();
    if !busy.holds(bytes, response.extensions().get()) {
        let mut refused = Request::new(Body::empty());
        *refused.uri_mut() = uri;
        refused.extensions_mut().insert(no_room(is_safe));
        response = surface.router.oneshot(refused).await?;
    }
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        busy.upgrade();
    } else if connection.closes() || !busy.is_answered() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    // The closure owns `busy` until the body is dropped.
    let keep = move |error| (error, &busy).0;
    Ok(response.map(|body| body.map_err(keep)))
}
