//! The network port: the carrier of sandboxes' connections, and the gate that decides on each.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};
use tokio::sync::{Semaphore, mpsc};

use crate::domain::network::{Host, NetworkUse, Refusal, RequestLine, SandboxSecret, Target};

/// Channels of all sandboxes: with what each holds that was received and not read (256 KiB), 40 MiB.
pub const CHANNELS_MAX: usize = 160;

/// The server's end of the bytes between it and the process in a sandbox that has the channels.
pub struct ChannelPipe {
    /// Ends with the sandbox, or in an error when that sends too much. Untrusted.
    pub incoming: BoxStream<'static, io::Result<Bytes>>,
    /// Pieces that fit into one frame.
    pub outgoing: mpsc::Sender<Bytes>,
    /// Channels that all sandboxes of the owner may have.
    pub share: Arc<Semaphore>,
    /// Signs for the hosts whose TLS is opened; `None` where there are none.
    pub authority: Option<Arc<Authority>>,
}

/// A certificate authority of one sandbox, for the hosts whose TLS the server opens there.
pub struct Authority {
    /// It can certify these, and names below them, alone.
    pub hosts: Vec<Host>,
    /// What the sandbox trusts, in PEM.
    pub certificate_pem: String,
    /// In PKCS 8. It never leaves this process.
    pub key_der: Vec<u8>,
}

/// Limits how fast the bytes of an owner pass. The future ends when so many more bytes are allowed, after those that
/// connections which have ended still owe. When it is dropped earlier, the owner's next connections owe them.
pub type Pace = Arc<dyn Fn(u32) -> BoxFuture<'static, ()> + Send + Sync>;

/// Decides on the connections of one sandbox.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// The addresses that may be connected to, all of them checked.
    ///
    /// # Errors
    /// Why there is none. It is recorded.
    async fn decide(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal>;

    /// Whether the server opens the TLS of connections to this host.
    fn opens(&self, target: &Target) -> bool;

    /// Decides on a request to a host that [`Self::decide`] allowed, or (`None`) on a tunnel there that is not opened.
    ///
    /// # Errors
    /// Why it is not made. It is recorded.
    fn admit(&self, target: &Target, request: Option<&RequestLine<'_>>) -> Result<(), Refusal>;

    /// The secrets of the sandbox that this host gets, over TLS alone.
    fn secrets(&self, target: &Target) -> Vec<SandboxSecret>;

    /// How fast bytes may pass to and from this host; `None` for no limit.
    fn pace(&self, target: &Target) -> Option<Pace>;

    /// Answers a request of a program to the server itself; with an empty stream where it answers none.
    fn request(&self, request: Bytes) -> BoxStream<'static, Bytes>;

    /// Answers the messages of one connection of a program to the server; with an empty stream where it answers none.
    /// What is under way for it ends when the answers are dropped.
    fn messages(&self, messages: BoxStream<'static, Bytes>) -> BoxStream<'static, Bytes>;

    /// A connection is over, or was refused by something else than [`Self::decide`].
    fn closed(&self, used: NetworkUse);
}

/// Carries the connections of sandboxes.
pub trait Carrier: Send + Sync + 'static {
    /// A new authority that can certify these hosts, and names below them, alone. `None` where none can be made.
    fn authority(&self, hosts: &[Host]) -> Option<Authority>;

    /// Serves one sandbox until its bytes end, or it breaks the rules of the multiplexer. When the future is dropped
    /// all of its connections end.
    fn carry(&self, pipe: ChannelPipe, gate: Arc<dyn Gate>) -> BoxFuture<'static, ()>;
}

/// Finds the addresses of names.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    /// Empty where there are none.
    async fn resolve(&self, name: &str) -> Vec<IpAddr>;

    /// Whether this machine has the address.
    fn is_own(&self, address: IpAddr) -> bool;
}
