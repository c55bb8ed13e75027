//! Hands the program over, reads what comes out, and ends it when it must end.
//!
//! Output is read to the end whatever happens: a reader that stops can block the engine's own kill (moby issue 41827).

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::log::EventLog;
use crate::{
    nouns::{event::StreamKind, limits::Limits, outcome::Ended},
    ports::engine::{Engine, EngineError, Exit, Output, Sandbox, Signal},
    services::janitor::chain,
};

/// How long a killed sandbox may take to be gone before its end counts as unknown.
const DEATH_MAX: Duration = Duration::from_secs(5);
/// How long the rest of the output may take once the program is dead.
const REST_MAX: Duration = Duration::from_secs(2);

/// What is known after a program was driven to its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Driven {
    /// Why we ended it, if we did.
    pub stopped: Option<Ended>,
    /// How the sandbox ended, where the engine could say.
    pub exit: Option<Exit>,
    pub wall: Duration,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// Drives one program in one sandbox to its end.
///
/// # Errors
/// When the program was not stopped by us and the engine cannot say how it ended.
pub(super) async fn drive(
    engine: &dyn Engine,
    sandbox: Sandbox,
    program: &Bytes,
    limits: &Limits,
    log: &EventLog,
    cancel: &CancellationToken,
) -> Result<Driven, EngineError> {
    let begun = Instant::now();
    let id = sandbox.id;
    let mut driving =
        Driving { output: Some(sandbox.output), exit: Some(sandbox.exit), ended: None, log, bytes: [0, 0] };
    let feed = feed(sandbox.stdin, program.clone());
    let stop = driving.until_end(feed, begun + limits.wall(), limits.output_bytes_max, cancel).await;
    if stop.is_some() && driving.ended.is_none() {
        let kill = engine.signal(id, Signal::Kill);
        // What was printed before the end still counts, and reading on keeps the engine able to kill.
        let (killed, ()) = tokio::join!(kill, timeout(DEATH_MAX, driving.until_dead()).map(drop));
        if let Err(error) = killed {
            warn!(sandbox = %id, error = %chain(&error), "a program was not killed; its sandbox is destroyed");
        }
    }
    // Destruction comes after this in any case, so an unknown end of a program that we stopped harms nobody.
    let exit = match driving.ended {
        Some(Ok(exit)) => Some(exit),
        Some(Err(error)) if stop.is_none() => return Err(error),
        None if stop.is_none() => return Err(EngineError::Lost { id }),
        Some(Err(_)) | None => None,
    };
    let [stdout_bytes, stderr_bytes] = driving.bytes;
    Ok(Driven { stopped: stop, exit, wall: begun.elapsed(), stdout_bytes, stderr_bytes })
}

/// Writes the program and closes the input. A program that does not read its input is no error.
async fn feed(mut stdin: Pin<Box<dyn AsyncWrite + Send>>, program: Bytes) {
    if stdin.write_all(&program).await.is_ok() {
        drop(stdin.shutdown().await);
    }
    // The handle lives as long as the run: dropping it early could close the output on some engines.
    std::future::pending::<()>().await;
}

struct Driving<'a> {
    output: Option<BoxStream<'static, Result<Output, EngineError>>>,
    exit: Option<BoxFuture<'static, Result<Exit, EngineError>>>,
    ended: Option<Result<Exit, EngineError>>,
    log: &'a EventLog,
    bytes: [u64; 2],
}

impl Driving<'_> {
    /// Returns why the program must be stopped, or nothing when it ended by itself.
    async fn until_end(
        &mut self,
        feed: impl Future<Output = ()>,
        deadline: Instant,
        output_bytes_max: u64,
        cancel: &CancellationToken,
    ) -> Option<Ended> {
        let mut feed = std::pin::pin!(feed);
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Some(Ended::Cancelled),
                () = sleep_until(deadline) => return Some(Ended::TimedOut),
                ended = wait(&mut self.exit) => {
                    self.ended = Some(ended);
                    drop(timeout(REST_MAX, self.rest(output_bytes_max)).await);
                    let too_much = self.bytes.iter().sum::<u64>() > output_bytes_max;
                    return too_much.then_some(Ended::OutputLimit);
                }
                chunk = next(&mut self.output) => {
                    if self.take(chunk, output_bytes_max) {
                        return Some(Ended::OutputLimit);
                    }
                }
                () = &mut feed => {}
            }
        }
    }

    /// Notes a chunk; true when there is more than the ceiling.
    fn take(&mut self, chunk: Option<Result<Output, EngineError>>, output_bytes_max: u64) -> bool {
        match chunk {
            Some(Ok(Output { stream, bytes })) => {
                self.log.output(stream, &bytes);
                self.bytes[usize::from(stream == StreamKind::Stderr)] += bytes.len() as u64;
                self.bytes.iter().sum::<u64>() > output_bytes_max
            }
            Some(Err(error)) => {
                warn!(error = %chain(&error), "the output of a sandbox broke off");
                self.output = None;
                false
            }
            None => {
                self.output = None;
                false
            }
        }
    }

    async fn rest(&mut self, output_bytes_max: u64) {
        while self.output.is_some() {
            let chunk = next(&mut self.output).await;
            if self.take(chunk, output_bytes_max) {
                return;
            }
        }
    }

    /// Reads on until the sandbox has ended and its output with it.
    async fn until_dead(&mut self) {
        while self.exit.is_some() {
            tokio::select! {
                ended = wait(&mut self.exit) => self.ended = Some(ended),
                chunk = next(&mut self.output) => drop(self.take(chunk, u64::MAX)),
            }
        }
        drop(timeout(REST_MAX, self.rest(u64::MAX)).await);
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
