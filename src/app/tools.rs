//! Builds the service of tools, from the settings.

use std::{sync::Arc, time::Duration};

use super::StartError;
use crate::{
    adapters::{database::Database, tools::Connector},
    config::Config,
    domain::{clock::SystemClock, limits::Limits},
    services::{
        shared_parts::SharedParts,
        tools::{Approvals, Directory, SandboxedServers, Tools, ToolsParts},
    },
};

/// What makes modules has as long, and as much of a processor.
const GENERATE_MS: u64 = 120_000;
const GENERATE_CPU_MILLIS: u32 = 1000;
/// The sources of one server together, in bytes.
const GENERATE_OUTPUT_BYTES: u64 = 32 << 20;

/// # Errors
/// When a secret cannot be read, or TLS cannot be set up.
pub(super) fn service(config: &Config, database: Option<&Database>, shared: &SharedParts) -> Result<Tools, StartError> {
    let (stored, clock) = (database.map(|database| Arc::new(database.clone())), Arc::new(SystemClock));
    let usual = config.limits.limits();
    let generator_limits = Limits {
        cpu_millis: usual.cpu_millis.max(GENERATE_CPU_MILLIS),
        wall_ms: GENERATE_MS,
        output_bytes_max: GENERATE_OUTPUT_BYTES,
        output_kept_bytes: GENERATE_OUTPUT_BYTES,
        ..usual
    };
    let of_servers = stored.clone().map(|stored| stored as _);
    let path = config.tool_calls.path.clone().into();
    let in_sandboxes = SandboxedServers::new(shared.clone(), config.tool_calls.sandboxes_max);
    let ways = (Arc::new(Connector::new(path)?) as _, in_sandboxes);
    let directory = Directory::new(config.tool_servers()?, of_servers, ways, clock.clone());
    let ask_max = Duration::from_secs(config.tool_calls.ask_s);
    let observer = Arc::clone(&shared.observer);
    let approvals = Approvals::new(stored.map(|stored| stored as _), observer, clock, ask_max);
    let parts = ToolsParts {
        shared: shared.clone(),
        directory: Arc::new(directory),
        approvals: Arc::new(approvals),
        generator_limits,
    };
    Ok(Tools::new(parts, config.tool_calls.per_run_max))
}
