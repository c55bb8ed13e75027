//! All runs that are under way, and a bounded number of finished ones.

use std::{collections::BTreeMap, ops::Bound, sync::Arc};

use parking_lot::{Mutex, MutexGuard};

use super::{Run, RunsOptions, finished::Finished};
use crate::domain::id::RunId;

pub(super) struct Registry {
    options: RunsOptions,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Ids sort by the time they were made.
    all: BTreeMap<RunId, Arc<Run>>,
    finished: Finished,
}

impl Registry {
    pub(super) fn new(options: RunsOptions) -> Self {
        Self { options, known: Mutex::default() }
    }

    pub(super) fn add(&self, run: Arc<Run>) {
        self.known().all.insert(run.id, run);
    }

    /// From now on the run may be dropped.
    pub(super) fn finished(&self, run: &Run) {
        let bytes = run.kept_bytes();
        let mut known = self.known();
        known.finished.push(run.id, &run.conversation.owner, bytes);
        known.prune(&self.options);
    }

    pub(super) fn get(&self, run: RunId) -> Option<Arc<Run>> {
        self.known().all.get(&run).cloned()
    }

    /// The newest that match, older than `after`.
    pub(super) fn newest_first(
        &self,
        after: Option<RunId>,
        limit: usize,
        matches: impl Fn(&Run) -> bool,
    ) -> Vec<Arc<Run>> {
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let known = self.known();
        let newest_first = known.all.range((Bound::Unbounded, end)).rev();
        newest_first.map(|(_, run)| run).filter(|run| matches(run)).take(limit).cloned().collect()
    }

    pub(super) fn under_way(&self) -> usize {
        let known = self.known();
        known.all.len() - known.finished.len()
    }

    /// Drops on every access what is too old. Between accesses count and bytes still bound it.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock();
        known.prune(&self.options);
        known
    }
}

impl Known {
    fn prune(&mut self, options: &RunsOptions) {
        while let Some(run) = self.finished.drop_next(options) {
            self.all.remove(&run);
        }
    }
}
