//! Builds the service that installs packages, from the settings.

use std::{sync::Arc, time::Duration};

use crate::{
    config::{Config, ConfigError},
    domain::{clock::SystemClock, limits::Limits},
    ports::{runner::Catalog, storage::Storage},
    services::{
        files::Files,
        isolation_check::IsolationState,
        network::Network,
        packages::{Packages, PackagesOptions, PackagesParts},
        sandbox::Sandboxes,
        tokens::Tokens,
    },
};

/// CPU of an installation, in thousandths of a core.
const INSTALLING_CPU_MILLIS: u32 = 1000;

/// What installs packages, where the settings name an index.
///
/// # Errors
/// When the file of its certificates cannot be read.
pub(super) fn service(
    config: &Config,
    sandboxes: &Sandboxes,
    catalog: &Arc<Catalog>,
    (store, files): (&Arc<dyn Storage>, &Arc<Files>),
    (network, tokens): (&Network, &Arc<Tokens>),
    isolation: &IsolationState,
) -> Result<Packages, ConfigError> {
    let parts = PackagesParts {
        sandboxes: sandboxes.clone(),
        catalog: Arc::clone(catalog),
        store: Arc::clone(store) as _,
        files: Arc::clone(files),
        network: network.clone(),
        isolation: isolation.clone(),
        tokens: Arc::clone(tokens),
        clock: Arc::new(SystemClock),
    };
    Ok(Packages::new(parts, options(config, config.package_roots()?)))
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
