//! The accept loop: HTTP/1.1 with limits on connections, heads and the time to send a head, which `axum::serve` does
//! not have.
//!
//! ```text
//! serve ── one task for each connection; `shutdown` stops accepting, `abandon` stops waiting for open connections
//! ```
//!
//! [`places`] decides which request is answered when places are short, and which connection makes room;
//! [`connection`] holds the limits of each in time. When places are short, each answer closes its connection.

mod connection;
mod places;

use std::{
    convert::Infallible,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body};
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt as _;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::{rt::TokioIo, server::graceful::GracefulShutdown};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{debug, warn};

pub use self::places::Limits;
use self::{
    connection::{Connection, Watched},
    places::Places,
};
use crate::{
    api::http::auth::{Class, ClientAddress, NoTurn},
    config::BindAddr,
    services::tokens::Tokens,
};

/// After a failed accept, because descriptors may become free.
const PAUSE: Duration = Duration::from_millis(100);
/// How long answers that are being sent may take after `abandon`.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(2);
const HEADERS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 32 << 10;
/// Of an answer, how much waits in the kernel to be sent. So a reader that stands still costs little memory, and one
/// that reads slowly is seen to read.
const UNSENT_BYTES_MAX: u32 = 64 << 10;

/// What is served.
#[derive(Clone)]
pub struct Surface {
    pub router: Router,
    /// Decide which requests are served when places are short.
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
    limits: Limits,
    shutdown: CancellationToken,
    abandon: CancellationToken,
) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.header_read_timeout(None).max_headers(HEADERS_MAX).max_buf_size(HEAD_BYTES_MAX);
    let places = Places::new(limits);
    let graceful = GracefulShutdown::new();
    loop {
        let accepted = async {
            let (stream, address) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, places.open(network(address)).await))
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
        prepare(&stream);
        let (surface, answering) = (surface.clone(), Arc::clone(&connection));
        let service = service_fn(move |request| answer(Arc::clone(&answering), request, surface.clone()));
        let socket = TokioIo::new(Watched { stream, connection: Arc::clone(&connection) });
        let serving = graceful.watch(http.serve_connection(socket, service));
        tokio::spawn(async move {
            match connection.drive(serving).await {
                Ok(Err(error)) => debug!(%error, "a connection failed"),
                Err(why) => debug!("a connection was ended: {why}"),
                Ok(Ok(())) => {}
            }
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

/// Small answers are sent at once. A socket that refuses an option works without.
fn prepare(stream: &TcpStream) {
    drop(stream.set_nodelay(true));
    drop(SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX));
}

/// What counts as one address: of IPv6 the network that one customer usually has.
fn network(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Answers one request. The connection is busy until the body of the answer was sent.
async fn answer(
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
    surface: Surface,
) -> Result<Response<impl http_body::Body<Data = bytes::Bytes, Error = axum::Error>>, Infallible> {
    let class = Class::of(&surface.tokens, request.uri().path(), request.headers());
    let busy = connection.begin(class).await;
    request.extensions_mut().insert(ClientAddress(connection.address()));
    if !busy.is_answered() {
        request.extensions_mut().insert(NoTurn);
    }
    let mut response = surface.router.oneshot(request.map(Body::new)).await?;
    if connection.closes() || !busy.is_answered() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    // The closure owns `busy` until the body is dropped.
    let keep = move |error| (error, &busy).0;
    Ok(response.map(|body| body.map_err(keep)))
}
