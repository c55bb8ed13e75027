//! Builds the service that installs packages, from the settings.

use std::time::Duration;

use crate::{
    config::{Config, ConfigError},
    domain::limits::Limits,
    services::{
        packages::{Packages, PackagesOptions},
        shared_parts::SharedParts,
    },
};

/// CPU of an installation, in thousandths of a core.
const INSTALLING_CPU_MILLIS: u32 = 1000;

/// What installs packages, where the settings name an index.
///
/// # Errors
/// When the file of its certificates cannot be read.
pub(super) fn service(config: &Config, shared: &SharedParts) -> Result<Packages, ConfigError> {
    Ok(Packages::new(shared.clone(), options(config, config.package_roots()?)))
}

/// `None` where packages are off. Checked when the settings were loaded.
fn options(config: &Config, roots: Option<String>) -> Option<PackagesOptions> {
    let packages = &config.packages;
    let set = |text: &String| (!text.is_empty()).then(|| text.clone());
    let usual = config.limits.limits();
    let limits = Limits {
        cpu_millis: usual.cpu_millis.max(INSTALLING_CPU_MILLIS),
        memory_bytes: packages.memory_bytes,
        wall_ms: packages.install_s * 1000,
        ..usual
    };
    Some(PackagesOptions {
        python_index: set(&packages.python_index),
        npm_registry: set(&packages.npm_registry),
        policy: config.package_hosts().ok().flatten()?,
        roots,
        builds: packages.builds,
        limits,
        fresh: Duration::from_secs(packages.fresh_s),
        kept: Duration::from_secs(packages.kept_s),
        owner_bytes_max: packages.owner_bytes_max,
    })
}
