//! Which OCI runtime starts sandboxes: the setting, the faster candidate that the engine may have, and whether the
//! engine applies the runtime that a container names. The isolation check decides whether a candidate passes: by the
//! isolation that must be observable inside a container of ours, with the fix for each missing part.

use std::{collections::HashMap, sync::Arc};

use bollard::{models::SystemInfo, query_parameters::InspectContainerOptions};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{ConnectError, DockerEngine, call};
use crate::{
    domain::{Limits, RunnerUsers},
    ports::engine::{EngineError, Expectation, Fact, Severity},
};

/// It starts a container in about four fifths of the time that runc takes.
const CANDIDATE: &str = "crun";
/// The only default that a candidate may replace. Another default (gVisor, Kata) was chosen for its isolation.
const REPLACEABLE: &str = "runc";
/// The value of the setting that selects the engine's default.
const DEFAULT: &str = "default";
/// Runtimes whose sandboxes have a kernel of their own, by a part of their names.
const OWN_KERNELS: [&str; 3] = ["runsc", "gvisor", "kata"];

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeSetting {
    /// The engine's default, or a faster candidate that passes the isolation check.
    #[default]
    Automatic,
    /// The engine's default.
    Default,
    Named(String),
}

impl From<&str> for RuntimeSetting {
    fn from(text: &str) -> Self {
        match text.trim() {
            "" => Self::Automatic,
            DEFAULT => Self::Default,
            name => Self::Named(name.to_owned()),
        }
    }
}

impl RuntimeSetting {
    /// The name that containers are created with unless a candidate is selected; `None`: the engine's default.
    pub(super) fn standard(&self) -> Option<&str> {
        match self {
            Self::Named(name) => Some(name),
            Self::Automatic | Self::Default => None,
        }
    }

    /// The candidate that this engine offers.
    pub(super) fn candidate(&self, info: &SystemInfo) -> Option<String> {
        let has = |known: &HashMap<String, _>| known.contains_key(CANDIDATE);
        let offered = info.default_runtime.as_deref() == Some(REPLACEABLE) && info.runtimes.as_ref().is_some_and(has);
        (*self == Self::Automatic && offered).then(|| CANDIDATE.to_owned())
    }

    /// # Errors
    /// When the engine lists its runtimes and the named one is not among them.
    pub(super) fn check(&self, info: &SystemInfo) -> Result<(), ConnectError> {
        let (Self::Named(runtime), Some(known)) = (self, &info.runtimes) else { return Ok(()) };
        if known.contains_key(runtime) {
            return Ok(());
        }
        let mut known: Vec<_> = known.keys().cloned().collect();
        known.sort();
        Err(ConnectError::Runtime { runtime: runtime.clone(), known: known.join(", ") })
    }

    /// Why a runtime is used, for people.
    pub(super) fn reason(&self, selected: &Runtime) -> String {
        match self {
            _ if selected.is_candidate => {
                "the engine has it, it starts sandboxes sooner, and it passed the isolation check".to_owned()
            }
            Self::Automatic => format!("the engine's default, without {CANDIDATE} beside it"),
            Self::Default | Self::Named(_) => "as SANDBOX_ENGINE__RUNTIME says".to_owned(),
        }
    }
}

/// The runtime that starts sandboxes now.
#[derive(Debug)]
pub(super) struct Selection {
    pub setting: RuntimeSetting,
    /// The name of the engine's default.
    default: String,
    now: Mutex<Arc<Runtime>>,
}

/// One runtime for as long as it is selected.
#[derive(Debug)]
pub(super) struct Runtime {
    /// The name that containers are created with; `None`: the engine's default.
    pub name: Option<String>,
    /// It replaces the standard runtime.
    pub is_candidate: bool,
    pub(super) has_own_kernel: bool,
    /// Set once the engine has applied the name.
    applied: OnceCell<()>,
}

impl Selection {
    pub(super) fn new(setting: RuntimeSetting, info: &SystemInfo) -> Self {
        let default = info.default_runtime.clone().unwrap_or_default();
        let now = Mutex::new(Arc::new(Runtime::new(setting.standard(), &default, false)));
        Self { setting, default, now }
    }

