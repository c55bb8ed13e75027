//! The engine port: starts sandboxes and reports how they ended.
//!
//! All data of a sandbox travels through its standard streams and its `/data` folder. Docker, Kubernetes and a plain
//! process tree can all offer that, so the port needs nothing else. The doc comment of each verb is its contract;
//! `tests/it/engine_contract.rs` runs one suite against every engine.

mod isolation;
mod volume;

use std::{net::SocketAddr, pin::Pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{
    StreamExt as _,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use tokio::io::AsyncWrite;

pub use self::{
    isolation::{Expectation, Fact, Severity},
    volume::{Volume, Volumes},
};
use super::runner::RunnerImage;
use crate::domain::{
    Code, Failure, InstanceId, Limits, RunnerUsers, SandboxId, StreamKind, error::Operation,
    shared_folder::SharedFolder, skills::SkillFolders, words::named,
};

/// Makes, watches and destroys sandboxes. Every method may be called concurrently and has its own time limit.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Describes the engine and how it isolates. No side effects.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] when nothing answers.
    async fn probe(&self) -> Result<Probe, EngineError>;

    /// Names of configurations that could start sandboxes faster than the standard one, best first; usually none. Each
    /// is used only after the isolation check has passed with it. No side effects.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn candidates(&self) -> Result<Vec<String>, EngineError> {
        Ok(Vec::new())
    }

    /// Sandboxes whose start begins from now on use this candidate; with `None` the standard configuration. `start`
    /// fails when the engine does not apply the candidate.
    fn select(&self, _candidate: Option<&str>) {}

    /// What a sandbox with these limits must show when it is inspected from inside, in the configuration that is
    /// selected now. Where an expectation is missing, nothing is checked, so an engine lists all that it enforces.
    fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation>;

    /// Addresses that a sandbox must not reach, which the isolation check tries for [`Fact::NoConnection`]. None where
    /// a sandbox has no interface that could reach any.
    fn forbidden_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Every image that carries the runner label, as it is now. The order is stable while nothing changes.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError>;

    /// Yields once on subscribe, then each time the images may have changed. The stream reconnects with growing pauses
    /// and never ends; after a reconnection it yields an item, since changes may have been missed.
    fn changes(&self) -> BoxStream<'static, ()>;

    /// A running sandbox with its streams attached, its runner waiting for a program. The engine stores the labels
    /// together with the sandbox, so `list` shows it and `destroy` ends it after any failure: on an error the caller
    /// still calls `destroy` for the id. Dropping the future is allowed under the same rule.
    ///
    /// # Errors
    /// [`EngineError::ImageGone`] when the image does not exist any more; others when the engine fails.
    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError>;

    /// Whether [`Self::limit_cpu`] can be used.
    fn can_limit_cpu(&self) -> bool;

    /// Lowers the CPU that a running sandbox may use, in thousandths of a core, without touching its other limits, and
    /// gives it the usual weight for the processors. Once this has returned, the limit holds for every process inside.
    ///
    /// # Errors
    /// [`EngineError::Lost`] when there is no such sandbox; others when the engine does not answer or refuses. The
    /// limit is unknown then.
    async fn limit_cpu(&self, id: SandboxId, cpu_millis: u32) -> Result<(), EngineError>;

    /// Ends everything in the sandbox at once. A sandbox that has ended or never existed is not an error.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn kill(&self, id: SandboxId) -> Result<(), EngineError>;

    /// Ends and removes the sandbox. Idempotent: not found is fine. Legal while `start` still runs; the caller then
    /// calls it again once `start` has returned.
    ///
    /// # Errors
    /// When the engine does not answer or refuses; the sandbox may or may not exist then, call again.
    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError>;

    /// Fetches an image from its registry. Yields how far it is, and ends when the engine has the image.
    ///
    /// # Errors
    /// An item, the last one, when the engine does not answer or refuses, as one does that fetches images by itself.
    fn pull(&self, _reference: &str) -> BoxStream<'static, Result<PullProgress, EngineError>> {
        let why = "this engine fetches images when a sandbox needs them";
        stream::once(ready(Err(EngineError::refused("pull", why)))).boxed()
    }

    /// Every sandbox with the server's label, running or not, of every instance.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn list(&self) -> Result<Vec<Listed>, EngineError>;
}

/// How far the fetching of an image is, in bytes of the parts that are known so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullProgress {
    pub done: u64,
    pub total: u64,
}

/// What an engine is and how well it isolates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Name and version for display, such as `Docker 20.10.24`.
    pub engine: String,
    /// The version of the engine's interface that is spoken, such as `1.41`.
    pub api_version: String,
    /// What runs the sandboxes, such as `runc 1.1.5`.
    pub runtime: String,
    /// Why it is that runtime, for display.
    pub runtime_reason: String,
    /// The engine's operating system and architecture, such as `linux/amd64`.
    pub platform: String,
    /// Cores of the engine's host.
    pub cpus: u32,
    /// Memory of the engine's host.
    pub memory_bytes: u64,
    /// Other parts of the engine for display, one line each.
    pub details: Vec<String>,
    /// What the operator should change, one sentence each.
    pub warnings: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Also its name, chosen by the server before the sandbox exists.
    pub id: SandboxId,
    /// The server that owns it.
    pub instance: InstanceId,
    /// The image, pinned by its content.
    pub image: ImageId,
    pub data: Volume,
    /// Folders of the engine's host beside `/data`.
    pub folders: Vec<SharedFolder>,
    /// Folders of this host with skills, which the sandbox sees read-only.
    pub skills: SkillFolders,
    pub limits: Limits,
    /// The CPU that it may use until [`Engine::limit_cpu`], in thousandths of a core, where that is more than the
    /// limit: meanwhile its runner loads libraries. Sandboxes that have their limit have a higher weight.
    pub loading_cpu_millis: Option<u32>,
    /// The user and group id of the program.
    pub uid: u32,
    /// Process 1 is the image's own; otherwise the engine puts an init in front of the image's program, which reaps
    /// zombies and gives the program the usual behaviour under signals.
    pub own_init: bool,
    /// When it is abandoned, in seconds since the Unix epoch: a label for the janitor of any server.
    pub deadline_unix_s: i64,
}

