//! A run in a sandbox of its own, a standby or one that is started for it: its folder, its files if they are streamed,
//! its program.
//!
//! Spawns the engine's start, which ends by itself and is never aborted.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{
    Inner, Report, RunRequest, RunTask,
    execute::{self, Executed, Program},
    internal,
};
use crate::{
    domain::{Code, ConversationKey, EventKind, Failure, text::chain},
    ports::storage::{DataFolder, Mark, StorageError},
    services::{
        carrier::Carrier,
        files::FileList,
        janitor::Lease,
        network::{Access, Channels},
        sandbox::Started,
        standby::ClaimedStandby,
    },
};

impl Inner {
    /// The conversation's folder, and the moment before its program in the file system's time. Counts as a use.
    pub(super) async fn prepare(&self, conversation: &ConversationKey) -> Result<(DataFolder, Mark), Failure> {
        let (store, id) = (Arc::clone(&self.parts.store), conversation.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let conversation = store.create(&id)?;
            Ok::<_, StorageError>((conversation.data(), conversation.mark()?))
        });
        prepared.await.map_err(|_| internal())?.map_err(|error| {
            error!(error = %chain(&error), "the conversation's folder was not prepared");
            error.failure()
        })
    }
}

impl RunTask {
    /// Executes the program, with the conversation's turn in hand.
    pub(super) async fn in_sandbox(&mut self) -> Result<Report, Failure> {
        let service = Arc::clone(&self.service);
        let parts = &service.parts;
        let conversation = self.request.conversation.clone();
        let _foreground = parts.standbys.foreground(&conversation);
        let when_warm = self.runner.preloads_for(&self.request.program);
        let (standbys, of, runner, limits) =
            (parts.standbys.clone(), conversation.clone(), self.runner.clone(), self.limits);
        let mut standby = Box::pin(async move { standbys.take(&of, &runner, &limits, when_warm).await });
        let Some(standby) = unless_cancelled(&self.run.cancel, &mut standby).await else {
            // It may still be starting.
            self.starting = Some(service.tasks.spawn(standby.map(drop)));
            return Ok(self.cancelled());
        };
        self.stages.stood_by = standby.is_some();
        let (mut started, lease, mark) = match standby {
            Some(ClaimedStandby { started, lease, mark }) => {
                parts.observer.sandbox_held(self.trace, lease.id());
                (started, lease, mark)
            }
            None => match self.start().await? {
                Some(started) => started,
                None => return Ok(self.cancelled()),
            },
        };
        self.stages.start = Some(self.stage_over());
        // Once there is a sandbox, so that a standby can be taken.
        for (path, bytes) in &self.request.files {
            parts.files.write(&conversation, path, bytes.clone()).await?;
        }
        let Some(carrier) = self.carry_in(&mut started).await? else { return Ok(self.cancelled()) };
        self.run.log.add(EventKind::Started);
        let (more_stdin, channels) = (self.stdin.take(), self.channels());
        let RunRequest { program: code, args, env, stdin, throw_away, .. } = &self.request;
        let program = Program {
            code,
            args,
            env,
            stdin,
            more_stdin,
            limits: &self.limits,
            channels,
            carrier: carrier.filter(|_| !throw_away),
        };
        let breach = Arc::clone(parts.files.quota()).breach(conversation.clone());
        let (engine, log, cancel) = (parts.sandboxes.engine.as_ref(), &self.run.log, &self.run.cancel);
        let Executed { outcome, is_dead, files } =
            execute::execute(engine, started, program, log, cancel, breach).await;
        self.possibly_alive = (!is_dead).then(|| lease.id());
        let mut outcome = outcome.map_err(|error| {
            // What the program left is not listed, so it is measured before the next one.
            parts.files.quota().measured(&conversation, None);
            self.failed(&error, error.failure())
        })?;
        self.stages.program = Some(self.stage_over());
        self.figures = Some(outcome.figures);
        // A dead program does not race with the listing; the sandbox itself is destroyed in the background.
        drop(lease);
        if self.request.throw_away {
            return Ok(self.report(outcome, FileList::default()));
        }
        let files = self.changed_files(mark, files, &mut outcome).await?;
        self.stages.collect = Some(self.stage_over());
        if is_dead {
            parts.standbys.used(&conversation, &self.runner.language);
        }
        Ok(self.report(outcome, files))
    }

