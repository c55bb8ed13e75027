//! Executes one program in an attached sandbox: sends it, logs its output, stops it at a limit, and decides how it
//! ended from facts only: who stopped it, the kernel's counters, the exit status.
//!
//! The program of a plain runner has ended when its sandbox has; a framed runner reports the end, and nothing waits for
//! the rest.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use bytes::Bytes;
use futures_util::stream;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    log::EventLog,
    stdin::{self, StdinReceiver},
};
use crate::{
    domain::{Code, DiskLimit, Ended, Environment, Failure, Figures, Limits, Outcome, StreamKind, text::chain},
    ports::engine::{Engine, EngineError, Exit},
    services::{
        carrier::Carrier,
        files::Returned,
        frames::{self, ExitReport, Start},
        network::{Channels, Network},
        sandbox::{Attachment, SandboxEvent, Started, attach},
    },
};

/// How long process 1 may take to end a program on request, before the engine kills the sandbox.
const END_MAX: Duration = Duration::from_millis(300);
/// The same for a program whose files come back. They are lost when the engine kills the sandbox, and behind a program
/// that floods its output the request and the end are on their way for about a second on a small cluster.
const END_WITH_FILES_MAX: Duration = Duration::from_secs(3);
/// How long after process 1's own deadline a program whose files come back may take to end.
const AFTER_DEADLINE_MAX: Duration = Duration::from_secs(3);
/// How long a killed sandbox may take to be gone before its end counts as unknown. Its run is answered then; its
/// conversation waits until it is destroyed.
const KILL_MAX: Duration = Duration::from_secs(5);
/// How long after our own deadline process 1 ends the program by itself.
const GRACE: Duration = Duration::from_secs(2);
const SIGKILL: u8 = 9;

/// A program as it is handed over.
pub(super) struct Program<'a> {
    pub code: &'a Bytes,
    pub args: &'a [String],
    pub env: &'a Environment,
    pub stdin: &'a Bytes,
    /// Input that follows while the program runs; `None` when `stdin` is all.
    pub more_stdin: Option<StdinReceiver>,
    pub limits: &'a Limits,
    pub channels: Option<Channels>,
    /// Takes the files back, where the sandbox has its own `/data`.
    pub carrier: Option<Carrier>,
}

/// Why it is unknown how a program ended that the server did not stop.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecuteError {
    #[error("the engine does not report how the sandbox ended")]
    Engine(#[from] EngineError),
    #[error("the runner broke its contract: {0}")]
    Runner(String),
}

impl ExecuteError {
    /// The failure as clients see it.
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

/// How an execution went.
pub(super) struct Executed {
    pub outcome: Result<Outcome, ExecuteError>,
    /// The program is known to be dead.
    pub is_dead: bool,
    /// What came back of its files, where they travel.
    pub files: Option<Result<Returned, Failure>>,
}

/// Executes one program to its end, or until it breaches a limit on the disk.
pub(super) async fn execute(
    engine: &dyn Engine,
    started: Started,
    program: Program<'_>,
    log: &EventLog,
    cancel: &CancellationToken,
    breach: impl Future<Output = DiskLimit>,
) -> Executed {
    let begun = Instant::now();
    let Program { code, args, env, stdin, more_stdin, limits, channels, carrier } = program;
    let (stdin_stream, mut sandbox) = attach(started);
    let framed = sandbox.is_framed();
    let grace = GRACE + channels.as_ref().map_or(Duration::ZERO, |channels| channels.waits_max);
    let request = if framed {
        let env = &Network::environment(env, channels.as_ref());
        let authority = channels.as_ref().and_then(Channels::authority_pem);
        let start = Start::new(args, env, limits.wall(), grace);
        let start = Start { channels: channels.is_some(), authority, ..start };
        frames::request(code, &start, stdin, more_stdin.is_some())
    } else {
        code.clone()
    };
    let (control, control_receiver) = mpsc::channel(1);
    let (outgoing, link) = Channels::split(channels, &mut sandbox.channels);
    let writing = stdin::write(stdin_stream, request, !framed, control_receiver, more_stdin, outgoing);
    let mut writing = Box::pin(writing);
    let mut execution = Execution {
        sandbox,
        log,
        output_left: limits.output_bytes_max,
        output_over: false,
        exit: None,
        reported: false,
        stopping: false,
    };
    let deadline = link.reporter.waits.after(begun + limits.wall());
    let stopped = execution.until_end(writing.as_mut(), deadline, cancel, breach).await;
    let unseen = execution.sandbox.output_ended();
    if stopped.is_some() && execution.exit.is_none() {
        execution.stopping = true;
        let polite = match (&carrier, stopped) {
            (None, _) => END_MAX,
            // Process 1 does not read the signal while the program does not read its input, but has a deadline itself.
            (Some(_), Some(Ended::TimedOut)) => grace + AFTER_DEADLINE_MAX,
            // Neither its end nor its files come any more.
            (Some(_), _) if unseen => END_MAX,
            (Some(_), _) => END_WITH_FILES_MAX,
        };
        if framed && control.try_send(frames::signal(SIGKILL)).is_ok() {
            tokio::select! {
                () = execution.until_exit() => {}
                () = writing.as_mut() => {}
                () = sleep(polite) => {}
            }
        }
        execution.kill(engine).await;
    }
    let is_dead = matches!(execution.exit, Some(Ok(_)));
    let wall = begun.elapsed();
    let files = match carrier {
        Some(carrier) => Some(execution.files(carrier).await),
        None => None,
    };
    let exit = execution.known_exit(engine, stopped, unseen).await;
    drop((execution.sandbox, writing));
    for sentence in link.end().await {
        log.output(StreamKind::Stderr, &sentence.into());
    }
    let [stdout_bytes, stderr_bytes] = log.printed();
    let outcome = exit.map(|exit| Outcome {
        ended: ended(stopped, exit),
        oom_killed: exit.is_some_and(|exit| exit.oom_kills > 0),
        limits: *limits,
        figures: Figures {
            wall,
            cpu: exit.and_then(|exit| exit.cpu_ms).map(Duration::from_millis),
            memory_peak_bytes: exit.and_then(|exit| exit.memory_peak_bytes),
            stdout_bytes,
            stderr_bytes,
            files: 0,
        },
    });
    Executed { outcome, is_dead, files }
}

struct Execution<'a> {
    sandbox: Attachment,
    /// Output that the program may still print, in bytes, and whether it printed more.
    output_left: u64,
    output_over: bool,
    log: &'a EventLog,
    exit: Option<Result<ExitReport, ExecuteError>>,
    /// Process 1 reported the exit, so it sends the files as well.
    reported: bool,
    /// We end the program.
    stopping: bool,
}

