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
                None => FilesState::Told,
            };
        }
    }

    /// Ends the session of a cell that did not react. Where others were sent behind it, the next one is watched.
    pub(super) fn time_up(&mut self, cell: &str, link: &KernelLink) {
        let (is_open, others) = (self.cells.is_open(cell), !self.cells.open.is_empty());
        if let TurnState::Held { turn, files, .. } = &mut self.turn {
            *files = if others && !is_open { FilesState::watched(turn) } else { FilesState::Told };
        }
        if is_open {
            self.sessions.kill(link);
        }
    }
}
