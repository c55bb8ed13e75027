//! Programs of the server's own: those that are executed in a sandbox that belongs to no run, and that of the isolation
//! check, which is a run with an admission of its own, in a conversation that is deleted afterwards.

use std::{future::pending, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{
    RunRequest, Runs,
    execute::{self, Executed, Program},
    internal,
    log::EventLog,
    output::CapturedOutput,
};
use crate::{
    domain::{
        Code, ConversationId, ConversationKey, DiskLimit, Ended, Environment, EventKind, Failure, Language, Limits,
        Outcome, Principal, StreamKind,
    },
    ports::{
        packages::{PackageStore, Staging},
        runner::Runner,
        storage::{DataFolder, Usage},
    },
    services::{
        admission::{Admission, AdmissionOptions},
        isolation_check::{CHECKS_AT_ONCE, ProgramRunner},
        network::Channels,
        sandbox::Sandboxes,
        shared_parts::SharedParts,
        tokens::Started,
    },
};

/// How often the space is measured that such a program takes.
const MEASURE_EVERY: Duration = Duration::from_millis(250);

/// A program, and where it is executed.
pub(in crate::services) struct AuxiliaryProgram<'a> {
    pub runner: &'a Runner,
    pub data: DataFolder,
    pub limits: Limits,
    pub code: Bytes,
    pub stdin: Bytes,
    pub channels: Option<Channels>,
    /// Whose token it counts for, and ends with.
    pub by: Option<&'a Started>,
    pub cancel: CancellationToken,
}

/// A folder for such a program, which is no conversation's.
pub(in crate::services) async fn staged(parts: &SharedParts, owner: &Principal) -> Result<Arc<dyn Staging>, Failure> {
    let store: Arc<dyn PackageStore> = parts.store.clone();
    let owner = owner.clone();
    let staged = tokio::task::spawn_blocking(move || store.stage(&owner)).await.map_err(|_| internal())?;
    Ok(staged?.into())
}

/// Returns when such a program has written more than `most` to its folder, or the disk has no room for it.
pub(in crate::services) async fn outgrown(
    folder: Arc<dyn Staging>,
    most: Usage,
    has_room: impl Fn() -> bool + Send + Sync + 'static,
) -> DiskLimit {
    let has_room = Arc::new(has_room);
    loop {
        sleep(MEASURE_EVERY).await;
        let (folder, has_room) = (Arc::clone(&folder), Arc::clone(&has_room));
        // A folder that disappears while it is counted is counted the next time.
        let measure = move || has_room() && folder.usage(&most).is_ok_and(|usage| usage.fits(&most));
        if !tokio::task::spawn_blocking(measure).await.unwrap_or(false) {
            return DiskLimit::Bytes { max: most.bytes };
        }
    }
}

/// Executes it to its end; how it ended, and what it wrote to both streams. To be called in a task that is never
/// aborted, as a start is not. `tell` gets its output as it comes.
///
/// # Errors
/// The engine or the runner failed, or the program may go on;
/// [`Code::Unauthorized`] when its token has ended meanwhile.
pub(in crate::services) async fn execute_auxiliary(
    sandboxes: &Sandboxes,
    auxiliary: AuxiliaryProgram<'_>,
    breach: impl Future<Output = DiskLimit>,
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<(Outcome, [String; 2]), Failure> {
    let AuxiliaryProgram { runner, data, limits, code, stdin, channels, by, cancel } = auxiliary;
    by.map_or(Ok(()), Started::check)?;
    let (lease, spec) = sandboxes.lease(runner, (data, sandboxes.mounts_of_all()), limits, limits.wall());
    let started = sandboxes.start(&spec, Arc::clone(&lease)).await.map_err(|error| error.failure())?;
    let log = EventLog::new(usize::try_from(limits.output_kept_bytes).unwrap_or(usize::MAX));
    let program = Program {
        code: &code,
        args: &[],
        env: &Environment::default(),
        stdin: &stdin,
        more_stdin: None,
        limits: &limits,
        channels,
        carrier: None,
    };
    let Executed { outcome, is_dead, .. } = {
        let executed = execute::execute(sandboxes.engine.as_ref(), started, program, &log, &cancel, breach);
        let mut executed = std::pin::pin!(executed);
        let (mut newest, mut next) = (log.subscribe(), 1);
        loop {
            tokio::select! {
                biased;
                executed = &mut executed => break executed,
                () = token_ended(by), if !cancel.is_cancelled() => cancel.cancel(),
                _ = newest.changed() => {
                    while let Some(event) = log.next(next) {
                        next = event.number + 1;
                        if let EventKind::Output(StreamKind::Stderr, bytes) = &event.kind {
                            tell(&String::from_utf8_lossy(bytes));
                        }
                    }
                }
            }
        }
    };
    drop(lease);
    let outcome = outcome.map_err(|error| error.failure())?;
    if !is_dead {
        return Err(internal());
    }
    if let Some(by) = by {
        by.count(&outcome.figures, limits.cpu_millis);
        by.check()?;
    }
    log.flush();
    let (stdout, stderr) = CapturedOutput::of(&log.range(0, u64::MAX));
    Ok((outcome, [stdout.text, stderr.text]))
}

/// Waits until the token that something counts for is revoked or has expired; never, where it counts for none.
pub(super) fn token_ended(by: Option<&Started>) -> impl Future<Output = ()> + Send + use<> {
    let ended = by.map(|by| by.token_ended().clone());
    async move {
        match ended {
            Some(ended) => ended.cancelled().await,
            None => pending().await,
        }
    }
}

/// The admission of the isolation check, which takes no capacity, no slot and no part of a rate from clients: each of
/// its sandboxes may take long to start.
pub(super) fn admission_of_checks() -> Admission {
    Admission::new(AdmissionOptions {
        slots: CHECKS_AT_ONCE,
        queue_max: 0,
        wait_max: Duration::from_mins(1),
        conversation_max: 1,
        bytes_max: usize::MAX,
        rate_a_minute: 0,
        rate_burst: 1,
    })
}

#[async_trait]
impl ProgramRunner for Runs {
    async fn run_to_end(&self, language: &Language, program: String) -> Result<String, Failure> {
        let conversation = ConversationKey::new(Principal::self_test(), ConversationId::fresh());
        let request = RunRequest {
            throw_away: true,
            detach: Some(false),
            ..RunRequest::new(conversation, language.clone(), program.into())
        };
        let report = self.begin(request)?.finished().await?;
        let code = match report.outcome.ended {
            Ended::Exited { code: 0 } => return Ok(report.stdout.text.clone()),
            Ended::Exited { .. } | Ended::Signaled { .. } => Code::RunnerFailed,
            _ => Code::QueueTimeout,
        };
        Err(Failure::new(code, format!("its program did not run to its end: {}", report.outcome.sentence())))
    }
}
