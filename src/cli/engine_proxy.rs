//! The subcommand of the container that holds the engine's socket. It reads none of the server's secrets.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::Args;

use crate::{
    adapters::engine::proxy::{Proxy, ProxyOptions},
    config::{self, telemetry},
    domain::{
        RunnerUsers,
        users::{DEFAULT_RANGE, UserRange},
    },
};

#[derive(Debug, Args)]
pub struct ProxyArgs {
    /// The socket to listen on.
    #[arg(long, value_name = "PATH", default_value = "/run/sandbox-engine/engine.sock")]
    listen: PathBuf,
    /// The socket of the engine.
    #[arg(long, value_name = "unix://PATH", env = "DOCKER_HOST", default_value = "unix:///var/run/docker.sock")]
    engine: String,
    /// The `SANDBOX_ROOT` of the server, which is the same path here and on the engine's host.
    #[arg(long, value_name = "PATH", env = "SANDBOX_ROOT", default_value = "/var/sandboxes")]
    root: PathBuf,
    /// The `SANDBOX_SKILLS__ROOT` of the server, which is the same path here and on the engine's host.
    #[arg(long, value_name = "PATH", env = "SANDBOX_SKILLS__ROOT", default_value = "")]
    skills_root: String,
    /// The user that programs run as, as in the settings of the server.
    #[arg(long, value_name = "UID", env = "SANDBOX_ENGINE__RUNNER_UID", default_value_t = 1000)]
    runner_uid: u32,
    /// Users of conversations, as in the settings of the server.
    #[arg(long, value_name = "FIRST-LAST", env = "SANDBOX_ENGINE__RUNNER_UIDS", default_value = "")]
    runner_uids: UserRange,
    /// The OCI runtime, as in the settings of the server.
    #[arg(long, value_name = "NAME", env = "SANDBOX_ENGINE__RUNTIME", default_value = "")]
    runtime: String,
    /// The parent of the cgroups of sandboxes, as in the settings of the server.
    #[arg(long, value_name = "SLICE", env = "SANDBOX_ENGINE__CGROUP_PARENT", default_value = "")]
    cgroup_parent: String,
    /// The images that may be runners, as in the settings of the server.
    #[arg(long, value_name = "PATTERNS", env = "SANDBOX_ENGINE__RUNNER_IMAGES", default_value = "")]
    runner_images: String,
}

/// Serves until a signal.
///
/// The folders that sandboxes may see are settings with names of their own, so they come from the environment.
pub fn run(args: ProxyArgs, environment: &[(String, String)]) -> anyhow::Result<ExitCode> {
    let ProxyArgs { listen, engine, root, skills_root, runner_uid, runner_uids, runtime, .. } = args;
    let cgroup_parent = Some(args.cgroup_parent).filter(|parent| !parent.is_empty());
    let (runtime, images) = (runtime.as_str().into(), args.runner_images.as_str().into());
    // The server decides whether it uses the default range.
    let users = match runner_uids {
        UserRange::Automatic => RunnerUsers::each(runner_uid, DEFAULT_RANGE),
        UserRange::Is(range) => RunnerUsers::each(runner_uid, range),
        UserRange::Off => RunnerUsers::one(runner_uid),
    };
    let folders = config::shared_folders(environment, &root)?;
    let skills = config::skills_root(Path::new(&skills_root), &root)?;
    telemetry::init("info", false)?;
    tokio::runtime::Runtime::new().context("no runtime")?.block_on(async {
        let proxy = Proxy::new(ProxyOptions { engine, root, users, runtime, cgroup_parent, images, folders, skills })?;
        let listener = Proxy::listen(&listen)?;
        let shutdown = super::stop_on_signal()?;
        tracing::info!(socket = %listen.display(), "serving calls that start sandboxes, and no others");
        proxy.serve(listener, shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
