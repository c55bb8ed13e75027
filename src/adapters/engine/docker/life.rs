//! One sandbox: create, attach, start, in this order, so that no byte of output is missed; and how it ended: by `wait`,
//! or, when that connection breaks, by `inspect` once the engine answers again.
//!
//! Spawns nothing. When a step of the start fails or its future is dropped, the container already has its labels and
//! its name, by which the caller destroys it.
//!
//! The end of a stream is never treated as the end of a program. When both the wait and the streams have ended, the
//! engine was away and the sandbox cannot be observed any more.

use std::{path::PathBuf, time::Duration};

use bollard::{
    Docker,
    container::{AttachContainerResults, LogOutput},
    errors::Error,
    models::{ContainerState, ContainerWaitResponse},
    query_parameters::{AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, WaitContainerOptionsBuilder},
};
use futures_util::{FutureExt, StreamExt, TryStreamExt, future::ready, stream::BoxStream};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{super::reported, DockerEngine, TimeLimits, call, convert, forks::Refusals};
use crate::{
    domain::{SandboxId, StreamKind, skills::SkillFolders},
    ports::engine::{EngineError, Exit, Output, Sandbox, SandboxSpec, Volume},
};

const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the engine may take to report that the kernel killed process 1 for memory: it learns of that apart from the
/// exit.
const OOM_REPORT_MAX: Duration = Duration::from_secs(5);
/// The status of a process that was killed.
const KILLED: i32 = 137;

pub(super) async fn start(engine: &DockerEngine, spec: &SandboxSpec) -> Result<Sandbox, EngineError> {
    let (docker, time) = (&engine.docker, &engine.time);
    let name = spec.id.to_string();
    let runtime = engine.runtime.now();
    let container = create(engine, spec, &name, runtime.name.clone()).await?;
    runtime.ensure_applied(engine, &name).await?;
    let options = AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).build();
    let attached = call::within("attach", time.start, docker.attach_container(&name, Some(options))).await?;
    let AttachContainerResults { output, input } = attached;
    let refusals = engine.forks.watch(spec.id);
    call::within("start", time.start, docker.start_container(&name, None)).await?;
    refusals.follow_group(&container);
    let read_counter = refusals.counter_reader();
    let output = output.inspect(move |_| read_counter());
    let streams_over = CancellationToken::new();
    let watch =
        ExitWatch { docker: docker.clone(), id: spec.id, time: *time, refusals, streams_over: streams_over.clone() };
    Ok(Sandbox {
        id: spec.id,
        stdin: input,
        output: demultiplexed(spec.id, output, docker.timeout(), streams_over),
        exit: watch.exit().boxed(),
    })
}

/// Creates the container and returns the engine's own id of it.
async fn create(
    engine: &DockerEngine,
    spec: &SandboxSpec,
    name: &str,
    runtime: Option<String>,
) -> Result<String, EngineError> {
    let on_host = |path: &PathBuf| {
        let host = engine.mounts.to_host(path);
        host.ok_or_else(|| EngineError::refused("create", "a folder for the sandbox is not below a root"))
    };
    let source = match &spec.data {
        Volume::HostFolder(folder) => Some(on_host(folder)?),
        Volume::Streamed { .. } => None,
        Volume::Claim { .. } => return Err(EngineError::refused("create", "the data folder is not below the root")),
    };
    let SkillFolders { public, user } = &spec.skills;
    let skills = SkillFolders {
        public: public.as_ref().map(on_host).transpose()?,
        user: user.as_ref().map(on_host).transpose()?,
    };
    let profile = convert::Profile { runtime, ..engine.profile.clone() };
    let body = convert::create_body(&profile, &SandboxSpec { skills, ..spec.clone() }, source.as_deref());
    let options = CreateContainerOptionsBuilder::new().name(name).build();
    let created = engine.docker.create_container(Some(options), body);
    match call::within("create", engine.time.start, created).await {
        Ok(created) => {
            for warning in created.warnings {
                // The same for every sandbox; `probe` reports them once.
                tracing::debug!(sandbox = name, warning, "the engine does not apply the whole profile");
            }
            Ok(created.id)
        }
        Err(error) if call::status(&error) == Some(404) => Err(EngineError::ImageGone { image: spec.image.clone() }),
        Err(error) => Err(error),
    }
}

