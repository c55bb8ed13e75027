//! The ends of a hub's cells: each is reported with what it used, which the bridge says when it is asked. A cell whose
//! files exceed a limit, or whose token has ended, is interrupted like any cell, and if it does not react its session
//! ends.
//!
//! The turn is held until a cell is reported, so the figures include only cells of this hub.

use std::mem;

use bytes::Bytes;
use serde_json::Value;

use super::{
    super::{
        cells::Cell,
        turn::{StopReason, Watch},
    },
    Cells, HubTask, KernelLink, TurnState,
};
use crate::{
    domain::{Ended, Figures},
    services::sessions::SessionEnd,
};

impl HubTask {
    /// Asks for what the cells used that are over, and reports those for which no answer came.
    pub(super) fn end_cells(&mut self) {
        for _ in 0..self.cells.end() {
            self.outbox.push_back(KernelLink::ask_figures());
        }
        while let Some(cell) = self.cells.take_late() {
            self.report(&cell, Figures::default(), false, None);
        }
    }

    /// The bridge has said what was used: by the cell that was over first, or before the first one of a turn.
    pub(super) fn measured(&mut self, link: &KernelLink, said: &Value) {
        let oom_kills = said["oomKills"].as_u64();
        let before = mem::replace(&mut self.oom_kills, oom_kills);
        if let Some(cell) = self.cells.unmeasured.pop_front() {
            let oom_killed = before.zip(oom_kills).is_some_and(|(before, after)| after > before);
            self.report(&cell, link.session.figures(said), oom_killed, None);
        }
    }

    /// Takes the code that the kernel will not answer any more, with its clients. What was meant for this kernel is not
    /// executed by the next one. Cells that are over are reported, and the one that was executed with what ended it;
    /// what they used will not be known.
    pub(super) fn take_lost(&mut self, end: SessionEnd) -> Vec<(String, Bytes)> {
        let Cells { open, unmeasured, executed, .. } = mem::take(&mut self.cells);
        self.cells.executed = executed;
        for cell in &unmeasured {
            self.report(cell, Figures::default(), false, None);
        }
        if let Some(cell) = open.first() {
            self.report(cell, Figures::default(), false, Some(end));
        }
        self.turn = TurnState::None;
        self.clear_outbox();
        self.orders.ended();
        self.last_end = end;
        let sent = open.into_iter().filter(|cell| !cell.has_replied());
        let waiting = self.shell.drain(..).filter(|order| order.code.is_some());
        let waiting = waiting.map(|order| (order.client, order.message.header));
        sent.map(|cell| (cell.client, cell.header)).chain(waiting).collect()
    }

    fn report(&mut self, cell: &Cell, used: Figures, oom_killed: bool, killed_by: Option<SessionEnd>) {
        let TurnState::Held { turn, .. } = &self.turn else { return };
        let [stdout_bytes, stderr_bytes] = cell.printed;
        let figures = Figures { wall: cell.took(), stdout_bytes, stderr_bytes, ..used };
        // One that is idle and sends no reply has failed.
        let unknown = || killed_by.map_or(Ok(Ended::Exited { code: 1 }), SessionEnd::of_cell);
        let ended = cell.ended().map_or_else(unknown, Ok);
        turn.report(&self.language, &cell.code.text, figures, ended, oom_killed);
        self.reported = cell.header.clone();
    }

    /// Tells those who watch, and stops the cell that runs.
    pub(super) fn stop_cells(&mut self, reason: &StopReason, link: &KernelLink) {
        self.note(&format!("[{}]\n", reason.sentence()));
        let stopped = self.cells.open.first_mut().map(|cell| {
            cell.stopped = Some(reason.ended());
            cell.code.request.clone()
        });
        if let TurnState::Held { watch, .. } = &mut self.turn {
            *watch = match stopped {
                Some(request) => Watch::Stopping { request, time: Box::pin(link.interrupting()) },
                None => Watch::Reported,
            };
        }
    }

    /// Once the cell that was stopped is over, those that were sent behind it are watched.
    pub(super) fn reacted(&mut self) {
        let TurnState::Held { turn, watch, .. } = &mut self.turn else { return };
        if let Watch::Stopping { request, .. } = watch
            && !self.cells.is_open(request)
        {
            *watch = if self.cells.open.is_empty() { Watch::Reported } else { Watch::begin(turn) };
        }
    }

    /// Ends the session: its cell did not react.
    pub(super) fn time_up(&mut self, link: &KernelLink) {
        if let TurnState::Held { watch, .. } = &mut self.turn {
            *watch = Watch::Reported;
        }
        self.runs.sessions().kill(link);
    }
}
