//! Runs programs: [`Executions::begin`] streams, [`Executions::run`] collects.
//!
//! ```text
//! begin ── one tracked task a run: owns its ticket, permit and lease; ends with a report or a failure
//! ```
//!
//! Whoever asked may go away: the task goes on and cleans up. A caller chooses what its going away means by holding a
//! [`CancelOnDrop`] or not. A program is handed to one sandbox, once; nothing here runs it a second time.
//!
//! This room knows no engine by name, no HTTP and no settings.

mod collect;
mod drive;
mod log;
mod verdict;

use std::{panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, error, info, info_span, warn};

pub use collect::{Captured, so_far};
pub use log::{EventLog, LogFacts};

use self::drive::Job;
use super::{
    admission::{Admission, Position, Ticket, Turn},
    files::{Change, FileEntry, FileList, Files},
    janitor::{Janitor, Lease, chain},
    standby::{Standbys, Taken},
    started::Started,
};
use crate::{
    nouns::{
        clock::Clock,
        error::{Code, Failure},
        event::{EventKind, FileNote},
        id::{ConversationId, InstanceId, Language, RunId, SandboxId},
        limits::Limits,
        outcome::{Ended, Figures, Outcome},
    },
    ports::{
        auth::Principal,
        engine::{Engine, SandboxSpec},
        runner::{Catalog, Protocol, Runner},
        store::{Mark, SafePath, Store},
    },
};

/// How long after its wall clock limit a sandbox is certainly unwanted, in seconds.
const DEADLINE_MARGIN_S: i64 = 60;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct RunRequest {
    /// Who asks.
    pub principal: Principal,
    /// Whose files are `/data`.
    pub conversation: ConversationId,
    /// A language or an alias of one.
    pub language: Language,
    /// The program's text.
    pub program: Bytes,
    /// Arguments of the program. Only a framed runner takes any.
    pub args: Vec<String>,
    /// What the program reads from its standard input. Only a framed runner takes any.
    pub stdin: Bytes,
    /// What this run may use, where it is less than the server's limits.
    pub limits: Option<Limits>,
    /// What is written to `/data` when it is this run's turn.
    pub files: Vec<(SafePath, Bytes)>,
    /// The conversation is deleted when the run is over.
    pub throw_away: bool,
}

impl RunRequest {
    /// A program without arguments and input, under the server's limits.
    pub fn new(principal: Principal, conversation: ConversationId, language: Language, program: Bytes) -> Self {
        Self {
            principal,
            conversation,
            language,
            program,
            args: Vec::new(),
            stdin: Bytes::new(),
            limits: None,
            files: Vec::new(),
            throw_away: false,
        }
    }
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct Report {
    /// Which run.
    pub run: RunId,
    /// Whose files.
    pub conversation: ConversationId,
    /// The language's own name.
    pub language: Language,
    /// How it ended.
    pub outcome: Outcome,
    /// What it printed to standard output.
    pub stdout: Captured,
    /// What it printed to standard error.
    pub stderr: Captured,
    /// The conversation's files, those of this run first.
    pub files: FileList,
}

/// What runs under which rules.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionOptions {
    /// Whose sandboxes these are.
    pub instance: InstanceId,
    /// The user inside.
    pub uid: u32,
    /// What one run may use.
    pub limits: Limits,
    /// The longest program, in bytes.
    pub program_bytes_max: usize,
}

/// The parts a run needs.
pub struct ExecutionParts {
    /// Makes sandboxes.
    pub engine: Arc<dyn Engine>,
    /// The runners known now.
    pub catalog: Arc<Catalog>,
    /// Conversations on disk.
    pub store: Arc<Store>,
    /// Names and links files.
    pub files: Arc<Files>,
    /// Ends what nobody holds.
    pub janitor: Janitor,
    /// Who may start when.
    pub admission: Admission,
    /// Sandboxes that were started ahead of need.
    pub standbys: Standbys,
    /// The time of day.
    pub clock: Arc<dyn Clock>,
}

