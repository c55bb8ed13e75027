//! Which OCI runtime starts sandboxes: what the setting says, which one is worth a trial, and whether the engine does as it is
//! told. Whether a trial passes is decided elsewhere; nothing here runs a program.

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use bollard::{
    models::{Runtime, SystemInfo},
    query_parameters::InspectContainerOptions,
};
use tokio::sync::OnceCell;

use super::{ConnectError, Inner, call};
use crate::ports::engine::EngineError;

/// What starts a container in about four fifths of the time.
const QUICK: &str = "crun";
/// What it may stand in for. Whoever made anything else their engine's default (gVisor, Kata) wants its walls.
const USUAL: &str = "runc";
/// The word of the setting for whatever the engine's default is.
const DEFAULT: &str = "default";

/// The setting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RuntimeSetting {
    /// The engine's default, or what is quicker than it and passes a trial.
    #[default]
    Automatic,
    /// The engine's default, whatever else there is.
    Default,
    /// This one and no other.
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
    /// What containers are made with unless another is chosen; `None`: the engine's default.
    pub(super) fn usual(&self) -> Option<String> {
        match self {
            Self::Named(name) => Some(name.clone()),
            Self::Automatic | Self::Default => None,
        }
    }

    /// What is worth a trial on this engine.
    pub(super) fn quicker(&self, info: &SystemInfo) -> Option<String> {
        let has = |known: &HashMap<String, Runtime>| known.contains_key(QUICK);
        let offered = info.default_runtime.as_deref() == Some(USUAL) && info.runtimes.as_ref().is_some_and(has);
        (*self == Self::Automatic && offered).then(|| QUICK.to_owned())
    }

    /// # Errors
    /// When the engine says what it has, and the one that is named is not among it.
    pub(super) fn check(&self, info: &SystemInfo) -> Result<(), ConnectError> {
        let (Self::Named(runtime), Some(known)) = (self, &info.runtimes) else { return Ok(()) };
        if known.contains_key(runtime) {
            return Ok(());
        }
        let mut known: Vec<_> = known.keys().cloned().collect();
        known.sort();
        Err(ConnectError::Runtime { runtime: runtime.clone(), known: known.join(", ") })
    }
}

/// What starts sandboxes now.
#[derive(Debug, Default)]
pub(super) struct Choice(Mutex<Arc<Chosen>>);

/// One choice, for as long as it holds.
#[derive(Debug, Default)]
pub(super) struct Chosen {
    pub name: Option<String>,
    /// The engine was seen to use it.
    holds: OnceCell<()>,
}

impl Choice {
    pub(super) fn new(name: Option<String>) -> Self {
        let choice = Self::default();
        choice.set(name);
        choice
    }

    pub(super) fn now(&self) -> Arc<Chosen> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn set(&self, name: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(Chosen { name, holds: OnceCell::new() });
    }
}

impl Chosen {
    /// An engine that does not know the field leaves it out and says nothing: it is asked once what it made of it.
    pub(super) async fn holds(&self, engine: &Inner, container: &str) -> Result<(), EngineError> {
        let Some(name) = &self.name else { return Ok(()) };
        self.holds.get_or_try_init(|| used(engine, container, name)).await.map(drop)
    }
}

async fn used(engine: &Inner, container: &str, name: &str) -> Result<(), EngineError> {
    let inspected = engine.docker.inspect_container(container, None::<InspectContainerOptions>);
    let inspected = call::within("inspect", engine.time.inspect, inspected).await?;
    let used = inspected.host_config.and_then(|config| config.runtime).unwrap_or_default();
    if used == name {
        return Ok(());
    }
    let why = format!("the engine uses the runtime `{used}` where `{name}` was asked for (SANDBOX_ENGINE__RUNTIME)");
    Err(EngineError::Refused { act: "create", source: Box::new(io::Error::other(why)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(default: &str, known: &[&str]) -> SystemInfo {
        let known = known.iter().map(|name| ((*name).to_owned(), Runtime::default())).collect();
        SystemInfo { default_runtime: Some(default.to_owned()), runtimes: Some(known), ..SystemInfo::default() }
    }

    fn setting(text: &str) -> RuntimeSetting {
        RuntimeSetting::from(text)
    }

    #[test]
    fn the_setting_is_read() {
        assert_eq!(setting(""), RuntimeSetting::Automatic);
        assert_eq!((setting("default"), setting("default").usual()), (RuntimeSetting::Default, None));
        assert_eq!(setting(" runsc ").usual().as_deref(), Some("runsc"));
    }

    #[test]
    fn crun_is_tried_where_it_stands_in_for_runc_and_no_setting_says_otherwise() {
        let quicker = |text: &str, default: &str, known: &[&str]| setting(text).quicker(&info(default, known));
        assert_eq!(quicker("", "runc", &["crun", "runc"]).as_deref(), Some("crun"));
        for (text, default, known) in [
            ("runc", "runc", ["crun", "runc"]),
            ("default", "runc", ["crun", "runc"]),
            ("", "runc", ["io.containerd.runc.v2", "runc"]),
            ("", "crun", ["crun", "runc"]),
            ("", "runsc", ["crun", "runsc"]),
        ] {
            assert_eq!(quicker(text, default, &known), None, "{text} {default} {known:?}");
        }
        assert_eq!(RuntimeSetting::Automatic.quicker(&SystemInfo::default()), None);
    }

    #[test]
    fn one_that_is_named_has_to_be_there() {
        let there = info("runc", &["runc", "runsc"]);
        assert!(setting("runsc").check(&there).is_ok() && setting("").check(&there).is_ok());
        let error = setting("kata").check(&there).expect_err("it is not there").to_string();
        assert!(error.contains("no runtime `kata` (it has runc, runsc)"), "{error}");
    }
}
