//! The network port: what carries the connections of sandboxes, and what decides on each.

use std::{net::IpAddr, net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};
use tokio::sync::{Semaphore, mpsc};

use crate::domain::network::{NetworkUse, Refusal, Target};

/// Channels of all sandboxes: with what each holds that was received and not read (256 KiB), 48 MiB.
pub const CHANNELS_MAX: usize = 192;

/// The server's end of the bytes between it and the process in a sandbox that has the channels.
pub struct ChannelPipe {
    /// Ends with the sandbox. Untrusted.
    pub incoming: BoxStream<'static, Bytes>,
    /// Pieces that fit into one frame.
    pub outgoing: mpsc::Sender<Bytes>,
    /// Channels that all sandboxes of the owner may have.
    pub share: Arc<Semaphore>,
}

/// Decides on the connections of one sandbox.
#[async_trait]
pub trait Gate: Send + Sync + 'static {
    /// The addresses that may be connected to, all of them checked.
    ///
    /// # Errors
    /// Why there is none. It is recorded.
    async fn decide(&self, target: &Target) -> Result<Vec<SocketAddr>, Refusal>;

    /// A connection is over, or was refused by something else than [`Self::decide`].
    fn over(&self, used: NetworkUse);
}

/// Carries the connections of sandboxes.
pub trait Carrier: Send + Sync + 'static {
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
