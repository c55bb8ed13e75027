//! Cells of a hub whose files exceed a limit: as any cell, one is interrupted, and where it does not react its session
//! ends.

use super::{
    super::turn::{FilesState, TurnState},
    HubTask, KernelLink,
};
use crate::domain::outcome::DiskLimit;

impl HubTask {
    /// Tells those who watch, and stops the cell that runs.
    pub(super) fn breached(&mut self, limit: DiskLimit, link: &KernelLink) {
        self.note(&format!("[{}]\n", limit.sentence()));
        let stopped = self.cells.open.first().map(|cell| cell.id.clone());
        if let TurnState::Held { files, .. } = &mut self.turn {
            *files = match stopped {
                Some(cell) => FilesState::Stopping { cell, time: Box::pin(link.interrupting()) },
                None => FilesState::Reported,
            };
        }
    }

    /// Once the cell that was stopped is over, those that were sent behind it are watched.
    pub(super) fn reacted(&mut self) {
        let TurnState::Held { turn, files, .. } = &mut self.turn else { return };
        if let FilesState::Stopping { cell, .. } = files
            && !self.cells.is_open(cell)
        {
            *files = if self.cells.open.is_empty() { FilesState::Reported } else { FilesState::watched(turn) };
        }
    }

    /// Ends the session: its cell did not react.
    pub(super) fn time_up(&mut self, link: &KernelLink) {
        if let TurnState::Held { files, .. } = &mut self.turn {
            *files = FilesState::Reported;
        }
        self.sessions.kill(link);
    }
}
