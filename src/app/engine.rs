//! Chooses the engine by the settings and connects to it.

use std::sync::Arc;

use super::StartError;
use crate::{
    adapters::engine::{self, ConnectError, EngineOptions},
    config::Config,
    ports::engine::{Engine, Probe, SharedVolume, Volumes},
};

/// Connects to the engine that the settings name.
///
/// # Errors
/// When it does not answer, or this build does not have it.
pub async fn engine(config: &Config) -> Result<(Arc<dyn Engine>, Probe), StartError> {
    let engine = if config.engine.is_kubernetes() { cluster(config).await? } else { docker(config).await? };
    let probe = engine.probe().await?;
    Ok((engine, probe))
}

/// What sandboxes have as `/data`.
pub(super) fn volumes(config: &Config) -> Volumes {
    let settings = &config.engine;
    if settings.is_streamed() {
        return Volumes::Streamed { bytes: settings.streamed_bytes };
    }
    if settings.is_kubernetes() {
        return Volumes::Shared(SharedVolume { claim: settings.claim.clone(), mount: config.root.clone() });
    }
    Volumes::HostFolders
}

async fn docker(config: &Config) -> Result<Arc<dyn Engine>, StartError> {
    let options = EngineOptions {
        host: config.docker_host.clone(),
        runtime: config.engine.runtime.as_str().into(),
        streamed: config.engine.is_streamed(),
        images: config.engine.runner_images.as_str().into(),
        host_root: set(&config.engine.host_root).map(Into::into),
        skills_root: config.skills_root().ok().flatten(),
        skills_host_root: set(&config.skills.host_root).map(Into::into),
        cgroup_root: config.engine.cgroup_root.clone().into(),
        ..EngineOptions::new(&config.root)
    };
    engine::connect(options).await.map_err(|error| match error {
        ConnectError::Runtime { .. } | ConnectError::RootNotMounted { .. } => StartError::EngineSetting(error),
        other => StartError::Connect(other),
    })
}

#[cfg(feature = "kubernetes")]
async fn cluster(config: &Config) -> Result<Arc<dyn Engine>, StartError> {
    let settings = &config.engine;
    let options = engine::ClusterOptions {
        namespace: set(&settings.namespace),
        runtime_class: set(&settings.runtime),
        seccomp: set(&settings.seccomp_profile),
        cpus: settings.cluster_cpus,
        memory_bytes: settings.cluster_memory_bytes,
        own_port: config.http_addr.port,
        ..engine::ClusterOptions::default()
    };
    Ok(engine::connect_cluster(options).await?)
}

#[cfg(not(feature = "kubernetes"))]
#[expect(clippy::unused_async, reason = "as the function of a build that has the engine")]
async fn cluster(_config: &Config) -> Result<Arc<dyn Engine>, StartError> {
    Err(StartError::NoCluster)
}

fn set(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}
