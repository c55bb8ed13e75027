//! The shell channel: code that waits for a turn of its token, what its client sent behind it, and the ends of its
//! cells.
//!
//! Each cell is reported with what it used, which the bridge says when it is asked. The turn is held until then, so the
//! figures include only cells of this hub. A cell whose files exceed a limit, or whose token has ended, is interrupted
//! like any cell, and if it does not react its session ends.

use std::{collections::VecDeque, mem, sync::Arc};

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use super::{
    super::{
        cells::Cell,
        order::Capacity,
        turn::{StopReason, Watch},
    },
    Cells, HubTask, KernelLink, Order, TurnState,
};
use crate::{
    domain::{Code, EventKind, Failure, Figures},
    services::sessions::{SessionEnd, message::KernelMessage},
};

/// What waits for the kernel or a turn, or is executed, in bytes and messages: of the shell channel, and as much of the
/// others. Beyond that nothing more is taken from clients.
const WAITING_BYTES_MAX: usize = 8 << 20;
const WAITING_MAX: usize = 1024;

impl HubTask {
    /// The channels of which more is taken from clients.
    pub(super) fn capacity(&self) -> Capacity {
        let shell = self.shell.iter().map(|order| &order.message);
        let bytes: usize = shell.chain(&self.outbox).map(KernelMessage::bytes).sum();
        let (cells, cells_bytes) = self.cells.held();
        let count = self.shell.len() + self.outbox.len() + cells;
        let urgent_bytes: usize = self.urgent.iter().map(KernelMessage::bytes).sum();
        Capacity {
            shell: bytes + cells_bytes < WAITING_BYTES_MAX && count < WAITING_MAX,
            urgent: urgent_bytes < WAITING_BYTES_MAX && self.urgent.len() < WAITING_MAX,
        }
    }

    /// Takes a message for the shell channel. Code that a client sends again is not executed again: its answer goes to
    /// where the client is now, unless it was given before.
    pub(super) fn take_shell(&mut self, order: Order) {
        let Some(request) = order.code.as_ref().map(|code| &code.request) else { return self.shell.push_back(order) };
        let is_it = |other: &&mut Order| other.code.as_ref().is_some_and(|code| code.request == *request);
        if let Some(waiting) = self.shell.iter_mut().find(is_it) {
            waiting.client = order.client;
        } else if let Some(cell) = self.cells.open.iter_mut().find(|cell| cell.code.request == *request)
            && !cell.progress.has_replied()
        {
            cell.client.clone_from(&order.client);
            let id = cell.id.clone();
            if let Some(question) = self.cells.question(&id).cloned() {
                self.deliver(Some(&order.client), &question);
            }
        } else if self.cells.executed.contains(request) {
            let why = "This request was executed before, and its answer went to where its client was then. It is not \
                       executed again: send code that is to be executed under a new msg_id.";
            self.refuse([(order.client, order.message.header)], &Failure::new(Code::IdempotencyKeyReused, why));
        } else {
            self.shell.push_back(order);
        }
    }

    /// Takes a message that waited for room when its kernel ended. What it asks or answers is that kernel's, so the
    /// next one does not get it.
    pub(super) fn refuse_late(&mut self, order: Order) {
        if order.code.is_some() {
            let failure = Failure::new(Code::SessionEnded, self.last_end.sentence());
            self.refuse([(order.client, order.message.header)], &failure);
        }
    }

    /// Ends cells that are over, passes on what may be passed on, and begins the cell whose turn it is in the kernel.
    pub(super) fn advance(&mut self) {
        self.end_cells();
        self.outbox.extend(self.cells.open.iter_mut().filter_map(|cell| cell.progress.probe()));
        self.settle_interrupted();
        self.pass_on_next();
        self.begin_running();
    }

    fn pass_on_next(&mut self) {
        loop {
            self.return_turn();
            let Some(order) = self.shell.front() else { return };
            // What comes while the last cell is measured waits for a turn of its own, and so does another token's.
            let is_taken = self.cells.has_begun && self.cells.open.is_empty();
            if order.code.is_some() && (is_taken || !self.turn.is_of(&order.who)) {
                if matches!(self.turn, TurnState::None) {
                    let session = Arc::clone(&self.link.session);
                    self.turn = TurnState::awaited(self.runs.clone(), session, &order.who);
                }
                return;
            }
            let Some(order) = self.shell.pop_front() else { return };
            self.pass_on(order);
        }
    }

    /// The kernel executes one cell after the other, so the next one begins with the reply of the one before it.
    fn begin_running(&mut self) {
        if self.cells.running().is_some_and(|cell| cell.begun.is_some()) {
            return;
        }
        if let Some(replied) = self.watched.take() {
            self.note_all(&replied, self.link.reporter.end());
        }
        let TurnState::Held { turn, .. } = &self.turn else { return };
        if let Some(cell) = self.cells.running() {
            cell.begun = Some((turn.run_begun(&cell.code.text), Instant::now()));
            self.watched = Some(cell.header.clone());
            let (header, notes, question_line) = (cell.header.clone(), self.notes.0.clone(), self.question_line);
            self.link.reporter.to(Box::new(move |event| {
                if let EventKind::Approval(question) = event {
                    drop(notes.send((header.clone(), question_line(&question))));
                }
            }));
        }
    }

