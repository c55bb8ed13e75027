//! Cells that wait for their turn. As in Jupyter, one that was sent before its session was restarted or closed is not
//! executed after it.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::domain::{id::Language, owner::ConversationKey};

/// The output of a cell that waited and was not executed.
pub(in crate::services) const NOT_EXECUTED: &str =
    "[The session was restarted or closed while this cell waited for its turn, so it was not executed.]\n";

/// Shared by the cells of one session. Cancelled when that is restarted or closed.
pub(in crate::services) type WaitingCell = Arc<CancellationToken>;

/// By conversation and language. Entries without a cell are removed, so there are no more than runs.
#[derive(Default)]
pub(super) struct WaitingCells(Mutex<HashMap<(ConversationKey, Language), Weak<CancellationToken>>>);

impl WaitingCells {
    pub(super) fn add(&self, conversation: &ConversationKey, language: &Language) -> WaitingCell {
        let mut all = self.0.lock();
        all.retain(|_, cells| cells.strong_count() > 0);
        let known = all.entry((conversation.clone(), language.clone())).or_default();
        let cells = known.upgrade().unwrap_or_default();
        *known = Arc::downgrade(&cells);
        cells
    }

    /// Cells that are sent from now on are executed.
    pub(super) fn cancel(&self, conversation: &ConversationKey, language: &Language) {
        let cells = self.0.lock().remove(&(conversation.clone(), language.clone()));
        if let Some(cells) = cells.and_then(|cells| cells.upgrade()) {
            cells.cancel();
        }
    }
}
