//! Port values to the vendor's structs and back. Pure.
//!
//! The container's profile is defined here only, and a test compares it with a literal.

use std::{collections::HashMap, path::Path};

use bollard::models::{
    ContainerCreateBody, ContainerSummary, ContainerSummaryStateEnum, ContainerUpdateBody, HealthConfig, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, ImageSummary, Mount, MountBindOptions,
    MountBindOptionsPropagationEnum, MountType, ResourcesUlimits, RestartPolicy, RestartPolicyNameEnum,
};

use super::super::labels;
use crate::{
    domain::{Limits, SandboxId, shared_folder::SharedFolder},
    ports::{
        engine::{ImageId, Listed, SandboxSpec, Volume},
        runner::RunnerImage,
    },
};

/// Selects one of our containers.
pub(super) fn id_filter(id: SandboxId) -> String {
    format!("{}={id}", labels::ID)
}

const SECCOMP: &str = include_str!("seccomp.json");

/// `/dev/shm`, which multi-process libraries need. It counts as memory.
const SHM_BYTES: i64 = 16 << 20;
/// The weight of a container among others for the processors: the engine's default, and while it loads.
const USUAL_CPU_SHARES: i64 = 1024;
const LOADING_CPU_SHARES: i64 = 256;
/// Files and folders in `/tmp`.
const TMP_INODES: u32 = 4096;
/// The same for `/data` where it is in the sandbox's memory.
const DATA_INODES: u32 = 20_000;

/// Kernel tables, hardware and traces of other tenants. This list replaces the engine's own, so it repeats it.
const MASKED: [&str; 15] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/cmdline",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/kernel",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The settings that are the same for every sandbox of one engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Profile {
    /// The OCI runtime, or the engine's default.
    pub runtime: Option<String>,
    /// Control groups v1, which have swappiness.
    pub cgroup_v1: bool,
    /// The engine is Podman, which speaks Docker's interface: the path of our seccomp profile on its host. It reads the
    /// profile from a file (until its pull request 29726), where Docker takes the text. It has no limit on the inodes
    /// of a tmpfs, and its compatible interface has no update of a container. What else it does not support is in
    /// `docs/operations.md`.
    pub podman: Option<String>,
    /// The parent of the control group of each container, or the engine's own.
    pub cgroup_parent: Option<String>,
}

/// Our own seccomp profile, which is narrower than the engine's.
pub(super) fn seccomp() -> &'static str {
    SECCOMP.trim()
}