impl Execution<'_> {
    /// Returns why the program must be stopped, or nothing when it ended by itself.
    async fn until_end(
        &mut self,
        mut writing: Pin<&mut impl Future<Output = ()>>,
        deadline: impl Future<Output = ()>,
        cancel: &CancellationToken,
        breach: impl Future<Output = DiskLimit>,
    ) -> Option<Ended> {
        let (mut deadline, mut breach) = (pin!(deadline), pin!(breach));
        loop {
            // A program that has exited is not stopped any more, while the rest of its output is read.
            let alive = !self.sandbox.is_draining();
            tokio::select! {
                biased;
                () = cancel.cancelled(), if alive => return Some(Ended::Cancelled),
                () = &mut deadline, if alive => return Some(Ended::TimedOut),
                // These two come before the output, which may never have to be waited for.
                limit = &mut breach, if alive => return Some(Ended::DiskLimit(limit)),
                () = writing.as_mut() => {}
                event = self.sandbox.next() => {
                    self.record(event);
                    if self.output_over {
                        return Some(Ended::OutputLimit);
                    }
                    if self.exit.is_some() {
                        return None;
                    }
                }
            }
        }
    }

    /// Reads on until the end is known.
    async fn until_exit(&mut self) {
        while self.exit.is_none() {
            let event = self.sandbox.next().await;
            self.record(event);
        }
    }

    fn record(&mut self, event: SandboxEvent) {
        self.exit = Some(match event {
            SandboxEvent::Output(stream, bytes) => {
                let fits = usize::try_from(self.output_left).unwrap_or(usize::MAX).min(bytes.len());
                self.output_left -= fits as u64;
                self.output_over |= fits < bytes.len();
                return self.log.output(stream, &bytes.slice(..fits));
            }
            // The end is still awaited: it may be known. Files before it are of none.
            SandboxEvent::OutputBroke | SandboxEvent::Files(_) => return,
            SandboxEvent::ProgramExited(report) => {
                self.reported = true;
                Ok(report)
            }
            SandboxEvent::ContractBroken(why) => Err(ExecuteError::Runner(why)),
            SandboxEvent::SandboxExited(exit) => exit.map_err(Into::into).and_then(|exit| self.trusted(exit)),
        });
    }

    /// Stores the files that follow the program's end. A sandbox that the engine killed sends none.
    async fn files(&mut self, mut carrier: Carrier) -> Result<Returned, Failure> {
        let sandbox = self.reported.then_some(&mut self.sandbox);
        let messages = stream::unfold(sandbox, |sandbox| async move {
            let sandbox = sandbox?;
            loop {
                match sandbox.next().await {
                    SandboxEvent::Files(message) => return Some((message, Some(sandbox))),
                    SandboxEvent::Output(..) | SandboxEvent::ProgramExited(_) => {}
                    SandboxEvent::OutputBroke | SandboxEvent::ContractBroken(_) | SandboxEvent::SandboxExited(_) => {
                        return None;
                    }
                }
            }
        });
        carrier.receive(pin!(messages)).await
    }

    /// The exit of the sandbox as the program's own, where it can be.
    fn trusted(&self, exit: Exit) -> Result<ExitReport, ExecuteError> {
        // A framed runner reports the exit itself, unless the kernel killed process 1 for the sandbox's memory.
        let unreported = self.sandbox.is_framed() && !exit.oom_killed;
        // With a part of the output lost, a program that ended well would answer with half of what it printed. And what
        // the engine did to a sandbox while its connection was broken is not what the program did. One that we stopped
        // has nothing more to report.
        if exit.broke_off || (!self.stopping && (unreported || self.sandbox.output_broke)) {
            return Err(EngineError::Lost { id: self.sandbox.id }.into());
        }
        Ok(exit.into())
    }

    /// Has the engine kill the sandbox. Output from before still counts, and only while it is read can the engine kill.
    async fn kill(&mut self, engine: &dyn Engine) {
        if self.exit.is_some() {
            return;
        }
        let kill = engine.kill(self.sandbox.id);
        let (killed, dead) = tokio::join!(kill, timeout(KILL_MAX, self.until_exit()));
        if let Err(error) = killed {
            warn!(error = %chain(&error), "a program was not killed; its sandbox is destroyed");
        }
        if dead.is_err() {
            warn!("a killed sandbox does not end; it is destroyed");
        }
    }

    /// How the program exited; nothing where we stopped it and its exit is unknown, which its verdict does not need.
    async fn known_exit(
        &mut self,
        engine: &dyn Engine,
        stopped: Option<Ended>,
        unseen: bool,
    ) -> Result<Option<ExitReport>, ExecuteError> {
        match self.exit.take() {
            Some(Ok(exit)) => Ok(Some(exit)),
            // The engine showed nothing of it any more when its time was up: it may have ended long before.
            _ if stopped == Some(Ended::TimedOut) && unseen => Err(self.lost(engine).await),
            Some(Err(ExecuteError::Engine(EngineError::Lost { .. }))) | None if stopped.is_none() => {
                Err(self.lost(engine).await)
            }
            Some(Err(error)) if stopped.is_none() => Err(error),
            Some(Err(_)) | None => Ok(None),
        }
    }

    /// Kills a program that may go on unseen.
    async fn lost(&mut self, engine: &dyn Engine) -> ExecuteError {
        // Detached first, so that the engine knows that nothing reads any more before it is called.
        self.sandbox.detach();
        let id = self.sandbox.id;
        if let Err(error) = engine.kill(id).await {
            warn!(error = %chain(&error), "a program that was lost was not killed; its sandbox is destroyed");
        }
        EngineError::Lost { id }.into()
    }
}

