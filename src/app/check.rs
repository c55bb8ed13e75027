//! Builds the service that formats and checks programs, from the settings.

use std::time::Duration;

use crate::{
    config::Config,
    domain::limits::Limits,
    services::{
        admission::{Admission, AdmissionOptions},
        check::Checker,
        shared_parts::SharedParts,
    },
};

/// Checks at once: they are outside of the queue of runs.
const AT_ONCE_MAX: usize = 2;
/// Checks that wait, and how long.
const WAITING_MAX: usize = 32;
const WAIT_MAX: Duration = Duration::from_secs(15);
/// What one check may take.
const CHECK_MS: u64 = 10_000;
const CHECK_CPU_MILLIS: u32 = 1000;
/// The answer may be this much longer than four times the longest program: a formatted one, escaped, and problems.
const MORE_OUTPUT_BYTES: u64 = 1 << 20;

pub(super) fn service(config: &Config, shared: &SharedParts) -> Checker {
    let (usual, program_bytes_max) = (config.limits.limits(), config.limits.program_bytes_max);
    let output = program_bytes_max.saturating_mul(4).saturating_add(MORE_OUTPUT_BYTES);
    let limits = Limits {
        cpu_millis: usual.cpu_millis.max(CHECK_CPU_MILLIS),
        wall_ms: CHECK_MS,
        output_bytes_max: output,
        output_kept_bytes: output,
        ..usual
    };
    let admission = AdmissionOptions {
        slots: AT_ONCE_MAX,
        queue_max: WAITING_MAX,
        wait_max: WAIT_MAX,
        conversation_max: 1,
        bytes_max: usize::try_from(config.server.bodies_bytes_max).unwrap_or(usize::MAX),
        rate_a_minute: config.admission.rate_per_minute,
        rate_burst: config.admission.rate_burst,
    };
    let program_bytes_max = usize::try_from(program_bytes_max).unwrap_or(usize::MAX);
    Checker::new(shared.clone(), Admission::new(admission), limits, program_bytes_max)
}
