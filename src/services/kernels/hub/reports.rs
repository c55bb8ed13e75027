//! The ends of a hub's cells: each is reported with what it used, which the bridge says when it is asked.
//!
//! The turn is held until then, so the figures include only cells of this hub.

use std::mem;

use bytes::Bytes;
use serde_json::Value;

use super::{super::cells::Cell, HubTask, KernelLink, TurnState};
use crate::domain::outcome::Figures;

impl HubTask {
    /// Asks for what the cells used that are over, and reports those for which no answer came.
    pub(super) fn end_cells(&mut self) {
        for _ in 0..self.cells.end() {
            self.outbox.push_back(KernelLink::ask_figures());
        }
        while let Some(cell) = self.cells.take_late() {
            self.report(&cell, Figures::default(), false);
        }
    }

    /// The bridge has said what was used: by the cell that was over first, or before the first one of a turn.
    pub(super) fn measured(&mut self, link: &KernelLink, said: &Value) {
        let oom_kills = said["oomKills"].as_u64();
        let before = mem::replace(&mut self.oom_kills, oom_kills);
        if let Some(cell) = self.cells.unmeasured.pop_front() {
            let oom_killed = before.zip(oom_kills).is_some_and(|(before, after)| after > before);
            self.report(&cell, link.figures(said), oom_killed);
        }
    }

    /// Reports those that are over; what they used will not be known.
    pub(super) fn report_unmeasured(&mut self) {
        for cell in mem::take(&mut self.cells.unmeasured) {
            self.report(&cell, Figures::default(), false);
        }
    }

    /// Takes the code that the kernel will not answer any more, with its clients. What was meant for this kernel is not
    /// executed by the next one.
    pub(super) fn take_lost(&mut self) -> Vec<(String, Bytes)> {
        self.report_unmeasured();
        let open = mem::take(&mut self.cells).open;
        if let Some(cell) = open.first() {
            self.report(cell, Figures::default(), false);
        }
        self.turn = TurnState::None;
        self.outbox.clear();
        let sent = open.into_iter().filter(|cell| cell.is_ok.is_none());
        let waiting = self.shell.drain(..).filter(|order| order.code.is_some());
        let waiting = waiting.map(|order| (order.client, order.message.header));
        sent.map(|cell| (cell.client, cell.header)).chain(waiting).collect()
    }

    fn report(&mut self, cell: &Cell, used: Figures, oom_killed: bool) {
        let TurnState::Held { turn, .. } = &self.turn else { return };
        let [stdout_bytes, stderr_bytes] = cell.printed;
        let figures = Figures { wall: cell.took(), stdout_bytes, stderr_bytes, ..used };
        turn.report(&self.language, &cell.code, figures, (cell.is_ok.unwrap_or_default(), oom_killed));
        self.reported = cell.header.clone();
    }
}
