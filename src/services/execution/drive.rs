//! Hands the program over, reads what comes out, and ends it when it must end.
//!
//! Output is read to the end whatever happens: a reader that stops can block the engine's own kill (moby issue 41827).
//! A plain runner's program has ended when its sandbox has; a framed one says so itself, and nobody waits for the rest.

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream::BoxStream};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{input::StdinReceiver, log::EventLog, stdin::write_stdin};
use crate::{
    domain::{
        error::{Code, Failure},
        event::StreamKind,
        id::SandboxId,
        limits::Limits,
        outcome::{DiskLimit, Ended},
    },
    ports::engine::{Engine, EngineError, Exit, Output, Signal},
    services::{
        frames::{self, Decoder, Ending, RunnerMessage},
        janitor::chain,
        started::Started,
    },
};

/// How long process 1 may take to end a program that it was told to end, before the engine is asked.
const POLITE_MAX: Duration = Duration::from_millis(300);
/// How long a killed sandbox may take to be gone before its end counts as unknown.
const DEATH_MAX: Duration = Duration::from_secs(5);
/// How long the rest of the output may take once the program is dead.
const REST_MAX: Duration = Duration::from_secs(2);
/// How long after our own deadline process 1 ends the program by itself.
const GRACE: Duration = Duration::from_secs(2);
const SIGKILL: u8 = 9;

/// What is handed over.
pub(super) struct Job<'a> {
    pub program: &'a Bytes,
    pub args: &'a [String],
    pub stdin: &'a Bytes,
    /// What follows the input above while the program runs; nothing: its input is complete.
    pub input: Option<StdinReceiver>,
    pub limits: &'a Limits,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    pub how: How,
    pub oom_killed: bool,
    pub process_limit_hit: bool,
    /// Process 1 ended it at its own deadline, which lies after ours.
    pub overdue: bool,
    pub cpu: Option<Duration>,
    pub memory_peak_bytes: Option<u64>,
}

/// By itself or by a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Status(i32),
    Signal(i32),
}

impl End {
    /// The program itself was killed, as it says or as a shell that ran it passes on; and not only one of its children.
    pub(super) fn was_killed(&self) -> bool {
        matches!(self.how, How::Signal(9) | How::Status(137))
    }
}

impl From<Exit> for End {
    fn from(exit: Exit) -> Self {
        // A plain runner tells a signal as shells do (POSIX 2.8.2): 128 and its number.
        let how = match exit.status {
            status @ 129..=159 => How::Signal(status - 128),
            status => How::Status(status),
        };
        let Exit { oom_killed, process_limit_hit, .. } = exit;
        Self { how, oom_killed, process_limit_hit, overdue: false, cpu: None, memory_peak_bytes: None }
    }
}

impl From<Ending> for End {
    fn from(ending: Ending) -> Self {
        Self {
            how: ending.signal.map_or(How::Status(ending.status.unwrap_or_default()), How::Signal),
            oom_killed: ending.oom_kills > 0,
            process_limit_hit: ending.forks_refused > 0,
            overdue: ending.killed_by.is_some(),
            cpu: ending.cpu_ms.map(Duration::from_millis),
            memory_peak_bytes: ending.memory_peak_bytes,
        }
    }
}

/// What is known after a program was driven to its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Driven {
    /// Why we ended it, if we did.
    pub stopped: Option<Ended>,
    /// How it ended, where anybody could say.
    pub end: Option<End>,
    pub wall: Duration,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// Why it is not known how a program ended that we did not stop.
