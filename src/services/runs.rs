//! Runs programs. One service owns a run from its admission until it is forgotten.
//!
//! ```text
//! Runs::begin ── one tracked task a run: owns its ticket, permit and lease; feeds its log; ends after the last event
//!                 └─ the engine's start: ends by itself, is never aborted
//! ```
//!
//! The caller may disconnect: the task continues and cleans up, and [`RunRequest::detach`] decides whether the program
//! is cancelled. A program is sent to one sandbox, once; nothing here runs it a second time. Who may see a run is
//! decided in [`Runs::get`]; a run of another owner and an unknown run give the same error. What is kept of finished
//! runs is bounded by count, bytes and age. Knows no engine by name, no protocol and no settings.

mod auxiliary;
mod cell;
mod execute;
mod feed;
mod log;
mod output;
mod registry;
mod run;
mod sandboxed;
mod stdin;
mod task;

use std::{sync::Arc, time::Duration};

use futures_util::stream::BoxStream;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span, warn};

pub(super) use self::{
    auxiliary::{AuxiliaryProgram, execute_auxiliary, outgrown, staged},
    cell::ConversationTurn,
};
use self::{feed::Feed, registry::Registry, task::RunTask};
pub use self::{
    feed::FeedItem,
    output::{CapturedOutput, SOURCE_BYTES_MAX, Source},
    run::{CellSession, Report, Run, RunHandle, RunPage, RunRequest, RunState, RunView},
    stdin::INPUT_BYTES_MAX,
};
use super::{
    admission::{Admission, ConversationLock},
    network::Network,
    peers::Peers,
    sessions::Sessions,
    shared_parts::SharedParts,
    tasks::Tasks,
};
use crate::{
    domain::{
        Code, ConversationId, ConversationKey, EventKind, Failure, Language, Limits, Principal, RunId, TokenId,
        TraceContext, text,
    },
    ports::{
        observer::{LoadStats, Stages},
        runner::Runner,
    },
};

/// How programs run, and what is kept of finished runs.
#[derive(Debug, Clone, Copy)]
pub struct RunsOptions {
    /// The longest program, in bytes.
    pub program_bytes_max: usize,
    /// Whether a run goes on when its caller goes away, where the request does not say.
    pub detach: bool,
    /// Finished runs that are kept.
    pub kept_runs_max: usize,
    /// Bytes of those together. The newest is kept however large it is.
    pub kept_bytes_max: usize,
    /// How long a finished run is kept.
    pub kept_age: Duration,
}

/// The service. A clone is the same service.
#[derive(Clone)]
pub struct Runs(Arc<Inner>);

struct Inner {
    parts: SharedParts,
    sessions: Sessions,
    admission: Admission,
    /// That of the isolation check.
    checks: Admission,
    options: RunsOptions,
    registry: Registry,
    feed: Feed,
    tasks: Tasks,
    cancel_all: CancellationToken,
}

impl Runs {
    pub fn new(parts: SharedParts, sessions: Sessions, admission: Admission, options: RunsOptions) -> Self {
        Self(Arc::new(Inner {
            parts,
            sessions,
            admission,
            checks: auxiliary::admission_of_checks(),
            options,
            registry: Registry::new(options),
            feed: Feed::default(),
            tasks: Tasks::default(),
            cancel_all: CancellationToken::new(),
        }))
    }

