//! The engine port: who makes sandboxes and tells how they ended.
//!
//! Everything that goes into or comes out of a sandbox goes by its standard streams or by `/data`. That holds for
//! Docker, for a pod that one attaches to, for a process tree; so it is the whole port. The doc comment of each verb
//! is its contract, and one suite (`tests/it/engine_contract.rs`) holds every engine to it.

use std::{path::PathBuf, pin::Pin, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{future::BoxFuture, stream::BoxStream};
use tokio::io::AsyncWrite;

use super::runner::RunnerImage;
use crate::domain::{
    error::{Code, Failure, Operation},
    event::StreamKind,
    id::{InstanceId, SandboxId},
    limits::Limits,
};

/// Makes, watches and destroys sandboxes. Every method may be called concurrently, and every method has its own time
/// limit inside: none waits for ever on the engine.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// Can I work here, and with what isolation? No side effects.
    ///
    /// # Errors
    /// [`EngineError::Unavailable`] when nothing answers.
    async fn probe(&self) -> Result<Probe, EngineError>;

    /// A runtime that this engine has and that starts sandboxes sooner than what starts them now, where the choice is
    /// ours: it is worth a trial. No side effects.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn quicker(&self) -> Result<Option<String>, EngineError>;

    /// Sandboxes whose start begins from now on are started by this runtime; where none is named, by what started them before any
    /// was. [`Probe::runtime`] tells of it. One that the engine does not use, whatever the reason, makes `start` fail.
    fn choose(&self, runtime: Option<&str>);

    /// Every image that carries the runner label, as it is now. The order is stable while nothing changes.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn runners(&self) -> Result<Vec<RunnerImage>, EngineError>;

    /// One item each time the images may have changed. The stream reconnects by itself with growing pauses and never
    /// ends; after a reconnection it yields an item, since changes may have been missed.
    fn changes(&self) -> BoxStream<'static, ()>;

    /// A running sandbox with its streams attached, its runner waiting for a program. It carries its labels before it
    /// exists, so whatever goes wrong, `list` shows it and `destroy` ends it: on an error the caller still calls
    /// `destroy` for the id. Dropping the future half way is allowed under the same rule.
    ///
    /// # Errors
    /// [`EngineError::ImageGone`] when the image is not there any more; others when the engine fails.
    async fn start(&self, spec: &SandboxSpec) -> Result<Sandbox, EngineError>;

    /// Sends a signal to the program inside. A sandbox that has ended or never was is not an error.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn signal(&self, id: SandboxId, signal: Signal) -> Result<(), EngineError>;

    /// Ends and removes the sandbox. Idempotent: not found is fine. Legal while `start` still runs; it may then have to
    /// be called again once `start` has returned.
    ///
    /// # Errors
    /// When the engine does not answer or refuses; nothing is known then, call again.
    async fn destroy(&self, id: SandboxId) -> Result<(), EngineError>;

    /// Everything that carries our label, dead or alive, of every instance.
    ///
    /// # Errors
    /// When the engine does not answer or refuses.
    async fn list(&self) -> Result<Vec<Listed>, EngineError>;
}

/// What an engine is and how well it isolates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Name and version, for people: `Docker 20.10.24`.
    pub engine: String,
    /// The version of the engine's interface that is spoken, such as `1.41`.
    pub api_version: String,
    /// What runs the sandboxes, such as `runc 1.1.5`.
    pub runtime: String,
    /// The engine's operating system and architecture, such as `linux/amd64`.
    pub platform: String,
    /// Cores the engine's host has.
    pub cpus: u32,
    /// Memory the engine's host has, in bytes.
    pub memory_bytes: u64,
    /// What else it is made of, a line each, for people.
    pub details: Vec<String>,
    /// What an operator should know and change, a sentence each; empty when all is well.
    pub warnings: Vec<String>,
}