    /// Gives a turn back in which nothing is under way, unless the code that is next waits for it.
    fn return_turn(&mut self) {
        let is_done = self.cells.open.is_empty() && self.cells.unmeasured.is_empty();
        if !is_done || !matches!(self.turn, TurnState::Held { .. }) {
            return;
        }
        if self.cells.has_begun || !self.next_code().is_some_and(|order| self.turn.is_of(&order.who)) {
            self.cells.has_begun = false;
            let (over, tell) = (mem::take(&mut self.turn).finish(), (self.reported.clone(), self.notes.0.clone()));
            let session = &self.link.session;
            self.runs.sessions().carry_out_until(&session.conversation.owner, session.id, over, tell);
        }
    }

    /// The code that waits first.
    fn next_code(&self) -> Option<&Order> {
        self.shell.iter().find(|order| order.code.is_some())
    }

    /// Passes a message of the shell channel on; code only where its token has not ended and has limits left.
    fn pass_on(&mut self, order: Order) {
        let Order { client, header, code, message, .. } = order;
        match code {
            Some(code) => {
                if let Err(failure) = self.turn.begin_cell(&self.link.session.language) {
                    return self.refuse([(client, message.header)], &failure);
                }
                self.cells.begin(header.msg_id, client, message.header.clone(), code);
            }
            None => self.cells.asked(header.msg_id, client),
        }
        self.outbox.push_back(message);
    }

    /// Answers the code that waits for the turn which did not come: it is not executed. Another token's goes on waiting
    /// for its own.
    pub(super) fn refuse_waiting(&mut self, failure: &Failure) {
        self.turn = TurnState::None;
        let Some(by) = self.next_code().map(|order| order.who.token()) else { return };
        let is_refused = |order: &Order| order.code.is_some() && order.who.token() == by;
        let (code, rest) = self.shell.drain(..).partition::<VecDeque<_>, _>(is_refused);
        self.shell = rest;
        self.refuse(code.into_iter().map(|order| (order.client, order.message.header)), failure);
    }

    /// Asks for what the cells used that are over, and reports those for which no answer came.
    fn end_cells(&mut self) {
        for _ in 0..self.cells.end() {
            self.outbox.push_back(KernelLink::ask_figures());
        }
        while let Some(cell) = self.cells.take_late() {
            self.report(&cell, &Value::Null, false, None);
        }
    }

    /// The bridge has said what was used: by the cell that was over first, or before the first one of a turn.
    pub(super) fn measured(&mut self, usage: &Value) {
        let oom_killed = self.oom_kills.have_grown(usage);
        if let Some(cell) = self.cells.take_measured() {
            self.report(&cell, usage, oom_killed, None);
        }
    }

    /// Takes the code that the kernel will not answer any more, with its clients. What was meant for this kernel is not
    /// executed by the next one. Cells that have replied are reported, and the one that was executed with what ended
    /// it; what they used together is that of the first.
    pub(super) fn take_lost(&mut self, end: SessionEnd) -> Vec<(String, Bytes)> {
        let Cells { open, unmeasured, executed, .. } = mem::take(&mut self.cells);
        self.cells.executed = executed;
        let (replied, sent): (Vec<_>, Vec<_>) = open.into_iter().partition(|cell| cell.progress.has_replied());
        for cell in unmeasured.iter().chain(&replied).chain(sent.first()) {
            self.report(cell, &Value::Null, false, Some(end));
        }
        self.turn = TurnState::None;
        self.watched = None;
        self.clear_outbox();
        self.orders.ended();
        self.last_end = end;
        let waiting = self.shell.drain(..).filter(|order| order.code.is_some());
        let waiting = waiting.map(|order| (order.client, order.message.header));
        sent.into_iter().map(|cell| (cell.client, cell.header)).chain(waiting).collect()
    }

    /// Reports a cell, with what the bridge said that was used when it was over.
    fn report(&mut self, cell: &Cell, usage: &Value, oom_killed: bool, killed_by: Option<SessionEnd>) {
        let TurnState::Held { turn, .. } = &self.turn else { return };
        let [stdout_bytes, stderr_bytes] = cell.printed;
        let used = self.link.session.figures(usage, cell.took(), turn.cpu_millis());
        let figures = Figures { stdout_bytes, stderr_bytes, ..used };
        // One whose reply came before its turn was not begun.
        let run = cell.begun.map_or_else(|| turn.run_begun(&cell.code.text), |(run, _)| run);
        turn.run_over(run, &cell.code.text, figures, cell.progress.ended(killed_by), oom_killed);
        self.reported = cell.header.clone();
    }

    /// Tells those who watch, and stops the cell that runs.
    pub(super) fn stop_cells(&mut self, reason: &StopReason) {
        self.note(&format!("[{}]\n", reason.sentence));
        let stopped = self.cells.running().map(|cell| {
            cell.progress.stop(reason.ended);
            cell.code.request.clone()
        });
        if let TurnState::Held { watch, .. } = &mut self.turn {
            *watch = match stopped {
                Some(request) => {
                    Watch::Stopping { request, stop: Box::pin(self.runs.sessions().stop_cell(&self.link)) }
                }
                None => Watch::Reported,
            };
        }
    }

    /// Once the cell that was stopped has replied, it has obeyed, and those that were sent behind it are watched.
    fn settle_interrupted(&mut self) {
        let TurnState::Held { turn, watch, .. } = &mut self.turn else { return };
        let running = self.cells.running().map(|cell| &cell.code.request);
        let is_current = match &*watch {
            Watch::Watched(_) => true,
            Watch::Stopping { request, .. } => running == Some(request),
            Watch::Reported => running.is_none(),
        };
        if !is_current {
            *watch = if running.is_some() { Watch::begin(turn) } else { Watch::Reported };
        }
    }
}
