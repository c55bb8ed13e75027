//! All runs that are under way, and a bounded number of finished ones.
//!
//! Of the finished ones those that are too old are dropped first. When there are too many runs or bytes, the oldest run
//! of the owner who has the most is dropped, so no owner's runs displace those of an owner who has fewer. The newest
//! run of all is kept whatever its size, and no other owner's run is dropped for it.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::{Run, RunsOptions};
use crate::domain::{Principal, RunId};

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
        known.all.len() - known.finished.kept.len()
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

/// Chooses which of the finished runs is dropped next. Up to 100 000 are kept, and the end of a run may drop hundreds:
/// a choice looks at the owners and not at each run.
#[derive(Default)]
struct Finished {
    /// By a number that counts up.
    kept: BTreeMap<u64, Kept>,
    owners: HashMap<Principal, Owned>,
    bytes: usize,
    next: u64,
}

struct Kept {
    run: RunId,
    owner: Principal,
    at: Instant,
    bytes: usize,
}

/// What is kept of an owner.
#[derive(Default)]
struct Owned {
    /// Oldest first.
    numbers: VecDeque<u64>,
    bytes: usize,
}

impl Finished {
    fn push(&mut self, run: RunId, owner: &Principal, bytes: usize) {
        let number = self.next;
        self.next += 1;
        self.bytes += bytes;
        let theirs = self.owners.entry(owner.clone()).or_default();
        theirs.numbers.push_back(number);
        theirs.bytes += bytes;
        self.kept.insert(number, Kept { run, owner: owner.clone(), at: Instant::now(), bytes });
    }

    /// Removes one that is not to be kept, if there is one.
    fn drop_next(&mut self, options: &RunsOptions) -> Option<RunId> {
        let (&oldest, first) = self.kept.first_key_value()?;
        let number = if first.at.elapsed() > options.kept_age {
            oldest
        } else if self.kept.len() > options.kept_runs_max {
            self.oldest_of_most(|owned| owned.numbers.len())?
        } else if self.bytes > options.kept_bytes_max {
            self.oldest_of_most(|owned| owned.bytes)?
        } else {
            return None;
        };
        let dropped = self.kept.remove(&number)?;
        self.bytes -= dropped.bytes;
        if let Some(owned) = self.owners.get_mut(&dropped.owner) {
            // It is the oldest of its owner in any case.
            owned.numbers.pop_front();
            owned.bytes -= dropped.bytes;
            if owned.numbers.is_empty() {
                self.owners.remove(&dropped.owner);
            }
        }
        Some(dropped.run)
    }

    /// The oldest of the owner who has the most; `None` where that is the newest of all.
    fn oldest_of_most(&self, measure: impl Fn(&Owned) -> usize) -> Option<u64> {
        let (&newest, _) = self.kept.last_key_value()?;
        let oldest = self.owners.values().filter_map(|owned| Some((measure(owned), Reverse(*owned.numbers.front()?))));
        oldest.max().map(|(_, Reverse(number))| number).filter(|number| *number != newest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn options(kept_runs_max: usize, kept_bytes_max: usize) -> RunsOptions {
        RunsOptions {
            program_bytes_max: 0,
            detach: false,
            kept_runs_max,
            kept_bytes_max,
            kept_age: Duration::from_mins(1),
        }
    }

    /// Runs by owner and bytes, in the order in which they finished, and what is kept of them.
    fn kept(finished: &[(&str, usize)], options: &RunsOptions) -> Vec<usize> {
        let (mut all, mut known) = (Finished::default(), Vec::new());
        let mut dropped = Vec::new();
        for (owner, bytes) in finished {
            let run = RunId::new();
            known.push(run);
            all.push(run, &owner.parse().expect("an owner"), *bytes);
            dropped.extend(std::iter::from_fn(|| all.drop_next(options)));
        }
        assert_eq!(all.kept.len() + dropped.len(), known.len());
        assert_eq!(all.bytes, all.kept.values().map(|kept| kept.bytes).sum::<usize>());
        assert_eq!(all.bytes, all.owners.values().map(|owned| owned.bytes).sum::<usize>());
        (0..known.len()).filter(|at| !dropped.contains(&known[*at])).collect()
    }

    #[test]
    fn too_many_runs_of_one_owner_drop_its_own() {
        let runs = [("bob", 1), ("ann", 1), ("ann", 1), ("ann", 1), ("ann", 1), ("ann", 1)];
        assert_eq!(kept(&runs, &options(3, 100)), [0, 4, 5]);
        let one_each = [("ann", 1), ("bob", 1), ("eve", 1), ("dan", 1)];
        assert_eq!(kept(&one_each, &options(3, 100)), [1, 2, 3], "the oldest where all have as many");
    }

    #[test]
    fn too_many_bytes_of_one_owner_drop_its_own() {
        let runs = [("bob", 10), ("bob", 10), ("bob", 10), ("ann", 60), ("ann", 60)];
        assert_eq!(kept(&runs, &options(100, 100)), [0, 1, 2, 4]);
    }

    #[test]
    fn the_newest_is_kept_whatever_its_size() {
        assert_eq!(kept(&[("ann", 10), ("ann", 200)], &options(100, 100)), [1]);
        assert_eq!(kept(&[("bob", 10), ("ann", 200)], &options(100, 100)), [0, 1], "not at the cost of another owner");
        assert_eq!(kept(&[("ann", 200), ("bob", 10)], &options(100, 100)), [1]);
    }

    #[test]
    fn a_large_run_displaces_many_small_ones_without_a_look_at_each() {
        let (mut all, options, begun) = (Finished::default(), options(200_000, 100_000), Instant::now());
        let ann: Principal = "ann".parse().expect("an owner");
        for _ in 0..100_000 {
            all.push(RunId::new(), &ann, 1);
        }
        all.push(RunId::new(), &ann, 100_000);
        assert_eq!(std::iter::from_fn(|| all.drop_next(&options)).count(), 100_000);
        assert!(begun.elapsed() < Duration::from_mins(1), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_old_is_dropped_even_of_the_owner_who_has_less() {
        let (mut all, options) = (Finished::default(), options(100, 100));
        let [first, second] = [RunId::new(), RunId::new()];
        all.push(first, &"bob".parse().expect("an owner"), 1);
        tokio::time::advance(Duration::from_secs(40)).await;
        all.push(second, &"ann".parse().expect("an owner"), 50);
        assert_eq!(all.drop_next(&options), None);
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!((all.drop_next(&options), all.drop_next(&options)), (Some(first), None));
    }
}
