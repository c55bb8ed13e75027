//! Engines: what makes sandboxes. [`connect`] and `connect_cluster` are the only ways in for a server, so that nothing
//! above names a vendor.

mod changes;
pub mod docker;
pub mod fake;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod labels;
pub mod observed;

use std::sync::Arc;

pub use self::docker::{ConnectError, DockerOptions as EngineOptions, proxy};
#[cfg(feature = "kubernetes")]
pub use self::kubernetes::{ConnectError as ClusterError, KubernetesOptions as ClusterOptions};
use crate::ports::engine::Engine;

/// The engine that the options name.
///
/// # Errors
/// When nothing usable answers.
pub async fn connect(options: EngineOptions) -> Result<Arc<dyn Engine>, ConnectError> {
    Ok(Arc::new(docker::DockerEngine::connect(options).await?))
}

/// The engine of a cluster.
///
/// # Errors
/// When nothing usable answers.
#[cfg(feature = "kubernetes")]
pub async fn connect_cluster(options: ClusterOptions) -> Result<Arc<dyn Engine>, ClusterError> {
    Ok(Arc::new(kubernetes::KubernetesEngine::connect(options).await?))
}