    pub(super) fn now(&self) -> Arc<Runtime> {
        Arc::clone(&self.now.lock())
    }

    pub(super) fn set(&self, candidate: Option<&str>) {
        let runtime = Runtime::new(candidate.or(self.setting.standard()), &self.default, candidate.is_some());
        *self.now.lock() = Arc::new(runtime);
    }
}

impl Runtime {
    pub(super) fn new(name: Option<&str>, default: &str, is_candidate: bool) -> Self {
        let has_own_kernel = OWN_KERNELS.iter().any(|part| name.unwrap_or(default).contains(part));
        Self { name: name.map(str::to_owned), is_candidate, has_own_kernel, applied: OnceCell::new() }
    }

    /// An engine that does not know the field leaves it out without an error, so the first container is inspected.
    pub(super) async fn ensure_applied(&self, engine: &DockerEngine, container: &str) -> Result<(), EngineError> {
        let Some(name) = &self.name else { return Ok(()) };
        self.applied.get_or_try_init(|| inspect_runtime(engine, container, name)).await.map(drop)
    }
}

async fn inspect_runtime(engine: &DockerEngine, container: &str, name: &str) -> Result<(), EngineError> {
    let inspected = engine.docker.inspect_container(container, None::<InspectContainerOptions>);
    let inspected = call::within("inspect", engine.time.answer, inspected).await?;
    let used = inspected.host_config.and_then(|config| config.runtime).unwrap_or_default();
    if used == name {
        return Ok(());
    }
    let why = format!("the engine uses the runtime `{used}` instead of `{name}` (SANDBOX_ENGINE__RUNTIME)");
    Err(EngineError::refused("create", why))
}

/// The expectations under a runtime. A kernel of its own (gVisor, Kata) shows neither our list of system calls nor the
/// host's control groups. A candidate replaces runc, so it has to be as tight as runc in every respect.
pub(super) fn expectations(runtime: &Runtime, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
    let required = |fact, otherwise: &str| Expectation::required(fact, otherwise);
    let mut all = vec![
        Expectation::required(
            Fact::User(*users),
            format!("programs do not run as user {users}: the engine must honour the user of a container"),
        ),
        required(Fact::NoCapabilities, "programs have capabilities: the engine must drop all of them (`CapDrop: ALL`)"),
        required(Fact::NoNewPrivileges, "programs may gain privileges: the engine must honour `no-new-privileges`"),
        required(Fact::LoopbackOnly, "programs see a network: the engine must honour `NetworkMode: none`"),
        required(Fact::ReadOnlyRoot, "the root file system can be written: the engine must honour `ReadonlyRootfs`"),
        required(
            Fact::WritableData,
            "/data cannot be written: SANDBOX_ROOT must be on a file system of the engine's host, writable for \
             SANDBOX_ENGINE__RUNNER_UID",
        ),
    ];
    if runtime.has_own_kernel {
        return all;
    }
    let limit = |what, fact| {
        let otherwise = format!(
            "the limit on {what} does not hold: give the engine control groups that it may use (with cgroup v2, \
             systemd and delegation; `docker info` names what is missing)"
        );
        Expectation::required(fact, otherwise).or_unobserved(format!(
            "The limit on {what} cannot be observed from inside a sandbox: check with `docker inspect` that it holds."
        ))
    };
    all.extend([
        required(
            Fact::SystemCallFilter,
            "system calls are not filtered: use an engine that was built with seccomp, and do not start it with \
             `--seccomp-profile=unconfined`",
        ),
        Expectation {
            severity: if runtime.is_candidate { Severity::Required } else { Severity::Recommended },
            ..required(
                Fact::ReadOnlyControlGroups,
                "Programs can write to the file system at /sys/fs/cgroup, up to their limit on memory: use an engine \
                 with control groups v2, or runc.",
            )
        },
        Expectation::recommended(
            Fact::NoCorePipe,
            "The memory of each program that crashes is handed to a root process of the host, since core_pattern \
             begins with `|` or `@`: set it to a file name there (`sysctl kernel.core_pattern=core`).",
        ),
        limit("memory", Fact::MemoryLimit(limits.memory_bytes)),
        limit("processes", Fact::ProcessLimit(limits.processes_max)),
    ]);
    all
}

