//! The settings of the engine, and which engine they name.

use super::{Config, ConfigError, ensure, one_of, section};
use crate::domain::users::UserRange;

/// The value of `SANDBOX_ENGINE__KIND` for an engine that speaks Docker's interface.
const DOCKER: &str = "docker";
const KUBERNETES: &str = "kubernetes";
/// The values of `SANDBOX_ENGINE__FILES`.
const MOUNTED: &str = "mounted";
const STREAMED: &str = "streamed";

section! {
    /// The container engine.
    pub struct Engine("engine") {
        /// What runs sandboxes: `docker` (or Podman), or `kubernetes`, by KUBECONFIG or the service account of the
        /// pod of the server.
        kind: String = DOCKER.to_owned(),
        /// The OCI runtime, such as runsc for gVisor; an error if the engine does not have it. `default`: the default
        /// of the engine. With Kubernetes the runtime class; empty: that of the pod templates. Otherwise empty: crun if
        /// the default of the engine is runc, it also has crun, and crun passes the self-test; otherwise the default
        /// of the engine.
        runtime: String = String::new(),
        /// Images that may be runners, by name or id: patterns separated by commas, in which `*` stands for any text,
        /// such as `runner-*:latest`. Empty: every image with the runner label.
        runner_images: String = String::new(),
        /// SANDBOX_ROOT as the host of the engine sees it. Empty: found by inspecting the container of the server, if
        /// it runs in one.
        host_root: String = String::new(),
        /// The cgroup file system of the host as this process sees it. It shows which limit a program reached.
        cgroup_root: String = "/sys/fs/cgroup".to_owned(),
        /// The parent of the cgroups of all sandboxes, with Docker, for limits on them together: `sandboxes.slice`
        /// where the cgroup driver of the engine is systemd, `/sandboxes` where it is cgroupfs. Empty: that of the
        /// engine.
        cgroup_parent: String = String::new(),
        /// The user and group of programs, where conversations have no users of their own.
        runner_uid: u32 = 1000 => 1..=u32::MAX - 1,
        /// Users and groups for conversations, such as `70000-70999`: each conversation gets one of them, so that its
        /// programs cannot exhaust what the kernel limits per user, such as inotify instances, for other conversations.
        /// The server must run as root. `off`: all run as SANDBOX_ENGINE__RUNNER_UID. Empty: 70000-70999, or `off`
        /// where the server is not root of its machine, with SANDBOX_MOUNTS, and with Kubernetes.
        runner_uids: String = String::new(),
        /// The namespace of sandboxes, with Kubernetes. Empty: that of KUBECONFIG, or of the pod of the server.
        namespace: String = String::new(),
        /// The ReadWriteMany claim in that namespace whose volume the server has at SANDBOX_ROOT; needed with
        /// Kubernetes, except where files are streamed.
        claim: String = String::new(),
        /// How programs get the files of their conversation. `mounted`: `/data` is the folder below SANDBOX_ROOT.
        /// `streamed`: `/data` is a folder of the sandbox, and files travel to it before the program and back after it.
        /// For an engine on another machine, and for a cluster without a ReadWriteMany volume.
        files: String = MOUNTED.to_owned(),
        /// Size of `/data` where files are streamed, in bytes. With Docker this is memory within the limit of the
        /// sandbox, with Kubernetes disk of the node.
        streamed_bytes: u64 = 128 << 20 => 1 << 20..=1 << 40,
        /// A seccomp profile on every node, below the folder of the kubelet for profiles, with Kubernetes. Empty: the
        /// default of the runtime.
        seccomp_profile: String = String::new(),
        /// Cores that the cluster has for sandboxes, with Kubernetes: the default of SANDBOX_ADMISSION__SLOTS follows
        /// from it.
        cluster_cpus: u32 = 4 => 1..=1 << 20,
        /// Memory that the cluster has for sandboxes, in bytes, with Kubernetes.
        cluster_memory_bytes: u64 = 8 << 30 => 256 << 20..=1 << 60,
    }
}

