//! One run on its way: its turn, its sandbox, its program, its report.
//!
//! Lives in the task that [`Executions::begin`](super::Executions::begin) spawned, and spawns one more: the engine's
//! start, which ends by itself and is never broken off.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::{
    Inner, collect,
    drive::{self, Job},
    handle::internal,
    input::StdinReceiver,
    log::EventLog,
    record::{Stage, Stopwatch},
    report::{Report, note},
    request::RunRequest,
    verdict,
};
use crate::{
    domain::{
        error::Failure,
        event::EventKind,
        id::{RunId, SandboxId},
        limits::Limits,
        outcome::{Ended, Figures, Outcome},
        trace::TraceContext,
    },
    ports::{
        engine::{EngineError, SandboxSpec, Volume},
        runner::{Protocol, Runner},
        store::{Mark, StoreError, Usage},
    },
    services::{
        admission::{Permit, QueuePosition, Ticket},
        files::{Change, FileList},
        janitor::{Lease, chain},
        standby::ClaimedStandby,
        started::Started,
    },
};

/// How long after its wall clock limit a sandbox is certainly unwanted, in seconds.
const DEADLINE_MARGIN_S: i64 = 60;

/// One run on its way.
pub(super) struct OneRun {
    pub(super) inner: Arc<Inner>,
    pub(super) id: RunId,
    pub(super) trace: TraceContext,
    pub(super) request: RunRequest,
    pub(super) runner: Runner,
    pub(super) limits: Limits,
    pub(super) log: Arc<EventLog>,
    pub(super) cancel: CancellationToken,
    pub(super) watch: Stopwatch,
    /// What the program is sent while it runs; taken when it starts, and dropped with the run in any case.
    pub(super) fed: Mutex<Option<StdinReceiver>>,
}

