//! The commands and queries of a test.

use std::{net::SocketAddr, time::Duration};

use super::{FakeEngine, Record, StartFault};
use crate::{
    domain::id::SandboxId,
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

    /// The engine's runners differ in what their sandboxes reach, and must not reach this.
    pub fn forbid(&self, address: SocketAddr) {
        self.state().forbidden.push(address);
    }

    /// Lists a sandbox that this engine never started: what an earlier life of a server, or another server, left.
    pub fn plant(&self, listed: Listed) {
        self.state().sandboxes.insert(listed.id, Record { listed, life: None });
    }

    /// From now on this sandbox can be neither killed nor destroyed, or it can be again.
    pub fn set_indestructible(&self, id: SandboxId, on: bool) {
        let sandboxes = &mut self.state().faults.indestructible;
        if on {
            sandboxes.insert(id)
        } else {
            sandboxes.remove(&id)
        };
    }

    /// From now on nothing answers, or everything does again. What runs goes on.
    pub fn set_away(&self, away: bool) {
        self.state().faults.away = away;
    }

    /// The next start that has no fault waiting fails like this.
    pub fn fail_next_start(&self, fault: StartFault) {
        self.state().faults.starts.push_back(fault);
    }

    /// Every start takes this long from now on.
    pub fn delay_starts(&self, delay: Duration) {
        self.state().faults.start_delay = delay;
    }

    /// Runners that speak frames and are started from now on report that they are warm when this is switched off.
    pub fn keep_loading(&self, on: bool) {
        self.state().faults.loading.send_replace(on);
    }

    /// Runners that speak frames and are started from now on report that they use so much when they are warm.
    pub fn report_memory(&self, bytes: u64) {
        self.state().faults.memory_bytes = Some(bytes);
    }

    /// The kernel of the next sandbox that is started never answers.
    pub fn mute_next_kernel(&self) {
        self.state().faults.kernels_to_mute += 1;
    }

    /// From now on no sandbox's CPU can be limited, or it can be again.
    pub fn refuse_limits(&self, on: bool) {
        self.state().faults.refuse_limits = on;
    }

    /// The output of the next sandbox that is started breaks after its first piece.
    pub fn break_next_stream(&self) {
        self.state().faults.streams_to_break += 1;
    }

    /// How the next sandbox that is started ends will not be known.
    pub fn lose_next_exit(&self) {
        self.state().faults.exits_to_lose += 1;
    }

    /// The next `count` calls of destroy fail and destroy nothing.
    pub fn fail_destroys(&self, count: u32) {
        self.state().faults.destroys_to_fail = count;
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
