//! The code that clients have sent to a kernel and that has not ended, and which client sent each request.
//!
//! As everywhere, a cell has ended at its reply and its idle status; where one of both is missing, a moment later. What
//! it used is known a moment after that.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

/// How long after the first sign of its end a cell still counts.
const GRACE: Duration = Duration::from_secs(1);
/// How long after its end a cell waits for what it used.
const FIGURES_MAX: Duration = Duration::from_secs(5);
/// Requests whose replies are awaited. Some kinds have none, so the oldest is forgotten.
const ASKED_MAX: usize = 1024;

/// One execution.
pub(super) struct Cell {
    pub(super) id: String,
    pub(super) client: String,
    pub(super) header: Bytes,
    pub(super) code: String,
    begun: Instant,
    pub(super) is_ok: Option<bool>,
    /// Bytes on standard output and on standard error.
    pub(super) printed: [u64; 2],
    is_idle: bool,
    over: Option<Instant>,
}

impl Cell {
    /// How long it took, so far or until it was over.
    pub(super) fn took(&self) -> Duration {
        self.over.unwrap_or_else(Instant::now) - self.begun
    }
}

#[derive(Default)]
pub(super) struct Cells {
    /// In the order in which they were sent. Of those of several clients with one id, the kernel's messages are about
    /// the first.
    pub(super) open: Vec<Cell>,
    /// Those that are over and whose figures have not come.
    pub(super) unmeasured: VecDeque<Cell>,
    /// Whether one has begun in the turn that is held.
    pub(super) has_begun: bool,
    asked: VecDeque<(String, String)>,
}

impl Cells {
    pub(super) fn begin(&mut self, id: String, client: String, header: Bytes, code: String) {
        self.has_begun = true;
        let begun = Instant::now();
        let (is_ok, printed, is_idle, over) = (None, [0, 0], false, None);
        self.open.push(Cell { id, client, header, code, begun, is_ok, printed, is_idle, over });
    }

    pub(super) fn is_open(&self, client: &str, id: &str) -> bool {
        self.open.iter().any(|cell| cell.client == client && cell.id == id)
    }

    /// Notes who sent a request that is no cell.
    pub(super) fn asked(&mut self, id: String, client: String) {
        if self.asked.len() >= ASKED_MAX {
            self.asked.pop_front();
        }
        self.asked.push_back((id, client));
    }

    /// The client that sent a request; forgotten at the reply.
    pub(super) fn asker(&mut self, id: &str, is_reply: bool) -> Option<String> {
        if let Some(cell) = self.open.iter().find(|cell| cell.id == id) {
            return Some(cell.client.clone());
        }
        let at = self.asked.iter().rposition(|(asked, _)| asked == id)?;
        if is_reply { self.asked.remove(at).map(|(_, client)| client) } else { Some(self.asked[at].1.clone()) }
    }

    /// Counts what a cell prints, if it is one.
    pub(super) fn printed(&mut self, id: &str, content: impl FnOnce() -> Value) {
        if let Some(cell) = self.open.iter_mut().find(|cell| cell.id == id) {
            let content = content();
            let bytes = content["text"].as_str().map_or(0, str::len);
            cell.printed[usize::from(content["name"] == "stderr")] += bytes as u64;
        }
    }

    pub(super) fn replied(&mut self, id: &str, is_ok: impl FnOnce() -> bool) {
        self.sign(id, |cell| cell.is_ok = Some(is_ok()));
    }

    /// The header of the cell, if it is one.
    pub(super) fn idle(&mut self, id: &str) -> Option<Bytes> {
        self.sign(id, |cell| cell.is_idle = true);
        self.open.iter().find(|cell| cell.id == id).map(|cell| cell.header.clone())
    }

    fn sign(&mut self, id: &str, note: impl FnOnce(&mut Cell)) {
        let Some(cell) = self.open.iter_mut().find(|cell| cell.id == id) else { return };
        note(cell);
        let now = Instant::now();
        cell.over = Some(if cell.is_ok.is_some() && cell.is_idle { now } else { now + GRACE });
    }

    /// When the next one is over, or is not measured any more, as far as that is known.
    pub(super) fn next_over(&self) -> Option<Instant> {
        let measured = self.unmeasured.front().and_then(|cell| Some(cell.over? + FIGURES_MAX));
        self.open.iter().filter_map(|cell| cell.over).chain(measured).min()
    }

    /// The next one whose figures did not come in time.
    pub(super) fn take_late(&mut self) -> Option<Cell> {
        let now = Instant::now();
        self.unmeasured.pop_front_if(|cell| cell.over.is_none_or(|over| over + FIGURES_MAX <= now))
    }

    /// Ends those that are over; how many. A reply that comes later still finds its client.
    pub(super) fn end(&mut self) -> usize {
        let now = Instant::now();
        let over: Vec<_> = self.open.extract_if(.., |cell| cell.over.is_some_and(|over| over <= now)).collect();
        for cell in over.iter().filter(|cell| cell.is_ok.is_none()) {
            self.asked(cell.id.clone(), cell.client.clone());
        }
        let count = over.len();
        self.unmeasured.extend(over);
        count
    }
}
