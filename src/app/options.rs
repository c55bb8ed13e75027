//! The options of each part, made from the settings: a function for each part. No other module knows both settings and
//! options.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{
    api::{
        http::{ApiParts, auth::Proxies, body::Bodies, guard::Names, mcp::McpHttpOptions, peers::Relay},
        mcp::{Downscaler, McpOptions, McpParts, OpenQuestions, View},
    },
    config::{BaseUrl, Config},
    domain::{AllowedVariables, address::networks},
    ports::{engine::Probe, storage::Usage},
    services::{
        admission::{self, AdmissionOptions},
        files::FilesOptions,
        history::HistoryOptions,
        quota::QuotaOptions,
        retention::RetentionOptions,
        runs::RunsOptions,
        sessions::SessionsOptions,
        standby::StandbyOptions,
    },
};

/// How long after the end of any run a conversation still counts as in use.
const IN_USE_MARGIN: Duration = Duration::from_mins(5);

/// The names that the server answers to.
pub(super) fn names(config: &Config) -> Names {
    // Checked when the settings were loaded.
    let files_url = config.files_base_url().ok().filter(|_| !config.files.base_url.is_empty());
    Names::new(config.public_base_url.uri(), config.server.allowed_hosts.split(',').map(str::to_owned))
        .with_files_at(files_url.as_ref().map(BaseUrl::uri))
        .with_origins(config.server.cors_origins.split(','))
}

/// Checked when the settings were loaded.
pub(super) fn proxies(config: &Config) -> Proxies {
    networks(&config.server.trusted_proxies).unwrap_or_default().into()
}

pub(super) fn variables(config: &Config) -> AllowedVariables {
    AllowedVariables::parse(&config.env.allowed).unwrap_or_default()
}

/// Programs that may run at once.
pub fn slots(config: &Config, probe: &Probe) -> usize {
    match config.admission.slots as usize {
        0 => admission::slots_for(probe.cpus, probe.memory_bytes, config.limits.memory_bytes),
        slots => slots,
    }
}

pub(super) fn admission(config: &Config, slots: usize) -> AdmissionOptions {
    AdmissionOptions {
        slots,
        queue_max: config.admission.queue_max as usize,
        wait_max: Duration::from_millis(config.admission.queue_wait_ms),
        conversation_max: config.admission.conversation_max as usize,
        bytes_max: usize::try_from(config.server.bodies_bytes_max).unwrap_or(usize::MAX),
        rate_a_minute: config.admission.rate_per_minute,
        rate_burst: config.admission.rate_burst,
    }
}

/// Standbys that load at once, also where there are fewer cores.
const LOADING_MIN: usize = 2;

pub(super) fn standby(config: &Config, probe: &Probe) -> StandbyOptions {
    let standby = &config.standby;
    StandbyOptions {
        total_max: standby.total_max as usize,
        memory_bytes_max: standby.memory_bytes_max,
        unassigned_max: standby.nameless_max as usize,
        idle_max: Duration::from_secs(standby.idle_s),
        used_max: Duration::from_secs(standby.used_s),
        age_max: Duration::from_secs(standby.age_s),
        session_age_max: Duration::from_secs(config.sessions.age_s),
        loading_max: (probe.cpus as usize).max(LOADING_MIN),
    }
}

pub(super) fn sessions(config: &Config) -> SessionsOptions {
    SessionsOptions {
        memory_bytes_max: config.sessions.memory_bytes_max,
        idle_max: Duration::from_secs(config.sessions.idle_s),
        age_max: Duration::from_secs(config.sessions.age_s),
    }
}

pub(super) fn runs(config: &Config) -> RunsOptions {
    RunsOptions {
        program_bytes_max: usize::try_from(config.limits.program_bytes_max).unwrap_or(usize::MAX),
        detach: config.runs.on_disconnect == "detach",
        kept_runs_max: config.runs.kept_max as usize,
        kept_bytes_max: usize::try_from(config.runs.kept_bytes).unwrap_or(usize::MAX),
        kept_age: Duration::from_secs(config.runs.kept_age_s),
    }
}