/// What a sandbox is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Its name, chosen by us.
    pub id: SandboxId,
    /// Whose it is.
    pub instance: InstanceId,
    /// The image, pinned.
    pub image: ImageId,
    /// The folder that is `/data` inside, as this process sees it. It exists.
    pub data: PathBuf,
    /// What the sandbox may use.
    pub limits: Limits,
    /// The user and group inside.
    pub uid: u32,
    /// Process 1 is the image's own; otherwise the engine puts an init in front of the image's program, which reaps
    /// zombies and gives the program the usual behaviour under signals.
    pub own_init: bool,
    /// When it is too old to be alive, in seconds since the Unix epoch; a label for whoever cleans up.
    pub deadline_unix_s: i64,
}

/// An image pinned by its content, such as `sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageId(pub String);

/// What a sandbox printed. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// On which stream.
    pub stream: StreamKind,
    /// What.
    pub bytes: Bytes,
}

/// How a sandbox ended, as facts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The status of its first process, 0 to 255; 128 + n when signal n ended it.
    pub status: i32,
    /// The kernel killed a process in it for memory.
    pub oom_killed: bool,
    /// A process in it was refused another process or thread. False too where the engine cannot tell.
    pub process_limit_hit: bool,
    /// The engine broke off in between: what was printed meanwhile may be lost, and it may be the engine that ended it.
    pub broke_off: bool,
}

/// A running sandbox. Dropping it closes the streams and leaves the sandbox itself alone: whoever started it destroys
/// it.
pub struct Sandbox {
    /// Its name.
    pub id: SandboxId,
    /// Its standard input. `shutdown` closes it for the program and leaves the output open.
    pub stdin: Pin<Box<dyn AsyncWrite + Send>>,
    /// What it prints. Whoever holds it keeps reading (and throws away what is too much): a reader that stops can block
    /// the engine. The end of the stream is not the end of the program: ask `exit`.
    pub output: BoxStream<'static, Result<Output, EngineError>>,
    /// Resolves when the sandbox has ended, whoever ended it. [`EngineError::Lost`] when the engine cannot say, or when it
    /// broke off and `output` with it: then the sandbox may go on, and nobody can see it any more.
    pub exit: BoxFuture<'static, Result<Exit, EngineError>>,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sandbox").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What can be sent to a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ends everything in the sandbox at once; cannot be refused.
    Kill,
}

/// A sandbox as the engine lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub id: SandboxId,
    /// Whose it is.
    pub instance: InstanceId,
    /// When it was made, in seconds since the Unix epoch.
    pub created_unix_s: i64,
    /// When it is too old to be alive, in seconds since the Unix epoch.
    pub deadline_unix_s: i64,
    /// Whether it runs now.
    pub running: bool,
}

/// Why the engine did not do it.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Nothing answers where the engine should be.
    #[error("the engine cannot be reached for `{act}`")]
    Unavailable {
        /// The verb that was tried.
        act: &'static str,
        /// The vendor's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The engine did not answer in time.
    #[error("the engine did not answer `{act}` within {limit:?}")]
    Timeout {
        /// The verb that was tried.
        act: &'static str,
        /// How long was waited.
        limit: Duration,
    },
    /// The image is not there any more.
    #[error("the image {image:?} is gone")]
    ImageGone {
        /// Which.
        image: ImageId,
    },
    /// The engine's disk is full.
    #[error("the engine has no space left for `{act}`")]
    NoSpace {
        /// The verb that was tried.
        act: &'static str,
    },
    /// The engine answered with a failure.
    #[error("the engine refused `{act}`")]
    Refused {
        /// The verb that was tried.
        act: &'static str,
        /// The vendor's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The sandbox was running and the engine can no longer say what became of it.
    #[error("the engine lost the sandbox {id}")]
    Lost {
        /// Which.
        id: SandboxId,
    },
}

impl EngineError {
    /// One word for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "unavailable",
            Self::Timeout { .. } => "timeout",
            Self::ImageGone { .. } => "image_gone",
            Self::NoSpace { .. } => "no_space",
            Self::Refused { .. } => "refused",
            Self::Lost { .. } => "lost",
        }
    }

    /// What a client is told: no vendor text, no host path.
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
            Self::NoSpace { .. } => Failure::new(
                Code::NoSpace,
                "The engine's disk is full: the operator must free space before programs can run.",
            ),
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
