//! The waiting runs and their positions. Gives no right to anything.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The waiting runs, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    departures: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    numbers: BTreeSet<u64>,
}

/// A waiting run; its drop leaves the queue.
#[derive(Debug)]
pub(super) struct QueueEntry(QueuePosition);

/// Reports the position of a waiting run. Reserves nothing.
#[derive(Debug, Clone)]
pub struct QueuePosition {
    number: u64,
    queue: Arc<Queue>,
}

impl Queue {
    pub(super) fn join(queue: &Arc<Self>) -> QueueEntry {
        let mut waiting = queue.waiting.lock();
        waiting.newest += 1;
        let number = waiting.newest;
        waiting.numbers.insert(number);
        QueueEntry(QueuePosition { number, queue: Arc::clone(queue) })
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.lock().numbers.len()
    }
}

impl QueueEntry {
    pub(super) fn position(&self) -> QueuePosition {
        self.0.clone()
    }
}

impl Drop for QueueEntry {
    fn drop(&mut self) {
        let QueuePosition { number, queue } = &self.0;
        queue.waiting.lock().numbers.remove(number);
        queue.departures.send_replace(());
    }
}

impl QueuePosition {
    /// Changes whenever a run leaves the queue.
    pub fn departures(&self) -> watch::Receiver<()> {
        self.queue.departures.subscribe()
    }

    /// The position: 1 is next. `None` once the run no longer waits. A run that waits for its own conversation may be
    /// overtaken.
    pub fn now(&self) -> Option<u32> {
        let waiting = self.queue.waiting.lock();
        let is_waiting = waiting.numbers.contains(&self.number);
        is_waiting.then(|| u32::try_from(waiting.numbers.range(..=self.number).count()).unwrap_or(u32::MAX))
    }
}
