//! Proves with a real sandbox that the engine isolates programs as it was told to: a program of ours reads back from inside
//! what the kernel says of it. A runtime that starts sandboxes sooner than the usual one is tested first, and used if it passes.
//!
//! ```text
//! SelfTest::follow ── one task: tries a runner after another until the isolation is settled; waits for runners and for an
//!                     engine that is away; ended by `stop`
//! ```

pub(crate) mod inside;
mod programs;

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::inside::{Expected, Findings};
use super::{
    isolation::{IsolationState, Tested, Trial},
    runs::{RunRequest, Runs},
};
use crate::{
    domain::{
        error::{Code, Failure},
        id::ConversationId,
        limits::Limits,
        outcome::Ended,
        owner::{ConversationKey, Principal},
    },
    ports::{
        engine::Engine,
        runner::{Catalog, Runner},
    },
};

const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// What a self-test is made of.
pub struct SelfTestParts {
    /// Starts the sandboxes of `runs`, by the runtime that is chosen here.
    pub engine: Arc<dyn Engine>,
    /// Runs the program, as it runs everybody's.
    pub runs: Runs,
    /// The runners known now.
    pub catalog: Arc<Catalog>,
    /// Where the answer goes.
    pub isolation: IsolationState,
    /// What a sandbox may use.
    pub limits: Limits,
    /// The user inside.
    pub uid: u32,
    /// The sandboxes have a kernel of their own (gVisor, Kata), which tells less of itself.
    pub own_kernel: bool,
}

/// What came of one attempt.
enum Attempt {
    Settled(Tested),
    /// Nothing was learned of the engine; why, for the log.
    Again(String),
}

/// The service.
pub struct SelfTest(SelfTestParts);

impl SelfTest {
    /// Over its parts.
    pub fn new(parts: SelfTestParts) -> Self {
        Self(parts)
    }

    /// Tests until something is known.
    pub fn follow(self, stop: CancellationToken) -> JoinHandle<()> {
        tokio::spawn(async move {
            let _ = stop.run_until_cancelled(self.settle()).await;
        })
    }

    async fn settle(&self) {
        let mut changes = self.0.catalog.changes();
        let mut pause = PAUSE_MIN;
        loop {
            match self.attempt().await {
                Attempt::Settled(tested) => return self.conclude(tested),
                Attempt::Again(why) => {
                    warn!(why, "the self-test could not be made; it is tried again");
                    self.0.isolation.settle(Tested::Pending { why: Some(why) });
                }
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(PAUSE_MAX),
                _ = changes.changed() => {}
            }
        }
    }

    fn conclude(&self, tested: Tested) {
        match &tested {
            Tested::Holds { notes, trial } => {
                for note in notes {
                    warn!("{note}");
                }
                if let Trial::Passed { runtime } = trial {
                    info!(runtime, "sandboxes are started by this runtime: it is quicker, and passed the self-test");
                }
                info!("the self-test passed: sandboxes isolate as they should");
            }
            Tested::Broken(why) => warn!(why, "the self-test failed"),
            Tested::Pending { .. } => {}
        }
        self.0.isolation.settle(tested);
    }

    /// Tests what starts sandboxes sooner, where the engine has such a thing, and otherwise, or where that does not pass, what
    /// starts them usually.
    async fn attempt(&self) -> Attempt {
        let all = self.0.catalog.all();
        let known: Vec<_> = all.iter().filter_map(|runner| Some((runner, programs::of(&runner.language)?))).collect();
        match (all.first(), known.is_empty()) {
            (None, _) => return Attempt::Again("no runner image is installed".to_owned()),
            (Some(runner), true) => return Attempt::Settled(unknown_languages(runner)),
            _ => {}
        }
        // An engine that does not say what it has will not start a sandbox either.
        let Ok(Some(runtime)) = self.0.engine.quicker().await else { return self.usual(&known, Trial::None).await };
        self.0.engine.choose(Some(&runtime));
        let why = match self.on_trial(&known).await {
            Ok(notes) => return Attempt::Settled(Tested::Holds { notes, trial: Trial::Passed { runtime } }),
            Err(why) => why,
        };
        self.0.engine.choose(None);
        info!(runtime, why, "a quicker runtime is there and is not used");
        self.usual(&known, Trial::Failed { runtime, why }).await
    }

    /// The usual runtime, with every runner until one tells something.
    async fn usual(&self, known: &[(&Runner, String)], trial: Trial) -> Attempt {
        let mut why = String::new();
        let mut ours = true;
        for (runner, program) in known {
            match self.ask(runner, program).await {
                Ok(Findings { broken, loose, unseen }) if broken.is_empty() => {
                    return Attempt::Settled(Tested::Holds { notes: [loose, unseen].concat(), trial });
                }
                Ok(findings) => return Attempt::Settled(Tested::Broken(findings.broken.join("; "))),
                Err(failure) => {
                    // An engine that refuses, or a runner that breaks, will do so again; whatever else it was may pass.
                    ours &= matches!(failure.code, Code::EngineFailed | Code::RunnerFailed);
                    why = format!("{}: {failure}", runner.language);
                }
            }
        }
        if ours {
            let told = format!("no sandbox could be tested: look at the engine's own log, it told of {why}");
            return Attempt::Settled(Tested::Broken(told));
        }
        Attempt::Again(why)
    }

    /// A runtime on trial, which has to pass the first time: only for a runner that breaks is another one asked. What could not be
    /// seen, or why it does not pass.
    async fn on_trial(&self, known: &[(&Runner, String)]) -> Result<Vec<String>, String> {
        let mut why = String::new();
        for (runner, program) in known {
            match self.ask(runner, program).await {
                Ok(Findings { broken, loose, unseen }) => {
                    let wrong = [broken, loose].concat();
                    let told = wrong.join("; ");
                    return if wrong.is_empty() { Ok(unseen) } else { Err(told.trim_end_matches('.').to_owned()) };
                }
                Err(failure) if failure.code == Code::RunnerFailed => why = failure.message,
                Err(failure) => return Err(failure.message),
            }
        }
        Err(why)
    }

    async fn ask(&self, runner: &Runner, program: &str) -> Result<Findings, Failure> {
        let conversation = ConversationKey::new(Principal::self_test(), ConversationId::fresh());
        let request = RunRequest {
            throw_away: true,
            detach: Some(false),
            ..RunRequest::new(conversation, runner.language.clone(), program.to_owned().into())
        };
        let report = self.0.runs.begin(request)?.finished().await?;
        let code = match report.outcome.ended {
            Ended::Exited { code: 0 } => return Ok(self.judged(&report.stdout.text)),
            Ended::Exited { .. } | Ended::Signaled { .. } => Code::RunnerFailed,
            _ => Code::QueueTimeout,
        };
        Err(Failure::new(code, format!("its program did not run to its end: {}", report.outcome.sentence())))
    }

    fn judged(&self, report: &str) -> Findings {
        let Limits { memory_bytes, processes_max, .. } = self.0.limits;
        let SelfTestParts { uid, own_kernel, .. } = self.0;
        inside::inspect(report, &Expected { uid, memory_bytes, processes_max, own_kernel })
    }
}

fn unknown_languages(runner: &Runner) -> Tested {
    let note = format!(
        "The self-test has no program for the languages that are installed (such as {}): that sandboxes isolate was \
         not seen. Install the Bash runner (./build.sh runners) to have it tested.",
        runner.language
    );
    Tested::Holds { notes: vec![note], trial: Trial::None }
}
