//! What every engine writes on a sandbox and reads back, and the variables that its programs get. Pure.

use crate::{
    domain::Limits,
    ports::engine::{Listed, SandboxSpec},
};

/// They mark our sandboxes. None of these four may be the name of a runner label, since Docker lists a container with
/// its image's labels.
pub(super) const MANAGED: &str = "sandbox.managed";
pub(super) const ID: &str = "sandbox.id";
pub(super) const INSTANCE: &str = "sandbox.instance";
pub(super) const DEADLINE: &str = "sandbox.deadline";

/// Selects our sandboxes.
pub(super) const SELECTOR: &str = "sandbox.managed=true";
/// Selects what is a runner by its label.
pub(super) const RUNNERS: &str = "sandbox.runner=true";

pub(super) fn of(spec: &SandboxSpec) -> [(String, String); 4] {
    [
        (MANAGED, "true".to_owned()),
        (ID, spec.id.to_string()),
        (INSTANCE, spec.instance.to_string()),
        (DEADLINE, spec.deadline_unix_s.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

/// The sandbox with these labels; `None` when it only looks like one of ours. Its name has to be its id, since copies
/// keep the labels.
pub(super) fn listed<'a>(
    label: impl Fn(&str) -> Option<&'a String>,
    is_named: impl Fn(&str) -> bool,
    running: bool,
) -> Option<Listed> {
    Some(Listed {
        id: label(ID).filter(|id| is_named(id))?.parse().ok()?,
        instance: label(INSTANCE)?.parse().ok()?,
        deadline_unix_s: label(DEADLINE)?.parse().ok()?,
        running,
    })
}

/// Without the counts of threads, libraries start one for each core of the host and share a fraction of one.
pub(super) fn environment(limits: &Limits) -> Vec<(String, String)> {
    let threads = limits.cpu_millis.div_ceil(1000).max(1).to_string();
    let own = [("HOME", "/tmp"), ("LANG", "C.UTF-8")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let counts = ["OMP", "OPENBLAS", "MKL", "NUMEXPR"].map(|name| (format!("{name}_NUM_THREADS"), threads.clone()));
    own.into_iter().chain(counts).collect()
}
