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
mod handle;
mod input;
mod isolation_program;
mod log;
mod one;
mod record;
mod report;
mod request;
mod stdin;
mod verdict;

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt;
use tokio::{sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, info_span, warn};

pub use collect::{Captured, so_far};
pub use handle::{CancelOnDrop, Run};
pub use input::INPUT_BYTES_MAX;
pub use log::{EventLog, LogFacts};
pub use report::Report;
pub use request::RunRequest;

use self::{handle::internal, one::OneRun, record::Stopwatch};
use super::{
    admission::{Admission, ConversationLock, LoadStats},
    files::Files,
    isolation_check::IsolationState,
    janitor::Janitor,
    standby::Standbys,
};
use crate::{
    domain::{
        clock::Clock,
        error::{Code, Failure},
        event::EventKind,
        id::{InstanceId, Language, RunId},
        limits::Limits,
        owner::{ConversationKey, Principal},
        trace::TraceContext,
    },
    ports::{
        engine::Engine,
        observer::Observer,
        runner::{Catalog, Runner},
        store::Store,
    },
};

/// What the server's own test of the engine may take at least, whatever programs may.
const SELF_TEST_WALL_MS: u64 = 30_000;
const SELF_TEST_OUTPUT_BYTES: u64 = 64 << 10;

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
    /// Is told what becomes of runs.
    pub observer: Arc<dyn Observer>,
    /// Whether the engine was seen to isolate.
    pub isolation: IsolationState,
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
    pub fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        let room =
            if self.0.stopping.is_cancelled() { Err(stopping()) } else { self.0.parts.admission.check_capacity(who) };
        room.inspect_err(|failure| self.0.parts.observer.refused(failure.code))
    }

    /// Begins a run. What is refused here has touched neither disk nor engine.
    ///
    /// # Errors
    /// A full queue, a token that is too fast, an unknown language, a program that is too long, a server that is stopping.
    pub fn begin(&self, request: RunRequest) -> Result<Run, Failure> {
        let begun = self.admitted(request);
        begun.inspect_err(|failure| self.0.parts.observer.refused(failure.code))
    }

    fn admitted(&self, request: RunRequest) -> Result<Run, Failure> {
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
        let limits = inner.limits(&request);
        if !runner.takes_input()
            && let Some(argument) = framed_only(&request)
        {
            let why = format!("the runner of `{}` takes neither arguments nor input", runner.language);
            return Err(Failure::argument(argument, why));
        }
        let ticket = inner.parts.admission.enter(&request.conversation)?;
        let id = RunId::new();
        let kept = usize::try_from(limits.output_kept_bytes).unwrap_or(usize::MAX);
        let log = Arc::new(EventLog::new(kept));
        let (language, position) = (runner.language.clone(), ticket.position());
        let place = position.now().unwrap_or(1);
        log.add(EventKind::Queued { position: place });
        let cancel = inner.cancel_all.child_token();
        let (tell, report) = watch::channel(None);
        let (input, fed) = if request.stdin_open { Some(input::open()) } else { None }.unzip();
        let task = OneRun {
            inner: Arc::clone(inner),
            id,
            trace: TraceContext::of_run(id, request.within),
            request,
            runner,
            limits,
            log: Arc::clone(&log),
            cancel: cancel.clone(),
            watch: Stopwatch::start(inner.parts.clock.unix_s()),
            fed: Mutex::new(fed),
        };
        let span = info_span!("run", run = %id);
        inner.tasks.spawn(
            async move {
                // A panic drops the lease on its way, and readers of the log still learn of an end.
                let result = AssertUnwindSafe(task.execute(ticket, place)).catch_unwind().await;
                let result = result.unwrap_or_else(|_| Err(internal())).map(Arc::new);
                // RenderedError first: whoever reads of the end in the log finds what came of it.
                tell.send_replace(Some(result.clone()));
                task.conclude(&result);
            }
            .instrument(span),
        );
        Ok(Run { id, language, position, log, input: input.map(Arc::new), cancel, report })
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

    /// Sandboxes that stand by for a runner.
    pub fn standing_by(&self, runner: &Runner) -> usize {
        self.0.parts.standbys.standing_by(&runner.image)
    }

    /// The conversation's turn, when nobody runs or waits in it: nothing starts there while the value lives.
    pub fn lock_if_idle(&self, conversation: &ConversationKey) -> Option<ConversationLock> {
        self.0.parts.admission.lock_if_idle(conversation)
    }

    /// How full the house is now.
    pub fn crowd(&self) -> LoadStats {
        self.0.parts.admission.crowd()
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

fn stopping() -> Failure {
    Failure::new(Code::ShuttingDown, "The server is stopping: try again in a moment.")
}

/// The first argument that only a framed runner takes.
fn framed_only(request: &RunRequest) -> Option<&'static str> {
    let asked =
        [("args", !request.args.is_empty()), ("stdin", !request.stdin.is_empty()), ("stdinOpen", request.stdin_open)];
    asked.into_iter().find_map(|(name, asked)| asked.then_some(name))
}

impl Inner {
    fn limits(&self, request: &RunRequest) -> Limits {
        let usual = &self.options.limits;
        if request.conversation.owner.is_self_test() {
            // The sandbox is everybody's; how long we wait for it and how much we read is not what is tested.
            return Limits {
                wall_ms: usual.wall_ms.max(SELF_TEST_WALL_MS),
                output_bytes_max: usual.output_bytes_max.max(SELF_TEST_OUTPUT_BYTES),
                output_kept_bytes: usual.output_kept_bytes.max(SELF_TEST_OUTPUT_BYTES),
                ..*usual
            };
        }
        request.limits.map_or(*usual, |asked| asked.at_most(usual))
    }

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