impl Engine {
    /// Sandboxes are pods.
    pub fn is_kubernetes(&self) -> bool {
        self.kind == KUBERNETES
    }

    /// Sandboxes have a `/data` of their own.
    pub fn is_streamed(&self) -> bool {
        self.files == STREAMED
    }

    /// Whether conversations have users of their own.
    ///
    /// # Errors
    /// A sentence that names the setting.
    pub fn user_range(&self) -> Result<UserRange, ConfigError> {
        self.runner_uids.parse().map_err(|why| ConfigError(format!("SANDBOX_ENGINE__RUNNER_UIDS {why}.")))
    }
}

impl Config {
    pub(super) fn check_engine(&self) -> Result<(), ConfigError> {
        let Engine { kind, claim, files, cgroup_parent, .. } = &self.engine;
        one_of("SANDBOX_ENGINE__KIND", kind, [DOCKER, KUBERNETES])?;
        one_of("SANDBOX_ENGINE__FILES", files, [MOUNTED, STREAMED])?;
        if self.engine.is_streamed() {
            self.check_streamed()?;
        }
        let why = "SANDBOX_ENGINE__CGROUP_PARENT must be a slice of systemd such as `sandboxes.slice`, or with the \
                   cgroup driver cgroupfs a path such as `/sandboxes`.";
        ensure(cgroup_parent.is_empty() || is_cgroup_parent(cgroup_parent), why)?;
        let range = self.engine.user_range()?;
        if !self.engine.is_kubernetes() {
            return Ok(());
        }
        let why = "SANDBOX_ENGINE__RUNNER_UIDS does not work with Kubernetes: all pods run as \
                   SANDBOX_ENGINE__RUNNER_UID.";
        ensure(!matches!(range, UserRange::Is(_)), why)?;
        let why = "SANDBOX_ENGINE__CGROUP_PARENT does not work with Kubernetes: the kubelet makes the cgroups of pods.";
        ensure(cgroup_parent.is_empty(), why)?;
        let why = "SANDBOX_ENGINE__CLAIM must name the ReadWriteMany claim that is mounted at SANDBOX_ROOT: pods see \
                   no folders of the server. Without such a volume set SANDBOX_ENGINE__FILES to `streamed`.";
        ensure(!claim.is_empty() || self.engine.is_streamed(), why)?;
        let why = "SANDBOX_QUOTA__HARD does not work with Kubernetes: a node sees no disks that the server mounts.";
        ensure(!self.quota.hard, why)?;
        let why = "SANDBOX_SKILLS_ROOT does not work with Kubernetes yet: pods would not see the folder.";
        ensure(self.skills_root()?.is_none(), why)?;
        let why = "SANDBOX_MOUNTS does not work with Kubernetes: mount a volume in the pod templates.";
        ensure(self.shared_folders()?.is_empty(), why)
    }

    /// What needs folders of the server in sandboxes.
    fn check_streamed(&self) -> Result<(), ConfigError> {
        let why = "SANDBOX_SKILLS_ROOT does not work with SANDBOX_ENGINE__FILES=streamed: sandboxes see no folders of \
                   the server.";
        ensure(self.skills_root()?.is_none(), why)?;
        let why = "SANDBOX_PACKAGES__PYTHON_INDEX and SANDBOX_PACKAGES__NPM_REGISTRY do not work with \
                   SANDBOX_ENGINE__FILES=streamed: what is installed would travel with each run.";
        ensure(self.package_hosts()?.is_none(), why)
    }
}

/// A slice, or a path from the root of the control groups.
fn is_cgroup_parent(text: &str) -> bool {
    let is_name = |name: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:@".contains(&byte);
        !name.is_empty() && !name.starts_with('.') && name.bytes().all(is_plain)
    };
    match text.strip_prefix('/') {
        Some(path) => path.split('/').all(is_name),
        None => text.strip_suffix(".slice").is_some_and(is_name),
    }
}
