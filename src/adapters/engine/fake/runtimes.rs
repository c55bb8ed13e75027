//! Runtimes of the fake engine: one that it may offer beside its usual one, and by which each sandbox was started.

use super::FakeEngine;

/// How a runtime that is offered behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Offered {
    /// As the usual one.
    Sound,
    /// It refuses every start.
    Refusing,
    /// Programs that hold the first text print the second.
    Saying(String, String),
}

#[derive(Debug, Default)]
pub(super) struct Runtimes {
    offered: Option<(String, Offered)>,
    chosen: Option<String>,
    used: Vec<Option<String>>,
}

impl FakeEngine {
    /// Offers a runtime that is quicker than the usual one.
    pub fn offer(&self, runtime: &str, behaviour: Offered) {
        self.state().runtimes.offered = Some((runtime.to_owned(), behaviour));
    }

    /// By which runtime each sandbox was started, in order; none is the usual one.
    pub fn started_by(&self) -> Vec<Option<String>> {
        self.state().runtimes.used.clone()
    }
}

impl Runtimes {
    pub(super) fn quicker(&self) -> Option<String> {
        self.offered.as_ref().map(|(name, _)| name.clone())
    }

    pub(super) fn choose(&mut self, runtime: Option<&str>) {
        self.chosen = runtime.map(str::to_owned);
    }

    pub(super) fn name(&self) -> &str {
        self.chosen.as_deref().unwrap_or("none")
    }

    /// Notes a start; whether it is refused.
    pub(super) fn refuses(&mut self) -> bool {
        self.used.push(self.chosen.clone());
        match (&self.chosen, &self.offered) {
            (None, _) => false,
            (Some(chosen), Some((name, behaviour))) => chosen != name || *behaviour == Offered::Refusing,
            (Some(_), None) => true,
        }
    }

    /// What programs print under the runtime that is chosen, before what they print under any.
    pub(super) fn answers(&self, under_any: &[(String, String)]) -> Vec<(String, String)> {
        let own = match (&self.chosen, &self.offered) {
            (Some(_), Some((_, Offered::Saying(text, answer)))) => Some((text.clone(), answer.clone())),
            _ => None,
        };
        own.into_iter().chain(under_any.iter().cloned()).collect()
    }
}
