//! Builds the services whose sandboxes have limits of their own, from the settings: what checks programs, what installs
//! packages, and what makes modules for tools.

use std::{sync::Arc, time::Duration};

use super::{StartError, engine::set, options};
use crate::{
    adapters::{database::Database, tools::Connector},
    config::Config,
    domain::{Limits, clock::SystemClock},
    services::{
        admission::{Admission, AdmissionOptions},
        check::Checker,
        packages::{Packages, PackagesOptions},
        shared_parts::SharedParts,
        tools::{Approvals, Directory, SandboxedServers, Tools, ToolsParts},
    },
};

/// The least CPU of each, in thousandths of a core.
const CPU_MILLIS_MIN: u32 = 1000;
/// Checks at once: they are outside of the queue of runs.
const CHECKS_AT_ONCE_MAX: usize = 2;
/// Checks that wait, and how long.
const CHECKS_WAITING_MAX: usize = 32;
const CHECK_WAIT_MAX: Duration = Duration::from_secs(15);
/// What one check may take.
const CHECK_MS: u64 = 10_000;
/// The answer may be this much longer than four times the longest program: a formatted one, escaped, and problems.
const MORE_OUTPUT_BYTES: u64 = 1 << 20;
/// What making the modules of one server may take.
const GENERATE_MS: u64 = 120_000;
/// The sources of one server together, in bytes.
const GENERATE_OUTPUT_BYTES: u64 = 32 << 20;

fn limits(config: &Config, wall_ms: u64) -> Limits {
    let usual = config.limits.limits();
    Limits { cpu_millis: usual.cpu_millis.max(CPU_MILLIS_MIN), wall_ms, ..usual }
}

fn with_output(limits: Limits, bytes: u64) -> Limits {
    Limits { output_bytes_max: bytes, output_kept_bytes: bytes, ..limits }
}

pub(super) fn checker(config: &Config, shared: &SharedParts) -> Checker {
    let program_bytes_max = config.limits.program_bytes_max;
    let output = program_bytes_max.saturating_mul(4).saturating_add(MORE_OUTPUT_BYTES);
    let limits = with_output(limits(config, CHECK_MS), output);
    let admission = AdmissionOptions {
        queue_max: CHECKS_WAITING_MAX,
        wait_max: CHECK_WAIT_MAX,
        conversation_max: 1,
        ..options::admission(config, CHECKS_AT_ONCE_MAX)
    };
    let program_bytes_max = usize::try_from(program_bytes_max).unwrap_or(usize::MAX);
    Checker::new(shared.clone(), Admission::new(admission), limits, program_bytes_max)
}

/// What installs packages, where the settings name an index.
///
/// # Errors
/// When the file of its certificates cannot be read.
pub(super) fn packages(config: &Config, shared: &SharedParts) -> Result<Packages, StartError> {
    let (packages, roots) = (&config.packages, config.package_roots()?);
    // Checked when the settings were loaded.
    let policy = config.package_hosts().ok().flatten();
    let options = policy.map(|policy| PackagesOptions {
        python_index: set(&packages.python_index),
        npm_registry: set(&packages.npm_registry),
        policy,
        roots,
        builds: packages.builds,
        limits: Limits { memory_bytes: packages.memory_bytes, ..limits(config, packages.install_s * 1000) },
        fresh: Duration::from_secs(packages.fresh_s),
        kept: Duration::from_secs(packages.kept_s),
        owner_bytes_max: packages.owner_bytes_max,
    });
    Ok(Packages::new(shared.clone(), options))
}

/// # Errors
/// When a secret cannot be read, or TLS cannot be set up.
pub(super) fn tools(config: &Config, database: &Database, shared: &SharedParts) -> Result<Tools, StartError> {
    let (stored, clock) = (Arc::new(database.clone()), Arc::new(SystemClock));
    let path = config.tool_calls.path.clone().into();
    let in_sandboxes = SandboxedServers::new(shared.clone(), config.tool_calls.sandboxes_max);
    let ways = (Arc::new(Connector::new(path)?) as _, in_sandboxes);
    let directory = Directory::new(config.tool_servers()?, stored.clone(), ways, clock.clone());
    let ask_max = Duration::from_secs(config.tool_calls.ask_s);
    let observer = Arc::clone(&shared.observer);
    let approvals = Approvals::new(stored, observer, clock, ask_max);
    let parts = ToolsParts {
        shared: shared.clone(),
        directory: Arc::new(directory),
        approvals: Arc::new(approvals),
        generator_limits: with_output(limits(config, GENERATE_MS), GENERATE_OUTPUT_BYTES),
    };
    Ok(Tools::new(parts, config.tool_calls.per_run_max))
}
