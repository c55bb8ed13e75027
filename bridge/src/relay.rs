//! The relay between the kernel's sockets and the server's messages, from the kernel's first answer to its end. Reads
//! the kernel whatever the server does, because a kernel drops what is not read, the status that ends a cell included.

mod requests;

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::{
    net::unix::pipe::{Receiver, Sender},
    time::{Instant, sleep_until},
};
use zeromq::{SocketRecv, ZmqMessage};

use crate::{
    connection::{Sockets, random_word},
    kernel::Kernel,
    kernelspec::{InterruptMode, Kernelspec},
    limits,
    message::{Channel, KernelMessage, MessageReader},
    outbox::{Outbox, Weight, bridge_message},
    signer::Signer,
    usage::Usage,
};

/// The first pause before the kernel is asked again whether it is there; the next is twice as long, up to the longest.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const ASK_AGAIN_MAX: Duration = Duration::from_millis(800);

/// How long a kernel may take to end itself when it is asked to.
const SHUTDOWN_LIMIT: Duration = Duration::from_millis(300);

/// How long what a dead kernel has sent may take to arrive here.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// How long a kernel whose connection broke may take to be gone.
const BROKEN_LIMIT: Duration = Duration::from_millis(500);

/// How often the relay checks whether the kernel has sent everything.
const LOOK_EVERY: Duration = Duration::from_millis(2);

const READ_BYTES: usize = 64 << 10;

/// The pipes to process 1.
#[derive(Debug)]
pub struct Server {
    pub input: Receiver,
    pub output: Sender,
}

/// One session.
pub struct Relay {
    server: Server,
    sockets: Sockets,
    kernel: Kernel,
    signer: Signer,
    spec: Kernelspec,
    held: Option<Held>,
    usage: Usage,
    /// Of the messages that are this program's own. What the kernel sends because of them is not relayed.
    session: String,
    sent: u64,
    reader: MessageReader,
    outbox: Outbox,
    phase: Phase,
    /// Why it gave the session up.
    failed: Option<String>,
}

/// An idle status that waits for output of its cell. It is passed on when the kernel's threads were asleep twice in a
/// row and nothing came from the kernel in between.
#[derive(Debug)]
struct Held {
    idle: KernelMessage,
    look: Instant,
    until: Instant,
    was_asleep: bool,
}

#[derive(Debug)]
enum Phase {
    /// The kernel has not answered yet, or its output does not arrive yet.
    Starting {
        until: Instant,
        again: Instant,
        pause: Duration,
        info: Option<Bytes>,
        is_idle: bool,
    },
    Running,
    /// The kernel was asked to end.
    Leaving {
        until: Instant,
    },
    /// The kernel is gone, or its connection; how it ended, if that is known.
    Gone {
        until: Instant,
        how: Option<Value>,
    },
}

impl Relay {
    /// A relay to a kernel of this kernelspec, which has until `until` to answer.
    ///
    /// # Errors
    /// There is no randomness.
    pub fn new(
        server: Server,
        sockets: Sockets,
        kernel: Kernel,
        signer: Signer,
        spec: Kernelspec,
        until: Instant,
    ) -> std::io::Result<Self> {
        let again = Instant::now();
        Ok(Self {
            server,
            sockets,
            kernel,
            signer,
            spec,
            held: None,
            usage: Usage::open(),
            session: random_word()?,
            sent: 0,
            reader: MessageReader::default(),
            outbox: Outbox::default(),
            phase: Phase::Starting { until, again, pause: ASK_AGAIN, info: None, is_idle: false },
            failed: None,
        })
    }

    /// Relays until the session is over. The kernel is gone then.
    ///
    /// # Errors
    /// Why the session was given up, as it is reported to the server.
    pub async fn run(mut self) -> Result<(), String> {
        while !self.step().await {}
        if self.failed.is_some() {
            // Before an adopted kernel ends, with which process 1 ends all that is in the sandbox.
            self.outbox.finish(&self.server.output).await;
        }
        self.kernel.kill();
        self.release();
        self.outbox.finish(&self.server.output).await;
        self.failed.map_or(Ok(()), Err)
    }

