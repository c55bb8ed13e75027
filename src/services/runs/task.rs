//! One run from its ticket to its last event: its turn, its sandbox, its program, its report.
//!
//! Lives in the task that [`Runs::begin`](super::Runs::begin) spawned, and spawns one more: the engine's start, which
//! ends by itself and is never aborted.

use std::{convert::Infallible, mem, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{error, info};

use super::{
    Inner, Report, Run, RunRequest,
    execute::{self, Executed, Program},
    internal,
    output::CapturedOutput,
    stdin::StdinReceiver,
};
use crate::{
    domain::{
        error::Failure,
        event::EventKind,
        id::SandboxId,
        limits::Limits,
        outcome::{Ended, Figures, Outcome},
        text::{self, chain},
        trace::TraceContext,
    },
    ports::{
        observer::{BeginFacts, ProgramFacts, RunFacts, Stages},
        runner::Runner,
        storage::{Mark, Usage},
    },
    services::{
        admission::{Permit, Ticket},
        files::{Change, FileEntry, FileList},
        janitor::Lease,
        network::{Access, Channels, Network, Sink},
        sandbox::Started,
        standby::ClaimedStandby,
        tokens,
    },
};

/// The execution of one run.
pub(super) struct RunTask {
    pub(super) service: Arc<Inner>,
    pub(super) run: Arc<Run>,
    pub(super) request: RunRequest,
    pub(super) runner: Runner,
    pub(super) limits: Limits,
    trace: TraceContext,
    /// Of the program.
    sha256: String,
    /// Counts for the token that it was begun by.
    pub(super) by: Option<tokens::Started>,
    /// The network policies that hold for it.
    pub(super) access: Option<Access>,
    /// Taken when the program starts, dropped with the run in any case.
    pub(super) stdin: Option<StdinReceiver>,
    begun: Instant,
    stage_begun: Instant,
    pub(super) stages: Stages,
    /// The sandbox whose program is not known to be dead.
    possibly_alive: Option<SandboxId>,
}

impl RunTask {
    pub(super) fn new(
        service: Arc<Inner>,
        run: Arc<Run>,
        request: RunRequest,
        runner: Runner,
        limits: Limits,
        stdin: Option<StdinReceiver>,
    ) -> Self {
        let begun = Instant::now();
        Self {
            trace: TraceContext::of_run(run.id, request.within),
            sha256: text::sha256(&request.program),
            service,
            run,
            request,
            runner,
            limits,
            by: None,
            access: None,
            stdin,
            begun,
            stage_begun: begun,
            stages: Stages::default(),
            possibly_alive: None,
        }
    }

    /// Executes the run and logs its last event. `place` is the position in the queue that is already logged.
    pub(super) async fn run(mut self, ticket: Ticket, place: u32) {
        self.service.parts.observer.run_begun(&self.begin_facts());
        // A panic drops the lease on its way, and readers of the log still see an end.
        let result = AssertUnwindSafe(self.execute(ticket, place)).catch_unwind().await;
        let result = result.unwrap_or_else(|_| Err(internal())).map(Arc::new);
        let result = self.run.result.get_or_init(|| result);
        self.observe(result.as_deref());
        let (conversation, language) = (&self.run.conversation, &self.run.language);
        let principal = conversation.owner.name();
        match result {
            Ok(report) => {
                let Outcome { ended, figures, .. } = report.outcome;
                if let Some(by) = &self.by {
                    by.count(&figures);
                }
                let wall_ms = text::ms(figures.wall);
                info!(%principal, %conversation, %language, ended = ended.word(), how = ?ended, wall_ms, "run ended");
                self.run.log.add(EventKind::Finished(Box::new(report.outcome)));
            }
            Err(failure) => {
                info!(%principal, %conversation, %language, code = %failure.code, "run failed");
                self.run.log.add(EventKind::Failed(failure.clone()));
            }
        }
    }

    async fn execute(&mut self, ticket: Ticket, place: u32) -> Result<Report, Failure> {
        // Kept to the end: the slot and the conversation's turn are given back after the sandbox is posted.
        let permit = tokio::select! {
            biased;
            report = self.not_begun() => return Ok(report),
            permit = self.permit(ticket) => permit?,
            never = self.log_position(place) => match never {},
        };
        self.stages.queue = Some(self.stage_over());
        let result = self.in_turn().await;
        if self.request.throw_away
            && let Err(failure) = self.service.parts.files.remove(&self.run.conversation).await
        {
            error!(%failure, "the folder of a conversation that was to be deleted is left");
        }
        if let Some(sandbox) = self.possibly_alive {
            self.hold(permit, sandbox);
        }
        result
    }

    /// Keeps the conversation and the slot until the sandbox is gone, since its program may go on in the conversation's
    /// folder. A run that waits too long for it gets [`Code::QueueTimeout`](crate::domain::error::Code::QueueTimeout).
    fn hold(&self, permit: Permit, sandbox: SandboxId) {
        let service = Arc::clone(&self.service);
        self.service.tasks.spawn(async move {
            tokio::select! {
                () = service.parts.sandboxes.janitor.gone(sandbox) => {}
                () = service.cancel_all.cancelled() => {}
            }
            drop(permit);
        });
    }

    /// The right to start, once its image was seen to isolate; a session's was before. Waiting for that holds no slot.
    async fn permit(&self, ticket: Ticket) -> Result<Permit, Failure> {
        if !self.run.conversation.owner.is_self_test() && self.request.session.is_none() {
            self.service.parts.isolation.wait(&self.runner.image).await?;
        }
        ticket.turn().await
    }

    /// Logs how the run moves up in the queue; never ends by itself.
    async fn log_position(&self, mut logged: u32) -> Infallible {
        let mut departures = self.run.position.departures();
        loop {
            departures.mark_unchanged();
            if let Some(now) = self.run.position.now().filter(|now| is_logged(logged, *now)) {
                self.run.log.add(EventKind::Queued { position: now });
                logged = now;
            }
            if departures.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    async fn in_turn(&mut self) -> Result<Report, Failure> {
        let service = Arc::clone(&self.service);
        let parts = &service.parts;
        let conversation = self.request.conversation.clone();
        self.check_capacity().await?;
        if let Some(session) = self.request.session {
            return self.in_session(session).await;
        }
        let _foreground = parts.standbys.foreground(&conversation);
        let when_warm = self.runner.preloads_for(&self.request.program);
        // A standby may still be starting. Dropping the wait drops its lease; the start ends by itself, and then the
        // janitor destroys the sandbox.
        let standby = tokio::select! {
            biased;
            () = self.run.cancel.cancelled() => return Ok(self.cancelled()),
            standby = parts.standbys.take(&conversation, &self.runner, &self.limits, when_warm) => standby,
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
        let env = &Network::environment(env, channels.as_ref());
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
        let (log, cancel) = (&self.run.log, &self.run.cancel);
        let engine = parts.sandboxes.engine.as_ref();
        let Executed { outcome, is_dead, files } =
            execute::execute(engine, started, program, log, cancel, breach).await;
        self.possibly_alive = (!is_dead).then(|| lease.id());
        let mut outcome = outcome.map_err(|error| {
            // What the program left is not listed, so it is measured before the next one.
            parts.files.quota().measured(&conversation, None);
            self.failed(&error, error.failure())
        })?;
        self.stages.program = Some(self.stage_over());
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

    /// Ends a stage; how long it took.
    pub(super) fn stage_over(&mut self) -> Duration {
        let now = Instant::now();
        now - mem::replace(&mut self.stage_begun, now)
    }

    /// Whether the conversation and the disk have room for a run and its files. Where that is known, without disk
    /// access.
    async fn check_capacity(&self) -> Result<(), Failure> {
        let files = &self.service.parts.files;
        let more = self.request.files.iter().map(|(_, bytes)| Usage::of_file(bytes.len() as u64));
        let more = more.fold(Usage::default(), |all, one| all.plus(&one));
        if files.quota().fits_surely(&self.request.conversation, &more) {
            return Ok(());
        }
        files.check_capacity(&self.request.conversation, more).await
    }

    /// A sandbox started for this run, or nothing when the run was cancelled before there was one. A start is never
    /// aborted: the engine could finish it after the janitor looked for the sandbox and did not find it.
    async fn start(&self) -> Result<Option<(Started, Arc<Lease>, Mark)>, Failure> {
        let (data, mark) = self.service.prepare(&self.request.conversation).await?;
        let parts = &self.service.parts;
        let mounts = parts.sandboxes.mounts_of(Some(&self.request.conversation.owner)).await;
        let life = self.limits.wall() + self.access.as_ref().map_or(Duration::ZERO, Access::waits_max);
        let (lease, spec) = parts.sandboxes.lease(&self.runner, (data, mounts), self.limits, life);
        parts.observer.sandbox_held(self.trace, lease.id());
        let (sandboxes, leased) = (parts.sandboxes.clone(), Arc::clone(&lease));
        let mut starting = self.service.tasks.spawn(async move { sandboxes.start(&spec, leased).await });
        tokio::select! {
            biased;
            () = self.run.cancel.cancelled() => Ok(None),
            started = &mut starting => match started {
                Ok(Ok(started)) => Ok(Some((started, lease, mark))),
                Ok(Err(error)) => Err(self.failed(&error, error.failure())),
                Err(_) => Err(internal()),
            },
        }
    }

    /// The channels of its sandbox, where a policy holds for it.
    fn channels(&mut self) -> Option<Channels> {
        let access = self.access.take().filter(|_| self.runner.channels)?;
        let channels = self.service.parts.network.open(access, &self.run.conversation, &self.run.language);
        channels.link.reporter.to(self.network_sink());
        Some(channels)
    }

    /// Where its connections and calls are reported.
    pub(super) fn network_sink(&self) -> Sink {
        let run = Arc::clone(&self.run);
        Box::new(move |event| run.log.add(event))
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

    /// The report of a run that was cancelled before it had a sandbox.
    pub(super) fn cancelled(&self) -> Report {
        let (limits, figures) = (self.limits, Figures::default());
        self.report(Outcome { ended: Ended::Cancelled, oom_killed: false, limits, figures }, FileList::default())
    }

    pub(super) fn report(&self, mut outcome: Outcome, files: FileList) -> Report {
        outcome.figures.files = files.changed;
        self.run.log.flush();
        for file in changed(&files) {
            self.run.log.add(EventKind::File(Box::new(file.clone())));
        }
        let (stdout, stderr) = CapturedOutput::of(&self.run.log.range(0, u64::MAX));
        let (conversation, language) = (self.run.conversation.clone(), self.run.language.clone());
        Report { run: self.run.id, conversation, language, outcome, stdout, stderr, files }
    }

    fn begin_facts(&self) -> BeginFacts<'_> {
        BeginFacts {
            run: self.run.id,
            conversation: &self.run.conversation,
            is_cell: self.run.is_cell,
            language: &self.run.language,
            image: &self.runner.image.0,
            program: ProgramFacts { bytes: &self.request.program, sha256: &self.sha256 },
        }
    }

    fn observe(&self, end: Result<&Report, &Failure>) {
        let files = end.ok().map(|report| &report.files);
        self.service.parts.observer.run_over(&RunFacts {
            begin: self.begin_facts(),
            trace: self.trace,
            args: self.request.args.len(),
            stdin_bytes: self.request.stdin.len() as u64,
            limits: &self.limits,
            begun_unix_s: self.run.created_unix_s,
            ended_unix_s: self.service.parts.sandboxes.clock.unix_s(),
            stages: Stages { total: self.begun.elapsed(), ..self.stages },
            end: end.map(|report| &report.outcome),
            files: files.into_iter().flat_map(changed).collect(),
            files_truncated: files.is_some_and(|files| files.truncated),
        });
    }
}

/// The files that the run created or changed.
fn changed(files: &FileList) -> impl Iterator<Item = &FileEntry> {
    files.files.iter().filter(|file| file.change != Change::Unchanged)
}

/// Whether a new position is logged: each of the last ten, and before that each tenth of the way. So a queue of any
/// length costs a run a bounded log, and all runs that wait in it bounded work.
fn is_logged(logged: u32, now: u32) -> bool {
    now < logged && (now <= 10 || logged - now >= logged / 10)
}

#[cfg(test)]
mod tests {
    use super::is_logged;

    #[test]
    fn positions_in_a_long_queue_are_logged_in_few_events() {
        let (mut logged, mut events) = (10_000, Vec::new());
        for now in (1..=10_000).rev() {
            if is_logged(logged, now) {
                logged = now;
                events.push(now);
            }
        }
        assert!(events.len() < 90, "{}", events.len());
        assert!(events.ends_with(&[10, 9, 8, 7, 6, 5, 4, 3, 2, 1]), "{events:?}");
        assert!(!is_logged(3, 3) && !is_logged(3, 4));
    }
}