/// The two streams as the port defines them. Buffers at most one frame, ends after an error, and cancels `over` at the
/// end. `limit` is that of the vendor's client.
fn demultiplexed(
    id: SandboxId,
    frames: impl futures_util::Stream<Item = Result<LogOutput, Error>> + Send + 'static,
    limit: Duration,
    over: CancellationToken,
) -> BoxStream<'static, Result<Output, EngineError>> {
    let outputs = frames
        .map(move |frame| match frame {
            Ok(LogOutput::StdOut { message }) => Ok(Output { stream: StreamKind::Stdout, bytes: message }),
            Ok(LogOutput::StdErr { message }) => Ok(Output { stream: StreamKind::Stderr, bytes: message }),
            // The connection broke within a frame.
            Ok(LogOutput::StdIn { .. } | LogOutput::Console { .. }) => Err(EngineError::Lost { id }),
            Err(error) => Err(call::map_error("read", limit, error)),
        })
        .filter(|output| ready(!matches!(output, Ok(output) if output.bytes.is_empty())));
    reported(outputs.boxed(), move |_| over.cancel())
}

/// Follows a started sandbox to its end.
struct ExitWatch {
    docker: Docker,
    id: SandboxId,
    time: TimeLimits,
    refusals: Refusals,
    /// Cancelled at the end of its output.
    streams_over: CancellationToken,
}

/// The state of the container.
#[derive(Debug, PartialEq, Eq)]
enum ContainerStatus {
    Running,
    Ended {
        status: i32,
        oom_killed: bool,
    },
    Gone,
    /// Nothing answers at the engine's address.
    Unavailable,
    /// The engine does not answer in time, or not sensibly.
    Unknown,
}

impl ExitWatch {
    /// Waits for the end. The container has been started, so `not-running` cannot mean "not yet".
    async fn exit(self) -> Result<Exit, EngineError> {
        let mut broke_off = false;
        loop {
            let waited = tokio::select! {
                biased;
                () = self.streams_over.cancelled(), if broke_off => return Err(EngineError::Lost { id: self.id }),
                waited = self.wait() => waited,
            };
            broke_off |= waited.is_none();
            let state = match (self.inspect().await, waited) {
                (ContainerStatus::Unavailable | ContainerStatus::Unknown, None) => {
                    self.inspect_while(self.time.lost, |state| {
                        matches!(state, ContainerStatus::Unavailable | ContainerStatus::Unknown)
                    })
                    .await
                }
                (state, _) => state,
            };
            // An engine that shuts down refuses calls and ends its containers, so the exit may be its doing.
            broke_off |= state == ContainerStatus::Unavailable;
            let (status, oom_killed) = match (state, waited) {
                (ContainerStatus::Ended { oom_killed, status }, waited) => {
                    let status = waited.unwrap_or(status);
                    (status, oom_killed || (status == KILLED && self.reports_oom().await))
                }
                // Removed, or the engine became unavailable, after it had reported the status.
                (_, Some(status)) => (status, false),
                (ContainerStatus::Running, None) => {
                    sleep(PAUSE_FIRST).await;
                    continue;
                }
                (ContainerStatus::Gone | ContainerStatus::Unavailable | ContainerStatus::Unknown, None) => {
                    return Err(EngineError::Lost { id: self.id });
                }
            };
            return Ok(Exit { status, oom_killed, process_limit_hit: self.refusals.seen(), broke_off });
        }
    }

    /// The status, unless the connection broke. The vendor's client returns a status above zero as an error.
    async fn wait(&self) -> Option<i32> {
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let answers = self.docker.wait_container(&self.id.to_string(), Some(options));
        match std::pin::pin!(answers).try_next().await {
            Ok(Some(ContainerWaitResponse { status_code, error: None })) => status(status_code),
            Err(Error::DockerContainerWaitError { code, error }) if error.is_empty() => status(code),
            other => {
                tracing::debug!(sandbox = %self.id, ?other, "the wait was interrupted");
                None
            }
        }
    }

    async fn inspect(&self) -> ContainerStatus {
        let name = self.id.to_string();
        match call::within("inspect", self.time.answer, self.docker.inspect_container(&name, None)).await {
            Ok(container) => container.state.map_or(ContainerStatus::Unknown, |state| read(&state)),
            Err(error) if call::status(&error) == Some(404) => ContainerStatus::Gone,
            Err(EngineError::Unavailable { .. }) => ContainerStatus::Unavailable,
            Err(_) => ContainerStatus::Unknown,
        }
    }

    /// Whether the engine reports, a little later, that a sandbox was killed for memory that we did not kill.
    async fn reports_oom(&self) -> bool {
        let is_open = |state: &ContainerStatus| {
            !self.refusals.killed() && matches!(state, ContainerStatus::Ended { oom_killed: false, .. })
        };
        !self.refusals.killed()
            && matches!(
                self.inspect_while(OOM_REPORT_MAX, is_open).await,
                ContainerStatus::Ended { oom_killed: true, .. }
            )
    }

