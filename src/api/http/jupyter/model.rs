//! The forms of Jupyter's models, and the names of kernels.

use std::time::Duration;

use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use uuid::Uuid;

use crate::{
    domain::{
        error::{Code, Failure},
        id::{Language, SessionId},
    },
    ports::runner::Runner,
    services::{
        kernels::{Document, KernelView},
        sessions::SessionState,
    },
};

/// What notebooks ask for that name no kernel.
const DEFAULT: &str = "python3";

/// The name of a runner's kernel: that of its kernelspec, or of its language where two share one.
pub(super) fn name(runners: &[Runner], runner: &Runner) -> String {
    let kernel = runner.kernel.as_deref().unwrap_or_default();
    let is_shared = runners.iter().filter(|other| other.kernel.as_deref() == Some(kernel)).count() > 1;
    if is_shared { runner.language.to_string() } else { kernel.to_owned() }
}

fn default(runners: &[Runner]) -> Option<&Runner> {
    runners.iter().find(|runner| name(runners, runner) == DEFAULT).or(runners.first())
}

/// The runner of a kernel's name; a language or an alias of one is a name too.
pub(super) fn find<'a>(runners: &'a [Runner], wanted: Option<&str>) -> Result<&'a Runner, Failure> {
    let Some(wanted) = wanted.filter(|wanted| !wanted.is_empty()) else {
        let why = "No installed runner has a kernel: the operator builds them with ./build.sh.";
        return default(runners).ok_or_else(|| Failure::new(Code::RunnerNotFound, why));
    };
    let language = wanted.parse::<Language>().ok();
    let speaks = |runner: &&Runner| language.iter().any(|one| *one == runner.language || runner.aliases.contains(one));
    let found = runners.iter().find(|runner| name(runners, runner) == wanted);
    found.or_else(|| runners.iter().find(speaks)).ok_or_else(|| {
        let known: Vec<_> = runners.iter().map(|runner| name(runners, runner)).collect();
        Failure::new(Code::RunnerNotFound, format!("There is no kernel of that name; there are {}.", known.join(", ")))
    })
}

pub(super) fn spec(runners: &[Runner], runner: &Runner) -> Value {
    let language = runner.language.as_str();
    let (first, rest) = language.split_at_checked(1).unwrap_or((language, ""));
    let version = runner.version.as_deref().unwrap_or_default();
    let display = format!("{}{rest} {version}", first.to_uppercase());
    // There is no command to run: the kernel is in a sandbox.
    let spec = json!({"argv": [], "env": {}, "display_name": display.trim_end(), "language": language,
        "interrupt_mode": "message", "metadata": {}});
    json!({"name": name(runners, runner), "spec": spec, "resources": {}})
}

pub(super) fn specs(runners: &[Runner]) -> Value {
    let specs = runners.iter().map(|runner| (name(runners, runner), spec(runners, runner)));
    let specs: serde_json::Map<_, _> = specs.collect();
    json!({"default": default(runners).map(|runner| name(runners, runner)), "kernelspecs": specs})
}

/// A moment so long ago.
pub(super) fn ago(time: Duration) -> String {
    let time = OffsetDateTime::now_utc() - time;
    // Some clients parse whole microseconds only.
    let time = time.replace_nanosecond(time.microsecond() * 1000).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

/// A kernel's id in the form that Jupyter's routes take.
pub(super) fn id(session: SessionId) -> String {
    Uuid::from_bytes(session.to_bytes()).to_string()
}

pub(super) fn kernel(runners: &[Runner], kernel: &KernelView) -> Value {
    let state = kernel.state.map_or("restarting", SessionState::word);
    let runner = runners.iter().find(|runner| runner.language == kernel.language);
    let name = runner.map_or_else(|| kernel.language.to_string(), |runner| name(runners, runner));
    json!({"id": id(kernel.id), "name": name, "last_activity": ago(kernel.idle), "execution_state": state,
        "connections": kernel.connections})
}

pub(super) fn session(runners: &[Runner], document: &Document, of: &KernelView) -> Value {
    let Document { id, path, name, kind, .. } = document;
    json!({"id": id.to_string(), "path": path, "name": name, "type": kind, "kernel": kernel(runners, of),
        "notebook": {"path": path, "name": name}})
}
