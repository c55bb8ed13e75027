//! TLS that the server opens, for secrets and for rules of requests: it ends here under a certificate of the sandbox's
//! authority, each request is decided, and goes to the host over another TLS whose certificate is verified. The
//! connection to the host is made for a request: without one there is none, and none that the host has ended meanwhile.

use std::{convert::Infallible, io::Cursor, sync::Arc, time::Duration};

use http::{Method, Request};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use tokio::{
    io::{self, AsyncRead, AsyncReadExt as _, AsyncWrite, BufReader},
    time::timeout,
};
use tokio_rustls::TlsAcceptor;
use tracing::debug;

use super::{
    HEAD_MAX, READ_BYTES, Sandbox,
    answer::{Answer, refuse},
    forward::{Forwarder, Scheme},
    hello,
    http::server,
    upstream::ProgramEnd,
};
use crate::domain::network::{Refusal, Target};

/// How long a program may take to agree on TLS.
const TLS_MAX: Duration = Duration::from_secs(30);

/// Serves the requests of one tunnel until its client closes it.
pub(super) async fn carry(
    client: impl AsyncRead + AsyncWrite + Send + Unpin,
    ended: ProgramEnd,
    config: Arc<ServerConfig>,
    target: &Target,
    sandbox: &Arc<Sandbox>,
) {
    let (from_client, to_client) = io::split(client);
    let mut from_client = BufReader::with_capacity(READ_BYTES, from_client);
    let hello = timeout(HEAD_MAX, hello::read(&mut from_client, target)).await;
    let head = match hello.unwrap_or_else(|_| Err(Refusal::Idle(target.clone()))) {
        // At other ports than that of TLS anything else would pass.
        Ok(head) if head.is_empty() => {
            return drop(sandbox.refused(target.to_string(), Refusal::NoTls(target.clone())));
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
    let forwarder = Arc::new(Forwarder::new(Arc::clone(sandbox), Scheme::Opened, ended));
    let service = service_fn(|request| {
        let (forwarder, target) = (Arc::clone(&forwarder), target.clone());
        async move {
            Ok::<_, Infallible>(answer(&forwarder, request, target).await.unwrap_or_else(|refusal| refuse(&refusal)))
        }
    });
    if let Err(error) = server().serve_connection(TokioIo::new(client), service).await {
        debug!(%error, "a program's connection to an opened host ended");
    }
    forwarder.end().await;
}

async fn answer(forwarder: &Forwarder, request: Request<Incoming>, target: Target) -> Result<Answer, Refusal> {
    // A whole URL could name another host than the connection is to.
    let is_plain = request.uri().authority().is_none() && request.method() != Method::CONNECT;
    let target = forwarder.check(&request, is_plain.then_some(target))?;
    forwarder.forward(request, target).await
}
