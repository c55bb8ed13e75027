//! A connection to a host, with its bytes counted. It is recorded when it is over.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    domain::network::{NetworkUse, Refusal, Target},
    ports::network::Gate,
};

/// How long one address may take to answer, and how many are tried.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ADDRESSES_MAX: usize = 4;

/// A connection to a host.
pub(super) struct Upstream {
    stream: TcpStream,
    gate: Arc<dyn Gate>,
    used: NetworkUse,
    since: Instant,
}

impl Upstream {
    /// Connects to an address that the gate has checked. A refusal is recorded.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) async fn connect(target: &Target, gate: &Arc<dyn Gate>) -> Result<Self, Refusal> {
        let since = Instant::now();
        let addresses = gate.decide(target).await?;
        let Some(stream) = first(&addresses).await else {
            let refusal = Refusal::Unreachable(target.clone());
            gate.over(NetworkUse { took: since.elapsed(), ..refused(target.to_string(), refusal.clone()) });
            return Err(refusal);
        };
        let used = NetworkUse { refusal: None, ..refused(target.to_string(), Refusal::Malformed) };
        Ok(Self { stream, gate: Arc::clone(gate), used, since })
    }

    /// Ends it because of what the program sent.
    pub(super) fn refuse(mut self, refusal: Refusal) {
        self.used.refusal = Some(refusal);
    }
}

/// A connection that was not made.
pub(super) fn refused(target: String, refusal: Refusal) -> NetworkUse {
    NetworkUse { target, refusal: Some(refusal), sent_bytes: 0, received_bytes: 0, took: Duration::ZERO }
}

async fn first(addresses: &[SocketAddr]) -> Option<TcpStream> {
    for address in addresses.iter().take(ADDRESSES_MAX) {
        if let Ok(Ok(stream)) = timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            stream.set_nodelay(true).ok()?;
            return Some(stream);
        }
    }
    None
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.used.took = self.since.elapsed();
        self.gate.over(self.used.clone());
    }
}

impl AsyncRead for Upstream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.used.received_bytes += (buffer.filled().len() - before) as u64;
        read
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.used.sent_bytes += count as u64;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
