//! Candidates of the fake engine: one that it may offer beside its standard configuration, and the one that started
//! each sandbox.

use super::{FakeEngine, life::Answers};
use crate::{
    domain::{Limits, RunnerUsers},
    ports::engine::{Expectation, Fact, Severity},
};

/// How an offered candidate behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// As the standard configuration.
    Sound,
    /// It refuses every start.
    Refusing,
    /// Programs that contain the first text print the second.
    Saying(String, String),
}

#[derive(Debug, Default)]
pub(super) struct Candidates {
    pub(super) offered: Option<(String, Offered)>,
    pub(super) selected: Option<String>,
    used: Vec<Option<String>>,
}

impl FakeEngine {
    /// Offers a candidate that is faster than the standard configuration.
    pub fn offer(&self, candidate: &str, behaviour: Offered) {
        self.state().candidates.offered = Some((candidate.to_owned(), behaviour));
    }

    /// The candidate that started each sandbox, in order; `None` is the standard configuration.
    pub fn started_by(&self) -> Vec<Option<String>> {
        self.state().candidates.used.clone()
    }
}

impl Candidates {
    /// What a program has to print. A candidate has to be tighter than the standard configuration.
    pub(super) fn isolation_expectations(&self, limits: &Limits, users: &RunnerUsers) -> Vec<Expectation> {
        let otherwise = |what: &str| format!("{what}: the fake engine does so on command");
        let required = |fact, what: &str| Expectation::required(fact, otherwise(what));
        let mut groups = required(Fact::ReadOnlyControlGroups, "control groups can be written");
        if self.selected.is_none() {
            groups.severity = Severity::Recommended;
        }
        vec![
            required(Fact::User(*users), "programs run as another user"),
            required(Fact::NoCapabilities, "programs have capabilities"),
            required(Fact::NoNewPrivileges, "programs may gain privileges"),
            required(Fact::SystemCallFilter, "system calls are not filtered"),
            required(Fact::LoopbackOnly, "programs see a network"),
            required(Fact::ReadOnlyRoot, "the root file system can be written"),
            required(Fact::WritableData, "/data cannot be written"),
            required(Fact::MemoryLimit(limits.memory_bytes), "the limit on memory does not hold"),
            required(Fact::ProcessLimit(limits.processes_max), "the limit on processes does not hold"),
            groups,
            Expectation::recommended(Fact::NoCorePipe, otherwise("core_pattern begins with a pipe")),
        ]
    }

    /// Records a start; whether it is refused.
    pub(super) fn refuses(&mut self) -> bool {
        self.used.push(self.selected.clone());
        match (&self.selected, &self.offered) {
            (None, _) => false,
            (Some(selected), Some((name, behaviour))) => selected != name || *behaviour == Offered::Refusing,
            (Some(_), None) => true,
        }
    }

    /// What programs print under the selected candidate, before what they print in any configuration.
    pub(super) fn answers(&self, in_any: &[(String, Option<String>)]) -> Answers {
        let own = match (&self.selected, &self.offered) {
            (Some(_), Some((_, Offered::Saying(text, answer)))) => Some((text.clone(), Some(answer.clone()))),
            _ => None,
        };
        own.into_iter().chain(in_any.iter().cloned()).collect()
    }
}
