//! Who waits, and how far each has come. Gives no right to anything.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::watch;

/// Who waits, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: Mutex<Waiting>,
    departures: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: u64,
    numbers: BTreeSet<u64>,
}

/// Somebody who waits; its drop leaves the line.
#[derive(Debug)]
pub(super) struct InLine {
    number: u64,
    line: Arc<Line>,
}

/// Tells how far somebody has come in the line. Holds no place.
#[derive(Debug, Clone)]
pub struct Position {
    number: u64,
    line: Arc<Line>,
}

impl Line {
    pub(super) fn join(line: &Arc<Self>) -> InLine {
        let mut waiting = line.waiting();
        waiting.newest += 1;
        let number = waiting.newest;
        waiting.numbers.insert(number);
        InLine { number, line: Arc::clone(line) }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting().numbers.len()
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InLine {
    pub(super) fn position(&self) -> Position {
        Position { number: self.number, line: Arc::clone(&self.line) }
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.line.waiting().numbers.remove(&self.number);
        self.line.departures.send_replace(());
    }
}

impl Position {
    /// Changes whenever somebody leaves the line.
    pub fn departures(&self) -> watch::Receiver<()> {
        self.line.departures.subscribe()
    }

    /// How many wait from this one on to the front, itself included: 1 is next. Nothing once it waits no longer. One that
    /// waits for its own conversation may be overtaken.
    pub fn now(&self) -> Option<u32> {
        let waiting = self.line.waiting();
        let here = waiting.numbers.contains(&self.number);
        here.then(|| u32::try_from(waiting.numbers.range(..=self.number).count()).unwrap_or(u32::MAX))
    }
}
