//! Current figures of the services, collected on request and never on the path of a run.

use super::{packages::Packages, runs::Runs, shared_parts::SharedParts};
use crate::ports::observer::ServerGauges;

#[derive(Clone)]
pub struct StatsSnapshot {
    pub runs: Runs,
    pub packages: Packages,
}

impl StatsSnapshot {
    /// Does not wait.
    pub fn now(&self) -> ServerGauges {
        let sessions = self.runs.sessions();
        let SharedParts { sandboxes, standbys, catalog, .. } = self.runs.parts();
        ServerGauges {
            load: self.runs.load(),
            sessions: sessions.load(),
            under_way: self.runs.under_way(),
            leased: sandboxes.janitor.leased(),
            unwanted: sandboxes.janitor.unwanted(),
            standbys: standbys.by_phase().into_iter().chain(sessions.waiting()).collect(),
            standbys_taken: standbys.taken(),
            languages: catalog.all().len(),
            packages: self.packages.counts(),
        }
    }
}