    /// Whether any run would be refused now, for callers that ask before they read a request.
    ///
    /// # Errors
    /// A full queue, an exceeded rate, a server that is stopping.
    pub fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        let parts = &self.0.parts;
        let checked = self.0.tasks.check_running().and_then(|()| self.0.admission.check_capacity(who));
        checked.inspect_err(|failure| parts.observer.refused(failure.code))
    }

    /// Checks what can be known of a request before it begins, for callers that write files for it first.
    ///
    /// # Errors
    /// An unknown language, a program that is too long, members that its runner does not take.
    pub fn check(&self, request: &RunRequest) -> Result<(), Failure> {
        self.0.runner(request).map(drop).inspect_err(|failure| self.0.parts.observer.refused(failure.code))
    }

    /// Begins a run. A refused one has touched neither disk nor engine.
    ///
    /// # Errors
    /// A full queue, an exceeded rate, an unknown language, a program that is too long, a server that is stopping.
    pub fn begin(&self, request: RunRequest) -> Result<RunHandle, Failure> {
        self.admit(request).inspect_err(|failure| self.0.parts.observer.refused(failure.code))
    }

    fn admit(&self, request: RunRequest) -> Result<RunHandle, Failure> {
        let inner = &self.0;
        inner.tasks.check_running()?;
        let runner = inner.runner(&request)?;
        inner.parts.variables.check(&request.env)?;
        inner.parts.peers.check(&request.conversation)?;
        let limits = request.limits(&runner, &inner.parts.sandboxes);
        let detached = self.detaches(request.detach);
        // That of a session is decided when it is opened.
        let (owner, wanted) = (&request.conversation.owner, request.network.as_deref());
        let access = inner.parts.network.access(owner, &runner.language, wanted)?;
        let waiting = request.session.map(|session| {
            let named = if let CellSession::Open(id) = session { Some(id) } else { None };
            inner.sessions.check_cell(&request.conversation, &runner.language, named)
        });
        let waiting = waiting.transpose()?.unwrap_or_default();
        let count = || inner.parts.tokens.begin(owner, &runner.language);
        let admission = if owner.is_self_test() { &inner.checks } else { &inner.admission };
        let (ticket, started) = admission.enter(&request.conversation, request.bytes(), count)?;
        let position = ticket.position();
        let logged = position.now().unwrap_or(1);
        let (stdin, stdin_receiver) = request.stdin_open.then(|| stdin::open(request.line_meter())).unzip();
        let run = Arc::new(Run {
            id: request.id.unwrap_or_else(RunId::new),
            conversation: request.conversation.clone(),
            language: runner.language.clone(),
            created_unix_s: inner.parts.sandboxes.clock.unix_s(),
            source: Source::of(&request.program),
            is_cell: request.session.is_some(),
            waiting,
            position,
            log: Arc::new(log::EventLog::new(usize::try_from(limits.output_kept_bytes).unwrap_or(usize::MAX))),
            stdin,
            cancel: inner.cancel_all.child_token(),
            result: std::sync::OnceLock::new(),
        });
        run.log.add(EventKind::Queued { position: logged });
        let span = info_span!("run", run = %run.id);
        let begun = Instant::now();
        let task = RunTask {
            service: Arc::clone(inner),
            run: Arc::clone(&run),
            trace: TraceContext::of_run(run.id, request.within),
            sha256: text::sha256(&request.program),
            request,
            runner,
            limits,
            by: started,
            access,
            stdin: stdin_receiver,
            begun,
            stage_begun: begun,
            stages: Stages::default(),
            figures: None,
            possibly_alive: None,
            starting: None,
        };
        // The self-test is no client: its runs are not listed, and none of a client's is forgotten for them.
        if run.conversation.owner.is_self_test() {
            inner.tasks.spawn(task.run(ticket, logged).instrument(span));
        } else {
            inner.registry.add(Arc::clone(&run));
            // Its token may have ended before the run could be found by `cancel_all_of`.
            if task.by.as_ref().is_some_and(|by| by.check().is_err()) {
                run.cancel();
            }
            let (inner, run) = (Arc::clone(inner), Arc::clone(&run));
            self.0.tasks.spawn(async move {
                tokio::join!(task.run(ticket, logged).instrument(span), inner.feed.follow(&run));
                inner.registry.finished(&run);
            });
        }
        Ok(RunHandle { run, detached })
    }

    /// A run of this caller.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn get(&self, who: &Principal, run: RunId) -> Result<Arc<Run>, Failure> {
        self.0.registry.get(run).filter(|run| run.conversation.owner == *who).ok_or_else(|| {
            let why = format!("runId: there is no run `{run}`, or it is no longer kept: run the program again.");
            Failure::new(Code::RunNotFound, why)
        })
    }

    /// A run that went on without its caller, in a caller's hands again; `detach` as in a request.
    ///
    /// # Errors
    /// Those of [`Self::get`].
    pub fn hold(&self, who: &Principal, run: RunId, detach: Option<bool>) -> Result<RunHandle, Failure> {
        Ok(RunHandle { run: self.get(who, run)?, detached: self.detaches(detach) })
    }

    /// Whether a run goes on when its caller goes away.
    fn detaches(&self, wanted: Option<bool>) -> bool {
        wanted.unwrap_or(self.0.options.detach)
    }

    /// Cancels the runs under way that were begun by a token.
    pub fn cancel_all_of(&self, token: TokenId) {
        let begun = |run: &Run| run.conversation.owner.token() == Some(token);
        for run in self.0.registry.newest_first(None, usize::MAX, begun) {
            run.cancel();
        }
    }

    /// Every run that waits or runs, of all owners, newest first.
    pub fn all_under_way(&self) -> Vec<RunView> {
        let runs = self.0.registry.newest_first(None, usize::MAX, |run| run.result.get().is_none());
        runs.iter().map(|run| run.view()).collect()
    }

    /// Cancels a run of any owner, for an operator; whose it is. A run that is over stays as it is.
    ///
    /// # Errors
    /// [`Code::RunNotFound`].
    pub fn cancel_any(&self, run: RunId) -> Result<ConversationKey, Failure> {
        let run = self.0.registry.get(run).ok_or_else(|| {
            Failure::new(Code::RunNotFound, format!("runId: there is no run `{run}`, or it is no longer in memory."))
        })?;
        run.cancel();
        Ok(run.conversation.clone())
    }

    /// Runs of a caller, newest first: of one conversation or of all, older than `after`, at most `limit`.
    pub fn list(
        &self,
        who: &Principal,
        conversation: Option<&ConversationId>,
        after: Option<RunId>,
        limit: usize,
    ) -> RunPage {
        let matches = |run: &Run| {
            run.conversation.owner == *who && conversation.is_none_or(|wanted| *wanted == run.conversation.id)
        };
        // One more than requested shows whether there is another page.
        let mut runs = self.0.registry.newest_first(after, limit.saturating_add(1), matches);
        let after = super::cut(&mut runs, limit, |run| run.id);
        RunPage { runs: runs.iter().map(|run| run.view()).collect(), after }
    }

    /// The events of all runs of a caller from now on; ends when the service does.
    pub fn feed(&self, who: &Principal) -> BoxStream<'static, FeedItem> {
        self.0.feed.subscribe(who)
    }

    /// The runners known now, ordered by language.
    pub fn runners(&self) -> Arc<[Runner]> {
        self.0.parts.catalog.all()
    }

    /// Whether cells of this language can be executed.
    pub fn offers_sessions(&self, language: &Language) -> bool {
        self.0.parts.catalog.find(language).is_some_and(|runner| runner.kernel.is_some())
    }

    /// Yields each list of runners from now on.
    pub fn runner_changes(&self) -> watch::Receiver<Arc<[Runner]>> {
        self.0.parts.catalog.changes()
    }

    pub fn limits(&self) -> &Limits {
        &self.0.parts.sandboxes.limits
    }

    /// The limits of a run by this runner.
    pub fn limits_of(&self, runner: &Runner) -> Limits {
        self.0.parts.sandboxes.limits_of(runner)
    }

    /// What lets programs out.
    pub(super) fn parts(&self) -> &SharedParts {
        &self.0.parts
    }

    pub(super) fn sessions(&self) -> &Sessions {
        &self.0.sessions
    }

    pub fn network(&self) -> &Network {
        &self.0.parts.network
    }

    pub fn standing_by(&self, runner: &Runner) -> usize {
        self.0.parts.standbys.standing_by(&runner.image)
    }

    /// The conversation's lock, if no run is under way or waits in it: none starts there while the value lives, and its
    /// sessions are closed.
    pub fn lock_if_idle(&self, conversation: &ConversationKey) -> Option<ConversationLock> {
        let lock = self.lock_beside_sessions(conversation)?;
        self.0.sessions.close_all(conversation);
        Some(lock)
    }

    /// As [`Self::lock_if_idle`], but its sessions stay.
    pub(super) fn lock_beside_sessions(&self, conversation: &ConversationKey) -> Option<ConversationLock> {
        self.0.admission.lock_if_idle(conversation)
    }

    /// Whether no run is under way or waits in a conversation.
    pub fn is_idle(&self, conversation: &ConversationKey) -> bool {
        self.lock_beside_sessions(conversation).is_some()
    }

    /// Waits until the runs that are under way or wait in a conversation have ended.
    pub async fn ended_in(&self, conversation: &ConversationKey) {
        drop(self.0.admission.lock(conversation).await);
    }

    /// Which servers have which conversations.
    pub fn peers(&self) -> &Peers {
        &self.0.parts.peers
    }

    /// Slots and waiting runs.
    pub fn load(&self) -> LoadStats {
        self.0.admission.load()
    }

    /// Runs that are waiting or running.
    pub fn under_way(&self) -> usize {
        self.0.registry.under_way()
    }

    /// Admits nothing more, leaves conversations without runs to the other servers, lets runs end within `grace`, then
    /// cancels them, detached ones too, and waits until each has cleaned up; then ends every feed.
    pub async fn stop(&self, grace: Duration) {
        self.0.tasks.stop.cancel();
        self.0.sessions.expect_stop();
        self.0.parts.peers.leave();
        if timeout(grace, self.0.tasks.end()).await.is_err() {
            warn!(runs = self.under_way(), "the server stops: running programs are cancelled");
            self.0.cancel_all.cancel();
            self.0.tasks.end().await;
        }
        self.0.feed.close();
    }
}

impl Inner {
    /// The runner of a request, which keeps the rules of that runner.
    fn runner(&self, request: &RunRequest) -> Result<Runner, Failure> {
        let runner = self.parts.catalog.get(&request.language)?;
        request.check(&runner, self.options.program_bytes_max)?;
        Ok(runner)
    }
}

/// The server's own failure, as clients see it.
fn internal() -> Failure {
    Failure::new(Code::Internal, "The server failed while it ran the program: its log says why.")
}