    /// Inspects with growing pauses while the state is as described and until the time is up.
    async fn inspect_while(&self, limit: Duration, goes_on: impl Fn(&ContainerStatus) -> bool) -> ContainerStatus {
        let until = Instant::now() + limit;
        let mut pause = PAUSE_FIRST;
        loop {
            sleep(pause).await;
            let seen = self.inspect().await;
            if !goes_on(&seen) || Instant::now() >= until {
                return seen;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

fn read(state: &ContainerState) -> ContainerStatus {
    match (state.running, state.exit_code.and_then(status)) {
        (Some(true), _) => ContainerStatus::Running,
        (Some(false), Some(status)) => ContainerStatus::Ended { status, oom_killed: state.oom_killed == Some(true) },
        _ => ContainerStatus::Unknown,
    }
}

/// An exit status; the engine uses other numbers for an unknown one.
fn status(code: i64) -> Option<i32> {
    u8::try_from(code).ok().map(i32::from)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use bytes::Bytes;
    use futures_util::stream;
    use serde_json::json;

    use super::{
        super::{forks::Forks, proxy::tests::scripted::ScriptedEngine},
        *,
    };

    const LIMIT: Duration = Duration::from_secs(7);

    fn out(text: &'static str) -> LogOutput {
        LogOutput::StdOut { message: Bytes::from_static(text.as_bytes()) }
    }

    #[tokio::test]
    async fn demultiplexed_yields_output_until_the_connection_breaks() {
        let frames = vec![
            out("a"),
            out(""),
            LogOutput::StdErr { message: Bytes::from_static(b"b") },
            LogOutput::Console { message: Bytes::from_static(b"\x01\0") },
            out("never"),
        ];
        let frames = frames.into_iter().map(Ok::<_, Error>);
        let (id, over) = (SandboxId::new(), CancellationToken::new());
        let seen: Vec<_> = demultiplexed(id, stream::iter(frames), LIMIT, over.clone()).collect().await;
        let [Ok(first), Ok(second), Err(EngineError::Lost { id: lost })] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((first.stream, &first.bytes[..]), (StreamKind::Stdout, &b"a"[..]));
        assert_eq!((second.stream, &second.bytes[..]), (StreamKind::Stderr, &b"b"[..]));
        assert_eq!(*lost, id);
        assert!(over.is_cancelled());
    }

    #[tokio::test]
    async fn demultiplexed_names_the_limit_of_the_client() {
        let frames = stream::iter([Err(Error::RequestTimeoutError)]);
        let seen: Vec<_> = demultiplexed(SandboxId::new(), frames, LIMIT, CancellationToken::new()).collect().await;
        let [Err(EngineError::Timeout { act: "read", limit })] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(*limit, LIMIT);
    }

    /// The end of a sandbox that was killed, and that an engine reports as killed for memory from its nth look on.
    async fn of_killed(reported_at: usize, by_us: bool) -> (Exit, Duration) {
        let looks = AtomicUsize::new(0);
        let engine = ScriptedEngine::start(move |call| match call {
            wait if wait.contains("/wait?") => (200, json!({"StatusCode": 137})),
            _ => {
                let oom = looks.fetch_add(1, Ordering::Relaxed) + 1 >= reported_at;
                (200, json!({"State": {"Running": false, "ExitCode": 137, "OOMKilled": oom}}))
            }
        });
        let (forks, id) = (Arc::new(Forks::new("/nowhere".into(), None)), SandboxId::new());
        let refusals = forks.watch(id);
        if by_us {
            forks.killing(id);
        }
        let (time, streams_over) = (TimeLimits::default(), CancellationToken::new());
        let begun = Instant::now();
        let watch = ExitWatch { docker: engine.client(), id, time, refusals, streams_over };
        let exit = watch.exit().await.expect("an exit");
        (exit, begun.elapsed())
    }

    #[tokio::test]
    async fn an_oom_kill_that_is_reported_late_is_found() {
        assert!(of_killed(1, false).await.0.oom_killed);
        assert!(of_killed(3, false).await.0.oom_killed, "the first answers do not say so yet");
        let (exit, took) = of_killed(usize::MAX, false).await;
        assert!(!exit.oom_killed && took < OOM_REPORT_MAX * 3, "{took:?}");
        let (exit, took) = of_killed(usize::MAX, true).await;
        assert!(!exit.oom_killed && took < OOM_REPORT_MAX, "our own kill is not waited for: {took:?}");
    }

    #[test]
    fn read_decides_by_the_fields_of_the_state() {
        let state = |running, exit_code, oom_killed| ContainerState {
            running: Some(running),
            exit_code: Some(exit_code),
            oom_killed: Some(oom_killed),
            ..ContainerState::default()
        };
        assert_eq!(read(&state(true, 0, false)), ContainerStatus::Running);
        assert_eq!(read(&state(false, 137, true)), ContainerStatus::Ended { status: 137, oom_killed: true });
        assert_eq!(read(&state(false, -1, false)), ContainerStatus::Unknown);
        assert_eq!(read(&ContainerState::default()), ContainerStatus::Unknown);
    }
}
