//! The HTTP proxy: tunnels (`CONNECT`), and requests with the whole URL, which go to the host as requests of ours.

use std::{convert::Infallible, sync::Arc};

use http::{Method, Request, Response, uri::Authority};
use hyper::{body::Incoming, server::conn::http1, service::service_fn, upgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use tracing::debug;

use super::{
    HEAD_BYTES_MAX, HEAD_MAX, Sandbox,
    answer::{Answer, own, refuse},
    channel::Client,
    forward::{Forwarder, Scheme},
    tunnel,
};
use crate::domain::network::{Refusal, Target};

/// One connection of a client.
struct Proxy {
    sandbox: Arc<Sandbox>,
    forwarder: Forwarder,
    /// There is no room for its connection.
    is_full: bool,
}

/// Serves the requests of one client until it closes the connection or makes it a tunnel.
pub(super) async fn serve(client: Client, sandbox: Arc<Sandbox>, is_full: bool) {
    let ended = client.get_ref().ended();
    let forwarder = Forwarder::new(Arc::clone(&sandbox), Scheme::Http, ended);
    let proxy = Arc::new(Proxy { sandbox, forwarder, is_full });
    let service = service_fn(|request| {
        let proxy = Arc::clone(&proxy);
        async move { Ok::<_, Infallible>(proxy.answer(request).await.unwrap_or_else(|refusal| refuse(&refusal))) }
    });
    let connection = server().keep_alive(!is_full).serve_connection(TokioIo::new(client), service).with_upgrades();
    if let Err(error) = connection.await {
        debug!(%error, "a program's connection to the proxy ended");
    }
    // A tunnel goes on after the connection that it was.
    proxy.forwarder.end().await;
}

/// Speaks HTTP with programs.
pub(super) fn server() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_MAX).max_buf_size(HEAD_BYTES_MAX).half_close(true);
    builder
}

impl Proxy {
    async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let authority = request.uri().authority().map(Authority::as_str);
        let is_tunnel = request.method() == Method::CONNECT;
        let is_http = is_tunnel || request.uri().scheme_str() == Some("http");
        let default = if is_tunnel { None } else { Some(Scheme::Http.port()) };
        let target = authority.filter(|_| is_http).and_then(|text| Target::parse(text, default));
        let target = self.forwarder.check(&request, target)?;
        if self.is_full {
            return Err(self.sandbox.refused(target.to_string(), Refusal::TooMany));
        }
        if is_tunnel { self.tunnel(request, target).await } else { self.forwarder.forward(request, target).await }
    }

    async fn tunnel(&self, request: Request<Incoming>, target: Target) -> Result<Answer, Refusal> {
        let connected = tunnel::connect(&target, &self.sandbox, &self.forwarder.program_ended).await?;
        let sandbox = Arc::clone(&self.sandbox);
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

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
