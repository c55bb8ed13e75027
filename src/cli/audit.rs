//! The subcommands for the audit log.

use std::{path::PathBuf, process::ExitCode};

use clap::Subcommand;

use crate::{
    adapters::audit::verify,
    config::{self, Sources},
};

#[derive(Debug, Subcommand)]
pub enum AuditCommand {
    /// Check that no line was changed, removed, added or moved; the exit status says so.
    Verify {
        /// The files of the log, oldest first; the default is `SANDBOX_AUDIT__FILE`.
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

pub fn run(command: AuditCommand, sources: &Sources) -> anyhow::Result<ExitCode> {
    let AuditCommand::Verify { mut files } = command;
    if files.is_empty() {
        let file = config::load(sources)?.audit.file;
        anyhow::ensure!(!file.is_empty(), "name the file to verify, or set SANDBOX_AUDIT__FILE");
        files.push(file.into());
    }
    super::print(&format!("{}\n", verify(&files)?))
}