    /// Waits for what comes next, and handles it. Whether the session is over.
    async fn step(&mut self) -> bool {
        let is_running = matches!(self.phase, Phase::Running);
        let is_known_dead = matches!(self.phase, Phase::Gone { how: Some(_), .. });
        let is_broken = matches!(self.phase, Phase::Gone { how: None, .. });
        let timer = match &self.phase {
            Phase::Starting { until, again, .. } => Some(*until.min(again)),
            Phase::Running => None,
            Phase::Leaving { until } | Phase::Gone { until, .. } => Some(*until),
        };
        let look = self.held.as_ref().map(|held| held.look);
        let sockets = &mut self.sockets;
        let (channel, received) = tokio::select! {
            message = sockets.iopub.recv(), if !is_broken => (Channel::Iopub, message),
            message = sockets.shell.recv(), if !is_broken => (Channel::Shell, message),
            message = sockets.control.recv(), if !is_broken => (Channel::Control, message),
            message = sockets.stdin.recv(), if !is_broken => (Channel::Stdin, message),
            how = self.kernel.ended(), if !is_known_dead => return self.ended(how),
            _ = self.server.input.readable(), if is_running => return self.read().await,
            _ = self.server.output.writable(), if !self.outbox.is_empty() => {
                return self.outbox.write(&self.server.output);
            }
            () = sleep_until(timer.unwrap_or_else(Instant::now)), if timer.is_some() => {
                return self.time_is_up().await;
            }
            () = sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => {
                self.look();
                return false;
            }
        };
        match received {
            Ok(frames) => self.take(channel, frames),
            Err(_) => self.broken(),
        }
        false
    }

    /// The kernel has ended. Whether the session is over.
    fn ended(&mut self, how: Value) -> bool {
        match self.phase {
            Phase::Starting { .. } => self.fail(format!("the kernel ended before it answered: {how}")),
            Phase::Leaving { .. } => {}
            _ => {
                self.phase = Phase::Gone { until: Instant::now() + LAST_WORDS, how: Some(how) };
                return false;
            }
        }
        true
    }

    /// A connection to the kernel broke. What is known of its end stays.
    fn broken(&mut self) {
        if !matches!(self.phase, Phase::Gone { how: Some(_), .. }) {
            self.phase = Phase::Gone { until: Instant::now() + BROKEN_LIMIT, how: None };
        }
    }

