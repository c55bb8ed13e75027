//! Chooses the engine by the settings and connects to it, and the users that programs run as on this machine.

use std::{fs, sync::Arc};

use super::StartError;
use crate::{
    adapters::engine::{self, ConnectError, EngineOptions},
    config::{Config, ConfigError},
    domain::{
        RunnerUsers,
        users::{DEFAULT_RANGE, UserRange},
    },
    ports::engine::{Engine, Probe, Volumes},
};

/// Ids of users and groups in the namespace of this process and in that of its parent, which usually is the host's
/// (`user_namespaces(7)`).
const ID_MAPS: [&str; 2] = ["/proc/self/uid_map", "/proc/self/gid_map"];

/// Connects to the engine that the settings name.
///
/// # Errors
/// When it does not answer, or this build does not have it.
pub async fn engine(config: &Config) -> Result<(Arc<dyn Engine>, Probe), StartError> {
    let engine = if config.engine.is_kubernetes() { cluster(config).await? } else { container_engine(config).await? };
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
        return Volumes::Shared { claim: settings.claim.clone(), mount: config.root.clone() };
    }
    Volumes::HostFolders
}

async fn container_engine(config: &Config) -> Result<Arc<dyn Engine>, StartError> {
    let options = EngineOptions {
        host: config.docker_host.clone(),
        runtime: config.engine.runtime.as_str().into(),
        streamed: config.engine.is_streamed(),
        images: config.engine.runner_images.as_str().into(),
        host_root: set(&config.engine.host_root).map(Into::into),
        skills_root: config.skills_root().ok().flatten(),
        skills_host_root: set(&config.skills.host_root).map(Into::into),
        cgroup_root: config.engine.cgroup_root.clone().into(),
        cgroup_parent: set(&config.engine.cgroup_parent),
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

pub(super) fn set(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// The users that programs run as.
///
/// # Errors
/// When the settings name users that this process cannot hand files to.
pub(super) fn runner_users(config: &Config) -> Result<RunnerUsers, ConfigError> {
    let is_root = rustix::process::geteuid().is_root();
    choose(config, is_root, || ID_MAPS.iter().all(|map| fs::read_to_string(map).is_ok_and(|map| is_whole(&map))))
}

fn choose(config: &Config, is_root: bool, has_all_ids: impl FnOnce() -> bool) -> Result<RunnerUsers, ConfigError> {
    let usual = config.engine.runner_uid;
    // Shared folders belong to users of the host.
    let suits = || Ok::<_, ConfigError>(!config.engine.is_kubernetes() && config.shared_folders()?.is_empty());
    Ok(match config.engine.user_range()? {
        UserRange::Is(_) if !is_root => {
            let why = "SANDBOX_ENGINE__RUNNER_UIDS needs a server that is root, since only root can hand files to \
                       other users: run it as root, or unset it.";
            return Err(ConfigError(why.to_owned()));
        }
        UserRange::Is(range) => RunnerUsers::each(usual, range),
        UserRange::Automatic if is_root && suits()? && has_all_ids() => RunnerUsers::each(usual, DEFAULT_RANGE),
        UserRange::Automatic | UserRange::Off => RunnerUsers::one(usual),
    })
}

/// Whether all ids are those of the host. A user's own engine and some containers have fewer.
fn is_whole(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Sources};

    fn chosen(more: &[(&str, &str)], is_root: bool, has_all_ids: bool) -> Result<RunnerUsers, String> {
        let usual = [("MCP_API_TOKEN", "0123456789abcdef-of-the-tests"), ("FILE_SECRET", "fedcba9876543210-of-tests")];
        let pairs = usual.iter().chain(more).map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let config = config::load(&Sources::environment_only(pairs)).expect("settings");
        choose(&config, is_root, || has_all_ids).map_err(|error| error.0)
    }

    #[test]
    fn conversations_have_users_where_the_server_can_give_them_some() {
        let (one, each) = (RunnerUsers::one(1000), RunnerUsers::each(1000, DEFAULT_RANGE));
        assert_eq!(chosen(&[], true, true), Ok(each));
        assert_eq!(chosen(&[], false, true), Ok(one));
        assert_eq!(chosen(&[], true, false), Ok(one));
        assert_eq!(chosen(&[("SANDBOX_MOUNTS__DOCS", "/srv/docs")], true, true), Ok(one));
        assert_eq!(chosen(&[("SANDBOX_ENGINE__RUNNER_UIDS", "off")], true, true), Ok(one));
        let range = [("SANDBOX_ENGINE__RUNNER_UIDS", "5000-5999"), ("SANDBOX_MOUNTS__DOCS", "/srv/docs")];
        assert_eq!(chosen(&range, true, false), Ok(RunnerUsers::each(1000, 5000..=5999)));
        let refused = chosen(&range, false, true).expect_err("refused");
        assert!(refused.starts_with("SANDBOX_ENGINE__RUNNER_UIDS needs a server that is root"), "{refused}");
    }

    #[test]
    fn all_ids_are_there_only_outside_of_user_namespaces() {
        assert!(is_whole("         0          0 4294967295\n"));
        assert!(!is_whole("         0       1000          1\n         1     100000      65536\n"));
        assert!(!is_whole("         0     100000      65536\n"));
        assert!(!is_whole(""));
    }
}
