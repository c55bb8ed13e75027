//! Cells that wait for their turn. As in Jupyter, one that was sent before its session was restarted or closed is not
//! executed after it.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::registry::SessionKey;
use crate::services::shares::WeakMap;

/// The output of a cell that waited and was not executed.
pub(in crate::services) const NOT_EXECUTED: &str =
    "[The session was restarted or closed while this cell waited for its turn, so it was not executed.]\n";

/// Shared by the cells of one session. Cancelled when that is restarted or closed.
pub(in crate::services) type WaitingCell = Arc<CancellationToken>;

/// Entries without a cell are removed, so there are no more than runs. When one is taken out and cancelled, cells that
/// are sent from then on are executed.
pub(super) type WaitingCells = WeakMap<SessionKey, CancellationToken>;
