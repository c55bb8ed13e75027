//! Which OCI runtime starts sandboxes: the setting, the faster candidate that the engine may have, and whether the
//! engine applies the runtime that a container names. The isolation check decides whether a candidate passes.

use std::{collections::HashMap, sync::Arc};

use bollard::{models::SystemInfo, query_parameters::InspectContainerOptions};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{ConnectError, Inner, call};
use crate::ports::engine::EngineError;

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
    setting: RuntimeSetting,
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

    pub(super) fn setting(&self) -> &RuntimeSetting {
        &self.setting
    }
}

impl Runtime {
    pub(super) fn new(name: Option<&str>, default: &str, is_candidate: bool) -> Self {
        let has_own_kernel = OWN_KERNELS.iter().any(|part| name.unwrap_or(default).contains(part));
        Self { name: name.map(str::to_owned), is_candidate, has_own_kernel, applied: OnceCell::new() }
    }

    /// An engine that does not know the field leaves it out without an error, so the first container is inspected.
    pub(super) async fn ensure_applied(&self, engine: &Inner, container: &str) -> Result<(), EngineError> {
        let Some(name) = &self.name else { return Ok(()) };
        self.applied.get_or_try_init(|| inspect_runtime(engine, container, name)).await.map(drop)
    }
}

async fn inspect_runtime(engine: &Inner, container: &str, name: &str) -> Result<(), EngineError> {
    let inspected = engine.docker.inspect_container(container, None::<InspectContainerOptions>);
    let inspected = call::within("inspect", engine.time.answer, inspected).await?;
    let used = inspected.host_config.and_then(|config| config.runtime).unwrap_or_default();
    if used == name {
        return Ok(());
    }
    let why = format!("the engine uses the runtime `{used}` instead of `{name}` (SANDBOX_ENGINE__RUNTIME)");
    Err(EngineError::refused("create", why))
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
}
