//! One kernel in its sandbox: the task that reads and writes the sandbox's streams, and the subscribers of its
//! messages.
//!
//! Messages of the sandbox are untrusted. The task waits for a subscriber whose bounded queue is full, so that no
//! output of a cell is lost; each subscriber is a task of the server that always reads.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};
use uuid::Uuid;

use super::{
    SessionEnd,
    files::FileLink,
    message::{Channel, Header, KernelMessage, MessageReader, own_header},
    queue::{self, Subscribers},
};
use crate::{
    domain::{Code, Ended, Environment, Failure, StreamKind},
    services::{
        frames::{self, ExitReport, Start},
        network::{Channels, ConnectionReporter, Network},
        sandbox::{Attachment, SandboxEvent, Started, attach},
        tasks::Tasks,
    },
};

/// How long a kernel may take until it answers. A cold one of a slow language on a busy machine takes seconds.
const READY_MAX: Duration = Duration::from_mins(1);
/// How long a kernel that runs no cell may take for an answer.
const REPLY_MAX: Duration = Duration::from_secs(5);
/// How long its sandbox may take until there is room for a message. Longer means that the bridge does not read, which
/// is known before an interrupted kernel is given up (`KILL_AFTER` of [`super::cell`]).
const ROOM_MAX: Duration = Duration::from_millis(1500);
/// How long after the session's age process 1 ends the kernel by itself.
const GRACE: Duration = Duration::from_mins(1);
/// Messages for the kernel that were not written yet. Each has up to 4 MiB, and a sandbox need not read.
const TO_KERNEL_MAX: usize = 4;
/// The error by which the bridge answers a request for which the kernel, which does not read, has no room.
const QUEUE_FULL: &str = "QueueFull";

pub(super) struct Kernel {
    /// Where messages for the kernel go.
    pub(super) outgoing: mpsc::Sender<KernelMessage>,
    /// Each gets the messages from then on, until the kernel ends.
    pub(super) subscribers: Arc<Subscribers>,
    phase: watch::Receiver<Phase>,
    /// Ends it.
    pub(super) close: CancellationToken,
    /// Ends it because it takes no messages.
    stuck: CancellationToken,
    /// The client session in the headers of the server's own messages.
    client: String,
    /// Reports its connections, if it has any.
    pub(super) reporter: Arc<ConnectionReporter>,
    /// The files of its sandbox, where they travel.
    pub(super) files: FileLink,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Starting,
    Ready(Ready),
    /// With what it had used when it ended by itself, in milliseconds of processor time.
    Ended(SessionEnd, Option<u64>),
}

/// What is kept of what a kernel says of itself, which may be long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready {
    /// It is no interpreter that stood by.
    pub(super) is_cold: bool,
    /// What its sandbox had used by then, in milliseconds of processor time; 0 where the bridge does not say.
    cpu_ms: u64,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // Its sandbox may not end by itself, and the stop waits for its task.
        self.close.cancel();
    }
}

impl Kernel {
    /// Has the sandbox start its kernel.
    pub(super) fn begin(
        started: Started,
        name: &str,
        env: &Environment,
        age_max: Duration,
        channels: Option<Channels>,
        tasks: &Tasks,
    ) -> Self {
        let (sender, receiver) = mpsc::channel(TO_KERNEL_MAX);
        let (phase, phase_receiver) = watch::channel(Phase::Starting);
        let (files, file_frames) = FileLink::new();
        let subscribers = Arc::new(Subscribers::default());
        let (close, stuck) = (CancellationToken::new(), CancellationToken::new());
        let env = &Network::environment(env, channels.as_ref());
        let start = Start {
            kernel: Some(name),
            channels: channels.is_some(),
            authority: channels.as_ref().and_then(Channels::authority_pem),
            ..Start::new(&[], env, age_max, GRACE)
        };
        let request = frames::request(&[], &start, &[], true);
        let (stdin, mut sandbox) = attach(started);
        let (outgoing, link) = Channels::split(channels, &mut sandbox.channels);
        let reporter = Arc::clone(&link.reporter);
        let task = KernelTask {
            sandbox,
            reader: MessageReader::default(),
            subscribers: Arc::clone(&subscribers),
            phase,
            reported_end: None,
            cpu_ms: None,
            oom_kills: 0,
            files: files.clone(),
        };
        let (closed, is_stuck) = (close.clone(), stuck.clone());
        tasks.spawn(async move {
            // Apart from reading, since a kernel that does not read may still print.
            let writing = queue::write(stdin, request, receiver, outgoing, file_frames, is_stuck.clone());
            let writing = tokio::spawn(writing);
            task.run(closed, is_stuck).await;
            writing.abort();
            link.end().await;
        });
        Self {
            outgoing: sender,
            subscribers,
            phase: phase_receiver,
            close,
            stuck,
            client: Uuid::new_v4().simple().to_string(),
            reporter,
            files,
        }
    }

