//! The channels of one sandbox, between the service that reads and writes its streams and what carries them; the
//! reports of its connections to the watchers of a run or a cell, in bounded memory; and what it gets for hosts whose
//! TLS the server opens: placeholders of secrets, a certificate authority that it trusts, and the variables that name
//! both.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinHandle,
    time::timeout,
};
use tracing::error;

use super::Sink;
use crate::{
    domain::{
        EventKind,
        network::{NetworkUse, Policy, Refusal, SandboxSecret, Secret},
        tools::ApprovalId,
    },
    ports::network::{Authority, Carrier},
    services::waits::Waits,
};

/// Bytes of a sandbox that were received and not read: as many as the windows of all its channels allow. A sandbox that
/// sends more loses its channels.
pub(super) const INCOMING_BYTES_MAX: usize = 16 << 20;
/// What a piece of them counts at least: its entry in the queue takes more than its bytes where those are few.
const PIECE_BYTES_MIN: usize = 64;
/// How long the connections of a sandbox that has ended may take to end.
const END_MAX: Duration = Duration::from_secs(1);
/// Connections of one run or cell that are events, as many calls of tools and as many questions about them, and
/// sentences about refusals in its output.
pub(super) const EVENTS_MAX: usize = 200;
pub(super) const SENTENCES_MAX: usize = 10;
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

/// Where the connections of one sandbox are reported.
#[derive(Default)]
pub(in crate::services) struct ConnectionReporter {
    listener: Mutex<Listener>,
    /// Questions to a person that its program waits for.
    pub(in crate::services) waits: Waits,
}

#[derive(Default)]
struct Listener {
    sink: Option<Sink>,
    connections: usize,
    tool_calls: usize,
    questions: HashSet<ApprovalId>,
    /// Calls that rules let pass, by what counts them.
    calls: HashMap<String, u32>,
    /// Each once.
    refusals: Vec<String>,
}

impl ConnectionReporter {
    /// From now on connections are reported to this.
    pub(in crate::services) fn to(&self, sink: Sink) {
        *self.listener.lock() = Listener { sink: Some(sink), ..Listener::default() };
    }

    /// Ends the reports; returns a sentence for each host that was refused since they began, and one about connections
    /// that were no events.
    pub(in crate::services) fn end(&self) -> Vec<String> {
        let Listener { mut refusals, connections, .. } = std::mem::take(&mut *self.listener.lock());
        if let more @ 1.. = connections.saturating_sub(EVENTS_MAX) {
            refusals.push(format!("[network: {more} more connections are not listed.]\n"));
        }
        refusals
    }

    /// Returns the sentences about refusals so far. The reports and the counts go on.
    pub(in crate::services) fn take_refusals(&self) -> Vec<String> {
        std::mem::take(&mut self.listener.lock().refusals)
    }

    /// Reports a connection. `sentence` says in the program's output why it was refused.
    pub(super) fn report(&self, used: &NetworkUse, sentence: impl FnOnce(&Refusal) -> String) {
        let mut listener = self.listener.lock();
        let is_full = listener.refusals.len() >= SENTENCES_MAX;
        // Clients keep connections that they may not need again, and make others.
        let refusal = used.refusal.as_ref().filter(|refusal| !is_full && !matches!(refusal, Refusal::Idle(_)));
        if let Some(sentence) = refusal.map(sentence).filter(|sentence| !listener.refusals.contains(sentence)) {
            listener.refusals.push(sentence);
        }
        listener.event(EventKind::Network(Box::new(used.clone())));
    }

    /// Reports another event.
    pub(in crate::services) fn event(&self, event: EventKind) {
        self.listener.lock().event(event);
    }

    /// Counts one call in this run or cell, unless there were so many already.
    pub(in crate::services) fn count(&self, what: &str, max: u32) -> bool {
        let mut listener = self.listener.lock();
        let count = listener.calls.entry(what.to_owned()).or_default();
        let fits = *count < max;
        *count += u32::from(fits);
        fits
    }

    /// Takes back one call that [`Self::count`] counted and that is refused after all.
    pub(in crate::services) fn take_back(&self, what: &str) {
        // Where the next run has begun meanwhile, nothing is counted.
        if let Some(count) = self.listener.lock().calls.get_mut(what) {
            *count = count.saturating_sub(1);
        }
    }
}

impl Listener {
    fn event(&mut self, event: EventKind) {
        let Some(sink) = &self.sink else { return };
        let count = match &event {
            EventKind::Network(_) => &mut self.connections,
            EventKind::Tool(_) => &mut self.tool_calls,
            // Each once, since it has the arguments: a program may give up a call and make it again.
            EventKind::Approval(question) => {
                if self.questions.len() < EVENTS_MAX && self.questions.insert(question.id) {
                    sink(event);
                }
                return;
            }
            _ => return sink(event),
        };
        *count += 1;
        if *count <= EVENTS_MAX {
            sink(event);
        }
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
    use crate::domain::tools::{Approval, CallEnd, ProposedCall, ToolUse};

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

    #[test]
    fn connections_that_are_no_events_are_counted_in_a_sentence_and_calls_of_tools_displace_none() {
        let (reporter, events) = (ConnectionReporter::default(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&events);
        reporter.to(Box::new(move |event| seen.lock().push(event)));
        let call = ToolUse {
            server: "a".to_owned(),
            tool: "b".to_owned(),
            end: CallEnd::Answered,
            why: None,
            arguments_sha256: String::new(),
            arguments_bytes: 0,
            took: Duration::ZERO,
        };
        for _ in 0..300 {
            reporter.event(EventKind::Tool(Box::new(call.clone())));
            reporter.report(&NetworkUse::of("a.example:443".to_owned(), None), |_| String::new());
        }
        assert_eq!(reporter.end(), ["[network: 100 more connections are not listed.]\n"]);
        let is_connection = |event: &&EventKind| matches!(event, EventKind::Network(_));
        let events = events.lock();
        assert_eq!((events.len(), events.iter().filter(is_connection).count()), (2 * EVENTS_MAX, EVENTS_MAX));
        reporter.to(Box::new(|_| {}));
        assert!(reporter.end().is_empty(), "it was about the run before");
    }

    #[test]
    fn a_question_is_an_event_once_however_often_its_program_makes_the_call() {
        let (reporter, events) = (ConnectionReporter::default(), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&events);
        reporter.to(Box::new(move |event| {
            if let EventKind::Approval(question) = event {
                seen.lock().push(question.id);
            }
        }));
        let question = |id| Approval {
            id,
            call: ProposedCall {
                conversation: "c".parse().expect("a key"),
                server: "a".to_owned(),
                tool: "b".to_owned(),
                definition: String::new(),
                arguments: "{}".to_owned(),
            },
            asked_unix_ms: 0,
            answered: None,
            answered_by: None,
            expires_unix_ms: 0,
        };
        let ids: Vec<_> = (0..=EVENTS_MAX).map(|_| ApprovalId::new()).collect();
        for id in ids.iter().flat_map(|id| [id, id]) {
            reporter.event(EventKind::Approval(Box::new(question(*id))));
        }
        assert_eq!(*events.lock(), ids[..EVENTS_MAX]);
    }

    #[test]
    fn calls_are_counted_until_the_end_of_the_cell_also_when_its_refusals_are_taken() {
        let reporter = ConnectionReporter::default();
        reporter.to(Box::new(|_| {}));
        assert!(reporter.count("calls", 2) && reporter.count("calls", 2));
        assert!(reporter.take_refusals().is_empty() && !reporter.count("calls", 2));
        assert!(reporter.end().is_empty() && reporter.count("calls", 2));
    }
}
