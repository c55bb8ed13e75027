//! Checks with a real sandbox that the engine isolates programs: a program of ours reads back from inside what the
//! kernel reports, and that has to be what the engine says it enforces. No other program runs before it has passed.
//!
//! An engine may offer faster configurations; each is checked first and used if it passes.
//!
//! Where the sandboxes of one runner differ from those of another, as pods of different templates do, each runner is
//! checked, and no candidate is tried. Each image has a result of its own, so a runner that changes, or that does not
//! pass, leaves the others as they are. A refused start says nothing about isolation and may succeed later, so it is
//! tried again. A check with findings is repeated too: the operator may correct the cluster without changing a
//! template.
//!
//! ```text
//! IsolationCheck::run ── one task: tries one runner after another until the result is final; waits for runners and for
//!                        an engine that does not answer; ended by `stop`
//!                        where runners differ: checks each that has not passed, a few at once, until `stop`
//! ```

pub(crate) mod inspection;
mod programs;
mod state;

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::Semaphore, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{field::display, info, warn};

pub use self::state::{Isolation, IsolationState, Rejection};
use self::{inspection::Findings, programs::CheckProgram};
use crate::{
    domain::{Code, Failure, Language, Limits, RunnerUsers},
    ports::{
        engine::{Engine, ImageId},
        runner::{Catalog, Runner},
    },
};

/// Runners that are checked at once.
pub(super) const CHECKS_AT_ONCE: usize = 4;
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Runs the program of the check by the path that every program takes.
#[async_trait]
pub trait ProgramRunner: Send + Sync + 'static {
    /// Its standard output.
    ///
    /// # Errors
    /// [`Code::RunnerFailed`] when the program itself fails; whatever fails a run.
    async fn run_to_end(&self, language: &Language, program: String) -> Result<String, Failure>;
}

/// The service and its parts.
pub struct IsolationCheck {
    /// The engine that starts the sandboxes of `programs`.
    pub engine: Arc<dyn Engine>,
    pub programs: Arc<dyn ProgramRunner>,
    pub catalog: Arc<Catalog>,
    /// Receives the result.
    pub state: IsolationState,
    pub limits: Limits,
    /// The user inside.
    pub users: RunnerUsers,
}

/// The notes on an engine that isolates, or what it violates, as one sentence.
type Verdict = Result<Vec<String>, String>;

/// An attempt that did not end with a verdict.
struct Inconclusive {
    why: String,
    /// The engine refused, or the runner broke, and will do so again.
    permanent: bool,
}