/// The container for a sandbox whose `/data` is `source` on the engine's host; `None` where it is the sandbox's own.
pub(super) fn create_body(profile: &Profile, spec: &SandboxSpec, source: Option<&Path>) -> ContainerCreateBody {
    let environment = labels::environment(&spec.limits).into_iter();
    ContainerCreateBody {
        image: Some(spec.image.0.clone()),
        hostname: Some("sandbox".to_owned()),
        user: Some(format!("{0}:{0}", spec.uid)),
        working_dir: Some("/data".to_owned()),
        env: Some(environment.map(|(name, value)| format!("{name}={value}")).collect()),
        labels: Some(labels::of(spec).into()),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        open_stdin: Some(true),
        stdin_once: Some(true),
        tty: Some(false),
        network_disabled: Some(true),
        stop_timeout: Some(1),
        // Docker kills what it removes; Podman sends this first, and waits.
        stop_signal: profile.podman.as_ref().map(|_| "SIGKILL".to_owned()),
        healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
        host_config: Some(host_config(profile, spec, source)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(profile: &Profile, spec: &SandboxSpec, source: Option<&Path>) -> HostConfig {
    let limits = &spec.limits;
    let memory = signed(limits.memory_bytes);
    HostConfig {
        runtime: profile.runtime.clone(),
        mounts: Some(mounts(spec, source)),
        tmpfs: Some(own_folders(profile, spec)),
        network_mode: Some("none".to_owned()),
        memory: Some(memory),
        memory_swap: Some(memory),
        memory_swappiness: profile.cgroup_v1.then_some(0),
        nano_cpus: Some(nano_cpus(spec.loading_cpu_millis.unwrap_or(limits.cpu_millis))),
        cpu_shares: spec.loading_cpu_millis.map(|_| LOADING_CPU_SHARES),
        pids_limit: Some(i64::from(limits.processes_max)),
        ulimits: Some(ulimits(limits)),
        cap_drop: Some(vec!["ALL".to_owned()]),
        security_opt: Some(security(profile)),
        readonly_rootfs: Some(true),
        masked_paths: Some(owned(&MASKED)),
        readonly_paths: Some(owned(&READ_ONLY)),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        ipc_mode: Some("private".to_owned()),
        shm_size: Some(SHM_BYTES),
        cgroup_parent: profile.cgroup_parent.clone(),
        cgroupns_mode: Some(HostConfigCgroupnsModeEnum::PRIVATE),
        oom_score_adj: Some(1000),
        init: Some(!spec.own_init),
        auto_remove: Some(false),
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        ..HostConfig::default()
    }
}

/// The update that gives a container its CPU limit.
pub(super) fn update_body(cpu_millis: u32) -> ContainerUpdateBody {
    ContainerUpdateBody {
        nano_cpus: Some(nano_cpus(cpu_millis)),
        cpu_shares: Some(USUAL_CPU_SHARES),
        ..ContainerUpdateBody::default()
    }
}

/// Thousandths of a core as the engine counts them.
fn nano_cpus(cpu_millis: u32) -> i64 {
    i64::from(cpu_millis) * 1_000_000
}

/// `/data` first, then the shared folders, then the skills.
fn mounts(spec: &SandboxSpec, source: Option<&Path>) -> Vec<Mount> {
    let folder = |folder: &SharedFolder| Mount {
        read_only: (!folder.writable).then_some(true),
        ..bind(&folder.source, folder.target())
    };
    let skills = spec.skills.mounts();
    let skills = skills.map(|(path, target)| Mount { read_only: Some(true), ..bind(path, target.to_owned()) });
    let data = source.map(|source| bind(source, "/data".to_owned()));
    data.into_iter().chain(spec.folders.iter().map(folder)).chain(skills).collect()
}

/// A folder without what is mounted below it. The engine refuses a source that does not exist.
fn bind(source: &Path, target: String) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(source.to_string_lossy().into_owned()),
        target: Some(target),
        bind_options: Some(MountBindOptions {
            propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

/// Folders of the sandbox's own, in its memory. Programs may execute what is in `/data`, as they may in a folder of the
/// host.
fn own_folders(profile: &Profile, spec: &SandboxSpec) -> HashMap<String, String> {
    let options = |exec: &str, bytes: u64, inodes: u32, access: &str| {
        let names = if profile.podman.is_some() { String::new() } else { format!("nr_inodes={inodes},") };
        format!("rw,nosuid,nodev,{exec},size={bytes},{names}{access}")
    };
    let tmp = options("noexec", spec.limits.tmp_bytes, TMP_INODES, "mode=1777");
    let mut all = HashMap::from([("/tmp".to_owned(), tmp)]);
    if let Volume::Streamed { bytes } = spec.data {
        // Where the image has the folder, runc gives it that one's mode, so the user has to own it.
        let owned = format!("uid={0},gid={0},mode=755", spec.uid);
        let access = if profile.podman.is_some() { "mode=1777".to_owned() } else { owned };
        all.insert("/data".to_owned(), options("exec", bytes, DATA_INODES, &access));
    }
    all
}

/// Never `nproc`: the kernel counts it per user over all containers.
fn ulimits(limits: &Limits) -> Vec<ResourcesUlimits> {
    [
        ("nofile", i64::from(limits.open_files_max)),
        ("fsize", signed(limits.file_bytes_max)),
        ("core", 0),
        ("msgqueue", 0),
        ("memlock", 0),
        ("sigpending", 256),
    ]
    .into_iter()
    .map(|(name, max)| ResourcesUlimits { name: Some(name.to_owned()), soft: Some(max), hard: Some(max) })
    .collect()
}

fn security(profile: &Profile) -> Vec<String> {
    let list = profile.podman.as_deref().unwrap_or(seccomp());
    vec!["no-new-privileges".to_owned(), format!("seccomp={list}")]
}

/// A container as a sandbox of ours; `None`, with a log line, when it only looks like one. The name has to match as
/// well, since an image that was committed from a sandbox passes on all its labels.
pub(super) fn listed(container: &ContainerSummary) -> Option<Listed> {
    let is_named = |id: &str| container.names.iter().flatten().any(|name| name.strip_prefix('/') == Some(id));
    let running = container.state == Some(ContainerSummaryStateEnum::RUNNING);
    let labels = container.labels.as_ref();
    let parsed = labels.and_then(|labels| labels::listed(|name| labels.get(name), is_named, running));
    if parsed.is_none() {
        tracing::debug!(container = ?container.id, "has our label and is not ours");
    }
    parsed
}

/// When a sandbox is abandoned, from the labels of its container.
pub(super) fn deadline_unix_s(labels: &HashMap<String, String>) -> Option<i64> {
    labels.get(labels::DEADLINE)?.parse().ok()
}

/// An image as a runner; `None` without an allowed tag. A rebuilt image leaves its predecessor without a tag and with
/// all labels.
pub(super) fn runner_image(image: ImageSummary, allows: impl Fn(&str) -> bool) -> Option<RunnerImage> {
    let is_named = |tag: &String| !tag.starts_with("<none>") && allows(tag);
    let reference = image.repo_tags.into_iter().filter(is_named).min()?;
    Some(RunnerImage {
        id: ImageId(image.id),
        reference: Some(reference),
        created_unix_s: image.created,
        labels: image.labels,
        flaw: None,
    })
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn owned(paths: &[&str]) -> Vec<String> {
    paths.iter().map(|path| (*path).to_owned()).collect()
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
