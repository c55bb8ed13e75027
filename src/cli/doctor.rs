//! Checks this machine and says what to fix. The checks are in [`crate::app::doctor`].

use std::process::ExitCode;

use crate::{
    app::doctor::{self, Findings},
    config::{Config, ConfigError},
};

/// The findings when the settings are refused.
pub fn without_settings(error: &ConfigError, json: bool) -> anyhow::Result<ExitCode> {
    conclude(&doctor::without_settings(error), json)
}

pub async fn check(config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    conclude(&doctor::check(config).await, json)
}

fn conclude(findings: &Findings, json: bool) -> anyhow::Result<ExitCode> {
    super::print(&if json { findings.json()? } else { findings.text() })?;
    Ok(if findings.failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
