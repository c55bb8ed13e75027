//! Checks this machine and says what to fix: a line for each check, with one fix where it fails.
//!
//! It starts real sandboxes as a server does, and destroys them. It serves nothing and deletes no conversation. A
//! running server makes the same checks with its own engine, as another server on the same root would.
//!
//! ```text
//! checks_of ── a task for each round of checks: ends by itself, also when its caller goes away
//! ```

mod engine;
mod finding;
mod machine;
mod settings;

#[cfg(test)]
mod tests;

use std::{path::Path, sync::Arc};

use futures_util::FutureExt as _;

pub use self::finding::Findings;
use crate::{
    app::{self, StartError},
    config::{Config, ConfigError},
    ports::engine::{Engine, Probe},
    services::admin::Checks,
};

/// The findings when the settings are refused.
pub fn without_settings(error: &ConfigError) -> Findings {
    let mut findings = Findings::default();
    findings.fail("settings", "they are refused", error);
    findings
}

/// Every check, for a machine whose server may or may not run.
pub async fn check(config: &Config) -> Findings {
    let mut findings = Findings::default();
    machine::addresses(config, in_container(Path::new("/")), &mut findings).await;
    rest(config, app::engine(config).await, findings).await
}

/// Every check that a running server can make: the addresses are its own.
pub(super) fn checks_of(config: &Config, engine: &Arc<dyn Engine>) -> Checks {
    let (config, engine) = (Arc::new(config.clone()), Arc::clone(engine));
    let checks = move || {
        let (config, engine) = (Arc::clone(&config), Arc::clone(&engine));
        let checks = async move {
            let probe = engine.probe().await;
            let found = probe.map(|probe| (engine, probe)).map_err(StartError::Engine);
            rest(&config, found, Findings::default()).await.0
        };
        checks.boxed()
    };
    Arc::new(checks)
}

async fn rest(config: &Config, engine: Result<(Arc<dyn Engine>, Probe), StartError>, addresses: Findings) -> Findings {
    let mut findings = Findings::default();
    let in_container = in_container(Path::new("/"));
    findings.ok("settings", "complete");
    settings::secrets(config, &mut findings);
    settings::secrets_of_programs(config, &mut findings);
    settings::shared_folders(config, in_container, &mut findings);
    let store = machine::root(config, &mut findings);
    findings.0.extend(addresses.0);
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
