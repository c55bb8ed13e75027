//! Requests of programs over HTTP. The proxy: tunnels (`CONNECT`), and requests with the whole URL, which go to the
//! host as requests of ours. And TLS that the server opens, for secrets and for rules of requests: it ends here under a
//! certificate of the sandbox's authority, each request is decided, and goes to the host over another TLS whose
//! certificate is verified. The connection to the host is made for a request: without one there is none, and none that
//! the host has ended meanwhile.

use std::{convert::Infallible, io::Cursor, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Method, Request, Response, uri::Authority};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::{
    io::{self, AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{
    HEAD_BYTES_MAX, HEAD_MAX, READ_BYTES, Sandbox,
    answer::{Answer, own, refuse},
    channel::Client,
    forward::{Forwarder, Scheme},
    tunnel,
    upstream::ProgramEnd,
};
use crate::domain::network::{Refusal, Target};

/// How long a program may take to agree on TLS.
const TLS_MAX: Duration = Duration::from_secs(30);

/// One connection of a client, to the proxy or to a host whose TLS is opened.
struct ClientConnection {
    forwarder: Forwarder,
    /// The host whose TLS is opened.
    opened: Option<Target>,
    /// There is no room for it.
    is_full: bool,
}

/// Serves the requests of one client until it closes the connection or makes it a tunnel.
pub(super) async fn serve(client: Client, sandbox: Arc<Sandbox>, is_full: bool) {
    let forwarder = Forwarder::new(sandbox, Scheme::Http, client.get_ref().ended());
    ClientConnection { forwarder, opened: None, is_full }.serve(client).await;
}

/// Speaks HTTP with programs.
fn server() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX).half_close(true);
    builder
}

impl ClientConnection {
    async fn serve(self, client: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let this = Arc::new(self);
        let service = service_fn(|request| {
            let this = Arc::clone(&this);
            async move { Ok::<_, Infallible>(this.answer(request).await.unwrap_or_else(|refusal| refuse(&refusal))) }
        });
        let connection = server().keep_alive(!this.is_full).serve_connection(TokioIo::new(client), service);
        if let Err(error) = connection.with_upgrades().await {
            debug!(%error, opened = ?this.opened, "a program's connection for requests ended");
        }
        // A tunnel goes on after the connection that it was.
        this.forwarder.end().await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let authority = request.uri().authority().map(Authority::as_str);
        let is_tunnel = request.method() == Method::CONNECT;
        let target = if let Some(opened) = &self.opened {
            // A whole URL could name another host than the connection is to.
            (authority.is_none() && !is_tunnel).then(|| opened.clone())
        } else {
            let is_http = is_tunnel || request.uri().scheme_str() == Some("http");
            let default = if is_tunnel { None } else { Some(Scheme::Http.port()) };
            authority.filter(|_| is_http).and_then(|text| Target::parse(text, default))
        };
        let target = self.forwarder.check(&request, target)?;
        if self.is_full {
            return Err(self.forwarder.sandbox.refused(target.to_string(), Refusal::TooMany));
        }
        if is_tunnel { self.tunnel(request, target).await } else { self.forwarder.forward(request, target).await }
    }

    async fn tunnel(&self, request: Request<Incoming>, target: Target) -> Result<Answer, Refusal> {
        let sandbox = Arc::clone(&self.forwarder.sandbox);
        let connected = tunnel::connect(&target, &sandbox, &self.forwarder.program_ended).await?;
        let carried = async move {
            match upgrade::on(request).await {
                Ok(client) => tunnel::carry(TokioIo::new(client), connected, &target, &sandbox).await,
                Err(error) => debug!(%error, "a tunnel was not begun"),
            }
        };
        self.forwarder.spawn(carried).await;
        Ok(Response::new(own(String::new())))
    }
}

/// Opens the TLS of a tunnel, and serves its requests until its client closes it. Boxed: the connection that became the
/// tunnel is one of the same type.
pub(super) fn open<'a>(
    client: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    ended: ProgramEnd,
    config: Arc<ServerConfig>,
    target: &'a Target,
    sandbox: &'a Arc<Sandbox>,
) -> BoxFuture<'a, ()> {
    async move {
        let (from_client, to_client) = io::split(client);
        let mut from_client = BufReader::with_capacity(READ_BYTES, from_client);
        let hello = timeout(HEAD_MAX, tunnel::read_hello(&mut from_client, target)).await;
        let head = match hello.unwrap_or_else(|_| Err(Refusal::Idle(target.clone()))) {
            // At other ports than that of TLS anything else would pass. An end before the first byte asks for nothing.
            Ok(head) if head.is_empty() => {
                if !from_client.buffer().is_empty() {
                    sandbox.refuse(target, Refusal::NoTls);
                }
                return;
            }
            Ok(head) => head,
            Err(refusal) => return drop(sandbox.refused(target.to_string(), refusal)),
        };
        let client = io::join(Cursor::new(head).chain(from_client), to_client);
        let client = match timeout(TLS_MAX, TlsAcceptor::from(config).accept(client)).await {
            Ok(Ok(client)) => client,
            Ok(Err(error)) => return debug!(%error, "a program did not agree on TLS with the server"),
            Err(_) => return debug!("a program was too slow to agree on TLS with the server"),
        };
        let forwarder = Forwarder::new(Arc::clone(sandbox), Scheme::Opened, ended);
        ClientConnection { forwarder, opened: Some(target.clone()), is_full: false }.serve(client).await;
    }
    .boxed()
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
