//! One run from its ticket to its last event: its turn, its report, its facts for observers.
//!
//! Lives in the task that [`Runs::begin`](super::Runs::begin) spawned.

use std::{convert::Infallible, mem, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{task::JoinHandle, time::Instant};
use tracing::{error, info};

use super::{CellSession, Inner, Report, Run, RunRequest, internal, output::CapturedOutput, stdin::StdinReceiver};
use crate::{
    domain::{Ended, EventKind, Failure, Figures, Limits, Outcome, SandboxId, StreamKind, TraceContext, text},
    ports::{
        observer::{BeginFacts, ProgramFacts, RunFacts, Stages},
        runner::Runner,
        storage::{Mark, Usage},
    },
    services::{
        admission::{Permit, Ticket},
        carrier::left_out_note,
        files::{FileList, Returned},
        network::{Access, Sink},
        sessions, tokens,
    },
};

/// The execution of one run.
pub(super) struct RunTask {
    pub service: Arc<Inner>,
    pub run: Arc<Run>,
    pub request: RunRequest,
    pub runner: Runner,
    pub limits: Limits,
    pub trace: TraceContext,
    /// The digest of the program.
    pub sha256: String,
    /// Counts for the token that it was begun by.
    pub by: Option<tokens::Started>,
    /// The network policies that hold for it.
    pub access: Option<Access>,
    /// Taken when the program starts, dropped with the run in any case.
    pub stdin: Option<StdinReceiver>,
    pub begun: Instant,
    pub stage_begun: Instant,
    pub stages: Stages,
    /// The figures of the program, once its end is known.
    pub figures: Option<Figures>,
    /// The sandbox whose program is not known to be dead.
    pub possibly_alive: Option<SandboxId>,
    /// The start of its sandbox, where that was under way when the run was cancelled.
    pub starting: Option<JoinHandle<()>>,
}

impl RunTask {
    /// Executes the run and logs its last event. `logged` is the position in the queue that the log has already.
    pub(super) async fn run(mut self, ticket: Ticket, logged: u32) {
        self.service.parts.observer.run_begun(&self.begin_facts());
        // A panic drops the lease on its way, and readers of the log still see an end.
        let result = AssertUnwindSafe(self.execute(ticket, logged)).catch_unwind().await;
        let result = result.unwrap_or_else(|_| Err(internal())).map(Arc::new);
        let result = self.run.result.get_or_init(|| result);
        self.observe(result.as_deref());
        let (conversation, language) = (&self.run.conversation, &self.run.language);
        let principal = conversation.owner.name();
        match result {
            Ok(report) => {
                let Outcome { ended, limits, figures, .. } = report.outcome;
                if let Some(by) = &self.by {
                    by.count(&figures, limits.cpu_millis);
                }
                let wall_ms = text::ms(figures.wall);
                info!(%principal, %conversation, %language, ended = ended.word(), how = ?ended, wall_ms, "run ended");
                self.run.log.add(EventKind::Finished(Box::new(report.outcome)));
            }
            Err(failure) => {
                if let Some((by, used)) = self.by.as_ref().zip(self.lost()) {
                    by.count(&used, self.limits.cpu_millis);
                }
                info!(%principal, %conversation, %language, code = %failure.code, "run failed");
                self.run.log.add(EventKind::Failed(failure.clone()));
            }
        }
    }

    async fn execute(&mut self, ticket: Ticket, logged: u32) -> Result<Report, Failure> {
        // Kept to the end: the slot and the conversation's turn are given back after the sandbox is posted.
        let permit = tokio::select! {
            biased;
            report = self.not_begun() => return Ok(report),
            permit = self.permit(ticket) => permit?,
            never = self.log_position(logged) => match never {},
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
        } else if let Some(starting) = self.starting.take() {
            // It goes on: clients that begin runs and disconnect have no more starts under way than others.
            let slot = permit.into_slot();
            self.service.tasks.spawn(async move { (starting.await, slot) });
        }
        result
    }

    /// Keeps the conversation and the slot until the sandbox is gone, since its program may go on in the conversation's
    /// folder. A run that waits too long for it gets [`Code::QueueTimeout`](crate::domain::error::Code::QueueTimeout).
    fn hold(&self, permit: Permit, sandbox: SandboxId) {
        let service = Arc::clone(&self.service);
        self.service.tasks.spawn(async move {
            tokio::select! {
                () = service.parts.sandboxes.janitor.destroyed(sandbox) => {}
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

    /// Returns the report of a run that has not begun when it is cancelled or, for a cell, when its session is
    /// restarted or closed.
    pub(super) async fn not_begun(&self) -> Report {
        tokio::select! {
            biased;
            () = self.run.cancel.cancelled() => {}
            () = self.run.waiting.cancelled() => {
                let note = Bytes::from_static(sessions::NOT_EXECUTED.as_bytes());
                self.run.log.output(StreamKind::Stderr, &note);
            }
        }
        self.cancelled()
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
        self.check_capacity().await?;
        match self.request.session {
            Some(session) => {
                let result = self.in_session(session).await;
                if session == CellSession::Once {
                    self.service.sessions.close_all(&self.run.conversation);
                }
                result
            }
            None => self.in_sandbox().await,
        }
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

    /// Lists the files that the program changed, and checks the space that they take.
    pub(super) async fn changed_files(
        &self,
        mark: Mark,
        returned: Option<Result<Returned, Failure>>,
        outcome: &mut Outcome,
    ) -> Result<FileList, Failure> {
        let (files, conversation) = (&self.service.parts.files, &self.run.conversation);
        let mut list = files.changed_since(conversation, mark).await?;
        if let Some(note) = returned.as_ref().and_then(left_out_note) {
            self.run.log.output(StreamKind::Stderr, &note.into());
        }
        let mut limit = None;
        if let Some(Ok(returned)) = returned {
            returned.correct(&mut list);
            limit = returned.limit;
        }
        let limit = match limit {
            None => files.quota().exceeded(conversation).await,
            limit => limit,
        };
        if outcome.ended != Ended::Cancelled
            && let Some(limit) = limit
        {
            outcome.ended = Ended::DiskLimit(limit);
        }
        Ok(list)
    }

    /// Where its connections and calls are reported.
    pub(super) fn network_sink(&self) -> Sink {
        let run = Arc::clone(&self.run);
        Box::new(move |event| run.log.add(event))
    }

    /// The report of a run that was cancelled before it had a sandbox.
    pub(super) fn cancelled(&self) -> Report {
        self.report(Outcome::not_begun(self.limits), FileList::default())
    }

    pub(super) fn report(&self, mut outcome: Outcome, files: FileList) -> Report {
        outcome.figures.files = files.changed;
        self.run.log.flush();
        for file in files.made() {
            self.run.log.add(EventKind::File(Box::new(file.clone())));
        }
        self.service.parts.files.announce_run(&self.run.conversation, &files);
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

    /// What the program of a run that failed is known to have used; `None` where it had not started.
    fn lost(&self) -> Option<Figures> {
        let log = &self.run.log;
        let wall = log.age().saturating_sub(log.facts().started_at?);
        let [stdout_bytes, stderr_bytes] = log.printed();
        Some(self.figures.unwrap_or(Figures { wall, stdout_bytes, stderr_bytes, ..Figures::default() }))
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
            lost: end.err().and_then(|_| self.lost()),
            files: files.into_iter().flat_map(FileList::made).collect(),
            files_truncated: files.is_some_and(|files| files.truncated),
        });
    }
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
