//! What is the case now, in numbers: gathered when somebody asks, never on the way of a run.

use std::sync::Arc;

use super::{execution::Executions, janitor::Janitor, standby::Standbys};
use crate::ports::{observer::Standing, runner::Catalog};

/// Looks at the services.
#[derive(Clone)]
pub struct StatsSnapshot {
    executions: Executions,
    janitor: Janitor,
    standbys: Standbys,
    catalog: Arc<Catalog>,
}

impl StatsSnapshot {
    /// Over these services.
    pub fn new(executions: Executions, janitor: Janitor, standbys: Standbys, catalog: Arc<Catalog>) -> Self {
        Self { executions, janitor, standbys, catalog }
    }

    /// What is the case now. Waits for nobody.
    pub fn now(&self) -> Standing {
        let crowd = self.executions.crowd();
        Standing {
            slots: crowd.slots,
            slots_taken: crowd.taken,
            waiting: crowd.waiting,
            under_way: self.executions.under_way(),
            leased: self.janitor.leased(),
            unwanted: self.janitor.unwanted(),
            standbys: self.standbys.by_phase(),
            standbys_taken: self.standbys.taken(),
            languages: self.catalog.all().len(),
        }
    }
}
