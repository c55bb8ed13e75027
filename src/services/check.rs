//! Programs, formatted and checked by the tools of their language's image: ruff, biome, shfmt.
//!
//! A program of ours calls the tools in a sandbox of its own, which has no network and no conversation and is destroyed
//! then. A program that is checked is read there and never executed. The tools were not written for hostile programs,
//! so the output of the sandbox is untrusted: [`answer`] accepts only what is within its bounds.
//!
//! ```text
//! Checker::check ── one tracked task a check; goes on when its caller goes away; ended by `stop`, and with
//!                    its token
//! ```
//!
//! A check is not a run: this service knows neither runs nor their history.

mod answer;

use std::sync::Arc;

use bytes::Bytes;
use tracing::warn;

pub use self::answer::{Checked, Problem, Severity};
use super::{
    admission::{Admission, Permit},
    runs::{AuxiliaryProgram, execute_auxiliary, outgrown, staged},
    shared_parts::SharedParts,
    tasks::Tasks,
    tokens::Started,
};
use crate::{
    domain::{Code, ConversationId, ConversationKey, Ended, Failure, Language, Limits, Principal},
    ports::{runner::Runner, storage::Usage},
};

/// What the sandbox may write to its folder, where the tools write nothing.
const FOLDER_MAX: Usage = Usage { bytes: 16 << 20, entries: 1000 };

/// What the programs of ours exit with where a tool crashed.
const CRASHED: i32 = 3;

/// A language that has tools, the file that a program is, and the program of ours that calls the tools.
type Tool = (&'static str, &'static str, &'static str);
static TOOLS: [Tool; 4] = [
    ("python", "main.py", include_str!("check/check.py")),
    ("javascript", "main.js", include_str!("check/check.js")),
    ("typescript", "main.ts", include_str!("check/check.js")),
    ("bash", "main.sh", include_str!("check/check.sh")),
];

/// Whether there are tools for a language.
pub fn has_tools(language: &Language) -> bool {
    TOOLS.iter().any(|(name, ..)| *name == language.as_str())
}

/// The service. A clone is the same.
#[derive(Clone)]
pub struct Checker(Arc<Inner>);

struct Inner {
    parts: SharedParts,
    /// Admits checks alone: they take no capacity of runs.
    admission: Admission,
    limits: Limits,
    program_bytes_max: usize,
    tasks: Tasks,
}

impl Checker {
    pub fn new(parts: SharedParts, admission: Admission, limits: Limits, program_bytes_max: usize) -> Self {
        Self(Arc::new(Inner { parts, admission, limits, program_bytes_max, tasks: Tasks::default() }))
    }

    /// Whether any check would be refused now, for callers that ask before they read a request.
    ///
    /// # Errors
    /// [`Code::QueueFull`], [`Code::RateLimited`], [`Code::ShuttingDown`].
    pub fn check_capacity(&self, who: &Principal) -> Result<(), Failure> {
        self.0.tasks.check_running()?;
        self.0.admission.check_capacity(who)
    }

    /// Formats a program and says what is wrong with it. Nothing of it is executed, and nothing is kept.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] where the language has no tools, the program is too long, or the tools do not get
    /// through it; [`Code::RunnerFailed`] where the image has no tools; those of admission, tokens and the engine.
    pub async fn check(&self, who: &Principal, language: &Language, code: &Bytes) -> Result<Checked, Failure> {
        let inner = Arc::clone(&self.0);
        inner.tasks.check_running()?;
        let (runner, tool) = inner.tool(language, code)?;
        let code = code.clone();
        // Checks have no order among each other, so each is a conversation of its own.
        let alone = ConversationKey::new(who.clone(), ConversationId::fresh());
        let count = || inner.parts.tokens.begin(who, &runner.language);
        let (ticket, counted) = inner.admission.enter(&alone, code.len(), count)?;
        let task = self.0.tasks.spawn(async move {
            let permit = ticket.turn().await?;
            inner.execute(&runner, tool, &code, counted.as_ref(), permit).await
        });
        task.await.unwrap_or_else(|_| Err(failed()))
    }

    /// Ends the checks under way.
    pub async fn stop(&self) {
        self.0.tasks.end().await;
    }
}

impl Inner {
    /// Decides what needs neither disk nor engine.
    fn tool(&self, language: &Language, code: &Bytes) -> Result<(Runner, &'static Tool), Failure> {
        let runner = self.parts.catalog.get(language)?;
        let tool = TOOLS.iter().find(|(name, ..)| *name == runner.language.as_str()).ok_or_else(|| {
            let known: Vec<_> = TOOLS.iter().map(|(name, ..)| *name).collect();
            let why = format!("there is nothing that checks {}; there is for {}", runner.language, known.join(", "));
            Failure::argument("language", why)
        })?;
        let bytes_max = self.program_bytes_max;
        if code.len() > bytes_max {
            return Err(Failure::argument("code", format!("it is longer than {bytes_max} bytes")));
        }
        Ok((runner, tool))
    }

    async fn execute(
        &self,
        runner: &Runner,
        (_, file, tool): &Tool,
        code: &Bytes,
        by: Option<&Started>,
        _permit: Permit,
    ) -> Result<Checked, Failure> {
        let SharedParts { sandboxes, isolation, .. } = &self.parts;
        isolation.wait(&runner.image).await?;
        let staging = staged(&self.parts, &Principal::self_test()).await?;
        let auxiliary = AuxiliaryProgram {
            runner,
            data: staging.data(),
            limits: self.limits,
            code: Bytes::from_static(tool.as_bytes()),
            stdin: [file.as_bytes(), b"\n", code].concat().into(),
            channels: None,
            by,
            cancel: self.tasks.stop.child_token(),
        };
        let breach = outgrown(staging, FOLDER_MAX, || true);
        let (outcome, [stdout, stderr]) = execute_auxiliary(sandboxes, auxiliary, breach, &|_| {}).await?;
        let why: String = stderr.chars().take(2000).collect();
        let log = |what: &str| warn!(language = %runner.language, why = %why.escape_debug(), "{what}");
        match outcome.ended {
            Ended::Exited { code: 0 } => {}
            Ended::Cancelled => return Err(Failure::stopping()),
            Ended::Exited { code: CRASHED } if !outcome.oom_killed => {
                let why = "the tools crash on it; it may be nested too deeply".to_owned();
                return Err(Failure::argument("code", why));
            }
            // Where a tool was killed for its memory, it is the program that was too much.
            Ended::Exited { .. } | Ended::Signaled { .. } if !outcome.oom_killed => {
                log("the tools of an image did not check a program");
                return Err(failed());
            }
            _ => {
                let why = format!("the tools did not get through it: {}", outcome.sentence());
                return Err(Failure::argument("code", why));
            }
        }
        Checked::read(&stdout, code).ok_or_else(|| {
            log("what checked a program printed something else than its answer");
            failed()
        })
    }
}

fn failed() -> Failure {
    let why = "The tools of this language's image did not check the program; the server's log says why. The operator \
               should rebuild the image.";
    Failure::new(Code::RunnerFailed, why)
}
