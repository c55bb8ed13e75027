//! How a sandbox ended: by `wait`, or, when that connection breaks, by `inspect` once the engine answers again.
//!
//! The end of a stream is never treated as the end of a program. When both the wait and the streams have ended, the
//! engine was away and the sandbox cannot be observed any more. Spawns nothing.

use std::time::Duration;

use bollard::{
    Docker,
    errors::Error,
    models::{ContainerState, ContainerWaitResponse},
    query_parameters::WaitContainerOptionsBuilder,
};
use futures_util::TryStreamExt;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{TimeLimits, call, forks::Refusals};
use crate::{
    domain::id::SandboxId,
    ports::engine::{EngineError, Exit},
};

const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long the engine may take to report that the kernel killed process 1 for memory: it learns of that apart from the
/// exit.
const OOM_REPORT_MAX: Duration = Duration::from_secs(5);
/// The status of a process that was killed.
const KILLED: i32 = 137;

/// Follows a started sandbox to its end.
pub(super) struct ExitWatch {
    pub docker: Docker,
    pub id: SandboxId,
    pub time: TimeLimits,
    pub refusals: Refusals,
    /// Cancelled at the end of its output.
    pub streams_over: CancellationToken,
}

/// The state of the container.
#[derive(Debug, PartialEq, Eq)]
enum Look {
    Running,
    Ended {
        status: i32,
        oom_killed: bool,
    },
    Gone,
    /// Nothing answers at the engine's address.
    Away,
    /// The engine does not answer in time, or not sensibly.
    Unknown,
}

impl ExitWatch {
    /// Waits for the end. The container has been started, so `not-running` cannot mean "not yet".
    pub(super) async fn exit(self) -> Result<Exit, EngineError> {
        let mut broke_off = false;
        loop {
            let waited = if broke_off {
                tokio::select! {
                    biased;
                    () = self.streams_over.cancelled() => return Err(EngineError::Lost { id: self.id }),
                    waited = self.wait() => waited,
                }
            } else {
                self.wait().await
            };
            broke_off |= waited.is_none();
            let look = match (self.look().await, waited) {
                (Look::Away | Look::Unknown, None) => {
                    self.look_while(self.time.lost, |look| matches!(look, Look::Away | Look::Unknown)).await
                }
                (look, _) => look,
            };
            // An engine that shuts down refuses calls and ends its containers, so the exit may be its doing.
            broke_off |= look == Look::Away;
            let (status, oom_killed) = match (look, waited) {
                (Look::Ended { oom_killed, status }, waited) => {
                    let status = waited.unwrap_or(status);
                    (status, oom_killed || (status == KILLED && self.reports_oom().await))
                }
                // Removed, or the engine became unavailable, after it had reported the status.
                (_, Some(status)) => (status, false),
                (Look::Running, None) => {
                    sleep(PAUSE_FIRST).await;
                    continue;
                }
                (Look::Gone | Look::Away | Look::Unknown, None) => return Err(EngineError::Lost { id: self.id }),
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

    async fn look(&self) -> Look {
        let name = self.id.to_string();
        match call::within("inspect", self.time.answer, self.docker.inspect_container(&name, None)).await {
            Ok(container) => container.state.map_or(Look::Unknown, |state| read(&state)),
            Err(error) if call::status(&error) == Some(404) => Look::Gone,
            Err(EngineError::Unavailable { .. }) => Look::Away,
            Err(_) => Look::Unknown,
        }
    }

    /// Whether the engine reports, a little later, that a sandbox was killed for memory that we did not kill.
    async fn reports_oom(&self) -> bool {
        let is_open = |look: &Look| !self.refusals.killed() && matches!(look, Look::Ended { oom_killed: false, .. });
        let look = if self.refusals.killed() { Look::Gone } else { self.look_while(OOM_REPORT_MAX, is_open).await };
        matches!(look, Look::Ended { oom_killed: true, .. })
    }

    /// Inspects with growing pauses while the state is as described and until the time is up.
    async fn look_while(&self, limit: Duration, goes_on: impl Fn(&Look) -> bool) -> Look {
        let until = Instant::now() + limit;
        let mut pause = PAUSE_FIRST;
        loop {
            sleep(pause).await;
            let seen = self.look().await;
            if !goes_on(&seen) || Instant::now() >= until {
                return seen;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

fn read(state: &ContainerState) -> Look {
    match (state.running, state.exit_code.and_then(status)) {
        (Some(true), _) => Look::Running,
        (Some(false), Some(status)) => Look::Ended { status, oom_killed: state.oom_killed == Some(true) },
        _ => Look::Unknown,
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

    use serde_json::json;

    use super::{
        super::{forks::Forks, proxy::scripted::ScriptedEngine},
        *,
    };

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
        let (forks, id) = (Arc::new(Forks::new("/nowhere".into())), SandboxId::new());
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
        assert_eq!(read(&state(true, 0, false)), Look::Running);
        assert_eq!(read(&state(false, 137, true)), Look::Ended { status: 137, oom_killed: true });
        assert_eq!(read(&state(false, -1, false)), Look::Unknown);
        assert_eq!(read(&ContainerState::default()), Look::Unknown);
    }
}