#[derive(Debug, thiserror::Error)]
pub(super) enum DriveError {
    #[error("the engine does not say how the sandbox ended")]
    Engine(#[from] EngineError),
    #[error("the runner broke its contract: {0}")]
    Runner(String),
}

impl DriveError {
    /// What a client is told.
    pub(super) fn failure(&self) -> Failure {
        match self {
            Self::Engine(error) => error.failure(),
            Self::Runner(_) => Failure::new(
                Code::RunnerFailed,
                "The runner image broke its contract, so how the program ended is not known; it was not run again. The \
                 operator should rebuild the image; the server's log says more.",
            ),
        }
    }
}

/// Drives one program in one sandbox to its end, or to the breach of a limit on the disk.
pub(super) async fn drive(
    engine: &dyn Engine,
    started: Started,
    job: Job<'_>,
    log: &EventLog,
    cancel: &CancellationToken,
    breach: impl Future<Output = DiskLimit>,
) -> Result<Driven, DriveError> {
    let begun = Instant::now();
    let Started { sandbox, decoder } = started;
    let id = sandbox.id;
    let framed = decoder.is_some();
    let request = if framed {
        frames::request(job.program, job.args, job.stdin, job.input.is_some(), job.limits.wall(), GRACE)
    } else {
        job.program.clone()
    };
    let (later, more) = mpsc::channel(1);
    let mut feed = std::pin::pin!(write_stdin(sandbox.stdin, request, !framed, more, job.input));
    let mut driving = Driving {
        id,
        output: Some(sandbox.output),
        exit: Some(sandbox.exit),
        decoder,
        ended: None,
        stopping: false,
        broken: false,
        log,
        bytes: [0, 0],
    };
    let deadline = begun + job.limits.wall();
    let breach = std::pin::pin!(breach);
    let stop = driving.until_end(feed.as_mut(), deadline, job.limits.output_bytes_max, cancel, breach).await;
    let unseen = driving.output.is_none();
    if stop.is_some() && driving.ended.is_none() {
        driving.stopping = true;
        if framed && later.try_send(frames::signal(SIGKILL)).is_ok() {
            tokio::select! {
                () = driving.last_words() => {}
                () = feed.as_mut() => {}
                () = sleep(POLITE_MAX) => {}
            }
        }
        driving.kill(engine).await;
    }
    let end = match driving.ended.take() {
        Some(Ok(end)) => Some(end),
        // Nobody saw it any more when its time was up: it may have ended long before.
        _ if stop == Some(Ended::TimedOut) && unseen => return Err(driving.lost(engine).await),
        Some(Err(DriveError::Engine(EngineError::Lost { .. }))) | None if stop.is_none() => {
            return Err(driving.lost(engine).await);
        }
        Some(Err(error)) if stop.is_none() => return Err(error),
        // Destruction comes after this in any case, so an unknown end of a program that we stopped harms nobody.
        Some(Err(_)) | None => None,
    };
    let [stdout_bytes, stderr_bytes] = driving.bytes;
    Ok(Driven { stopped: stop, end, wall: begun.elapsed(), stdout_bytes, stderr_bytes })
}

struct Driving<'a> {
    id: SandboxId,
    output: Option<BoxStream<'static, Result<Output, EngineError>>>,
    exit: Option<BoxFuture<'static, Result<Exit, EngineError>>>,
    decoder: Option<Decoder>,
    ended: Option<Result<End, DriveError>>,
    /// We end it.
    stopping: bool,
    /// What it printed is not all here: the engine lost some of it.
    broken: bool,
    log: &'a EventLog,
    bytes: [u64; 2],
}

