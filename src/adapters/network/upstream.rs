//! A connection to a host, with its bytes counted. It is recorded when it is over.

use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, OnceLock, Weak},
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
/// How long a connection may carry nothing, and how long once one of its halves has ended: a program that gives up on a
/// host looks like one that has ended its half and waits for the answer.
const IDLE_MAX: Duration = Duration::from_mins(10);
const HALF_CLOSED_MAX: Duration = Duration::from_mins(2);

/// When a program ended its half of a channel; empty until that is known.
pub(super) type ProgramEnd = Arc<OnceLock<Instant>>;

/// A connection to a host.
pub(super) struct Upstream {
    // Dropped first: a connection is recorded before it is closed.
    activity: Arc<Activity>,
    stream: TcpStream,
    pace: Option<Pace>,
    /// Until the bytes that have passed are allowed, no more do. Both directions are polled by one task.
    paying: Option<BoxFuture<'static, ()>>,
}

/// What has passed over a connection: it decides when that was nothing for too long, and is recorded once, when the
/// connection is over and nothing waits for its host: what waits holds this, and may record why it failed.
pub(super) struct Activity {
    target: Target,
    gate: Arc<dyn Gate>,
    since: Instant,
    state: Mutex<State>,
}

impl Drop for Activity {
    fn drop(&mut self) {
        self.record(None);
    }
}

struct State {
    /// `None` once it is recorded.
    used: Option<NetworkUse>,
    /// When something passed; `None` while more waits until it is allowed.
    passed_at: Option<Instant>,
    /// When a half of the connection to the host ended.
    half_ended_at: Option<Instant>,
    program_ended: ProgramEnd,
}

impl Activity {
    /// The host has not answered. It is recorded.
    pub(super) fn fail(&self) -> Refusal {
        let target = self.target.clone();
        let why = if self.is_over() { Refusal::Idle(target) } else { Refusal::Unreachable(target) };
        self.record(Some(why.clone()));
        why
    }

    /// Records the connection, unless that was done.
    fn record(&self, refusal: Option<Refusal>) {
        let Some(mut used) = self.state.lock().used.take() else { return };
        used.refusal = refusal.or_else(|| self.is_over().then(|| Refusal::Idle(self.target.clone())));
        used.took = self.since.elapsed();
        self.gate.closed(used);
    }

    fn over_at(&self) -> Instant {
        let state = self.state.lock();
        let passed_at = state.passed_at.unwrap_or_else(Instant::now);
        let ended_at = state.half_ended_at.or_else(|| state.program_ended.get().copied());
        ended_at.map_or(passed_at + IDLE_MAX, |ended_at| passed_at.max(ended_at) + HALF_CLOSED_MAX)
    }

    /// Whether it has carried nothing for too long, though it was allowed to.
    fn is_over(&self) -> bool {
        self.over_at() <= Instant::now()
    }

    /// Returns when it has carried nothing for too long, though it was allowed to, or is recorded.
    pub(super) async fn idle(this: Weak<Self>) {
        while let Some(over_at) = this.upgrade().map(|this| this.over_at())
            && over_at > Instant::now()
        {
            // A half may end meanwhile.
            sleep_until(over_at.min(Instant::now() + HALF_CLOSED_MAX)).await;
        }
    }

    fn passed(&self, at: Option<Instant>) {
        self.state.lock().passed_at = at;
    }

    /// Counts bytes.
    fn count(&self, counted: impl FnOnce(&mut NetworkUse)) {
        if let Some(used) = &mut self.state.lock().used {
            counted(used);
        }
    }

    fn half_ended(&self) {
        self.state.lock().half_ended_at.get_or_insert_with(Instant::now);
    }
}

impl Upstream {
    /// Connects to an address that the gate has checked. A refusal is recorded.
    ///
    /// # Errors
    /// Why there is no connection.
    pub(super) async fn connect(
        target: &Target,
        gate: &Arc<dyn Gate>,
        program_ended: &ProgramEnd,
    ) -> Result<Self, Refusal> {
        let (since, pace) = (Instant::now(), gate.pace(target));
        if let Some(pace) = &pace {
            // Its first bytes would pass before it pays for those of connections that have ended.
            pace(0).await;
        }
        let addresses = gate.decide(target).await?;
        let Some(stream) = first(&addresses).await else {
            let refusal = Refusal::Unreachable(target.clone());
            gate.closed(NetworkUse {
                took: since.elapsed(),
                ..NetworkUse::of(target.to_string(), Some(refusal.clone()))
            });
            return Err(refusal);
        };
        let state = Mutex::new(State {
            used: Some(NetworkUse::of(target.to_string(), None)),
            passed_at: Some(Instant::now()),
            half_ended_at: None,
            program_ended: Arc::clone(program_ended),
        });
        let activity = Arc::new(Activity { target: target.clone(), gate: Arc::clone(gate), since, state });
        Ok(Self { activity, stream, pace, paying: None })
    }

