//! The channels of one sandbox, between the service that reads and writes its streams and what carries them; and what
//! it gets for hosts whose TLS the server opens: placeholders of secrets, a certificate authority that it trusts, and
//! the variables that name both.

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tracing::error;

use super::ConnectionReporter;
use crate::{
    domain::network::{Policy, SandboxSecret, Secret},
    ports::network::{Authority, Carrier},
};

/// Bytes of a sandbox that were received and not read: as many as the windows of all its channels allow. A sandbox that
/// sends more loses its channels.
pub(super) const INCOMING_BYTES_MAX: usize = 16 << 20;
/// What a piece of them counts at least: its entry in the queue takes more than its bytes where those are few.
const PIECE_BYTES_MIN: usize = 64;
/// How long the connections of a sandbox that has ended may take to end.
const END_MAX: Duration = Duration::from_secs(1);
/// Where process 1 of a sandbox writes the authority's certificate alone, and after those that its image trusts
/// (`runners/README.md`).
const AUTHORITY: &str = "/tmp/.sandbox-tls/authority.pem";
const BUNDLE: &str = "/tmp/.sandbox-tls/bundle.pem";
/// Of OpenSSL, curl, git, requests, pip, Deno, npm and the AWS SDKs.
const BUNDLE_VARIABLES: [&str; 8] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "DENO_CERT",
    "npm_config_cafile",
    "AWS_CA_BUNDLE",
];

/// The channels of one sandbox, for the service that reads and writes its streams.
pub(in crate::services) struct Channels {
    pub(in crate::services) incoming: Incoming,
    /// Pieces to be written to the sandbox.
    pub(in crate::services) outgoing: mpsc::Receiver<Bytes>,
    pub(in crate::services) link: ChannelsLink,
    pub(super) authority: Option<Arc<Authority>>,
    /// How much longer its programs may take because they wait for a person.
    pub(in crate::services) waits_max: Duration,
    /// For the environment of its programs.
    pub(super) variables: Vec<(String, String)>,
}

impl Channels {
    /// The certificate that the sandbox has to trust, where TLS is opened for it.
    pub(in crate::services) fn authority_pem(&self) -> Option<&str> {
        self.authority.as_deref().map(|authority| authority.certificate_pem.as_str())
    }

    /// Gives a sandbox, with or without channels, what takes its bytes; what is to be written, and the rest, which
    /// reports nothing where there are none.
    pub(in crate::services) fn split(
        channels: Option<Self>,
        taker: &mut Option<Incoming>,
    ) -> (Option<mpsc::Receiver<Bytes>>, ChannelsLink) {
        let Some(Self { incoming, outgoing, link, .. }) = channels else { return (None, ChannelsLink::default()) };
        *taker = Some(incoming);
        (Some(outgoing), link)
    }
}

/// The next piece for the channels. An empty one, once, when the server has ended them; never, where there are none.
pub(in crate::services) async fn next_of(outgoing: &mut Option<mpsc::Receiver<Bytes>>) -> Bytes {
    let Some(receiver) = outgoing else { return std::future::pending().await };
    let piece = receiver.recv().await;
    if piece.is_none() {
        *outgoing = None;
    }
    piece.unwrap_or_default()
}

/// What is left of the channels beside their bytes.
#[derive(Default)]
pub(in crate::services) struct ChannelsLink {
    pub(in crate::services) reporter: Arc<ConnectionReporter>,
    /// `None` where there are no channels.
    pub(super) task: Option<JoinHandle<()>>,
}

/// Takes what the sandbox sends. Never waits, since the sandbox is read however slowly its channels are.
#[derive(Debug)]
pub(in crate::services) struct Incoming {
    pub(super) sender: Option<mpsc::UnboundedSender<io::Result<(Bytes, OwnedSemaphorePermit)>>>,
    pub(super) room: Arc<Semaphore>,
}

