//! The result of the isolation check so far, and how the rest of the server waits for it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};

use crate::{
    domain::{Code, Failure, Language},
    ports::{engine::ImageId, runner::Runner},
};

/// How long a run waits for the result.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// The result of a runner that has none.
static UNKNOWN: Isolation = Isolation::Pending { why: None };

/// The result of the isolation check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Isolation {
    /// Not known yet.
    Pending {
        /// Why the last attempt was inconclusive, once there was one.
        why: Option<String>,
    },
    /// Not known, and not before a runner of another language is installed: one sentence that says which.
    NoProgram(String),
    /// The engine isolates.
    Verified {
        /// What could not be observed or should be better, one sentence each.
        notes: Vec<String>,
        /// Faster candidates of the engine that did not pass.
        rejected: Vec<Rejection>,
    },
    /// The engine does not isolate: one sentence that names what failed and what to do.
    Violated(String),
}

/// A candidate that did not pass the isolation check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    pub candidate: String,
    pub why: String,
}

impl Isolation {
    /// Whether the check has ended.
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Verified { .. } | Self::Violated(_))
    }

    /// Why no program runs.
    fn reason(&self) -> Option<&str> {
        match self {
            Self::Verified { .. } => None,
            Self::Violated(why) | Self::NoProgram(why) => Some(why),
            Self::Pending { why } => Some(why.as_deref().unwrap_or("The isolation check has not ended yet.")),
        }
    }
}

impl Default for Isolation {
    fn default() -> Self {
        Self::Pending { why: None }
    }
}

/// The result as it is now, shared by all who depend on it.
#[derive(Debug, Clone, Default)]
pub struct IsolationState(Arc<watch::Sender<Known>>);

#[derive(Debug, Default)]
struct Known {
    result: Isolation,
    /// That of each image, where runners differ. `None`: the result is that of every runner.
    runners: Option<Results>,
}

type Results = BTreeMap<ImageId, (Language, Isolation)>;

impl Known {
    /// The result of an image, or that of all.
    fn of(&self, image: Option<&ImageId>) -> &Isolation {
        match (image, &self.runners) {
            (Some(image), Some(runners)) => runners.get(image).map_or(&UNKNOWN, |(_, result)| result),
            _ => &self.result,
        }
    }
}

impl IsolationState {
    pub fn now(&self) -> Isolation {
        self.0.borrow().result.clone()
    }

    pub fn set(&self, result: Isolation) {
        self.0.send_modify(|known| known.result = result);
    }

    /// From now on each image has a result of its own; those of other images than these are forgotten.
    pub(super) fn keep(&self, runners: &[Runner]) {
        self.0.send_modify(|known| {
            let results = known.runners.get_or_insert_default();
            results.retain(|image, _| runners.iter().any(|runner| runner.image == *image));
        });
    }

    /// Sets the result of one runner. Returns whether it had another before.
    pub(super) fn set_of(&self, runner: &Runner, result: &Isolation) -> bool {
        let mut before = None;
        self.0.send_modify(|known| {
            let named = (runner.language.clone(), result.clone());
            before = known.runners.get_or_insert_default().insert(runner.image.clone(), named);
        });
        before.is_none_or(|(_, before)| before != *result)
    }

    /// Makes the result of all from those of the runners, once each of these has one.
    pub(super) fn conclude(&self, runners: &[Runner]) {
        if !self.unchecked(runners).is_empty() {
            return;
        }
        self.0.send_modify(|known| {
            if let Some(results) = &known.runners {
                known.result = overall(results);
            }
        });
    }

    /// The languages of these runners whose check has not ended for the first time, where each has its own.
    pub fn unchecked(&self, runners: &[Runner]) -> Vec<Language> {
        let known = self.0.borrow();
        let Some(results) = &known.runners else { return Vec::new() };
        let unchecked = runners.iter().filter(|runner| !results.contains_key(&runner.image));
        unchecked.map(|runner| runner.language.clone()).collect()
    }