impl OneRun {
    /// To the end: waits for its turn, gets a sandbox, has the program run, gives everything back.
    pub(super) async fn execute(&self, ticket: Ticket, place: u32) -> Result<Report, Failure> {
        // Held to the end: the slot and the conversation's turn are given back after the sandbox is posted.
        let position = ticket.position();
        let _permit = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Ok(self.cancelled_early()),
            permit = self.permit(ticket) => permit?,
            () = self.tell_place(&position, place) => return Err(internal()),
        };
        self.watch.over(Stage::Queue);
        let result = self.in_turn().await;
        if self.request.throw_away {
            self.throw_away().await;
        }
        result
    }

    /// The right to start, once the engine was seen to isolate. Who waits for that holds no slot.
    async fn permit(&self, ticket: Ticket) -> Result<Permit, Failure> {
        if !self.request.conversation.owner.is_self_test() {
            self.inner.parts.isolation.wait().await?;
        }
        ticket.turn().await
    }

    /// Tells how the run moves up in the line, and never ends by itself.
    async fn tell_place(&self, position: &QueuePosition, mut told: u32) {
        let mut departures = position.departures();
        loop {
            departures.mark_unchanged();
            if let Some(now) = position.now().filter(|now| is_news(told, *now)) {
                self.log.add(EventKind::Queued { position: now });
                told = now;
            }
            if departures.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn in_turn(&self) -> Result<Report, Failure> {
        let parts = &self.inner.parts;
        let limits = self.limits;
        self.check_capacity().await?;
        let _first = parts.standbys.foreground();
        let standing = parts.standbys.take(&self.request.conversation, &self.runner, &limits).await;
        let stood_by = standing.is_some();
        let (started, lease, mark) = match standing {
            Some(ClaimedStandby { started, lease, mark }) => {
                parts.observer.sandbox_held(self.trace, lease.id());
                (started, lease, mark)
            }
            None => match self.start_now().await? {
                Some(fresh) => fresh,
                None => return Ok(self.cancelled_early()),
            },
        };
        self.watch.over(Stage::Start { stood_by });
        self.write_files().await?;
        self.log.add(EventKind::Started);
        let RunRequest { program, args, stdin, .. } = &self.request;
        let input = self.fed.lock().unwrap_or_else(PoisonError::into_inner).take();
        let job = Job { program, args, stdin, input, limits: &limits };
        let breach = Arc::clone(parts.files.quota()).breach(self.request.conversation.clone());
        let driven = drive::drive(parts.engine.as_ref(), started, job, &self.log, &self.cancel, breach).await;
        let driven = driven.map_err(|error| self.ours(&error, error.failure(), "how a program ended is not known"))?;
        self.watch.over(Stage::Program);
        // The program is dead, so nothing races with the listing; the sandbox itself goes behind the caller's back.
        drop(lease);
        if self.request.throw_away {
            return Ok(self.report(verdict::outcome(&driven, limits), FileList::default()));
        }
        let files = parts.files.changed_since(&self.request.conversation, mark).await?;
        self.watch.over(Stage::Collect);
        parts.standbys.used(&self.request.conversation, &self.runner.language);
        Ok(self.report(verdict::outcome(&driven, limits), files))
    }

    /// A sandbox started for this run, or nothing when the run was cancelled before there was one.
    async fn start_now(&self) -> Result<Option<(Started, Arc<Lease>, Mark)>, Failure> {
        let (data, mark) = self.prepare().await?;
        let lease = Arc::new(self.inner.parts.janitor.lease(SandboxId::new()));
        self.inner.parts.observer.sandbox_held(self.trace, lease.id());
        let life_s = i64::try_from(self.limits.wall().as_secs()).unwrap_or(i64::MAX / 2) + DEADLINE_MARGIN_S;
        let spec = SandboxSpec {
            id: lease.id(),
            instance: self.inner.options.instance,
            image: self.runner.image.clone(),
            data: Volume::HostFolder(data),
            limits: self.limits,
            uid: self.inner.options.uid,
            own_init: self.runner.protocol == Protocol::Framed,
            deadline_unix_s: self.inner.parts.clock.unix_s() + life_s,
        };
        Ok(self.start(spec, &lease).await?.map(|started| (started, lease, mark)))
    }

    /// A sandbox, or nothing when the run was cancelled before there was one. A start is never broken off half way: an
    /// engine could finish it after the sandbox was looked for and not found.
    async fn start(&self, spec: SandboxSpec, lease: &Arc<Lease>) -> Result<Option<Started>, Failure> {
        let engine = Arc::clone(&self.inner.parts.engine);
        let held = Arc::clone(lease);
        let mut starting = self.inner.tasks.spawn(async move {
            let started = engine.start(&spec).await;
            drop(held);
            started
        });
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Ok(None),
            started = &mut starting => match started {
                Ok(Ok(sandbox)) => Ok(Some(Started::new(sandbox, self.runner.protocol))),
                Ok(Err(error)) => Err(self.engine_failed(&error)),
                Err(_) => Err(internal()),
            },
        }
    }

    /// Whether the conversation and the disk have room for a run, and for the files that come with it. Where that is known
    /// it takes no step on disk.
    async fn check_capacity(&self) -> Result<(), Failure> {
        let files = &self.inner.parts.files;
        let more = self.request.files.iter().map(|(_, bytes)| Usage::of_file(bytes.len() as u64));
        let more = more.fold(Usage::default(), |all, one| all.plus(&one));
        if files.quota().fits_surely(&self.request.conversation, &more) {
            return Ok(());
        }
        files.check_capacity(&self.request.conversation, more).await
    }

    /// Writes what the program finds in `/data`: once there is a sandbox, so that a standby can be taken.
    async fn write_files(&self) -> Result<(), Failure> {
        let RunRequest { conversation, files, .. } = &self.request;
        for (path, bytes) in files {
            self.inner.parts.files.write(conversation, path, bytes.clone()).await?;
        }
        Ok(())
    }

    /// Deletes the conversation's folder: its turn is still held, and the program is dead.
    async fn throw_away(&self) {
        if let Err(failure) = self.inner.parts.files.remove(&self.request.conversation).await {
            error!(%failure, "a folder that was to be thrown away is left");
        }
    }

    async fn prepare(&self) -> Result<(PathBuf, Mark), Failure> {
        let (store, id) = (Arc::clone(&self.inner.parts.store), self.request.conversation.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let conversation = store.create_conversation(&id)?;
            Ok::<_, StoreError>((conversation.data_dir(), conversation.mark()?))
        });
        match prepared.await {
            Ok(Ok(prepared)) => Ok(prepared),
            Ok(Err(error)) => {
                error!(error = %chain(&error), "the conversation's folder was not prepared");
                Err(error.failure())
            }
            Err(_) => Err(internal()),
        }
    }

    fn engine_failed(&self, error: &EngineError) -> Failure {
        self.ours(error, error.failure(), "the engine failed a run")
    }

    /// Tells the log of a failure that is ours. Of the self-test's the cause goes with the failure instead: nobody but the
    /// operator reads it, in the one sentence that the self-test makes of it.
    fn ours(&self, error: &dyn std::error::Error, failure: Failure, what: &'static str) -> Failure {
        if self.request.conversation.owner.is_self_test() {
            return Failure { message: chain(error), ..failure };
        }
        error!(error = %chain(error), image = %self.runner.image.0, "{what}");
        failure
    }

    fn cancelled_early(&self) -> Report {
        let figures = Figures::default();
        let limits = self.limits;
        self.report(Outcome { ended: Ended::Cancelled, oom_killed: false, limits, figures }, FileList::default())
    }

    fn report(&self, mut outcome: Outcome, files: FileList) -> Report {
        outcome.figures.files = files.changed;
        self.log.flush();
        for file in files.files.iter().filter(|file| file.change != Change::Unchanged) {
            self.log.add(EventKind::File(Box::new(note(file))));
        }
        let (stdout, stderr) = collect::collect(&self.log.since(0), &outcome.figures);
        Report {
            run: self.id,
            conversation: self.request.conversation.clone(),
            language: self.runner.language.clone(),
            outcome,
            stdout,
            stderr,
            files,
        }
    }

    /// Tells the log, and the server's own, what came of it.
    pub(super) fn conclude(&self, result: &Result<Arc<Report>, Failure>) {
        self.tell(result.as_deref());
        let (conversation, language) = (&self.request.conversation, &self.runner.language);
        let principal = self.request.conversation.owner.name();
        match result {
            Ok(report) => {
                let Outcome { ended, figures, .. } = report.outcome;
                let wall_ms = u64::try_from(figures.wall.as_millis()).unwrap_or(u64::MAX);
                info!(%principal, %conversation, %language, ended = ended.word(), ?ended, wall_ms, "run ended");
                self.log.add(EventKind::Finished(Box::new(report.outcome)));
            }
            Err(failure) => {
                info!(%principal, %conversation, %language, code = %failure.code, "run failed");
                self.log.add(EventKind::Failed(failure.clone()));
            }
        }
    }
}

/// Whether a new place is worth an event: every one of the last ten, and before that each tenth of the way. So a line of any
/// length costs a run a bounded log, and all who wait in it bounded work.
fn is_news(told: u32, now: u32) -> bool {
    now < told && (now <= 10 || told - now >= told / 10)
}

#[cfg(test)]
mod tests {
    use super::is_news;

    #[test]
    fn a_way_up_a_long_line_is_told_in_few_words() {
        let (mut told, mut events) = (10_000, Vec::new());
        for now in (1..=10_000).rev() {
            if is_news(told, now) {
                told = now;
                events.push(now);
            }
        }
        assert!(events.len() < 90, "{}", events.len());
        assert!(events.ends_with(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]), "{events:?}");
        assert!(!is_news(3, 3) && !is_news(3, 4));
    }
}