    /// Waits until the kernel answers.
    ///
    /// # Errors
    /// [`Code::RunnerFailed`].
    pub(super) async fn ready(&self) -> Result<Ready, Failure> {
        let mut phase = self.phase.clone();
        let settled = timeout(READY_MAX, phase.wait_for(|phase| !matches!(phase, Phase::Starting))).await;
        if let Ok(Ok(settled)) = settled
            && let Phase::Ready(ready) = *settled
        {
            return Ok(ready);
        }
        let why = "The interpreter of the session did not start: try again, or run a program instead; the server's log \
                   says more.";
        Err(Failure::new(Code::RunnerFailed, why))
    }

    /// What its sandbox had used when it was ready, in milliseconds of processor time.
    pub(super) fn cpu_at_ready_ms(&self) -> u64 {
        if let Phase::Ready(ready) = *self.phase.borrow() { ready.cpu_ms } else { 0 }
    }

    /// What it had used when it ended by itself, in milliseconds of processor time, without what was used before its
    /// sandbox was given to it; nothing where it has not, or that is not known.
    pub(super) fn cpu_at_exit_ms(&self) -> Option<u64> {
        if let Phase::Ended(_, cpu_ms) = *self.phase.borrow() { cpu_ms } else { None }
    }

    /// Waits for the end of the kernel.
    pub(super) async fn ended(&self) -> SessionEnd {
        let mut phase = self.phase.clone();
        match phase.wait_for(|phase| matches!(phase, Phase::Ended(..))).await.as_deref() {
            Ok(Phase::Ended(end, _)) => *end,
            _ => SessionEnd::Lost,
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(*self.phase.borrow(), Phase::Ended(..))
    }

    /// Sends a message of the server's own; its id.
    pub(super) async fn send(
        &self,
        channel: Channel,
        msg_type: &str,
        parent: Option<Bytes>,
        content: &Value,
    ) -> String {
        let (id, mut message) = own_message(&self.client, channel, msg_type, content);
        message.parent_header = parent.unwrap_or(message.parent_header);
        self.pass_on(message).await;
        id
    }

    /// Passes a message on. A kernel whose sandbox takes no messages any more ends.
    pub(super) async fn pass_on(&self, message: KernelMessage) {
        match timeout(ROOM_MAX, self.outgoing.send(message)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => debug!("a message for a kernel that has ended"),
            Err(_) => self.stuck.cancel(),
        }
    }

    /// Why a kernel ends that did not react to its interrupt.
    pub(super) fn end_of_silence(&self) -> SessionEnd {
        if self.stuck.is_cancelled() { SessionEnd::Unresponsive } else { SessionEnd::Killed }
    }

    pub(super) async fn interrupt(&self) {
        self.send(Channel::Bridge, "interrupt", None, &json!({})).await;
    }

    /// Asks the bridge what was used.
    pub(super) async fn ask_figures(&self) {
        self.send(Channel::Bridge, "figures", None, &json!({})).await;
    }

    /// Sends a message that wakes an interpreter which awaits something.
    pub(super) async fn wake(&self) {
        self.send(Channel::Shell, "kernel_info_request", None, &json!({})).await;
    }

    /// Sends a request on the shell channel; the content of its reply.
    ///
    /// # Errors
    /// [`Code::SessionBusy`] when the kernel does not answer in time, or the bridge has no room for the request.
    pub(super) async fn request(&self, msg_type: &str, content: &Value) -> Result<Value, Failure> {
        let mut subscription = self.subscribers.add();
        let (id, message) = own_message(&self.client, Channel::Shell, msg_type, content);
        let busy = || {
            let why = "The interpreter did not answer in time: when a cell runs, wait for its end or interrupt it; \
                       otherwise try again.";
            Failure::new(Code::SessionBusy, why)
        };
        let reply = async {
            // Where it is not taken, the messages end as well.
            drop(self.outgoing.send(message).await);
            while let Some(message) = subscription.next().await {
                if message.channel == Channel::Shell && message.read_parent().msg_id == id {
                    let content = message.read_content();
                    return if content["ename"] == QUEUE_FULL { Err(busy()) } else { Ok(content) };
                }
            }
            Err(Failure::new(Code::SessionEnded, self.ended().await.sentence()))
        };
        timeout(REPLY_MAX, reply).await.unwrap_or_else(|_| Err(busy()))
    }
}

/// A message of the server's own, and its id.
pub(in crate::services) fn own_message(
    client: &str,
    channel: Channel,
    msg_type: &str,
    content: &Value,
) -> (String, KernelMessage) {
    let id = Uuid::new_v4().simple().to_string();
    let message = KernelMessage::new(channel, &own_header(&id, msg_type, client), content);
    (id, message)
}

pub(super) fn internal() -> Failure {
    Failure::new(Code::Internal, "The server failed while it opened the session: its log says why.")
}

struct KernelTask {
    sandbox: Attachment,
    reader: MessageReader,
    subscribers: Arc<Subscribers>,
    phase: watch::Sender<Phase>,
    /// How the kernel ended, as the bridge says, which ends after it: by itself, or lost where the bridge gave it up.
    reported_end: Option<SessionEnd>,
    /// What was used when it had ended, as process 1 says.
    cpu_ms: Option<u64>,
    /// Processes that were killed for memory before the cell that runs, as the bridge says.
    oom_kills: u64,
    files: FileLink,
}

impl KernelTask {
    async fn run(mut self, close: CancellationToken, stuck: CancellationToken) {
        let end = tokio::select! {
            biased;
            () = close.cancelled() => SessionEnd::Closed,
            () = stuck.cancelled() => SessionEnd::Unresponsive,
            end = self.follow() => end,
        };
        self.phase.send_replace(Phase::Ended(end, self.cpu_ms));
        self.subscribers.end();
        self.files.end();
    }

