//! Engines: what makes sandboxes. [`connect`] is the only way in for a server, so that nothing above names a vendor.

pub mod docker;
pub mod fake;
pub mod observed;

use std::sync::Arc;

pub use self::docker::{ConnectError, DockerOptions as EngineOptions, proxy};
use crate::ports::engine::Engine;

/// The engine that the options name.
///
/// # Errors
/// When nothing usable answers.
pub async fn connect(options: EngineOptions) -> Result<Arc<dyn Engine>, ConnectError> {
    Ok(Arc::new(docker::DockerEngine::connect(options).await?))
}
