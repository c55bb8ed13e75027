//! The code that clients have sent to a kernel and that has not ended, and who asked what.
//!
//! As everywhere, a cell has ended at its reply and its idle status; where one of both is missing, a moment later.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

/// How long after the first sign of its end a cell still counts.
const GRACE: Duration = Duration::from_secs(1);
/// Requests whose replies are awaited. Some kinds have none, so the oldest is forgotten.
const ASKED_MAX: usize = 1024;

/// One execution.
pub(super) struct Cell {
    id: String,
    pub(super) client: String,
    pub(super) header: Bytes,
    pub(super) code: String,
    pub(super) begun: Instant,
    pub(super) is_ok: Option<bool>,
    is_idle: bool,
    over: Option<Instant>,
}

#[derive(Default)]
pub(super) struct Cells {
    /// In the order in which they were sent.
    pub(super) open: Vec<Cell>,
    asked: VecDeque<(String, String)>,
}

impl Cells {
    pub(super) fn begin(&mut self, id: String, client: String, header: Bytes, code: String) {
        let begun = Instant::now();
        self.open.push(Cell { id, client, header, code, begun, is_ok: None, is_idle: false, over: None });
    }

    pub(super) fn is_open(&self, id: &str) -> bool {
        self.open.iter().any(|cell| cell.id == id)
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

    pub(super) fn replied(&mut self, id: &str, is_ok: bool) {
        self.sign(id, |cell| cell.is_ok = Some(is_ok));
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

    /// When the next one is over, as far as that is known.
    pub(super) fn next_over(&self) -> Option<Instant> {
        self.open.iter().filter_map(|cell| cell.over).min()
    }

    /// Takes those that are over. A reply that comes later still finds its client.
    pub(super) fn take_over(&mut self) -> Vec<Cell> {
        let now = Instant::now();
        let over: Vec<_> = self.open.extract_if(.., |cell| cell.over.is_some_and(|over| over <= now)).collect();
        for cell in over.iter().filter(|cell| cell.is_ok.is_none()) {
            self.asked(cell.id.clone(), cell.client.clone());
        }
        over
    }
}
