//! Carries the connections of sandboxes: the server's end of the multiplexer in each of them, the proxy that programs
//! speak with, and the connections to hosts. Decides nothing: a [`Gate`] does, for each host and port.
//!
//! Bytes from a sandbox are untrusted. The server opens each channel, so it bounds their number and the memory for
//! received, unread bytes (256 KiB for each, the window of yamux); a sandbox that opens one itself breaks the protocol.
//!
//! ```text
//! carry ── one task for the sandbox's requests for channels, one for each channel, one for each tunnel
//! ```
//!
//! All of them end with the future that [`Carrier::carry`] returns.

mod answer;
mod authority;
mod channel;
mod forward;
mod http;
mod resolver;
mod socks;
mod stream;
mod tunnel;
mod upstream;

use std::{future::poll_fn, io, sync::Arc, time::Duration};

use futures_util::{AsyncReadExt as _, AsyncWriteExt as _, FutureExt as _, future::BoxFuture};
use rustls::ClientConfig;
use tokio::{
    sync::{AcquireError, OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tokio_util::{compat::TokioAsyncReadCompatExt as _, io::StreamReader};
use tracing::debug;
use yamux::{Config, Connection, ConnectionError, DEFAULT_CREDIT, FrameDecodeError, Mode, Stream};

use self::{
    authority::LeafCertificates,
    stream::{Outgoing, PIECE_BYTES},
};
pub use self::{authority::TrustError, resolver::SystemResolver};
use crate::{
    domain::network::{Host, NetworkUse, Refusal, Target},
    ports::network::{Authority, Carrier, ChannelPipe, Gate},
};

/// Channels of one sandbox, besides the one on which it asks for more.
const CHANNELS_MAX: usize = 64;
/// Streams of one sandbox: its channels, the one on which it asks for more, and as many channels that have ended. The
/// multiplexer counts one of those until it can write, which may be after its room was granted again.
const STREAMS_MAX: usize = 2 * CHANNELS_MAX + 1;

/// How long a connection waits for room beside those of other sandboxes. Then it is answered that there is none.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// How long that answer may take.
const REFUSAL_MAX: Duration = Duration::from_secs(10);

/// How long the head of a request may take, and how long one may be.
const HEAD_MAX: Duration = Duration::from_mins(5);
const HEAD_BYTES_MAX: usize = 64 << 10;
/// How much of what a program sends is read at a time. Each channel has up to two buffers of it.
const READ_BYTES: usize = 16 << 10;

/// Carries connections over yamux.
#[derive(Debug)]
pub struct Multiplexer {
    permits: Arc<Semaphore>,
    trust: Arc<ClientConfig>,
}

/// What the connections of one sandbox share.
struct Sandbox {
    gate: Arc<dyn Gate>,
    /// Verifies the certificates of hosts whose TLS is opened.
    trust: Arc<ClientConfig>,
    /// Certificates for programs; `None` where no TLS is opened.
    leaves: Option<LeafCertificates>,
    /// Room for its messages that are not parsed.
    messages: Arc<Semaphore>,
}

impl Sandbox {
    fn new(gate: Arc<dyn Gate>, trust: Arc<ClientConfig>, leaves: Option<LeafCertificates>) -> Self {
        Self { gate, trust, leaves, messages: Arc::new(Semaphore::new(channel::MESSAGES_BYTES_MAX)) }
    }

    /// Records why a host is not reached.
    fn refuse(&self, target: &Target, why: impl FnOnce(Target) -> Refusal) -> Refusal {
        self.refused(target.to_string(), why(target.clone()))
    }

    /// Records a refusal.
    fn refused(&self, target: String, refusal: Refusal) -> Refusal {
        self.gate.closed(NetworkUse::of(target, Some(refusal.clone())));
        refusal
    }
}

impl Multiplexer {
    /// Where TLS is opened, hosts are also trusted by these roots, in PEM.
    ///
    /// # Errors
    /// They are none.
    pub fn trusting(more_pem: Option<&[u8]>) -> Result<Self, TrustError> {
        let permits = Arc::new(Semaphore::new(crate::ports::network::CHANNELS_MAX));
        Ok(Self { permits, trust: authority::trust(more_pem)? })
    }
}

impl Carrier for Multiplexer {
    fn authority(&self, hosts: &[Host]) -> Option<Authority> {
        authority::make(hosts)
    }

    fn carry(&self, pipe: ChannelPipe, gate: Arc<dyn Gate>) -> BoxFuture<'static, ()> {
        let permits = Arc::clone(&self.permits);
        let leaves = pipe.authority.as_deref().and_then(LeafCertificates::new);
        let sandbox = Arc::new(Sandbox::new(gate, Arc::clone(&self.trust), leaves));
        async move {
            let mut tasks = JoinSet::new();
            if let Err(error) = serve(pipe, &sandbox, permits, &mut tasks).await {
                debug!(%error, "the channels of a sandbox ended");
                // A sandbox that has ended takes no more, and may have been killed within a frame.
                if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof) {
                    sandbox.refused(String::new(), Refusal::ChannelsBroken);
                }
            }
            // Each connection is recorded when its task has ended.
            tasks.shutdown().await;
        }
        .boxed()
    }
}

