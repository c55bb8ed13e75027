//! The waiting runs and their positions. Gives no right to anything.
//!
//! A position is that among the runs of one owner. How many runs of others wait is not for an owner to know, and says
//! little about when its own begins, since owners alternate.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::domain::owner::Principal;

/// The waiting runs.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    departures: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    /// By owner, in order of arrival.
    runs: BTreeSet<(Principal, u64)>,
}

/// A waiting run; its drop leaves the queue.
#[derive(Debug)]
pub(super) struct QueueEntry(QueuePosition);

/// Reports the position of a waiting run. Reserves nothing.
#[derive(Debug, Clone)]
pub struct QueuePosition {
    run: (Principal, u64),
    queue: Arc<Queue>,
}

impl Queue {
    pub(super) fn join(queue: &Arc<Self>, who: &Principal) -> QueueEntry {
        let mut waiting = queue.waiting.lock();
        waiting.newest += 1;
        let run = (who.clone(), waiting.newest);
        waiting.runs.insert(run.clone());
        QueueEntry(QueuePosition { run, queue: Arc::clone(queue) })
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().runs.len()
    }
}

impl QueueEntry {
    pub(super) fn position(&self) -> QueuePosition {
        self.0.clone()
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let QueuePosition { run, queue } = &self.0;
        queue.waiting.lock().runs.remove(run);
        queue.departures.send_replace(());
    }
}

impl QueuePosition {
    /// Changes whenever a run leaves the queue.
    pub fn departures(&self) -> watch::Receiver<()> {
        self.queue.departures.subscribe()
    }

    /// The position among the waiting runs of the owner: 1 is next. `None` once the run no longer waits. A run that
    /// waits for its own conversation may be overtaken.
    pub fn now(&self) -> Option<u32> {
        let waiting = self.queue.waiting.lock();
        let until_this = (self.run.0.clone(), 0)..=self.run.clone();
        let is_waiting = waiting.runs.contains(&self.run);
        is_waiting.then(|| u32::try_from(waiting.runs.range(until_this).count()).unwrap_or(u32::MAX))
    }
}
