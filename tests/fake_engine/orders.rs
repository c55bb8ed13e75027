//! The commands and queries of a test.

use parking_lot::{MappedMutexGuard, MutexGuard};

use super::{FakeEngine, Faults, Record, StartFault};
use crate::{
    domain::SandboxId,
    ports::{
        engine::{ImageId, Listed},
        runner::{
            LABEL_KERNEL, LABEL_LANGUAGE, LABEL_PACKAGES, LABEL_PRELOADS, LABEL_PROTOCOL, LABEL_RUNNER, RunnerImage,
        },
    },
};

impl FakeEngine {
    /// Adds a runner for a language; returns its image.
    pub fn add_runner(&self, language: &str) -> ImageId {
        self.add_image_with(language, &[])
    }

    /// The same for one whose image speaks frames and offers sessions.
    pub fn add_kernel(&self, language: &str) -> ImageId {
        self.add_image_with(language, &[(LABEL_PROTOCOL, "2"), (LABEL_KERNEL, "fake"), (LABEL_PRELOADS, "heavy")])
    }

    /// The same for one whose image speaks frames and installs packages by uv. What installs is no script, so it ends
    /// with status 127.
    pub fn add_installer(&self, language: &str) -> ImageId {
        self.add_image_with(language, &[(LABEL_PROTOCOL, "2"), (LABEL_PACKAGES, "uv")])
    }

    fn add_image_with(&self, language: &str, more_labels: &[(&str, &str)]) -> ImageId {
        let labels = [&[(LABEL_RUNNER, "true"), (LABEL_LANGUAGE, language)][..], more_labels].concat();
        let id = ImageId(format!("sha256:fake-{language}"));
        let image = RunnerImage {
            id: id.clone(),
            reference: Some(format!("runner-{language}:latest")),
            created_unix_s: self.0.clock.unix_s(),
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            flaw: None,
        };
        self.0.runners.send_modify(|runners| {
            runners.retain(|runner| runner.id != image.id);
            runners.push(image);
        });
        id
    }

    /// Replaces all runners, which is a change.
    pub fn set_runners(&self, runners: Vec<RunnerImage>) {
        self.0.runners.send_replace(runners);
    }

    /// Adds an image that can be started and is no runner.
    pub fn add_image(&self, id: ImageId) {
        self.state().images.insert(id);
    }

    /// A program of a sandbox started from now on that holds `text` prints `answer` and ends, instead of being played.
    pub fn answer(&self, text: &str, answer: &str) {
        self.state().answers.push((text.to_owned(), Some(answer.to_owned())));
    }

    /// A program of a sandbox started from now on that holds `text` never ends, instead of being played.
    pub fn hang(&self, text: &str) {
        self.state().answers.push((text.to_owned(), None));
    }

    /// Lists a sandbox that this engine never started: what an earlier life of a server, or another server, left.
    pub fn add_leftover(&self, listed: Listed) {
        self.state().sandboxes.insert(listed.id, Record { listed, life: None });
    }

    /// What is wrong with the engine from now on. A test changes it in one statement, which holds a lock.
    pub fn faults(&self) -> MappedMutexGuard<'_, Faults> {
        MutexGuard::map(self.state(), |state| &mut state.faults)
    }

    /// The next start that has no fault waiting fails like this.
    pub fn fail_next_start(&self, fault: StartFault) {
        self.faults().starts.push_back(fault);
    }

    /// The sandboxes that were not destroyed, running or not.
    pub fn live(&self) -> Vec<SandboxId> {
        self.state().sandboxes.keys().copied().collect()
    }

    /// Every id that was ever started, in order.
    pub fn started(&self) -> Vec<SandboxId> {
        self.state().started.clone()
    }

    /// Calls of `start`, successful or not.
    pub fn attempts(&self) -> usize {
        self.state().attempts
    }

    /// Calls that a caller must not make.
    pub fn violations(&self) -> Vec<String> {
        self.state().violations.clone()
    }
}
