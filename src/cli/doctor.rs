//! Checks this machine and says what to mend, a line each: what, whether it is well, and the one fix.

use std::process::ExitCode;

use crate::{
    app,
    ground::config::{Config, ConfigError},
    ports::{
        runner::Runner,
        store::{Owner, Store},
    },
};

struct Findings {
    text: String,
    failed: bool,
}

impl Findings {
    fn note(&mut self, word: &str, what: &str, detail: &str) {
        self.failed |= word == "FAIL";
        self.text.extend([format!("{word:<5}"), format!("{what}: {detail}\n")]);
    }
}

/// What can be said when the settings are refused.
pub fn without_settings(error: &ConfigError) -> anyhow::Result<ExitCode> {
    super::print(&format!("FAIL  settings: {error}\n"))?;
    Ok(ExitCode::FAILURE)
}

/// Every check.
pub async fn check(config: &Config) -> anyhow::Result<ExitCode> {
    let mut findings = Findings { text: String::new(), failed: false };
    findings.note("ok", "settings", "complete");
    let owner = Owner { uid: config.engine.runner_uid, gid: config.engine.runner_uid };
    match Store::open(&config.root, owner) {
        Ok(_) => findings.note("ok", "files", &format!("{} can be used", config.root.display())),
        Err(error) => findings.note("FAIL", "files", &error.to_string()),
    }
    match app::listen(config).await {
        Ok(_) => findings.note("ok", "address", &format!("{} is free", config.http_addr)),
        Err(_) => findings.note(
            "warn",
            "address",
            &format!("{} is in use: by this server, or by another program", config.http_addr),
        ),
    }
    engine(config, &mut findings).await;
    super::print(&findings.text)?;
    Ok(if findings.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn engine(config: &Config, findings: &mut Findings) {
    let (engine, probe) = match app::engine(config).await {
        Ok(found) => found,
        Err(error) => {
            let error = anyhow::Error::from(error);
            return findings.note("FAIL", "engine", &format!("{error:#}"));
        }
    };
    let what = format!("{}, API {}, {}, {}", probe.engine, probe.api_version, probe.runtime, probe.platform);
    findings.note("ok", "engine", &what);
    for warning in &probe.warnings {
        findings.note("warn", "engine", warning);
    }
    match engine.runners().await {
        Ok(images) if images.is_empty() => {
            findings.note("FAIL", "runners", "no image carries the label sandbox.runner=true: run ./build.sh");
        }
        Ok(images) => {
            for image in images {
                let name = image.reference.clone().unwrap_or_else(|| image.id.0.clone());
                match Runner::from_image(&image) {
                    Ok(runner) => findings.note("ok", "runner", &format!("{} ({name})", runner.language)),
                    Err(why) => findings.note("warn", "runner", &format!("{name}: {why}")),
                }
            }
        }
        Err(error) => findings.note("FAIL", "runners", &error.to_string()),
    }
}
