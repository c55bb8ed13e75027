//! The runs that are known: all that are under way, and a bounded number of those that are over. Oldest endings leave first.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;

use super::{Entry, RunsOptions};
use crate::domain::id::RunId;

pub(super) struct Registry {
    options: RunsOptions,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Ids sort by the time they were made.
    all: BTreeMap<RunId, Arc<Entry>>,
    over: VecDeque<Over>,
    over_bytes: usize,
}

struct Over {
    run: RunId,
    at: Instant,
    bytes: usize,
}

impl Registry {
    pub(super) fn new(options: RunsOptions) -> Self {
        Self { options, known: Mutex::default() }
    }

    pub(super) fn add(&self, entry: Arc<Entry>) {
        self.known().all.insert(entry.run.id, entry);
    }

    /// Notes that a run is over: from now on it may leave.
    pub(super) fn finished(&self, entry: &Entry) {
        let bytes = entry.kept_bytes();
        let mut known = self.known();
        known.over_bytes += bytes;
        known.over.push_back(Over { run: entry.run.id, at: Instant::now(), bytes });
        known.prune(&self.options);
    }

    pub(super) fn get(&self, run: RunId) -> Option<Arc<Entry>> {
        self.known().all.get(&run).cloned()
    }

    /// The newest that fit, older than `after`.
    pub(super) fn newest_first(
        &self,
        after: Option<RunId>,
        limit: usize,
        fits: impl Fn(&Entry) -> bool,
    ) -> Vec<Arc<Entry>> {
        let end = after.map_or(Bound::Unbounded, Bound::Excluded);
        let known = self.known();
        let newest_first = known.all.range((Bound::Unbounded, end)).rev();
        newest_first.map(|(_, entry)| entry).filter(|entry| fits(entry)).take(limit).cloned().collect()
    }

    pub(super) fn under_way(&self) -> usize {
        let known = self.known();
        known.all.len() - known.over.len()
    }

    /// Age is looked at on every access: what is too old is never shown, and it is bounded while nobody looks.
    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.prune(&self.options);
        known
    }
}

impl Known {
    fn prune(&mut self, options: &RunsOptions) {
        while let Some(oldest) = self.over.front() {
            let too_many = self.over.len() > options.kept_runs_max
                || (self.over_bytes > options.kept_bytes_max && self.over.len() > 1);
            if !too_many && oldest.at.elapsed() <= options.kept_age {
                return;
            }
            self.over_bytes -= oldest.bytes;
            self.all.remove(&oldest.run);
            self.over.pop_front();
        }
    }
}