impl Driving<'_> {
    /// Returns why the program must be stopped, or nothing when it ended by itself.
    async fn until_end(
        &mut self,
        mut feed: Pin<&mut impl Future<Output = ()>>,
        deadline: Instant,
        output_bytes_max: u64,
        cancel: &CancellationToken,
        mut breach: Pin<&mut impl Future<Output = DiskLimit>>,
    ) -> Option<Ended> {
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Some(Ended::Cancelled),
                () = sleep_until(deadline) => return Some(Ended::TimedOut),
                chunk = next(&mut self.output) => {
                    self.take(chunk);
                    if self.printed() > output_bytes_max {
                        return Some(Ended::OutputLimit);
                    }
                    if self.ended.is_some() {
                        return None;
                    }
                }
                exit = wait(&mut self.exit) => {
                    self.sandbox_ended(exit).await;
                    return (self.printed() > output_bytes_max).then_some(Ended::OutputLimit);
                }
                limit = breach.as_mut() => return Some(Ended::DiskLimit(limit)),
                () = feed.as_mut() => {}
            }
        }
    }

    fn printed(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// The sandbox is gone: what is still in flight is read, and the end is known or never will be.
    async fn sandbox_ended(&mut self, exit: Result<Exit, EngineError>) {
        drop(timeout(REST_MAX, self.rest()).await);
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(match exit {
            // Process 1 of a framed runner tells the end itself, unless the kernel took it for the sandbox's memory.
            // One that we ended has nothing more to say: what the engine knows are the facts.
            Ok(exit) if self.decoder.is_some() && !exit.oom_killed && !self.stopping => {
                Err(EngineError::Lost { id: self.id }.into())
            }
            // It may have ended well, but what it printed is cut: half an answer is not to pass for a whole one.
            Ok(_) if self.broken && !self.stopping => Err(EngineError::Lost { id: self.id }.into()),
            // Nor is what the engine did to it, while nobody looked, to pass for what it did itself.
            Ok(exit) if exit.broke_off => Err(EngineError::Lost { id: self.id }.into()),
            Ok(exit) => Ok(exit.into()),
            Err(error) => Err(error.into()),
        });
    }

    fn take(&mut self, chunk: Option<Result<Output, EngineError>>) {
        match chunk {
            Some(Ok(Output { stream, bytes })) if self.decoder.is_none() => self.print(stream, &bytes),
            Some(Ok(Output { stream: StreamKind::Stdout, bytes })) => self.decode(&bytes),
            Some(Ok(Output { bytes, .. })) => {
                let text: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
                debug!(sandbox = %self.id, text = %text.escape_debug(), "a runner complains");
            }
            Some(Err(error)) => {
                warn!(sandbox = %self.id, error = %chain(&error), "the output of a sandbox broke off");
                self.broken = true;
                self.output = None;
            }
            None => self.output = None,
        }
    }

    fn print(&mut self, stream: StreamKind, bytes: &Bytes) {
        self.log.output(stream, bytes);
        self.bytes[usize::from(stream == StreamKind::Stderr)] += bytes.len() as u64;
    }

    fn decode(&mut self, bytes: &Bytes) {
        if let Some(decoder) = &mut self.decoder {
            decoder.push(bytes);
        }
        while self.ended.is_none() {
            let Some(said) = self.decoder.as_mut().and_then(|decoder| decoder.next().transpose()) else { return };
            match said {
                Ok(RunnerMessage::Stdout(bytes)) => self.print(StreamKind::Stdout, &bytes),
                Ok(RunnerMessage::Stderr(bytes)) => self.print(StreamKind::Stderr, &bytes),
                Ok(RunnerMessage::Ready { .. }) => {}
                Ok(RunnerMessage::Exit(ending)) => self.ended = Some(Ok(ending.into())),
                Ok(RunnerMessage::Error(message)) => self.ended = Some(Err(DriveError::Runner(message))),
                Err(error) => self.ended = Some(Err(DriveError::Runner(error.to_string()))),
            }
        }
    }

    /// What is in flight, and with it a framed runner's last word.
    async fn rest(&mut self) {
        while self.output.is_some() {
            let chunk = next(&mut self.output).await;
            self.take(chunk);
        }
    }

    /// Reads on until process 1 has said how the program ended. May be broken off.
    async fn last_words(&mut self) {
        while self.ended.is_none() {
            let chunk = next(&mut self.output).await;
            self.take(chunk);
        }
    }

    /// Has the engine end the sandbox. What was printed before still counts, and reading on keeps the engine able to.
    async fn kill(&mut self, engine: &dyn Engine) {
        if self.ended.is_some() {
            return;
        }
        let kill = engine.signal(self.id, Signal::Kill);
        let (killed, dead) = tokio::join!(kill, timeout(DEATH_MAX, self.until_dead()));
        if let Err(error) = killed {
            warn!(error = %chain(&error), "a program was not killed; its sandbox is destroyed");
        }
        if dead.is_err() {
            warn!("a killed sandbox does not end; it is destroyed");
        }
    }

    /// It may go on behind our back, and the next program of its conversation would meet it.
    async fn lost(&mut self, engine: &dyn Engine) -> DriveError {
        // Nobody reads any more, and the engine is to know before it is asked.
        self.output = None;
        self.exit = None;
        if let Err(error) = engine.signal(self.id, Signal::Kill).await {
            warn!(error = %chain(&error), "a program that was lost was not killed; its sandbox is destroyed");
        }
        EngineError::Lost { id: self.id }.into()
    }

    /// Reads on until the end is known.
    async fn until_dead(&mut self) {
        while self.ended.is_none() {
            tokio::select! {
                exit = wait(&mut self.exit) => self.sandbox_ended(exit).await,
                chunk = next(&mut self.output) => self.take(chunk),
            }
        }
    }
}

/// The next chunk; never, once the stream has ended.
async fn next(
    output: &mut Option<BoxStream<'static, Result<Output, EngineError>>>,
) -> Option<Result<Output, EngineError>> {
    match output {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// The end of the sandbox; never, once it was told.
async fn wait(exit: &mut Option<BoxFuture<'static, Result<Exit, EngineError>>>) -> Result<Exit, EngineError> {
    match exit {
        Some(future) => {
            let ended = future.await;
            *exit = None;
            ended
        }
        None => std::future::pending().await,
    }
}