#[cfg(test)]
mod tests {
    use bollard::models::Runtime as Known;

    use super::*;

    fn info(default: &str, known: &[&str]) -> SystemInfo {
        let known = known.iter().map(|name| ((*name).to_owned(), Known::default())).collect();
        SystemInfo { default_runtime: Some(default.to_owned()), runtimes: Some(known), ..SystemInfo::default() }
    }

    fn setting(text: &str) -> RuntimeSetting {
        RuntimeSetting::from(text)
    }

    #[test]
    fn setting_is_parsed_from_text() {
        assert_eq!(setting(""), RuntimeSetting::Automatic);
        assert_eq!(
            (setting("default"), setting("default").standard().map(str::to_owned)),
            (RuntimeSetting::Default, None)
        );
        assert_eq!(setting(" runsc ").standard(), Some("runsc"));
    }

    #[test]
    fn candidate_is_crun_when_runc_is_the_default_and_the_setting_is_automatic() {
        let candidate = |text: &str, default: &str, known: &[&str]| setting(text).candidate(&info(default, known));
        assert_eq!(candidate("", "runc", &["crun", "runc"]).as_deref(), Some("crun"));
        for (text, default, known) in [
            ("runc", "runc", ["crun", "runc"]),
            ("default", "runc", ["crun", "runc"]),
            ("", "runc", ["io.containerd.runc.v2", "runc"]),
            ("", "crun", ["crun", "runc"]),
            ("", "runsc", ["crun", "runsc"]),
        ] {
            assert_eq!(candidate(text, default, &known), None, "{text} {default} {known:?}");
        }
        assert_eq!(RuntimeSetting::Automatic.candidate(&SystemInfo::default()), None);
    }

    #[test]
    fn check_refuses_a_named_runtime_that_the_engine_does_not_have() {
        let there = info("runc", &["runc", "runsc"]);
        assert!(setting("runsc").check(&there).is_ok() && setting("").check(&there).is_ok());
        let error = setting("kata").check(&there).expect_err("unknown").to_string();
        assert!(error.contains("no runtime `kata` (it has runc, runsc)"), "{error}");
    }

    fn severity(runtime: &Runtime, fact: Fact) -> Option<Severity> {
        let all = expectations(runtime, &Limits::default(), &RunnerUsers::one(1000));
        all.iter().find(|expectation| expectation.fact == fact).map(|expectation| expectation.severity)
    }

    #[test]
    fn expectations_are_stricter_for_a_candidate_and_fewer_for_an_own_kernel() {
        let group = Fact::ReadOnlyControlGroups;
        assert_eq!(severity(&Runtime::new(None, "runc", false), group), Some(Severity::Recommended));
        assert_eq!(severity(&Runtime::new(Some("crun"), "runc", true), group), Some(Severity::Required));
        let gvisor = Runtime::new(Some("runsc"), "runc", false);
        for fact in [group, Fact::SystemCallFilter, Fact::MemoryLimit(Limits::default().memory_bytes)] {
            assert_eq!(severity(&gvisor, fact), None);
        }
        assert_eq!(severity(&gvisor, Fact::LoopbackOnly), Some(Severity::Required));
        assert_eq!(severity(&Runtime::new(None, "/usr/bin/kata-runtime", false), group), None);
    }

    #[test]
    fn only_limits_may_be_unobserved() {
        let all = expectations(&Runtime::new(None, "runc", false), &Limits::default(), &RunnerUsers::one(1000));
        let unobserved: Vec<_> = all.iter().filter(|one| one.unobserved.is_some()).map(|one| one.fact).collect();
        let Limits { memory_bytes, processes_max, .. } = Limits::default();
        assert_eq!(unobserved, [Fact::MemoryLimit(memory_bytes), Fact::ProcessLimit(processes_max)]);
    }
}
