//! Checks this machine and says what to fix: a line for each check, with one fix where it fails.
//!
//! It starts real sandboxes as a server does, and destroys them. It serves nothing and deletes no conversation.

mod engine;
mod finding;
mod machine;
mod settings;

#[cfg(test)]
mod tests;

use std::{path::Path, process::ExitCode};

use self::finding::Findings;
use crate::{
    app,
    config::{Config, ConfigError},
};

/// The findings when the settings are refused.
pub fn without_settings(error: &ConfigError, json: bool) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    findings.fail("settings", "they are refused", error);
    conclude(&findings, json)
}

pub async fn check(config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    let mut findings = Findings::default();
    findings.ok("settings", "complete");
    settings::secrets(config, &mut findings);
    let in_container = ["/.dockerenv", "/run/.containerenv"].iter().any(|file| Path::new(file).exists());
    settings::shared_folders(config, in_container, &mut findings);
    let store = machine::root(config, &mut findings);
    machine::addresses(config, &mut findings).await;
    machine::public_address(config, &mut findings);
    machine::audit(config, &mut findings);
    machine::traces(config, &mut findings).await;
    engine::check(config, store, app::engine(config).await, &mut findings).await;
    conclude(&findings, json)
}

fn conclude(findings: &Findings, json: bool) -> anyhow::Result<ExitCode> {
    super::print(&if json { findings.json()? } else { findings.text() })?;
    Ok(if findings.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