/// The service.
#[derive(Clone)]
pub struct Executions(Arc<Inner>);

struct Inner {
    parts: ExecutionParts,
    options: ExecutionOptions,
    tasks: TaskTracker,
    stopping: CancellationToken,
    cancel_all: CancellationToken,
}

/// A run that was begun. Dropping it changes nothing for the run; a clone is the same run.
#[derive(Clone)]
pub struct Run {
    /// Which.
    pub id: RunId,
    /// The language's own name.
    pub language: Language,
    /// Where it is in the line, while it waits.
    pub position: Position,
    /// What happens to it.
    pub log: Arc<EventLog>,
    cancel: CancellationToken,
    report: watch::Receiver<Option<Result<Arc<Report>, Failure>>>,
}

/// Cancels the run when it is dropped, unless the run is over.
pub struct CancelOnDrop(CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Run {
    /// Waits for the end.
    ///
    /// # Errors
    /// Our own failures; a program that fails is a report.
    pub async fn finished(&mut self) -> Result<Arc<Report>, Failure> {
        match self.report.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_else(|| Err(internal())),
            // The task ended without a word, which it never does.
            Err(_) => Err(internal()),
        }
    }

    /// What came of it, if it is over.
    pub fn result(&self) -> Option<Result<Arc<Report>, Failure>> {
        self.report.borrow().clone()
    }

    /// Asks for the run to be stopped. `finished` tells when it is.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The policy «when the caller goes away, stop the run», as a value.
    pub fn cancel_on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.cancel.clone())
    }
}

fn stopping() -> Failure {
    Failure::new(Code::ShuttingDown, "The server is stopping: try again in a moment.")
}

fn internal() -> Failure {
    Failure::new(Code::Internal, "The server failed while it ran the program: its log says why.")
}

impl Executions {
    /// The service over its parts.
    pub fn new(parts: ExecutionParts, options: ExecutionOptions) -> Self {
        Self(Arc::new(Inner {
            parts,
            options,
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            cancel_all: CancellationToken::new(),
        }))
    }

    /// Whether a run would be refused now whatever it is, for doors that want to say so before they read it.
    ///
    /// # Errors
    /// A full queue, a token that is too fast, a server that is stopping.
    pub fn room(&self, who: &Principal) -> Result<(), Failure> {
        if self.0.stopping.is_cancelled() {
            return Err(stopping());
        }
        self.0.parts.admission.room(who)
    }

    /// Begins a run. What is refused here has touched neither disk nor engine.
    ///
    /// # Errors
    /// A full queue, a token that is too fast, an unknown language, a program that is too long, a server that is stopping.
    pub fn begin(&self, request: RunRequest) -> Result<Run, Failure> {
        let inner = &self.0;
        if inner.stopping.is_cancelled() {
            return Err(stopping());
        }
        if request.program.len() > inner.options.program_bytes_max {
            return Err(Failure::argument(
                "code",
                format!(
                    "it is longer than {} bytes: write long data to a file with sandbox.write_file and read it from \
                     /data",
                    inner.options.program_bytes_max
                ),
            ));
        }
        let runner = inner.runner(&request.language)?;
        let limits = request.limits.map_or(inner.options.limits, |asked| asked.at_most(&inner.options.limits));
        if runner.protocol == Protocol::Plain && !(request.args.is_empty() && request.stdin.is_empty()) {
            return Err(Failure::argument(
                if request.args.is_empty() { "stdin" } else { "args" },
                format!("the runner of `{}` takes neither arguments nor input", runner.language),
            ));
        }
        let ticket = inner.parts.admission.enter(&request.principal, &request.conversation)?;
        let id = RunId::new();
        let kept = usize::try_from(limits.output_kept_bytes).unwrap_or(usize::MAX);
        let log = Arc::new(EventLog::new(kept));
        let (language, position) = (runner.language.clone(), ticket.position());
        log.add(EventKind::Queued { position: position.now().unwrap_or(1) });
        let cancel = inner.cancel_all.child_token();
        let (tell, report) = watch::channel(None);
        let task = OneRun {
            inner: Arc::clone(inner),
            id,
            request,
            runner,
            limits,
            log: Arc::clone(&log),
            cancel: cancel.clone(),
        };
        let span = info_span!("run", run = %id);
        inner.tasks.spawn(
            async move {
                // A panic drops the lease on its way, and readers of the log still learn of an end.
                let result = AssertUnwindSafe(task.execute(ticket)).catch_unwind().await;
                let result = result.unwrap_or_else(|_| Err(internal())).map(Arc::new);
                // Told first: whoever reads of the end in the log finds what came of it.
                tell.send_replace(Some(result.clone()));
                task.conclude(&result);
            }
            .instrument(span),
        );
        Ok(Run { id, language, position, log, cancel, report })
    }

