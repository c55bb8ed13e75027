//! The numbers of this moment: gathered on request, never on the path of a run.

use std::sync::Arc;

use super::{execution::Executions, janitor::Janitor, standby::Standbys};
use crate::ports::{observer::Standing, runner::Catalog};

/// Reads the services.
#[derive(Clone)]
pub struct StatsSnapshot {
    executions: Executions,
    janitor: Janitor,
    standbys: Standbys,
    catalog: Arc<Catalog>,
}

impl StatsSnapshot {
    pub fn new(executions: Executions, janitor: Janitor, standbys: Standbys, catalog: Arc<Catalog>) -> Self {
        Self { executions, janitor, standbys, catalog }
    }

    /// The numbers now. Does not wait.
    pub fn now(&self) -> Standing {
        let load = self.executions.crowd();
        Standing {
            slots: load.slots,
            slots_taken: load.taken,
            waiting: load.waiting,
            under_way: self.executions.under_way(),
            leased: self.janitor.leased(),
            unwanted: self.janitor.unwanted(),
            standbys: self.standbys.by_phase(),
            standbys_taken: self.standbys.taken(),
            languages: self.catalog.all().len(),
        }
    }
}
