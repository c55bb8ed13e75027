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
        let stopped = self.cells.open.first().map(|cell| (cell.client.clone(), cell.id.clone()));
        if let TurnState::Held { watch, .. } = &mut self.turn {
            *watch = match stopped {
                Some(cell) => Watch::Stopping { cell, time: Box::pin(link.interrupting()) },
                None => Watch::Reported,
            };
        }
    }

    /// Once the cell that was stopped is over, those that were sent behind it are watched.
    pub(super) fn reacted(&mut self) {
        let TurnState::Held { turn, watch, .. } = &mut self.turn else { return };
        if let Watch::Stopping { cell: (client, id), .. } = watch
            && !self.cells.is_open(client, id)
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
