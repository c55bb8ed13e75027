//! Sandboxes without their programs: the lease and the specification of a new one, its start, and its streams until it
//! ends. Knows no program, so more than one can be executed over one attachment.
//!
//! Output is read to the end in any case: a reader that stops can block the engine's own kill (moby issue 41827).
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    FutureExt as _, StreamExt,
    future::{BoxFuture, Fuse, OptionFuture},
    stream::BoxStream,
};
use tokio::{
    io::AsyncWriteExt,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use crate::{
    domain::{
        Clock, InstanceId, Limits, Principal, SandboxId, StreamKind, shared_folder::SharedFolder, skills::SkillFolders,
        text::chain,
    },
    ports::{
        engine::{Engine, EngineError, Exit, Output, Sandbox, SandboxSpec, Stdin, Volumes},
        runner::Runner,
        storage::DataFolder,
    },
    services::{
        frames::{Decoder, ExitReport, FileMessage, RunnerMessage},
        janitor::{Janitor, Lease},
        network::Incoming,
        skills::Skills,
    },
};

/// How long after its planned life a sandbox is certainly unwanted.
const ABANDONED_AFTER: Duration = Duration::from_mins(1);
/// How long files may take to a sandbox and back, where they travel.
const TRAVEL_MAX: Duration = Duration::from_mins(10);
/// How long the rest of the output may take once the sandbox has exited.
const DRAIN_MAX: Duration = Duration::from_secs(2);

/// Leases, specifies and starts sandboxes.
#[derive(Clone)]
pub struct Sandboxes {
    pub engine: Arc<dyn Engine>,
    pub janitor: Janitor,
    pub clock: Arc<dyn Clock>,
    /// The instance on the labels of sandboxes.
    pub instance: InstanceId,
    /// Folders of the engine's host that sandboxes see, each those of its owners.
    pub folders: Vec<SharedFolder>,
    pub volumes: Volumes,
    pub skills: Skills,
    /// The usual limits of a program.
    pub limits: Limits,
    /// The most memory that a runner may ask for by its label, in bytes.
    pub runner_memory_bytes_max: u64,
}

/// What a sandbox sees beside `/data`.
#[derive(Default)]
pub(super) struct ExtraMounts {
    folders: Vec<SharedFolder>,
    skills: SkillFolders,
}

/// Writes and flushes; whether the sandbox takes it.
pub(super) async fn send(stdin: &mut Stdin, bytes: &[u8]) -> bool {
    stdin.write_all(bytes).await.is_ok() && stdin.flush().await.is_ok()
}

/// A running sandbox without a program and, for a framed runner, the decoder of its frames, which may hold a part of
/// one.
pub(super) struct Started {
    pub sandbox: Sandbox,
    pub decoder: Option<Decoder>,
}

impl Sandboxes {
    /// The limits of a program in this runner.
    pub(super) fn limits_of(&self, runner: &Runner) -> Limits {
        runner.limits(&self.limits, self.runner_memory_bytes_max)
    }

    /// A lease and the specification of a new sandbox that is needed for at most `life` and for the time in which
    /// files travel.
    pub(super) fn lease(
        &self,
        runner: &Runner,
        (data, mounts): (DataFolder, ExtraMounts),
        limits: Limits,
        life: Duration,
    ) -> (Arc<Lease>, SandboxSpec) {
        let lease = Arc::new(self.janitor.lease(SandboxId::new()));
        let spec = SandboxSpec {
            id: lease.id(),
            instance: self.instance,
            image: runner.image.clone(),
            data: self.volumes.volume(data.path),
            folders: mounts.folders,
            skills: mounts.skills,
            limits,
            loading_cpu_millis: None,
            uid: data.uid,
            own_init: runner.is_framed,
            deadline_unix_s: self.clock.unix_s() + life_s(life, &self.volumes),
        };
        (lease, spec)
    }

    /// What a sandbox of an owner sees, or of no owner yet.
    pub(super) async fn mounts_of(&self, owner: Option<&Principal>) -> ExtraMounts {
        ExtraMounts { folders: self.seen_by(owner), skills: self.skills.folders(owner).await }
    }

    /// The same without skills, for a sandbox that runs no program of an owner.
    pub(super) fn mounts_of_all(&self) -> ExtraMounts {
        ExtraMounts { folders: self.seen_by(None), ..ExtraMounts::default() }
    }

    fn seen_by(&self, owner: Option<&Principal>) -> Vec<SharedFolder> {
        self.folders.iter().filter(|folder| folder.is_seen_by(owner)).cloned().collect()
    }

    /// Whether an owner sees something that a sandbox that was started for no owner cannot show.
    pub(super) async fn has_own(&self, owner: &Principal) -> bool {
        self.folders.iter().any(|folder| !folder.is_seen_by(None) && folder.is_seen_by(Some(owner)))
            || self.skills.has_own(owner).await
    }

    /// Starts a sandbox that was leased. The lease is held until the engine has answered. A start is never cancelled:
    /// the janitor could look for the sandbox before the engine lists it.
    pub(super) async fn start(&self, spec: &SandboxSpec, _lease: Arc<Lease>) -> Result<Started, EngineError> {
        let sandbox = self.engine.start(spec).await?;
        Ok(Started { sandbox, decoder: spec.own_init.then(Decoder::default) })
    }
}

/// How long it takes until a sandbox that is needed for at most `life` is abandoned, in seconds.
fn life_s(life: Duration, volumes: &Volumes) -> i64 {
    let travel = volumes.streamed_bytes().map_or(Duration::ZERO, |_| TRAVEL_MAX);
    i64::try_from((life + travel + ABANDONED_AFTER).as_secs()).unwrap_or(i64::MAX / 2)
}

/// An event of a sandbox.
pub(super) enum SandboxEvent {
    /// The program printed.
    Output(StreamKind, Bytes),
    /// A framed runner reports that the program has exited.
    ProgramExited(ExitReport),
    /// Files of its `/data`.
    Files(FileMessage),
    /// The engine lost the output: of what the program prints from here on, nothing comes.
    OutputBroke,
    /// The runner broke its contract; why.
    ContractBroken(String),
    /// The sandbox has exited, and its output was read. Nothing follows.
    SandboxExited(Result<Exit, EngineError>),
}

/// The streams of a sandbox, except its standard input.
pub(super) struct Attachment {
    pub(super) id: SandboxId,
    output: Option<BoxStream<'static, Result<Output, EngineError>>>,
    /// Never resolves a second time.
    exit: Fuse<BoxFuture<'static, Result<Exit, EngineError>>>,
    /// For a framed runner.
    decoder: Option<Decoder>,
    /// Where bytes of its channels go; `None` where the program was started without channels.
    pub(super) channels: Option<Incoming>,
    /// How the sandbox exited, and until when its output is drained.
    exited: Option<(Result<Exit, EngineError>, Instant)>,
    /// The engine lost some of the output.
    pub(super) output_broke: bool,
}

/// Attaches to a sandbox; its standard input is the caller's.
pub(super) fn attach(started: Started) -> (Stdin, Attachment) {
    let Started { sandbox: Sandbox { id, stdin, output, exit }, decoder } = started;
    let (output, exit) = (Some(output), exit.fuse());
    (stdin, Attachment { id, output, exit, decoder, channels: None, exited: None, output_broke: false })
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
        self.exit = Fuse::terminated();
        self.channels = None;
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
                // Without a stream, none comes any more.
                Some(chunk) = OptionFuture::from(self.output.as_mut().map(StreamExt::next)) => {
                    if let Some(event) = self.read(chunk) {
                        return event;
                    }
                }
                exit = &mut self.exit => self.exited = Some((exit, Instant::now() + DRAIN_MAX)),
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
                return Some(SandboxEvent::OutputBroke);
            }
            (None, _) => self.output = None,
        }
        None
    }

    fn decode(&mut self) -> Option<SandboxEvent> {
        loop {
            return Some(match self.decoder.as_mut()?.next() {
                Ok(None) => return None,
                Ok(Some(RunnerMessage::Ready(_))) => continue,
                Ok(Some(RunnerMessage::Output(stream, bytes))) => SandboxEvent::Output(stream, bytes),
                Ok(Some(RunnerMessage::Exit(report))) => SandboxEvent::ProgramExited(report),
                Ok(Some(RunnerMessage::Files(message))) => SandboxEvent::Files(message),
                Ok(Some(RunnerMessage::Channels(bytes))) => match &mut self.channels {
                    Some(channels) => {
                        channels.push(&bytes);
                        continue;
                    }
                    None => SandboxEvent::ContractBroken("bytes of channels that were not asked for".to_owned()),
                },
                Ok(Some(RunnerMessage::Error(message))) => SandboxEvent::ContractBroken(message),
                Err(error) => SandboxEvent::ContractBroken(error.to_string()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_whose_files_travel_lives_longer() {
        let life = Duration::from_secs(30);
        assert_eq!(life_s(life, &Volumes::HostFolders), 30 + 60);
        assert_eq!(life_s(life, &Volumes::Streamed { bytes: 1 }), 30 + 60 + 600);
    }
}
