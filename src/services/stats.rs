//! Current figures of the services, collected on request and never on the path of a run.

use std::sync::Arc;

use super::{janitor::Janitor, packages::Packages, runs::Runs, sessions::Sessions, standby::Standbys};
use crate::ports::{observer::ServerGauges, runner::Catalog};

#[derive(Clone)]
pub struct StatsSnapshot {
    runs: Runs,
    janitor: Janitor,
    standbys: Standbys,
    sessions: Sessions,
    catalog: Arc<Catalog>,
    packages: Packages,
}

impl StatsSnapshot {
    pub fn new(
        (runs, janitor, standbys, sessions): (&Runs, &Janitor, &Standbys, &Sessions),
        catalog: &Arc<Catalog>,
        packages: &Packages,
    ) -> Self {
        let (runs, janitor) = (runs.clone(), janitor.clone());
        let (standbys, sessions) = (standbys.clone(), sessions.clone());
        Self { runs, janitor, standbys, sessions, catalog: Arc::clone(catalog), packages: packages.clone() }
    }

    /// Does not wait.
    pub fn now(&self) -> ServerGauges {
        let load = self.runs.load();
        ServerGauges {
            slots: load.slots,
            slots_taken: load.taken,
            waiting: load.waiting,
            owners: load.owners,
            owner_runs_max: load.owner_runs_max,
            sessions: self.sessions.load(),
            under_way: self.runs.under_way(),
            leased: self.janitor.leased(),
            unwanted: self.janitor.unwanted(),
            standbys: self.standbys.by_phase().into_iter().chain(self.sessions.waiting()).collect(),
            standbys_taken: self.standbys.taken(),
            languages: self.catalog.all().len(),
            packages: self.packages.counts(),
        }
    }
}