    /// Runs a program to its end.
    ///
    /// # Errors
    /// As [`Self::begin`], and our own failures on the way.
    pub async fn run(&self, request: RunRequest) -> Result<Arc<Report>, Failure> {
        let mut run = self.begin(request)?;
        let _policy = run.cancel_on_drop();
        run.finished().await
    }

    /// The runners known now, ordered by language.
    pub fn runners(&self) -> Arc<[Runner]> {
        self.0.parts.catalog.all()
    }

    /// The conversation's turn, when nobody runs or waits in it: nothing starts there while the value lives.
    pub fn turn_if_idle(&self, conversation: &ConversationId) -> Option<Turn> {
        self.0.parts.admission.turn_if_idle(conversation)
    }

    /// Runs that are waiting or running.
    pub fn under_way(&self) -> usize {
        self.0.tasks.len()
    }

    /// Admits nothing more, lets runs end for a while, then cancels them and waits until each has cleaned up.
    pub async fn stop(&self, grace: Duration) {
        self.0.stopping.cancel();
        self.0.tasks.close();
        if timeout(grace, self.0.tasks.wait()).await.is_err() {
            warn!(runs = self.0.tasks.len(), "runs are cancelled: the server stops");
            self.0.cancel_all.cancel();
            self.0.tasks.wait().await;
        }
    }
}

impl Inner {
    fn runner(&self, language: &Language) -> Result<Runner, Failure> {
        self.parts.catalog.find(language).ok_or_else(|| {
            let all = self.parts.catalog.all();
            let known: Vec<_> = all.iter().map(|runner| runner.language.as_str()).collect();
            let hint = if known.is_empty() {
                "no runner image is installed; the operator builds them with ./build.sh".to_owned()
            } else {
                format!("installed are {}", known.join(", "))
            };
            Failure::new(Code::RunnerNotFound, format!("language: there is no runner for `{language}`; {hint}."))
        })
    }
}

/// One run on its way.
struct OneRun {
    inner: Arc<Inner>,
    id: RunId,
    request: RunRequest,
    runner: Runner,
    limits: Limits,
    log: Arc<EventLog>,
    cancel: CancellationToken,
}