impl Incoming {
    /// Takes some bytes; none end the channels, and so do more than there is room for.
    pub(in crate::services) fn push(&mut self, bytes: &Bytes) {
        let Some(sender) = self.sender.take().filter(|_| !bytes.is_empty()) else { return };
        let wanted = u32::try_from(bytes.len().max(PIECE_BYTES_MIN)).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room).try_acquire_many_owned(wanted);
        let fits = room.is_ok();
        let piece = room.map(|room| (bytes.clone(), room)).map_err(|_| io::Error::from(io::ErrorKind::InvalidData));
        if sender.send(piece).is_ok() && fits {
            self.sender = Some(sender);
        }
    }
}

impl ChannelsLink {
    /// Ends the connections once the sandbox has ended, so that each is reported before its run is over. The other end
    /// of the bytes is dropped before. A sentence for each host that was refused.
    pub(in crate::services) async fn end(self) -> Vec<String> {
        if let Some(mut task) = self.task
            && timeout(END_MAX, &mut task).await.is_err()
        {
            task.abort();
        }
        self.reporter.end()
    }
}

/// What one sandbox has for opened hosts; nothing where there are none.
#[derive(Default)]
pub(super) struct Opened {
    pub(super) secrets: Vec<SandboxSecret>,
    pub(super) authority: Option<Arc<Authority>>,
}

impl Opened {
    pub(super) fn new(policies: &[Arc<Policy>], secrets: &[Arc<Secret>], carrier: &dyn Carrier) -> Self {
        let policies: Vec<&Policy> = policies.iter().map(Arc::as_ref).collect();
        let secrets: Vec<_> = secrets.iter().filter_map(|secret| secret.for_sandbox(&policies)).collect();
        let ruled = policies.iter().filter(|policy| policy.has_request_rules()).flat_map(|policy| policy.roots());
        let hosts: HashSet<_> = secrets.iter().flat_map(SandboxSecret::hosts).cloned().chain(ruled).collect();
        if hosts.is_empty() {
            return Self::default();
        }
        let authority = carrier.authority(&hosts.into_iter().collect::<Vec<_>>());
        if authority.is_none() {
            error!("no certificate authority was made for a sandbox: its opened hosts are refused");
        }
        Self { secrets, authority: authority.map(Arc::new) }
    }

    /// The variables of its programs.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let secrets = self.secrets.iter().map(SandboxSecret::variable);
        let bundle = BUNDLE_VARIABLES.map(|name| (name, BUNDLE));
        let trusting = bundle.into_iter().chain([("NODE_EXTRA_CA_CERTS", AUTHORITY)]);
        secrets.chain(trusting.filter(|_| self.authority.is_some())).map(owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn sandbox_that_sends_more_than_there_is_room_for_breaks_its_channels() {
        let (sender, mut received) = mpsc::unbounded_channel();
        let mut incoming = Incoming { sender: Some(sender), room: Arc::new(Semaphore::new(2 * PIECE_BYTES_MIN)) };
        let full: &'static [u8] = &[b'x'; PIECE_BYTES_MIN];
        let pieces = [full, b"5", b"6"];
        for piece in pieces {
            incoming.push(&Bytes::from_static(piece));
        }
        let mut fits = || received.try_recv().expect("a piece").expect("it fits");
        let (first, second) = (fits(), fits());
        assert_eq!([&first.0[..], &second.0[..]], pieces[..2]);
        let error = received.try_recv().expect("an error").expect_err("there is no room");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(received.try_recv().err(), Some(mpsc::error::TryRecvError::Disconnected));
    }

    #[tokio::test]
    async fn end_of_the_channels_is_one_empty_piece() {
        let (sender, receiver) = mpsc::channel(1);
        let mut outgoing = Some(receiver);
        sender.send(Bytes::from_static(b"x")).await.expect("taken");
        drop(sender);
        assert_eq!(next_of(&mut outgoing).await, &b"x"[..]);
        assert_eq!(next_of(&mut outgoing).await, &b""[..]);
        assert!(next_of(&mut outgoing).now_or_never().is_none());
    }
}