    /// Passes on the idle status that waits.
    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            self.outbox.push(&held.idle, Weight::Status);
        }
    }

    /// Checks whether the idle status may be passed on.
    fn look(&mut self) {
        let is_asleep = self.kernel.is_asleep();
        let Some(held) = &mut self.held else { return };
        let now = Instant::now();
        if (is_asleep && held.was_asleep) || now >= held.until {
            return self.release();
        }
        held.was_asleep = is_asleep;
        held.look = now + LOOK_EVERY;
    }

    fn send_notice(&mut self, word: &str, content: &Value) {
        self.release();
        self.outbox.push(&bridge_message(word, content), Weight::Own);
    }

    /// Gives the session up.
    fn fail(&mut self, why: String) {
        self.send_notice("failed", &json!({"message": why}));
        self.failed = Some(why);
    }

    /// Handles what the kernel sent, if its signature is right.
    fn take(&mut self, channel: Channel, frames: ZmqMessage) {
        let Some(message) = self.signer.verify(channel, frames) else { return };
        if let Some(held) = &mut self.held {
            held.was_asleep = false;
        }
        let kind = message.read_header().msg_type;
        if self.is_own(&message) {
            return self.take_own(&kind, &message);
        }
        if matches!(self.phase, Phase::Starting { .. }) {
            // Greetings and the start's own status: no client has sent anything yet.
            return;
        }
        self.forward(&kind, message);
    }

    /// Passes a message on to the server, made shorter where it is too long.
    fn forward(&mut self, kind: &str, mut message: KernelMessage) {
        let dropped = limits::fit(&mut message, kind);
        self.outbox.note_dropped(dropped);
        if dropped.messages > 0 {
            return;
        }
        let weight = match (message.channel, kind) {
            (Channel::Iopub, "status") => Weight::Status,
            (Channel::Iopub, "stream") => Weight::Stream,
            (Channel::Iopub, _) => Weight::Output,
            _ => Weight::Reply,
        };
        if weight == Weight::Status {
            self.release();
            if !self.spec.idle_delay().is_zero() && is_idle(&message) {
                let now = Instant::now();
                let (look, until) = (now + LOOK_EVERY, now + self.spec.idle_delay());
                self.held = Some(Held { idle: message, look, until, was_asleep: false });
                return;
            }
        }
        self.outbox.push(&message, weight);
    }

    /// Whether a message answers one of this program. The parent is read only where it can be.
    fn is_own(&self, message: &KernelMessage) -> bool {
        message.parent_header.len() < 4096 && message.read_parent().session == self.session
    }

    fn take_own(&mut self, kind: &str, message: &KernelMessage) {
        let Phase::Starting { info, is_idle, .. } = &mut self.phase else { return };
        match (message.channel, kind) {
            (Channel::Shell, "kernel_info_reply") => *info = Some(message.content.clone()),
            (Channel::Iopub, "status") => *is_idle |= self::is_idle(message),
            _ => return,
        }
        if let (Some(info), true) = (info, *is_idle) {
            let mut ready: Map<String, Value> = serde_json::from_slice(info).unwrap_or_default();
            let used = self.usage.read();
            for name in ["cpuMs", "memoryBytes"] {
                ready.insert(name.to_owned(), used[name].clone());
            }
            ready.insert("adopted".to_owned(), json!(matches!(self.kernel, Kernel::Adopted { .. })));
            self.phase = Phase::Running;
            self.send_notice("ready", &Value::Object(ready));
        }
    }

    /// Reads what the server sends. Whether the session is over.
    async fn read(&mut self) -> bool {
        let mut buffer = vec![0; READ_BYTES];
        match self.server.input.try_read(&mut buffer) {
            Ok(0) => {
                self.ask(Channel::Control, "shutdown_request", &json!({"restart": false})).await;
                self.phase = Phase::Leaving { until: Instant::now() + SHUTDOWN_LIMIT };
            }
            Ok(count) => self.reader.push(&buffer[..count]),
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
        loop {
            match self.reader.next() {
                Ok(None) => return false,
                Ok(Some(message)) if message.channel == Channel::Bridge => {
                    self.handle_order(&message.read_header().msg_type).await;
                }
                Ok(Some(message)) => self.send(&message).await,
                Err(error) => {
                    self.fail(error.to_string());
                    return true;
                }
            }
        }
    }

    async fn handle_order(&mut self, word: &str) {
        match word {
            "interrupt" if self.spec.interrupt_mode == InterruptMode::Message => {
                self.ask(Channel::Control, "interrupt_request", &json!({})).await;
            }
            "interrupt" => self.kernel.interrupt(),
            "figures" => {
                let figures = self.usage.read();
                self.send_notice("figures", &figures);
            }
            _ => {}
        }
    }

    /// The timer of the phase. Whether the session is over.
    async fn time_is_up(&mut self) -> bool {
        match &mut self.phase {
            Phase::Starting { until, again, pause, .. } => {
                let now = Instant::now();
                if now >= *until {
                    self.fail("the kernel did not answer in time".to_owned());
                    return true;
                }
                *again = now + *pause;
                *pause = (*pause * 2).min(ASK_AGAIN_MAX);
                self.ask(Channel::Shell, "kernel_info_request", &json!({})).await;
                false
            }
            Phase::Running => false,
            Phase::Leaving { .. } => true,
            Phase::Gone { how, .. } => {
                match how.take() {
                    Some(how) => self.send_notice("died", &how),
                    None => self.fail("the connection to the kernel broke".to_owned()),
                }
                true
            }
        }
    }
}

fn is_idle(status: &KernelMessage) -> bool {
    status.content.windows(6).any(|word| word == b"\"idle\"")
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;
    use tokio::net::unix::pipe;
    use zeromq::{DealerSocket, Socket as _, SubSocket};

    use super::*;
    use crate::socket::KernelSocket;

    #[tokio::test]
    async fn connection_that_breaks_after_the_end_of_its_kernel_is_no_failure() {
        let mut process = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        let kernel = Kernel::adopt(Pid::from_child(&process)).expect("its pidfd");
        let ((_in, input), (output, _out)) = (pipe::pipe().expect("a pipe"), pipe::pipe().expect("a pipe"));
        let [shell, control, stdin] = [(); 3].map(|()| KernelSocket::new(DealerSocket::new()));
        let sockets = Sockets { shell, control, stdin, iopub: SubSocket::new() };
        let (server, signer, spec) = (Server { input, output }, Signer::new(""), Kernelspec::default());
        let mut relay = Relay::new(server, sockets, kernel, signer, spec, Instant::now()).expect("a relay");
        relay.phase = Phase::Running;
        process.kill().expect("killed");
        assert!(!relay.step().await, "the kernel has ended");
        relay.broken();
        assert_eq!(relay.run().await, Ok(()));
        process.wait().expect("its status");
    }
}