    /// Whether sandboxes of an image may be started now.
    pub fn permits(&self, image: &ImageId) -> bool {
        matches!(self.0.borrow().of(Some(image)), Isolation::Verified { .. })
    }

    /// Languages that are refused while others may be served, and why.
    pub fn unserved(&self) -> Vec<(Language, String)> {
        let known = self.0.borrow();
        let results = known.runners.iter().flat_map(BTreeMap::values);
        results.filter_map(|(language, result)| Some((language.clone(), result.reason()?.to_owned()))).collect()
    }

    /// Returns when the check has ended.
    pub async fn settled(&self) -> Isolation {
        self.wait_for(None, Isolation::is_final).await
    }

    /// Returns after the first attempt, conclusive or not.
    pub async fn tried(&self) -> Isolation {
        self.wait_for(None, |result| *result != UNKNOWN).await
    }

    async fn wait_for(&self, image: Option<&ImageId>, condition: impl Fn(&Isolation) -> bool) -> Isolation {
        let mut results = self.0.subscribe();
        let found = results.wait_for(|known| condition(known.of(image))).await;
        // The sender lives in `self`, so this cannot fail.
        found.map_or_else(|_| Isolation::default(), |known| known.of(image).clone())
    }

    /// Returns when the engine is known to isolate; never where the first result that is final says otherwise.
    ///
    /// Where each runner is checked, a later result may be another. Who has begun then asks for each image.
    pub async fn verified(&self) {
        if !matches!(self.settled().await, Isolation::Verified { .. }) {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the reason when the engine is known not to isolate; never where the first result that is final says
    /// otherwise.
    ///
    /// So a server ends at its start alone. Where each runner is checked, one that serves goes on when the last runner
    /// that isolated is changed for the worse: each image is refused alone, the server is not ready, and the check is
    /// repeated, so the next change can repair it. An end would take sessions and files from clients and refuse no
    /// program more.
    pub async fn violated(&self) -> String {
        match self.settled().await {
            Isolation::Violated(why) => why,
            _ => std::future::pending().await,
        }
    }

    /// Waits until a program may run in a sandbox of an image.
    ///
    /// # Errors
    /// When it may not, or when that is not known within 20 s.
    pub async fn wait(&self, image: &ImageId) -> Result<(), Failure> {
        let known = self.wait_for(Some(image), |result| !matches!(result, Isolation::Pending { .. }));
        match timeout(WAIT_MAX, known).await {
            Ok(Isolation::Verified { .. }) => Ok(()),
            Ok(Isolation::Violated(_)) => Err(Failure::new(
                Code::EngineFailed,
                "The container engine does not isolate programs, so none is run: the operator should run \
                 `mcp-sandbox-server doctor`.",
            )),
            Ok(Isolation::NoProgram(why)) => Err(Failure::new(Code::EngineUnavailable, why)),
            Ok(Isolation::Pending { .. }) | Err(_) => Err(Failure::new(
                Code::EngineUnavailable,
                "The server has not yet verified that the container engine isolates programs: try again in a moment.",
            )),
        }
    }
}

/// One runner that isolates is enough, since the others are refused alone.
fn overall(runners: &Results) -> Isolation {
    let any = |is: fn(&Isolation) -> bool| runners.values().any(|(_, result)| is(result));
    if any(|result| matches!(result, Isolation::Verified { .. })) {
        let mut all = Vec::new();
        for (language, result) in runners.values() {
            if let Isolation::Verified { notes, .. } = result {
                all.extend(notes.iter().map(|note| format!("[{language}] {note}")));
            }
        }
        return Isolation::Verified { notes: all, rejected: Vec::new() };
    }
    let reasons = runners.values().filter_map(|(language, result)| Some(format!("[{language}] {}", result.reason()?)));
    let reasons = reasons.collect::<Vec<_>>().join("; ");
    if runners.is_empty() {
        Isolation::Pending { why: Some("no runner image is installed".to_owned()) }
    } else if any(|result| matches!(result, Isolation::Pending { .. })) {
        Isolation::Pending { why: Some(reasons) }
    } else if any(|result| matches!(result, Isolation::Violated(_))) {
        Isolation::Violated(reasons)
    } else {
        Isolation::NoProgram(reasons)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::ports::runner::{LABEL_LANGUAGE, LABEL_RUNNER, RunnerImage};

    fn runner(language: &str) -> Runner {
        let labels = [(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, language)];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let id = ImageId(format!("{language}@1"));
        let image = RunnerImage { id, reference: None, created_unix_s: 0, labels, flaw: None };
        Runner::from_image(&image).expect("a runner")
    }

    fn verified(notes: &[&str]) -> Isolation {
        Isolation::Verified { notes: notes.iter().map(|note| (*note).to_owned()).collect(), rejected: Vec::new() }
    }

    #[tokio::test(start_paused = true)]
    async fn each_image_has_its_own_result_where_runners_differ() {
        let (state, [bash, python]) = (IsolationState::default(), ["bash", "python"].map(runner));
        state.keep(&[bash.clone(), python.clone()]);
        let away = Isolation::Pending { why: Some("no node".to_owned()) };
        assert!(state.set_of(&bash, &verified(&["a note"])));
        assert!(state.set_of(&python, &away) && !state.set_of(&python, &away), "only a new result is news");
        state.conclude(&[bash.clone(), python.clone(), runner("ruby")]);
        assert!(state.tried().now_or_never().is_none(), "one was not checked yet");
        assert_eq!(state.unchecked(&[bash.clone(), runner("ruby")]), [runner("ruby").language]);
        state.conclude(&[bash.clone(), python.clone()]);
        assert_eq!(state.now(), verified(&["[bash] a note"]));
        assert!(state.wait(&bash.image).await.is_ok() && state.permits(&bash.image));
        assert_eq!(state.wait(&python.image).await.expect_err("not known").code, Code::EngineUnavailable);
        assert_eq!(state.unserved(), [(python.language.clone(), "no node".to_owned())]);
        let mut serving = std::pin::pin!(state.violated());
        assert!(serving.as_mut().now_or_never().is_none());
        state.set_of(&python, &Isolation::Violated("the network is open".to_owned()));
        assert_eq!(state.wait(&python.image).await.expect_err("violated").code, Code::EngineFailed);
        // The template of Bash was changed.
        state.keep(std::slice::from_ref(&python));
        assert!(!state.permits(&bash.image) && state.now() == verified(&["[bash] a note"]));
        state.conclude(std::slice::from_ref(&python));
        assert_eq!(state.now(), Isolation::Violated("[python] the network is open".to_owned()));
        assert!(serving.as_mut().now_or_never().is_none(), "a server that serves goes on");
    }

    #[tokio::test(start_paused = true)]
    async fn programs_wait_until_isolation_is_verified() {
        let (state, image) = (IsolationState::default(), ImageId("any".to_owned()));
        assert_eq!(state.wait(&image).await.expect_err("not known").code, Code::EngineUnavailable);
        state.set(Isolation::NoProgram("install Bash".to_owned()));
        assert_eq!(state.wait(&image).await.expect_err("not verified").message, "install Bash");
        assert!(state.settled().now_or_never().is_none());
        state.set(verified(&[]));
        assert!(state.wait(&image).await.is_ok());
        assert!(state.violated().now_or_never().is_none() && state.verified().now_or_never().is_some());
        state.set(Isolation::Violated("the network is open".to_owned()));
        assert_eq!(state.wait(&image).await.expect_err("violated").code, Code::EngineFailed);
        assert!(state.verified().now_or_never().is_none());
        assert_eq!(state.violated().await, "the network is open");
    }
}