#[cfg(test)]
impl SandboxSpec {
    /// A new sandbox with the default limits.
    pub(crate) fn example(image: ImageId, data: Volume) -> Self {
        Self {
            id: SandboxId::new(),
            instance: InstanceId::new(),
            image,
            data,
            folders: Vec::new(),
            skills: SkillFolders::default(),
            limits: Limits::default(),
            loading_cpu_millis: None,
            uid: 1000,
            own_init: false,
            deadline_unix_s: 1_800_000_000,
        }
    }
}

/// An image pinned by its content, such as `sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub String);

/// A piece of a sandbox's output. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub stream: StreamKind,
    pub bytes: Bytes,
}

/// How a sandbox ended, as facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The status of its first process, 0 to 255; 128 + n when signal n ended it.
    pub status: i32,
    /// The kernel killed a process in it for memory.
    pub oom_killed: bool,
    /// A process in it was refused another process or thread. False too where the engine cannot report it.
    pub process_limit_hit: bool,
    /// The connection to the engine broke in between: output may be lost, and the engine may have ended the sandbox.
    pub broke_off: bool,
}

/// The standard input of a sandbox. What was written may wait for `flush`. `shutdown` closes it for the program and
/// leaves the output open.
pub type Stdin = Pin<Box<dyn AsyncWrite + Send>>;

/// A running sandbox. Dropping it closes the streams and does not destroy the sandbox: the caller of `start` does.
pub struct Sandbox {
    pub id: SandboxId,
    pub stdin: Stdin,
    /// Its output. The holder keeps reading and discards what is too much, since a reader that stops can block the
    /// engine. The end of the stream is not the end of the program: await `exit`.
    pub output: BoxStream<'static, Result<Output, EngineError>>,
    /// Resolves when the sandbox has ended. [`EngineError::Lost`] when the engine cannot report how it ended, or when
    /// the connection broke and `output` with it: the sandbox may then still run.
    pub exit: BoxFuture<'static, Result<Exit, EngineError>>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A sandbox as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    pub id: SandboxId,
    /// The server that owns it.
    pub instance: InstanceId,
    /// When it is abandoned, in seconds since the Unix epoch.
    pub deadline_unix_s: i64,
    pub running: bool,
}

/// How long past its deadline a sandbox of another server counts as abandoned, in seconds: clocks may differ.
const ABANDONED_S: i64 = 600;

/// Whether the server of a sandbox must be gone.
pub fn is_abandoned(deadline_unix_s: i64, now_unix_s: i64) -> bool {
    deadline_unix_s < now_unix_s.saturating_sub(ABANDONED_S)
}

named! {
    /// Why a call of the engine failed.
    #[derive(Debug, thiserror::Error)]
    pub enum EngineError {
        /// Nothing answers at the engine's address.
        #[error("the engine cannot be reached for `{act}`")]
        Unavailable { act: &'static str, source: Box<dyn std::error::Error + Send + Sync> } = "unavailable",
        /// The engine did not answer in time.
        #[error("the engine did not answer `{act}` within {limit:?}")]
        Timeout { act: &'static str, limit: Duration } = "timeout",
        /// The image does not exist any more.
        #[error("the image {image:?} is gone")]
        ImageGone { image: ImageId } = "image_gone",
        /// The engine answered with a failure.
        #[error("the engine refused `{act}`")]
        Refused { act: &'static str, source: Box<dyn std::error::Error + Send + Sync> } = "refused",
        /// The sandbox was running and the engine can no longer report how it ended.
        #[error("the engine lost the sandbox {id}")]
        Lost { id: SandboxId } = "lost",
    }
}

impl EngineError {
    pub fn refused(act: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Refused { act, source: source.into() }
    }

    pub fn unavailable(act: &'static str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable { act, source: source.into() }
    }

    /// The failure for a client: no vendor text, no host path.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Unavailable { .. } | Self::Timeout { .. } => Failure::new(
                Code::EngineUnavailable,
                "The container engine does not answer: try again in a moment; the operator should check that it runs.",
            ),
            Self::ImageGone { .. } => Failure::new(
                Code::RunnerNotFound,
                "The runner image was removed or rebuilt just now: try again, or list the languages.",
            )
            .see(Operation::ListRunners),
            Self::Refused { act, .. } => Failure::new(
                Code::EngineFailed,
                format!("The container engine refused to {act} the sandbox: the server's log says why."),
            ),
            Self::Lost { .. } => Failure::new(
                Code::EngineLost,
                "The container engine lost the sandbox while the program ran, so how it ended is not known; it was not \
                 run again. Check the files in the conversation before running it once more.",
            ),
        }
    }
}