    /// A sandbox started for this run, or nothing when the run was cancelled before there was one. A start is never
    /// aborted: the engine could finish it after the janitor looked for the sandbox and did not find it.
    async fn start(&mut self) -> Result<Option<(Started, Arc<Lease>, Mark)>, Failure> {
        let (data, mark) = self.service.prepare(&self.request.conversation).await?;
        let parts = &self.service.parts;
        let mounts = parts.sandboxes.mounts_of(Some(&self.request.conversation.owner)).await;
        let life = self.limits.wall() + self.access.as_ref().map_or(Duration::ZERO, Access::waits_max);
        let (lease, spec) = parts.sandboxes.lease(&self.runner, (data, mounts), self.limits, life);
        parts.observer.sandbox_held(self.trace, lease.id());
        let (sandboxes, leased) = (parts.sandboxes.clone(), Arc::clone(&lease));
        let mut starting = self.service.tasks.spawn(async move { sandboxes.start(&spec, leased).await });
        match unless_cancelled(&self.run.cancel, &mut starting).await {
            None => {
                self.starting = Some(self.service.tasks.spawn(starting.map(drop)));
                Ok(None)
            }
            Some(Ok(Ok(started))) => Ok(Some((started, lease, mark))),
            Some(Ok(Err(error))) => Err(self.failed(&error, error.failure())),
            Some(Err(_)) => Err(internal()),
        }
    }

    /// Sends the sandbox its files where they travel, and returns what takes them back. The outer `None` stands for a
    /// run that was cancelled meanwhile.
    async fn carry_in(&self, started: &mut Started) -> Result<Option<Option<Carrier>>, Failure> {
        let parts = &self.service.parts;
        let Some(room_bytes) = parts.sandboxes.volumes.streamed_bytes() else { return Ok(Some(None)) };
        if started.decoder.is_none() {
            let why =
                "The runner image takes no files: it needs protocol 1 or 2 where SANDBOX_ENGINE__FILES is streamed.";
            return Err(Failure::new(Code::RunnerFailed, why));
        }
        let (conversation, file_bytes_max) = (&self.run.conversation, self.limits.file_bytes_max);
        let mut carrier = Carrier::new(&parts.files, conversation, room_bytes, file_bytes_max);
        let writing = carrier.write(&mut started.sandbox.stdin);
        let written = unless_cancelled(&self.run.cancel, writing).await.transpose()?;
        Ok(written.map(|()| Some(carrier)))
    }

    /// The channels of its sandbox, where a policy holds for it.
    fn channels(&mut self) -> Option<Channels> {
        let access = self.access.take().filter(|_| self.runner.channels)?;
        let channels = self.service.parts.network.open(access, &self.run.conversation, &self.run.language);
        channels.link.reporter.to(self.network_sink());
        Some(channels)
    }

    /// Logs an error that is ours. The self-test's goes into its failure instead: the self-test reports it to the
    /// operator.
    fn failed(&self, error: &dyn std::error::Error, failure: Failure) -> Failure {
        if self.run.conversation.owner.is_self_test() {
            return Failure { message: chain(error), ..failure };
        }
        error!(error = %chain(error), image = %self.runner.image.0, "the engine or the runner failed a run");
        failure
    }
}

/// `None` when the run is cancelled, also where the step has ended meanwhile: a cancelled run writes no files.
/// `CancellationToken::run_until_cancelled` would go on then.
async fn unless_cancelled<T>(cancel: &CancellationToken, step: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = cancel.cancelled() => None,
        done = step => Some(done),
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_run_that_is_cancelled_as_a_step_ends_goes_no_further() {
        let (cancel, (end, step)) = (CancellationToken::new(), oneshot::channel());
        let both_at_once = async {
            cancel.cancel();
            end.send(()).expect("it is awaited");
        };
        let (gone_on, ()) = tokio::join!(unless_cancelled(&cancel, step), both_at_once);
        assert_eq!(gone_on, None);
    }
}
