//! Checks this machine and says what to fix: a line for each check, with one fix where it fails.
//!
//! It starts real sandboxes as a server does, and destroys them. It serves nothing and deletes no conversation. A
//! running server makes the same checks with its own engine, as another server on the same root would.
//!
//! ```text
//! checks_of ── a task for each round of checks: ends by itself, also when its caller goes away
//! ```

mod engine;
mod machine;
mod quota;

#[cfg(test)]
mod tests;

use std::{fmt::Display, path::Path, sync::Arc};

use futures_util::FutureExt as _;

use crate::{
    app::{self, StartError},
    config::{Config, ConfigError},
    domain::finding::{Finding, Level},
    ports::engine::{Engine, Probe},
    services::admin::Checks,
};

/// The findings, in the order of the checks.
#[derive(Debug, Default)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    fn ok(&mut self, check: &'static str, detail: impl Display) {
        self.0.push(Finding { level: Level::Ok, check, detail: detail.to_string(), fix: None });
    }

    fn warn(&mut self, check: &'static str, detail: impl Display, fix: impl Display) {
        self.add(Level::Warn, check, detail, fix);
    }

    fn fail(&mut self, check: &'static str, detail: impl Display, fix: impl Display) {
        self.add(Level::Fail, check, detail, fix);
    }

    /// Adds a sentence of the form "what is wrong: what to do."
    fn sentence(&mut self, level: Level, check: &'static str, sentence: &str) {
        let (detail, fix) = sentence.split_once(": ").unwrap_or((sentence, "read the log of the server or the engine"));
        self.add(level, check, detail, fix);
    }

    fn add(&mut self, level: Level, check: &'static str, detail: impl Display, fix: impl Display) {
        let fix = Some(fix.to_string().trim_end_matches('.').to_owned());
        self.0.push(Finding { level, check, detail: detail.to_string(), fix });
    }

    /// Whether programs cannot run, or not safely.
    pub fn failed(&self) -> bool {
        self.0.iter().any(|finding| finding.level == Level::Fail)
    }

    /// For people, a line each and one for its fix.
    pub fn text(&self) -> String {
        let line = |finding: &Finding| {
            let word = match finding.level {
                Level::Ok => "ok",
                Level::Warn => "warn",
                Level::Fail => "FAIL",
            };
            let fix = finding.fix.as_ref().map(|fix| format!("\n      fix: {fix}")).unwrap_or_default();
            format!("{word:<5} {}: {}{fix}\n", finding.check, finding.detail)
        };
        self.0.iter().map(line).collect()
    }

    /// For programs.
    ///
    /// # Errors
    /// None that is known.
    pub fn json(&self) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(&self.0)?;
        Ok(text + "\n")
    }
}

/// The findings when the settings are refused.
pub fn without_settings(error: &ConfigError) -> Findings {
    let mut findings = Findings::default();
    findings.fail("settings", "they are refused", error);
    findings
}

/// Every check, for a machine whose server may or may not run.
pub async fn check(config: &Config) -> Findings {
    every(config, app::engine(config).await, false).await
}

/// Every check that a running server can make: the addresses are its own.
pub(super) fn checks_of(config: &Config, engine: &Arc<dyn Engine>) -> Checks {
    let (config, engine) = (Arc::new(config.clone()), Arc::clone(engine));
    let checks = move || {
        let (config, engine) = (Arc::clone(&config), Arc::clone(&engine));
        let checks = async move {
            let probe = engine.probe().await;
            let found = probe.map(|probe| (engine, probe)).map_err(StartError::Engine);
            every(&config, found, true).await.0
        };
        checks.boxed()
    };
    Arc::new(checks)
}

/// Every check. A server that serves has its addresses itself.
async fn every(config: &Config, engine: Result<(Arc<dyn Engine>, Probe), StartError>, serves: bool) -> Findings {
    let mut findings = Findings::default();
    let in_container = in_container(Path::new("/"));
    findings.ok("settings", "complete");
    machine::secrets(config, &mut findings);
    machine::secrets_of_programs(config, &mut findings);
    machine::shared_folders(config, in_container, &mut findings);
    let store = machine::root(config, &mut findings);
    if !serves {
        machine::addresses(config, in_container, &mut findings).await;
    }
    machine::public_address(config, in_container, &mut findings);
    machine::audit(config, &mut findings);
    machine::traces(config, &mut findings).await;
    engine::check(config, store, engine, in_container, &mut findings).await;
    findings
}

/// What is in containers of Docker, in those of Podman and CRI-O, and in pods whatever runs them.
const IN_CONTAINERS: [&str; 3] = [".dockerenv", "run/.containerenv", "var/run/secrets/kubernetes.io/serviceaccount"];

/// Whether this is the root folder of a container, whose addresses, but not the host's folders, are its own.
fn in_container(root: &Path) -> bool {
    IN_CONTAINERS.iter().any(|file| root.join(file).exists())
}