impl OneRun {
    async fn execute(&self, ticket: Ticket) -> Result<Report, Failure> {
        // Held to the end: the slot and the conversation's turn are given back after the sandbox is posted.
        let _permit = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return Ok(self.cancelled_early()),
            permit = ticket.turn() => permit?,
        };
        let result = self.in_turn().await;
        if self.request.throw_away {
            self.throw_away().await;
        }
        result
    }

    async fn in_turn(&self) -> Result<Report, Failure> {
        let parts = &self.inner.parts;
        let limits = self.limits;
        let _first = parts.standbys.foreground();
        let standing = parts.standbys.take(&self.request.conversation, &self.runner, &limits).await;
        let (started, lease, mark) = match standing {
            Some(Taken { started, lease, mark }) => (started, lease, mark),
            None => match self.start_now().await? {
                Some(fresh) => fresh,
                None => return Ok(self.cancelled_early()),
            },
        };
        self.write_files().await?;
        self.log.add(EventKind::Started);
        let RunRequest { program, args, stdin, .. } = &self.request;
        let job = Job { program, args, stdin, limits: &limits };
        let driven =
            drive::drive(parts.engine.as_ref(), started, job, &self.log, &self.cancel).await.map_err(|error| {
                error!(error = %chain(&error), image = %self.runner.image.0, "how a program ended is not known");
                error.failure()
            })?;
        // The program is dead, so nothing races with the listing; the sandbox itself goes behind the caller's back.
        drop(lease);
        if self.request.throw_away {
            return Ok(self.report(verdict::outcome(&driven, limits), FileList::default()));
        }
        let files = parts.files.changed_since(&self.request.conversation, mark).await?;
        parts.standbys.used(&self.request.conversation, &self.runner.language);
        Ok(self.report(verdict::outcome(&driven, limits), files))
    }

    /// A sandbox started for this run, or nothing when the run was cancelled before there was one.
    async fn start_now(&self) -> Result<Option<(Started, Arc<Lease>, Mark)>, Failure> {
        let (data, mark) = self.prepare().await?;
        let lease = Arc::new(self.inner.parts.janitor.lease(SandboxId::new()));
        let life_s = i64::try_from(self.limits.wall().as_secs()).unwrap_or(i64::MAX / 2) + DEADLINE_MARGIN_S;
        let spec = SandboxSpec {
            id: lease.id(),
            instance: self.inner.options.instance,
            image: self.runner.image.clone(),
            data,
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

    /// Writes what the program finds in `/data`: once there is a sandbox, so that a standby can be taken.
    async fn write_files(&self) -> Result<(), Failure> {
        let RunRequest { principal, conversation, files, .. } = &self.request;
        for (path, bytes) in files {
            self.inner.parts.files.write(principal, conversation, path, bytes.clone()).await?;
        }
        Ok(())
    }

    /// Deletes the conversation's folder: its turn is still held, and the program is dead.
    async fn throw_away(&self) {
        let (store, id) = (Arc::clone(&self.inner.parts.store), self.request.conversation.clone());
        let removed = tokio::task::spawn_blocking(move || store.remove_conversation(&id)).await;
        if let Ok(Err(error)) = removed {
            error!(error = %chain(&error), "a folder that was to be thrown away is left");
        }
    }

    async fn prepare(&self) -> Result<(PathBuf, Mark), Failure> {
        let (store, id) = (Arc::clone(&self.inner.parts.store), self.request.conversation.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let conversation = store.create_conversation(&id)?;
            Ok::<_, crate::ports::store::StoreError>((conversation.data_dir(), conversation.mark()?))
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

    fn engine_failed(&self, error: &crate::ports::engine::EngineError) -> Failure {
        error!(error = %chain(error), image = %self.runner.image.0, "the engine failed a run");
        error.failure()
    }

    fn cancelled_early(&self) -> Report {
        let figures = Figures::default();
        let limits = self.limits;
        self.report(Outcome { ended: Ended::Cancelled, oom_killed: false, limits, figures }, FileList::default())
    }

    fn report(&self, outcome: Outcome, files: FileList) -> Report {
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

    fn conclude(&self, result: &Result<Arc<Report>, Failure>) {
        let (conversation, language) = (&self.request.conversation, &self.runner.language);
        let principal = self.request.principal.name();
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

fn note(file: &FileEntry) -> FileNote {
    FileNote {
        path: file.path.clone(),
        path_encoded: file.path_encoded.clone(),
        size: file.size,
        media_type: file.media_type.clone(),
        change: file.change.word(),
        modified_unix_s: file.modified_unix_s,
        url: file.url.clone(),
        url_expires_unix_s: file.url_expires_unix_s,
    }
}
