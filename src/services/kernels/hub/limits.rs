//! Cells of a hub whose files exceed a limit, or whose token has ended: such a cell is interrupted like any cell, and
//! if it does not react its session ends.

use super::{
    super::turn::{StopReason, TurnState, Watch},
    HubTask, KernelLink,
};

impl HubTask {
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
        self.sessions.kill(link);
    }
}