    async fn follow(&mut self) -> SessionEnd {
        loop {
            match self.sandbox.next().await {
                SandboxEvent::Output(StreamKind::Stdout, bytes) => {
                    self.reader.push(&bytes);
                    if let Some(end) = self.messages().await {
                        return end;
                    }
                }
                SandboxEvent::Output(StreamKind::Stderr, bytes) => {
                    let text: String = String::from_utf8_lossy(&bytes).chars().take(400).collect();
                    debug!(sandbox = %self.sandbox.id, text = %text.escape_debug(), "a kernel wrote to its log");
                }
                SandboxEvent::Files(message) => self.files.pass_on(message).await,
                SandboxEvent::ProgramExited(report) => return self.exited(&report),
                SandboxEvent::ContractBroken(why) => {
                    warn!(sandbox = %self.sandbox.id, why, "the runner of a session broke its contract");
                    return SessionEnd::Lost;
                }
                SandboxEvent::SandboxExited(Ok(exit)) if exit.oom_killed => {
                    return SessionEnd::Kernel(Ended::OutOfMemory);
                }
                SandboxEvent::SandboxExited(_) | SandboxEvent::OutputBroke => return SessionEnd::Lost,
            }
        }
    }

    /// How the kernel ended, as process 1 says.
    fn exited(&mut self, report: &ExitReport) -> SessionEnd {
        self.cpu_ms = report.cpu_ms;
        if report.oom_kills > self.oom_kills {
            return SessionEnd::Kernel(Ended::OutOfMemory);
        }
        let code = report.status.unwrap_or_default();
        let ended = report.signal.map_or(Ended::Exited { code }, |signal| Ended::Signaled { signal });
        self.reported_end.unwrap_or(SessionEnd::Kernel(ended))
    }

    async fn messages(&mut self) -> Option<SessionEnd> {
        loop {
            let message = match self.reader.next() {
                Ok(Some(message)) => message,
                Ok(None) => return None,
                Err(error) => {
                    warn!(sandbox = %self.sandbox.id, %error, "the bridge of a session broke its contract");
                    return Some(SessionEnd::Lost);
                }
            };
            if message.channel == Channel::Bridge {
                self.note(&message);
            }
            self.subscribers.send(&message).await;
        }
    }

    /// What the bridge says of the kernel.
    fn note(&mut self, message: &KernelMessage) {
        let Header { msg_type, .. } = message.read_header();
        let content = message.read_content();
        match msg_type.as_str() {
            "ready" => {
                let cpu_ms = content["cpuMs"].as_u64().unwrap_or_default();
                let ready = Ready { is_cold: content["adopted"] == false, cpu_ms };
                // Only this task changes the phase.
                let is_first = matches!(*self.phase.borrow(), Phase::Starting);
                if is_first {
                    self.phase.send_replace(Phase::Ready(ready));
                }
            }
            "died" => {
                let number = |name: &str| content[name].as_i64().and_then(|number| i32::try_from(number).ok());
                let signal = number("signal").filter(|signal| (1..=64).contains(signal));
                let code = number("status").filter(|code| (0..=255).contains(code)).map(|code| Ended::Exited { code });
                let ended = signal.map(|signal| Ended::Signaled { signal }).or(code);
                self.reported_end = ended.map(SessionEnd::Kernel).or(self.reported_end);
            }
            "figures" => self.oom_kills = content["oomKills"].as_u64().unwrap_or(self.oom_kills),
            "failed" => {
                self.reported_end = self.reported_end.or(Some(SessionEnd::Lost));
                let why: String = content["message"].as_str().unwrap_or_default().chars().take(400).collect();
                warn!(sandbox = %self.sandbox.id, why = %why.escape_debug(), "a kernel failed");
            }
            _ => {}
        }
    }
}
