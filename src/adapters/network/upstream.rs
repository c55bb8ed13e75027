//! A connection to a host, with its bytes counted. It is recorded when it is over.

use std::{
    net::SocketAddr,
    num::NonZeroU32,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    time::{Instant, sleep_until, timeout},
};

use crate::{
    domain::network::{NetworkUse, Refusal, Target},
    ports::network::{Gate, Pace},
};

/// How long one address may take to answer, and how many are tried.
const CONNECT_MAX: Duration = Duration::from_secs(5);
const ADDRESSES_MAX: usize = 4;
/// How long a connection may carry nothing.
const IDLE_MAX: Duration = Duration::from_mins(10);

/// A connection to a host.
pub(super) struct Upstream {
    stream: TcpStream,
    gate: Arc<dyn Gate>,
    used: NetworkUse,
    since: Instant,
    pace: Option<Arc<dyn Pace>>,
    /// Until the bytes that have passed are allowed, no more do. Both directions are polled by one task.
    paying: Option<BoxFuture<'static, ()>>,
    /// When something passed; `None` while more waits until it is allowed.
    passed_at: Arc<Mutex<Option<Instant>>>,
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
            gate.over(NetworkUse {
                took: since.elapsed(),
                ..NetworkUse::of(target.to_string(), Some(refusal.clone()))
            });
            return Err(refusal);
        };
        let (used, pace) = (NetworkUse::of(target.to_string(), None), gate.pace(target));
        let passed_at = Arc::new(Mutex::new(Some(Instant::now())));
        Ok(Self { stream, gate: Arc::clone(gate), used, since, pace, paying: None, passed_at })
    }

    /// Ready when what has passed is allowed.
    fn poll_paid(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(paying) = &mut self.paying {
            let paid = paying.as_mut().poll(cx);
            self.note(paid.is_ready().then(Instant::now));
            ready!(paid);
            self.paying = None;
        }
        Poll::Ready(())
    }

    fn passed(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).ok().and_then(NonZeroU32::new);
        if bytes.is_some() {
            self.note(Some(Instant::now()));
        }
        self.paying = self.pace.as_ref().zip(bytes).map(|(pace, bytes)| pace.pay(bytes));
    }

    fn note(&self, passed_at: Option<Instant>) {
        *self.passed_at.lock() = passed_at;
    }

    /// Returns when it has carried nothing for too long, though it was allowed to.
    pub(super) fn idle(&self) -> impl Future<Output = ()> + Send + use<> {
        let passed_at = Arc::clone(&self.passed_at);
        async move {
            loop {
                let passed_at = *passed_at.lock();
                let until = passed_at.unwrap_or_else(Instant::now) + IDLE_MAX;
                if until <= Instant::now() {
                    return;
                }
                sleep_until(until).await;
            }
        }
    }

    /// Ends it because of what the program sent, or did not.
    pub(super) fn refuse(mut self, refusal: Refusal) {
        self.used.refusal = Some(refusal);
    }
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
        ready!(self.poll_paid(cx));
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let count = buffer.filled().len() - before;
        self.used.received_bytes += count as u64;
        self.passed(count);
        read
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        ready!(self.poll_paid(cx));
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.used.sent_bytes += count as u64;
            self.passed(count);
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

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt as _;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
        sync::Semaphore,
    };

    use super::{super::tests::AllowingGate, *};

    /// Allows bytes as the test says.
    struct ManualPace(Arc<Semaphore>);

    impl Pace for ManualPace {
        fn pay(&self, bytes: NonZeroU32) -> BoxFuture<'static, ()> {
            let allowed = Arc::clone(&self.0);
            async move { allowed.acquire_many(bytes.get()).await.expect("it is open").forget() }.boxed()
        }
    }

    /// A connection to a host, whose bytes pass as far as there are permits.
    async fn paced() -> (Upstream, TcpStream, Arc<Semaphore>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let allowed = Arc::new(Semaphore::new(0));
        let pace: Arc<dyn Pace> = Arc::new(ManualPace(Arc::clone(&allowed)));
        let gate: Arc<dyn Gate> = Arc::new(AllowingGate { pace: Some(pace), ..AllowingGate::at(address) });
        let target = Target::parse("a.example:80", None).expect("a target");
        let upstream = Upstream::connect(&target, &gate).await.expect("a connection");
        let (host, _) = listener.accept().await.expect("a connection");
        (upstream, host, allowed)
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_as_fast_as_they_are_allowed() {
        let (mut upstream, mut host, allowed) = paced().await;
        upstream.write_all(b"0123").await.expect("the first piece passes, and is paid for then");
        assert!(upstream.write(b"4").now_or_never().is_none() && upstream.read_u8().now_or_never().is_none());
        allowed.add_permits(3);
        assert!(upstream.write(b"4").now_or_never().is_none(), "three of four bytes are allowed");
        allowed.add_permits(1);
        upstream.write_all(b"4").await.expect("it is allowed");
        host.write_all(b"x").await.expect("written");
        assert!(upstream.read_u8().now_or_never().is_none());
        allowed.add_permits(1);
        assert_eq!(upstream.read_u8().await.expect("a byte"), b'x');
        let mut got = [0; 5];
        host.read_exact(&mut got).await.expect("all of it");
        assert_eq!(&got, b"01234");
    }

    #[tokio::test]
    async fn connection_that_waits_for_its_rate_is_not_idle() {
        let (mut upstream, _host, allowed) = paced().await;
        upstream.write_all(b"0123").await.expect("the first piece passes");
        assert!(upstream.write(b"4").now_or_never().is_none(), "it is not allowed yet");
        tokio::time::pause();
        let mut idle = pin!(upstream.idle());
        assert!(timeout(3 * IDLE_MAX, idle.as_mut()).await.is_err(), "the program does not keep it from passing");
        allowed.add_permits(4);
        upstream.write_all(b"4").await.expect("it is allowed");
        timeout(3 * IDLE_MAX, idle).await.expect("nothing more passes");
    }
}
