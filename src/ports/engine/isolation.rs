//! What must be observable inside a sandbox: the facts by which an engine describes its isolation. Must not know how a
//! fact is observed.

use crate::domain::RunnerUsers;

/// One property that a sandbox must show from inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// The property.
    pub fact: Fact,
    /// A sentence that says what is wrong and what to do when the property does not hold.
    pub otherwise: String,
    /// What follows when it does not hold.
    pub severity: Severity,
    /// The warning when the property cannot be observed. `None`: a property that cannot be observed does not hold.
    pub unobserved: Option<String>,
}

impl Expectation {
    /// One without which no program is run.
    pub fn required(fact: Fact, otherwise: impl Into<String>) -> Self {
        Self { fact, otherwise: otherwise.into(), severity: Severity::Required, unobserved: None }
    }

    pub fn recommended(fact: Fact, otherwise: impl Into<String>) -> Self {
        Self { severity: Severity::Recommended, ..Self::required(fact, otherwise) }
    }

    /// The same, with a warning when it cannot be observed.
    #[must_use]
    pub fn or_unobserved(self, warning: impl Into<String>) -> Self {
        Self { unobserved: Some(warning.into()), ..self }
    }
}

/// A property that a program can read back from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// All four user ids of a process are the same one of these users.
    User(RunnerUsers),
    /// Every capability set is empty.
    NoCapabilities,
    /// `no_new_privs` is set.
    NoNewPrivileges,
    /// A seccomp filter is active.
    SystemCallFilter,
    /// The loopback is the only network interface.
    LoopbackOnly,
    /// No connection to any of [`super::Engine::forbidden_addresses`] is made.
    NoConnection,
    /// No variable of the environment has a name that begins so.
    NoVariable(&'static str),
    /// `/` is mounted read-only.
    ReadOnlyRoot,
    /// `/data` takes a file.
    WritableData,
    /// No folder can be created below `/sys/fs/cgroup`.
    ReadOnlyControlGroups,
    /// The memory of a program that crashes is not handed to a program of the host (core(5): "piping", sockets).
    NoCorePipe,
    /// The limit on memory, in bytes.
    MemoryLimit(u64),
    /// The limit on processes.
    ProcessLimit(u32),
    /// As many processes as a sandbox may have at most cannot be had beside those that it has, whatever sets the limit.
    ProcessesRefused,
}

/// What follows when an expectation does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// No program is run.
    Required,
    /// The operator is warned.
    Recommended,
}