/// How a program ended: `stopped` says why we ended the program, `exit` how it exited, where that is known.
fn ended(stopped: Option<Ended>, exit: Option<ExitReport>) -> Ended {
    let Some(exit) = exit else {
        // A program that we did not stop has an exit or an error.
        return stopped.unwrap_or(Ended::Cancelled);
    };
    // A shell that ran the program passes its signal on as 128 and its number.
    let was_killed = exit.signal == Some(9) || exit.status == Some(137);
    let refused_processes = exit.forks_refused > 0;
    match stopped {
        // It was refused processes and then hung: the refusal is why it never ended.
        Some(Ended::TimedOut) if refused_processes => Ended::ProcessLimit,
        Some(stopped) => stopped,
        None if exit.killed_by.is_some() => Ended::TimedOut,
        None if exit.oom_kills > 0 && was_killed => Ended::OutOfMemory,
        None if exit.status != Some(0) && refused_processes => Ended::ProcessLimit,
        None => match exit.signal {
            Some(signal) => Ended::Signaled { signal },
            None => Ended::Exited { code: exit.status.unwrap_or_default() },
        },
    }
}

impl From<Exit> for ExitReport {
    /// The exit of a plain runner, which reports a signal as shells do (POSIX 2.8.2): 128 and its number.
    fn from(exit: Exit) -> Self {
        let signal = (129..=159).contains(&exit.status).then(|| exit.status - 128);
        Self {
            status: signal.is_none().then_some(exit.status),
            signal,
            cpu_ms: None,
            memory_peak_bytes: None,
            oom_kills: exit.oom_killed.into(),
            forks_refused: exit.process_limit_hit.into(),
            killed_by: None,
        }
    }
}

#[cfg(test)]
mod tests;