pub(super) fn files(config: &Config) -> FilesOptions {
    FilesOptions {
        url_ttl_s: config.files.url_ttl_s,
        entries_max: config.files.listed_max as usize,
        depth_max: config.files.depth_max as usize,
        write_bytes_max: config.files.write_bytes_max,
        waiting_bytes_max: usize::try_from(config.server.bodies_bytes_max).unwrap_or(usize::MAX),
        quota: QuotaOptions {
            bytes_max: config.quota.bytes_max,
            entries_max: config.quota.entries_max.into(),
            free_bytes_min: config.quota.free_bytes_min,
            owner_bytes_max: Some(config.quota.owner_bytes_max).filter(|max| *max > 0),
        },
    }
}

/// The size of a conversation's own disk.
pub fn own_disk(config: &Config) -> Usage {
    Usage { bytes: config.quota.bytes_max, entries: config.quota.entries_max.into() }
}

/// What project quotas limit where there are any. Not on Kubernetes: there the cluster's own list of system calls may
/// be in force, with which a program can give its files the project of another conversation.
pub fn project_quota(config: &Config) -> Option<Usage> {
    (!config.quota.hard && !config.engine.is_kubernetes()).then(|| own_disk(config))
}

pub(super) fn retention(config: &Config) -> RetentionOptions {
    let unused_s = config.quota.kept_unused_s;
    let total_bytes = config.quota.total_bytes_max;
    RetentionOptions {
        unused_max: (unused_s > 0).then(|| Duration::from_secs(unused_s)),
        total_bytes_max: (total_bytes > 0).then_some(total_bytes),
        in_use: Duration::from_millis(config.limits.wall_ms) + IN_USE_MARGIN,
        own_disks: config.quota.hard,
    }
}

/// What MCP clients see by default. Wrong groups are refused with the settings.
fn view(config: &Config) -> View {
    let view = View { dotted: config.mcp.names == "dotted", structured: config.mcp.structured, ..View::default() };
    view.with_groups(&config.mcp.tools).unwrap_or(view)
}

/// The parts of the tools.
pub(super) fn tools(config: &Config, api: ApiParts) -> McpParts {
    let ApiParts { runs, history, files, sessions, packages, skills, tools, checker, .. } = api;
    let options = McpOptions {
        image_bytes_max: config.files.image_bytes_max,
        images_max: config.files.images_max as usize,
        read_bytes_max: config.files.read_bytes_max,
        write_bytes_max: config.files.write_bytes_max,
        limits: config.limits.limits(),
        wait_default: Duration::from_secs(config.runs.wait_s_default),
        folders: config.shared_folders().unwrap_or_default(),
        variables: variables(config),
        view: view(config),
    };
    let pictures = Downscaler::default();
    let questions = OpenQuestions::default();
    McpParts { runs, history, files, sessions, packages, skills, tools, checker, questions, pictures, options }
}

pub(super) fn mcp_http(
    config: &Config,
    (bodies, relay): (&Bodies, &Relay),
    shutdown: CancellationToken,
) -> McpHttpOptions {
    McpHttpOptions {
        bodies: bodies.clone(),
        relay: relay.clone(),
        sessions_max: config.server.sessions_max as usize,
        principal_sessions_max: config.server.token_sessions_max as usize,
        run_max: Duration::from_millis(config.limits.wall_ms + config.admission.queue_wait_ms),
        shutdown,
    }
}

pub(super) fn history(config: &Config) -> HistoryOptions {
    let history = &config.history;
    let source = usize::try_from(history.source_bytes_max).unwrap_or(usize::MAX);
    HistoryOptions {
        source_bytes_max: if history.source { source } else { 0 },
        kept: (history.kept_s > 0).then(|| Duration::from_secs(history.kept_s)),
        kept_max: history.kept_max,
        kept_bytes: history.kept_bytes,
    }
}

pub(super) fn bodies(config: &Config) -> Bodies {
    let bytes = |setting: u64| usize::try_from(setting).unwrap_or(usize::MAX);
    let server = &config.server;
    let read_max = Duration::from_millis(server.body_read_ms);
    Bodies::new(bytes(server.body_bytes_max), read_max, bytes(server.bodies_bytes_max))
}
