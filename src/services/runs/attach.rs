//! Attaches to a sandbox: reads its output, decodes the frames of its runner, and knows its end once everything that it
//! printed was read. Knows no program, so more than one can be executed over one attachment.
//!
//! Output is read to the end whatever happens: a reader that stops can block the engine's own kill (moby issue 41827).

use std::{pin::Pin, time::Duration};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream::BoxStream};
use tokio::{
    io::AsyncWrite,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{
    domain::{event::StreamKind, id::SandboxId},
    ports::engine::{EngineError, Exit, Output, Sandbox},
    services::{
        frames::{Decoder, ExitReport, RunnerMessage},
        janitor::chain,
        started::Started,
    },
};

/// How long the rest of the output may take once the sandbox has exited.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// What comes from a sandbox.
pub(super) enum SandboxEvent {
    /// The program printed.
    Output(StreamKind, Bytes),
    /// A framed runner reports that the program has exited.
    ProgramExited(ExitReport),
    /// The runner broke its contract; why.
    ContractBroken(String),
    /// The sandbox has exited, and its output was read. Nothing follows.
    SandboxExited(Result<Exit, EngineError>),
}

/// The streams of a sandbox, except its standard input.
pub(super) struct Attachment {
    pub(super) id: SandboxId,
    output: Option<BoxStream<'static, Result<Output, EngineError>>>,
    exit: Option<BoxFuture<'static, Result<Exit, EngineError>>>,
    /// For a framed runner.
    decoder: Option<Decoder>,
    /// How the sandbox exited, and until when its output is drained.
    exited: Option<(Result<Exit, EngineError>, Instant)>,
    /// The engine lost some of the output.
    pub(super) output_broke: bool,
}

/// Attaches to a sandbox; its standard input is the caller's.
pub(super) fn attach(started: Started) -> (Pin<Box<dyn AsyncWrite + Send>>, Attachment) {
    let Started { sandbox: Sandbox { id, stdin, output, exit }, decoder } = started;
    let (output, exit) = (Some(output), Some(exit));
    (stdin, Attachment { id, output, exit, decoder, exited: None, output_broke: false })
}

impl Attachment {
    pub(super) fn is_framed(&self) -> bool {
        self.decoder.is_some()
    }

    /// The sandbox has exited; what is left is output in flight.
    pub(super) fn is_draining(&self) -> bool {
        self.exited.is_some()
    }

    /// The output is at its end, or the engine lost it.
    pub(super) fn output_ended(&self) -> bool {
        self.output.is_none()
    }

    /// Stops reading.
    pub(super) fn detach(&mut self) {
        self.output = None;
        self.exit = None;
    }

    /// The next event. The future may be dropped at any time.
    pub(super) async fn next(&mut self) -> SandboxEvent {
        loop {
            if let Some(event) = self.decode() {
                return event;
            }
            if self.output.is_none()
                && let Some((exit, _)) = self.exited.take()
            {
                return SandboxEvent::SandboxExited(exit);
            }
            let drained = self.exited.as_ref().map_or_else(Instant::now, |(_, until)| *until);
            tokio::select! {
                biased;
                chunk = next_chunk(&mut self.output) => {
                    if let Some(event) = self.read(chunk) {
                        return event;
                    }
                }
                exit = exit(&mut self.exit) => self.exited = Some((exit, Instant::now() + DRAIN_MAX)),
                () = sleep_until(drained), if self.exited.is_some() => self.output = None,
            }
        }
    }

    fn read(&mut self, chunk: Option<Result<Output, EngineError>>) -> Option<SandboxEvent> {
        match (chunk, &mut self.decoder) {
            (Some(Ok(Output { stream, bytes })), None) => return Some(SandboxEvent::Output(stream, bytes)),
            (Some(Ok(Output { stream: StreamKind::Stdout, bytes })), Some(decoder)) => decoder.push(&bytes),
            (Some(Ok(Output { bytes, .. })), Some(_)) => {
                let text: String = String::from_utf8_lossy(&bytes).chars().take(200).collect();
                debug!(sandbox = %self.id, text = %text.escape_debug(), "a runner wrote to its standard error");
            }
            (Some(Err(error)), _) => {
                warn!(sandbox = %self.id, error = %chain(&error), "the output of a sandbox broke off");
                self.output_broke = true;
                self.output = None;
            }
            (None, _) => self.output = None,
        }
        None
    }

    fn decode(&mut self) -> Option<SandboxEvent> {
        loop {
            return Some(match self.decoder.as_mut()?.next() {
                Ok(None) => return None,
                Ok(Some(RunnerMessage::Ready { .. })) => continue,
                Ok(Some(RunnerMessage::Stdout(bytes))) => SandboxEvent::Output(StreamKind::Stdout, bytes),
                Ok(Some(RunnerMessage::Stderr(bytes))) => SandboxEvent::Output(StreamKind::Stderr, bytes),
                Ok(Some(RunnerMessage::Exit(report))) => SandboxEvent::ProgramExited(report),
                Ok(Some(RunnerMessage::Error(message))) => SandboxEvent::ContractBroken(message),
                Err(error) => SandboxEvent::ContractBroken(error.to_string()),
            });
        }
    }
}

/// The next chunk; never, once the stream has ended.
async fn next_chunk(
    output: &mut Option<BoxStream<'static, Result<Output, EngineError>>>,
) -> Option<Result<Output, EngineError>> {
    match output {
        Some(stream) => stream.next().await,
        None => std::future::pending().await,
    }
}

/// The exit of the sandbox; never a second time.
async fn exit(exit: &mut Option<BoxFuture<'static, Result<Exit, EngineError>>>) -> Result<Exit, EngineError> {
    let Some(future) = exit else { return std::future::pending().await };
    let exited = future.await;
    *exit = None;
    exited
}