async fn serve(
    pipe: ChannelPipe,
    sandbox: &Arc<Sandbox>,
    permits: Arc<Semaphore>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let reader = StreamReader::new(pipe.incoming);
    let writer = Outgoing::new(pipe.outgoing);
    let mut config = Config::default();
    // So that no window grows beyond the one that each channel begins with.
    let window = STREAMS_MAX * DEFAULT_CREDIT as usize;
    config.set_max_num_streams(STREAMS_MAX).set_max_connection_receive_window(Some(window));
    config.set_split_send_size(PIECE_BYTES);
    let mut connection = Connection::new(tokio::io::join(reader, writer).compat(), config, Mode::Client);
    let first = poll_fn(|cx| connection.poll_new_outbound(cx)).await.map_err(cause)?;
    let (granted, mut grants) = mpsc::channel(1);
    tasks.spawn(grant(first, [pipe.share, permits], granted));
    loop {
        tokio::select! {
            biased;
            // First, since it takes channels that have ended from the multiplexer.
            opened = poll_fn(|cx| connection.poll_next_inbound(cx)) => return match opened {
                Some(Ok(_)) => Err(io::Error::other("the sandbox opened a channel by itself")),
                Some(Err(error)) => Err(cause(error)),
                None => Ok(()),
            },
            Some(grant) = grants.recv() => {
                let channel = poll_fn(|cx| connection.poll_new_outbound(cx)).await.map_err(cause)?;
                let sandbox = Arc::clone(sandbox);
                tasks.spawn(async move {
                    if grant.shared.is_some() {
                        channel::serve(channel, sandbox, false).await;
                    } else {
                        let _ = timeout(REFUSAL_MAX, channel::serve(channel, sandbox, true)).await;
                    }
                    drop(grant);
                });
            }
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// The error of the bytes' own stream, or that they broke the rules of the multiplexer.
fn cause(error: ConnectionError) -> io::Error {
    match error {
        ConnectionError::Io(error) | ConnectionError::Decode(FrameDecodeError::Io(error)) => error,
        error => io::Error::other(error),
    }
}

/// Grants a channel for each byte that the sandbox sends, when there is room for one, or to answer that there is none.
async fn grant(mut first: Stream, shared: [Arc<Semaphore>; 2], granted: mpsc::Sender<Grant>) {
    // Nothing of a channel is sent before its first byte.
    if first.write_all(&[0]).await.is_err() || first.flush().await.is_err() {
        return;
    }
    let own = Arc::new(Semaphore::new(CHANNELS_MAX));
    let mut asked = [0];
    while first.read_exact(&mut asked).await.is_ok() {
        // In this order, so that what waits for its own room takes none of the others'.
        let Ok(own) = Arc::clone(&own).acquire_owned().await else { return };
        let Ok(shared) = timeout(WAIT_MAX, acquire(&shared)).await.ok().transpose() else { return };
        if granted.send(Grant { _own: own, shared }).await.is_err() {
            return;
        }
    }
}

async fn acquire([share, all]: &[Arc<Semaphore>; 2]) -> Result<[OwnedSemaphorePermit; 2], AcquireError> {
    let share = Arc::clone(share).acquire_owned().await?;
    Ok([share, Arc::clone(all).acquire_owned().await?])
}

/// The right to a channel.
struct Grant {
    /// The sandbox's permit.
    _own: OwnedSemaphorePermit,
    /// Those of its owner and of all; `None` for a channel that is refused. A sandbox has few of those at once, since
    /// each is waited for and ends soon.
    shared: Option<[OwnedSemaphorePermit; 2]>,
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