    /// Ready when what has passed is allowed.
    fn poll_paid(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(paying) = &mut self.paying {
            let paid = paying.as_mut().poll(cx);
            self.activity.passed(paid.is_ready().then(Instant::now));
            ready!(paid);
            self.paying = None;
        }
        Poll::Ready(())
    }

    fn passed(&mut self, bytes: usize) {
        if bytes > 0 {
            self.activity.passed(Some(Instant::now()));
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.paying = self.pace.as_ref().map(|pace| pace(bytes));
        }
    }

    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Ends it because of what the program sent, or did not.
    pub(super) fn refuse(self, refusal: Refusal) {
        self.activity.record(Some(refusal));
    }
}

async fn first(addresses: &[SocketAddr]) -> Option<TcpStream> {
    // Families take turns: a route that drops all packets of one does not use up the attempts.
    let mut counts = [0; 2];
    let turn = |address| {
        let count = &mut counts[usize::from(SocketAddr::is_ipv6(address))];
        *count += 1;
        (*count, address)
    };
    let mut turns: Vec<(usize, &SocketAddr)> = addresses.iter().map(turn).collect();
    turns.sort_by_key(|(turn, _)| *turn);
    for (_, address) in turns.into_iter().take(ADDRESSES_MAX) {
        if let Ok(Ok(stream)) = timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            stream.set_nodelay(true).ok()?;
            return Some(stream);
        }
    }
    None
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
        self.activity.count(|used| used.received_bytes += count as u64);
        if read.is_ready() && count == 0 && buffer.remaining() > 0 {
            self.activity.half_ended();
        }
        self.passed(count);
        read
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        ready!(self.poll_paid(cx));
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = written {
            self.activity.count(|used| used.sent_bytes += count as u64);
            self.passed(count);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.activity.half_ended();
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
    fn pace(allowed: &Arc<Semaphore>) -> Pace {
        let allowed = Arc::clone(allowed);
        Arc::new(move |bytes: u32| {
            let allowed = Arc::clone(&allowed);
            async move { allowed.acquire_many(bytes).await.expect("it is open").forget() }.boxed()
        })
    }

    async fn connect(listener: &TcpListener, pace: Pace) -> Upstream {
        let address = listener.local_addr().expect("an address");
        let gate: Arc<dyn Gate> = Arc::new(AllowingGate { pace: Some(pace), ..AllowingGate::at(address) });
        let target = Target::parse("a.example:80", None).expect("a target");
        Upstream::connect(&target, &gate, &ProgramEnd::default()).await.expect("a connection")
    }

    /// A connection to a host, whose bytes pass as far as there are permits.
    async fn paced() -> (Upstream, TcpStream, Arc<Semaphore>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let allowed = Arc::new(Semaphore::new(0));
        let upstream = connect(&listener, pace(&allowed)).await;
        let (host, _) = listener.accept().await.expect("a connection");
        (upstream, host, allowed)
    }

    #[tokio::test]
    async fn connection_is_made_when_the_bytes_of_those_that_ended_are_paid() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let allowed = Arc::new(Semaphore::new(0));
        let left = pace(&allowed);
        let mut connecting = pin!(connect(&listener, Arc::new(move |bytes: u32| left(bytes + 1))));
        tokio::time::pause();
        assert!(timeout(IDLE_MAX, connecting.as_mut()).await.is_err(), "one byte is left");
        tokio::time::resume();
        allowed.add_permits(1);
        connecting.await;
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
    async fn addresses_of_one_family_that_do_not_answer_leave_attempts_for_the_other() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let alive = listener.local_addr().expect("an address");
        let dead: SocketAddr = "[::1]:1".parse().expect("an address");
        let stream = first(&[dead, dead, dead, dead, alive]).await.expect("a connection");
        assert_eq!(stream.peer_addr().expect("an address"), alive);
    }

    #[tokio::test]
    async fn connection_that_waits_for_its_rate_is_not_idle() {
        let (mut upstream, _host, allowed) = paced().await;
        upstream.write_all(b"0123").await.expect("the first piece passes");
        assert!(upstream.write(b"4").now_or_never().is_none(), "it is not allowed yet");
        tokio::time::pause();
        let mut idle = pin!(Activity::idle(Arc::downgrade(upstream.activity())));
        assert!(timeout(3 * IDLE_MAX, idle.as_mut()).await.is_err(), "the program does not keep it from passing");
        allowed.add_permits(4);
        upstream.write_all(b"4").await.expect("it is allowed");
        timeout(3 * IDLE_MAX, idle).await.expect("nothing more passes");
    }
}