impl IsolationCheck {
    /// Checks until the result is final; where runners differ, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let check = async {
            if self.differs_by_runner() {
                self.check_each().await;
            } else {
                self.check().await;
            }
        };
        let _ = stop.run_until_cancelled(check).await;
    }

    async fn check(&self) {
        let mut changes = self.catalog.changes();
        let mut pause = PAUSE_MIN;
        loop {
            let result = self.attempt().await;
            log(&result, None);
            let is_final = result.is_final();
            self.state.set(result);
            if is_final {
                return;
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                _ = changes.changed() => {}
            }
        }
    }

    /// Whether each runner is checked, and again when it changes: its template says more than its image does.
    fn differs_by_runner(&self) -> bool {
        !self.engine.forbidden_addresses().is_empty()
    }

    /// Checks the engine's candidates, best first, and then its standard configuration.
    async fn attempt(&self) -> Isolation {
        let all = self.catalog.all();
        let Some(first) = all.first() else {
            return Isolation::Pending { why: Some("no runner image is installed".to_owned()) };
        };
        let known = all.iter().filter_map(|runner| Some((runner, programs::of_runner(runner, &[], &self.limits)?)));
        let known: Vec<_> = known.collect();
        if known.is_empty() {
            return Isolation::NoProgram(no_program(&first.language));
        }
        let mut rejected = Vec::new();
        // An engine that does not answer this will not start a sandbox either.
        for candidate in self.engine.candidates().await.unwrap_or_default() {
            self.engine.select(Some(&candidate));
            let why = match self.inspect(&known, true).await {
                Ok(Ok(notes)) => {
                    info!(
                        candidate,
                        "sandboxes are started by this faster candidate, which passed the isolation check"
                    );
                    return Isolation::Verified { notes, rejected };
                }
                Ok(Err(why)) | Err(Inconclusive { why, .. }) => why,
            };
            self.engine.select(None);
            info!(candidate, why, "a faster candidate did not pass the isolation check and is not used");
            rejected.push(Rejection { candidate, why: why.trim_end_matches('.').to_owned() });
        }
        match self.inspect(&known, false).await {
            Ok(Ok(notes)) => Isolation::Verified { notes, rejected },
            Ok(Err(why)) => Isolation::Violated(why),
            Err(Inconclusive { why, permanent: true }) => Isolation::Violated(format!(
                "no sandbox could be checked: look at the engine's own log, the last failure was {why}"
            )),
            Err(Inconclusive { why, .. }) => Isolation::Pending { why: Some(why) },
        }
    }

    /// Inspects a sandbox of one runner after another until there is a verdict. A candidate has one chance: only a
    /// runner that breaks is followed by the next.
    async fn inspect(&self, known: &[(&Runner, CheckProgram)], is_candidate: bool) -> Result<Verdict, Inconclusive> {
        let mut inconclusive = Inconclusive { why: String::new(), permanent: true };
        for (runner, CheckProgram { text, by_process_1 }) in known {
            let ran = self.programs.run_to_end(&runner.language, text.clone()).await;
            if *by_process_1 && !is_by_process_1(&ran) {
                inconclusive = Inconclusive { why: old_process_1(&runner.language), permanent: false };
                continue;
            }
            match ran {
                Ok(report) => return Ok(self.verdict(&report)),
                Err(failure) => {
                    inconclusive.permanent &= matches!(failure.code, Code::EngineFailed | Code::RunnerFailed);
                    inconclusive.why = format!("{}: {failure}", runner.language);
                    if is_candidate && failure.code != Code::RunnerFailed {
                        break;
                    }
                }
            }
        }
        Err(inconclusive)
    }

    /// Checks each runner, and again those that have changed or have not passed. A runner whose sandbox takes long to
    /// start does not keep the others waiting, nor one that changes meanwhile. Never ends by itself.
    async fn check_each(&self) {
        let mut changes = self.catalog.changes();
        let permits = Semaphore::new(CHECKS_AT_ONCE);
        let mut checks = FuturesUnordered::new();
        let mut under_way = HashSet::new();
        loop {
            let runners: Arc<[Runner]> = Arc::clone(&changes.borrow_and_update());
            self.state.keep(&runners);
            self.state.conclude(&runners);
            for runner in runners.iter() {
                if !self.state.permits(&runner.image) && under_way.insert(runner.image.clone()) {
                    checks.push(self.check_until_passed(runner.clone(), &permits));
                }
            }
            tokio::select! {
                Some(image) = checks.next() => {
                    under_way.remove(&image);
                }
                _ = changes.changed() => {}
            }
        }
    }

    /// Checks a runner until it has passed or is not installed any more. Returns its image.
    async fn check_until_passed(&self, runner: Runner, permits: &Semaphore) -> ImageId {
        let mut pause = PAUSE_MIN;
        while self.is_installed(&runner) {
            // It is never closed.
            let permit = permits.acquire().await;
            self.check_one(&runner).await;
            drop(permit);
            if self.state.permits(&runner.image) {
                break;
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
        runner.image
    }

    async fn check_one(&self, runner: &Runner) {
        let result = self.result_of(runner).await;
        // The program may have run in a sandbox of the image that has replaced this one.
        if !self.is_installed(runner) {
            return;
        }
        if self.state.set_of(runner, &result) {
            log(&result, Some(&runner.language));
        }
        // Until the new runners were checked too, the last result of all stays.
        self.state.conclude(&self.catalog.all());
    }

    fn is_installed(&self, runner: &Runner) -> bool {
        self.catalog.find(&runner.language).is_some_and(|now| now.image == runner.image)
    }

    async fn result_of(&self, runner: &Runner) -> Isolation {
        let targets = self.engine.forbidden_addresses();
        let Some(CheckProgram { text, by_process_1 }) = programs::of_runner(runner, &targets, &self.limits) else {
            return Isolation::NoProgram(no_program_of_it(&runner.language));
        };
        let ran = self.programs.run_to_end(&runner.language, text).await;
        if by_process_1 && !is_by_process_1(&ran) {
            return Isolation::NoProgram(old_process_1(&runner.language));
        }
        match ran {
            Ok(report) => match self.verdict(&report) {
                Ok(notes) => Isolation::Verified { notes, rejected: Vec::new() },
                Err(why) => Isolation::Violated(why),
            },
            // The sandbox was there and its program failed, such as at writing to /data.
            Err(failure) if failure.code == Code::RunnerFailed => {
                Isolation::Violated(format!("its sandbox could not be checked, the last failure was {failure}"))
            }
            Err(failure) => Isolation::Pending { why: Some(failure.to_string()) },
        }
    }

    /// What a report shows, by what the engine enforces now.
    fn verdict(&self, report: &str) -> Verdict {
        let expectations = self.engine.isolation_expectations(&self.limits, &self.users);
        let Findings { violations, notes } = inspection::inspect(report, expectations);
        if violations.is_empty() { Ok(notes) } else { Err(violations.join("; ")) }
    }
}

/// Logs the result of one runner, or of all.
fn log(result: &Isolation, of: Option<&Language>) {
    let language = of.map(display);
    match result {
        Isolation::Verified { notes, .. } => {
            for note in notes {
                warn!(language, "{note}");
            }
            info!(language, "the isolation check passed");
        }
        Isolation::Violated(why) if of.is_some() => {
            warn!(language, why, "the isolation check failed; the language is not served");
        }
        Isolation::Violated(why) => warn!(why, "the isolation check failed"),
        Isolation::NoProgram(why) => warn!(language, "{why}"),
        Isolation::Pending { why } => warn!(language, why, "the isolation check could not be made; it is repeated"),
    }
}

fn no_program(language: &Language) -> String {
    format!(
        "The isolation check has no program for the languages that are installed (such as {language}), and no program \
         is run before it has passed: install the Bash runner (./build.sh runners)."
    )
}

/// Whether process 1 made the check, or nothing has run. An older one hands the program to the interpreter, which takes
/// it for a comment or fails at it.
fn is_by_process_1(ran: &Result<String, Failure>) -> bool {
    match ran {
        Ok(report) => report.starts_with("== "),
        Err(failure) => failure.code != Code::RunnerFailed,
    }
}

fn no_program_of_it(language: &Language) -> String {
    format!(
        "The isolation check has no program for {language}, whose sandboxes may differ from those of other languages, \
         so no program of it is run: make its image speak protocol 1 or 2 (sandbox.protocol), whose process 1 makes \
         the check, or, if it runs bash, sh, python, javascript or typescript, name one of them in sandbox.aliases; \
         otherwise use another engine for it, such as Docker."
    )
}

fn old_process_1(language: &Language) -> String {
    format!(
        "The isolation check of {language} printed no report, so no program of it is run: build its image again, whose \
         process 1 (sandbox-init) is older than the check that it has to make."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_that_an_interpreter_was_given_is_not_by_process_1() {
        let failed = |code| Err(Failure::new(code, "x"));
        for ran in [Ok("== variables\n".to_owned()), failed(Code::QueueTimeout)] {
            assert!(is_by_process_1(&ran), "{ran:?}");
        }
        for ran in [Ok(String::new()), failed(Code::RunnerFailed)] {
            assert!(!is_by_process_1(&ran), "{ran:?}");
        }
    }
}
